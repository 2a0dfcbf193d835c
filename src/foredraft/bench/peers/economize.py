"""economize: techniques for Hugging Face models; here its training-free lookup and its draft model.

Cycles have the library's own default length, 4 tokens: with the 6 of an example in its documentation
lookup was 5 % slower on a CPU. CUDA graphs stay off, as by default there: passes in them cannot be watched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch

from foredraft.bench.contenders import Contender
from foredraft.bench.peers import common
from foredraft.bench.peers.common import Shared
from foredraft.bench.peers.rounds import Emission, Pass, PassLog, answer_of, drafting_of
from foredraft.bench.records import Answer
from foredraft.config import GenerationOptions
from foredraft.engine.stopping import end_tokens, room_for
from foredraft.errors import ConfigError, ModelError, suggestion

HONOURED = frozenset(
    {"max_new_tokens", "temperature", "top_p", "seed", "eos_token_ids", "ignore_eos"}
)
TECHNIQUES = {"lookup": ("ngram", "match"), "draft_model": ("confidence",)}
"""The options that belong to one technique alone."""
MATCHES = ("earliest", "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Economize:
    """economize's own decoding loop; None is the library's default."""

    module: ClassVar[str] = "economize"
    package: ClassVar[str] = "economize"
    tested: ClassVar[str] = "0.3.2"

    technique: str = "lookup"
    cycle: int | None = None
    """Tokens a cycle: draft tokens at most, and one more."""
    ngram: int | None = None
    """Most tokens that must match."""
    match: str | None = None
    """Which earlier match is copied from."""
    confidence: float | None = None
    """Drafting stops where the drafter's best token is less likely than this."""

    def __post_init__(self) -> None:
        if self.technique not in TECHNIQUES:
            hint = suggestion(self.technique, TECHNIQUES)
            raise ConfigError(f"unknown technique {self.technique!r}; {hint}")
        common.at_least(2, cycle=self.cycle)
        common.at_least(1, ngram=self.ngram)
        common.at_least(0, confidence=self.confidence)
        common.at_most(1, confidence=self.confidence)
        if self.match is not None and self.match not in MATCHES:
            raise ConfigError(f"unknown match {self.match!r}; {suggestion(self.match, MATCHES)}")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        for technique, names in TECHNIQUES.items():
            for name in names:
                value = getattr(self, name)
                if technique != self.technique and value is not None:
                    raise ConfigError(
                        f"{name}={value!r} is for technique={technique}; leave it out"
                    )

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with the shared draft model."""
        return self.technique == "draft_model"

    def build(self, name: str, shared: Shared) -> Contender:
        """See `Settings.build`."""
        draft_model = common.own_draft_model(name, shared) if self.needs_draft_model else None
        return EconomizeContender(name, shared, self, draft_model)

    def decoding(self, *, greedy: bool) -> Any:
        """The library's options of a lossless request."""
        from economize.decoding import DecodeConfig

        cycle: dict[str, Any] = {} if self.cycle is None else {"cycle_length": self.cycle}
        verifier = "greedy" if greedy else "rejection"
        return DecodeConfig(verifier=verifier, min_confidence=self.confidence, **cycle)

    def lookup(self) -> Any:
        """The library's options of prompt lookup."""
        from economize.techniques.lookup import LookupConfig

        chosen: dict[str, Any] = {"max_ngram": self.ngram, "match": self.match}
        return LookupConfig(**{name: v for name, v in chosen.items() if v is not None})


