"""transformers' own `generate`: plain, assisted by a draft model, and with prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from foredraft.bench.contenders import Contender
from foredraft.bench.peers import common
from foredraft.bench.peers.common import Shared
from foredraft.bench.peers.rounds import Emission, Pass, PassLog, answer_of, drafting_of
from foredraft.bench.records import Answer
from foredraft.config import GenerationOptions
from foredraft.engine.stopping import end_tokens, room_for
from foredraft.errors import ConfigError, ModelError, suggestion

HONOURED = frozenset(
    {
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "eos_token_ids",
        "ignore_eos",
    }
)
TESTED = "5.24.0"
SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Plain `generate`: one token a pass."""

    module: ClassVar[str] = "transformers"
    package: ClassVar[str] = "transformers"
    tested: ClassVar[str] = TESTED
    needs_draft_model: ClassVar[bool] = False

    def build(self, name: str, shared: Shared) -> Contender:
        """See `Settings.build`."""
        return HFContender(name, shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assisted:
    """`generate` with an assistant model; None is the library's default."""

    module: ClassVar[str] = "transformers"
    package: ClassVar[str] = "transformers"
    tested: ClassVar[str] = TESTED
    needs_draft_model: ClassVar[bool] = True

    tokens: int | None = None
    """Draft tokens at most in a round."""
    confidence: float | None = None
    """Drafting stops behind a token less likely than this; 0 never stops."""
    schedule: str | None = None
    """How `tokens` changes from round to round; every answer begins with `tokens` itself."""

    def __post_init__(self) -> None:
        common.at_least(1, tokens=self.tokens)
        common.at_least(0, confidence=self.confidence)
        common.at_most(1, confidence=self.confidence)
        if self.schedule is not None and self.schedule not in SCHEDULES:
            hint = suggestion(self.schedule, SCHEDULES)
            raise ConfigError(f"unknown schedule {self.schedule!r}; {hint}")

    def build(self, name: str, shared: Shared) -> Contender:
        """See `Settings.build`."""
        draft_model = common.own_draft_model(name, shared)
        sizes = [m.config.get_text_config().vocab_size for m in (shared.target.model, draft_model)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"transformers assists only with a draft model of the target's vocabulary size {sizes[0]}, "
                f"and this one has {sizes[1]}; give another draft model"
            )
        settings = {
            "num_assistant_tokens": self.tokens,
            "assistant_confidence_threshold": self.confidence,
            "num_assistant_tokens_schedule": self.schedule,
        }
        return HFContender(name, shared, Assistant(draft_model, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """`generate` with prompt lookup, with the numbers of transformers' documentation."""

    module: ClassVar[str] = "transformers"
    package: ClassVar[str] = "transformers"
    tested: ClassVar[str] = TESTED
    needs_draft_model: ClassVar[bool] = False

    tokens: int = 10
    """Draft tokens at most in a round."""
    ngram: int = 2
    """Most tokens that must match."""

    def __post_init__(self) -> None:
        common.at_least(1, tokens=self.tokens, ngram=self.ngram)

    def build(self, name: str, shared: Shared) -> Contender:
        """See `Settings.build`."""
        mode = {"prompt_lookup_num_tokens": self.tokens, "max_matching_ngram_size": self.ngram}
        return HFContender(name, shared, mode=mode)


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model, and what its generation config says while it assists."""

    model: Any
    settings: Mapping[str, Any]


@dataclass(slots=True)
class EmissionLog:
    """A streamer for `generate`: keeps when it was handed which tokens, the prompt left out."""

    token_ids: list[list[int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _seen_prompt: bool = False

    def put(self, value: Tensor) -> None:
        """Called with tokens on the host [N] or [1, N]: the device is done with them."""
        now = time.perf_counter()
        if self._seen_prompt:
            self.token_ids.append(value.reshape(-1).tolist())
            self.times.append(now)
        self._seen_prompt = True

    def end(self) -> None:
        """Called when nothing follows."""


class HFContender:
    """`generate` on the shared target.

    Args:
        name: as named on the command line.
        shared: the loaded models.
        assistant: what drafts; None for no draft model.
        mode: entries of the generation config that choose the way of decoding.
    """

    def __init__(
        self,
        name: str,
        shared: Shared,
        assistant: Assistant | None = None,
        mode: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.comparable: str | None = None
        self._target, self._assistant, self._mode = shared.target, assistant, dict(mode or {})

    def refuse(self, options: GenerationOptions) -> str | None:
        """Names the options that this adapter does not pass on."""
        return common.not_honoured(options, HONOURED)

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """The whole answer, with one round for each target pass behind the first."""
        config = self._config(prompt_ids, options)
        seed = common.seed_of(options) if options.temperature > 0 else None
        target, draft = (PassLog(self._target.synchronize) for _ in range(2))
        stream = EmissionLog()
        with self._prepared(target, draft), common.seeded(seed, self._target.device):
            self._target.synchronize()
            started = time.perf_counter()
            self._generate(prompt_ids, config, stream)
        return answer_of(
            [token_id for tokens in stream.token_ids for token_id in tokens],
            emissions_of(target.passes, draft, stream),
            num_prompt=len(prompt_ids),
            started=started,
            stages=("target",) if self._assistant is None else ("draft", "target"),
        )

    def close(self) -> None:
        """Nothing is kept between answers."""

    def _config(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Any:
        from transformers import GenerationConfig

        ends = list(end_tokens(options, self._target))
        sampling: dict[str, Any] = {"do_sample": False}
        if options.temperature > 0:
            # A min_p of 0 would be worked over the whole vocabulary all the same; the other cuts are not.
            min_p = options.min_p or None
            cuts = {"top_k": options.top_k, "top_p": options.top_p, "min_p": min_p}
            sampling = {"do_sample": True, "temperature": options.temperature, **cuts}
        return GenerationConfig(
            max_new_tokens=room_for(prompt_ids, options, self._target),
            eos_token_id=ends or None,
            pad_token_id=(ends or [0])[0],  # one sequence is never padded; left out, it would warn
            **sampling,
            **self._mode,
        )

    @contextmanager
    def _prepared(self, target: PassLog, draft: PassLog) -> Iterator[None]:
        """Watch the models, and keep their own generation defaults out of the answer."""
        model = self._target.model
        with ExitStack() as stack:
            stack.enter_context(common.quiet())
            stack.enter_context(generation_defaults(model, {}))
            stack.enter_context(target.watching(model, model))
            if self._assistant is not None:
                helper = self._assistant.model
                stack.enter_context(generation_defaults(helper, self._assistant.settings))
                stack.enter_context(draft.watching(helper, helper))
            yield

    def _generate(self, prompt_ids: Sequence[int], config: Any, stream: EmissionLog) -> None:
        ids = torch.tensor([list(prompt_ids)], device=self._target.device)
        helper = {} if self._assistant is None else {"assistant_model": self._assistant.model}
        self._target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=stream,
            **helper,
        )


@contextmanager
def generation_defaults(model: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Give a model other generation defaults; its own, which `generate` may even change, come back after."""
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig(**settings)
    try:
        yield
    finally:
        model.generation_config = own


def emissions_of(passes: Sequence[Pass], draft: PassLog, stream: EmissionLog) -> list[Emission]:
    """What each target pass verified and gave; the first one's draft is part of the prefill and not told."""
    # Where the library looks for stops a step late, one pass more is made, whose token it drops.
    passes = passes[: len(stream.times)]
    first, *later = zip(passes, stream.token_ids, stream.times, strict=True)
    emissions = [Emission(len(first[1]), first[2])]
    for (before, *_), (verified, tokens, at) in pairwise([first, *later]):
        accepted = _num_accepted(verified.token_ids[0, 1:].tolist(), tokens)
        emissions.append(
            Emission(
                num_tokens=len(tokens),
                at=at,
                num_drafted=verified.rows - 1,
                num_accepted=accepted,
                cut=accepted == len(tokens),
                target_s=verified.seconds,
                drafting=drafting_of(draft, before.end, verified.begin),
            )
        )
    return emissions


def _num_accepted(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many emitted tokens were drafted: all but the last, and that one too where the round was cut."""
    last = len(tokens) - 1
    # A token that verification itself chose differs from the draft at its place, or stands behind it.
    return last + (last < len(draft) and draft[last] == tokens[last])