class EconomizeContender:
    """economize's loop over the shared target's own layers.

    The parts of the loop are put together as the library's `apply` does it, but on runners of their own: the
    draft model need not be loaded twice, and nothing is attached to a shared model between answers.

    Raises:
        ModelError: economize does not know this kind of model.
    """

    def __init__(
        self, name: str, shared: Shared, settings: Economize, draft_model: Any | None
    ) -> None:
        self.name = name
        self.comparable: str | None = None
        self._target, self._settings = shared.target, settings
        self._runner = _runner(shared.target.model)
        self._draft_runner = None if draft_model is None else _runner(draft_model)
        self._rehearse()

    def _rehearse(self) -> None:
        """Put the parts together once: another version of the library shows here, not amid a run."""
        for temperature in (0.0, 1.0):
            options = GenerationOptions(temperature=temperature, seed=0)
            self._decoder(options, EventLog())
            self._selector(options)

    def refuse(self, options: GenerationOptions) -> str | None:
        """Names the options that the library lacks."""
        return common.not_honoured(options, HONOURED)

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """The whole answer, with one round for each exact pass behind the prefill."""
        events = EventLog()
        decoder, selector = self._decoder(options, events), self._selector(options)
        stop = list(end_tokens(options, self._target)) or None
        room = room_for(prompt_ids, options, self._target)
        target, draft = (PassLog(self._target.synchronize) for _ in range(2))
        with self._watched(target, draft), torch.no_grad():
            self._target.synchronize()
            started = time.perf_counter()
            prompt = torch.tensor(list(prompt_ids), device=self._target.device)
            result = decoder.decode(prompt, room, selector=selector, stop=stop)
            token_ids = result.tokens.tolist()
        return answer_of(
            token_ids,
            emissions_of(events, target.passes, draft, len(token_ids)),
            num_prompt=len(prompt_ids),
            started=started,
            stages=("target",) if self._draft_runner is None else ("draft", "target"),
        )

    def close(self) -> None:
        """Nothing is kept between answers."""

    def _decoder(self, options: GenerationOptions, events: EventLog) -> Any:
        from economize.decoding import CycleDecoder

        config = self._settings.decoding(greedy=options.temperature == 0)
        return CycleDecoder(self._runner, self._drafter(), config, observers=(events,))

    def _drafter(self) -> Any:
        from economize.techniques.draft_model import DraftModelDrafter
        from economize.techniques.lookup import LookupDrafter

        vocab_size = self._runner.adapter.vocab_size
        if self._draft_runner is not None:
            return DraftModelDrafter(self._draft_runner, vocab_size)
        return LookupDrafter(self._settings.lookup(), vocab_size)

    def _selector(self, options: GenerationOptions) -> Any:
        from economize.decoding import GreedySelector, TopPSampler

        if options.temperature == 0:
            return GreedySelector()
        return TopPSampler(options.temperature, options.top_p, common.seed_of(options))

    @contextmanager
    def _watched(self, target: PassLog, draft: PassLog) -> Iterator[None]:
        """The library calls layers one by one, so a pass goes from the embedding to the head."""
        with common.quiet(), ExitStack() as stack:
            for log, runner in ((target, self._runner), (draft, self._draft_runner)):
                if runner is not None:
                    adapter = runner.adapter
                    stack.enter_context(log.watching(adapter.embed_tokens, adapter.lm_head))
            yield


class EventLog:
    """An observer of the library's loop: what was verified in each exact pass, and when that was known."""

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self.times: list[float] = []

    def __call__(self, event: Any) -> None:
        """Called once behind each exact pass, the prefill included."""
        self.times.append(time.perf_counter())
        self.drafted.append(event.drafted)
        self.accepted.append(event.accepted)


def emissions_of(
    events: EventLog, passes: Sequence[Pass], draft: PassLog, num_tokens: int
) -> list[Emission]:
    """What each exact pass verified and gave, of an answer of `num_tokens` tokens."""
    emissions = [Emission(1, events.times[0])]
    left = num_tokens - 1
    later = zip(
        pairwise(passes), events.drafted[1:], events.accepted[1:], events.times[1:], strict=True
    )
    for (before, verified), drafted, accepted, at in later:
        kept = min(accepted + 1, left)
        emissions.append(
            Emission(
                num_tokens=kept,
                at=at,
                num_drafted=drafted,
                num_accepted=accepted,
                cut=kept < accepted + 1,
                target_s=verified.seconds,
                drafting=drafting_of(draft, before.end, verified.begin),
            )
        )
        left -= kept
    return emissions


def _runner(model: Any) -> Any:
    """The library's view of a model."""
    from economize.arch import ARCHITECTURES, adapter_for
    from economize.errors import EconomizeError
    from economize.runtime import LayerRunner

    kind = model.config.get_text_config().model_type
    if kind not in ARCHITECTURES and model.config.model_type not in ARCHITECTURES:
        raise ModelError(f"economize knows no model of type {kind!r}")
    try:
        return LayerRunner(adapter_for(model))
    except EconomizeError as error:
        raise ModelError(f"economize cannot run this model ({error})") from error
