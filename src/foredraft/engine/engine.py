"""The public engine: four parts, checked once, then any number of requests."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from foredraft.config import MAX_TREE_NODES, GenerationOptions
from foredraft.engine.batch import MAX_BATCH, generate_batch
from foredraft.engine.clock import StageClock
from foredraft.engine.contracts import check_kind, check_selection
from foredraft.engine.legality import check_features, check_legal, check_roots
from foredraft.engine.open_roots import PendingLaw
from foredraft.engine.prompts import Prompt, encode_prompt
from foredraft.engine.session import Drafting, Session
from foredraft.engine.stopping import Criterion, StopRules, StopState, end_tokens, room_for
from foredraft.engine.stream import Stream
from foredraft.engine.text import IncrementalText, find_stray_byte
from foredraft.errors import ConfigError
from foredraft.protocols import (
    Drafter,
    FeatureDrafter,
    FeaturePolicy,
    FeatureState,
    FeatureTarget,
    LawReader,
    ModelState,
    Policy,
    RootVerifier,
    TakeFeatures,
    Target,
    Verifier,
)
from foredraft.protocols.shared_features import shared, union_of
from foredraft.results import Result
from foredraft.sampling.law import RequestLaw
from foredraft.sampling.randomness import Randomness, SeededRandomness, fresh_seed
from foredraft.verifiers.exact import ExactVerifier


class Engine:
    """A target, and what makes it faster.

    Args:
        target: the model whose answers these are.
        drafter: what proposes; None is plain decoding.
        policy: decides the shape of drafts; None takes the drafter's own.
        verifier: the acceptance algorithm; None is coupled exact verification.
        tokenizer: a `transformers` tokenizer, for prompts and answers as text.

    Raises:
        ConfigError: the parts do not keep the target's law together.

    Requests may run at the same time in several threads; each has a session of its own.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        verifier: Verifier | None = None,
        tokenizer: Any | None = None,
    ) -> None:
        check_kind("target", target, Target)
        for name, part, kind in (
            ("drafter", drafter, Drafter),
            ("policy", policy, Policy),
            ("verifier", verifier, Verifier),
        ):
            if part is not None:
                check_kind(name, part, kind)
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.verifier: Verifier = verifier or ExactVerifier()
        if drafter is None and policy is not None:
            raise ConfigError(f"{type(policy).__name__} shapes drafts, and there is no drafter")
        self.policy = policy or (drafter.default_policy if drafter else None)
        check_roots(self.verifier, target)
        if drafter is not None and self.policy is not None:
            check_legal(drafter, self.policy, self.verifier)
            for part in (drafter, self.policy):
                check_features(part, target)
            self._check_size(self.policy)

    def _check_size(self, policy: Policy) -> None:
        most = MAX_TREE_NODES - self._num_roots
        if policy.max_nodes > most:
            raise ConfigError(
                f"{type(policy).__name__} may draft {policy.max_nodes} tokens; the limit is {most}"
            )
        if policy.branches and not self.target.scores_trees:
            warnings.warn(
                "this model ignores masks or positions, so it cannot score trees; drafts are kept to chains",
                stacklevel=3,
            )

    def without_drafts(self) -> Engine:
        """Plain decoding with the same target, for comparison."""
        return Engine(self.target, tokenizer=self.tokenizer)

    def generate(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> Result:
        """The whole answer.

        Args:
            prompt: text, token ids, or chat messages.
            options: the request; None takes the defaults.
            **changes: single options by name, on top of `options`.

        Raises:
            ConfigError, PromptError, NumericsError: see `foredraft.errors`.
        """
        with self.stream(prompt, options, **changes) as stream:
            for _ in stream:
                pass
            return stream.result()

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        max_batch: int = MAX_BATCH,
        **changes: Any,
    ) -> list[Result]:
        """The answers to several prompts, decoded side by side: each is the one that `generate` gives it.

        Passes of the target, and those of draft models and heads, are shared by all answers in progress;
        where one ends the next prompt takes its place.

        Args:
            prompts: as in `generate`.
            options: one request for all, or one for each.
            max_batch: answers in progress at most.
            **changes: single options by name, on top of `options`.

        Raises:
            ConfigError, PromptError, NumericsError: as in `generate`; a note says of which prompt.
        """
        return generate_batch(self, prompts, options, max_batch, changes)

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        criterion: Criterion | None = None,
        **changes: Any,
    ) -> Stream:
        """The answer as it comes: an iterator of `Step`s, one a round.

        The request is checked here, before the first step is asked for.

        Args:
            prompt, options, **changes: as in `generate`.
            criterion: called with each token of the answer; it ends where this is true, that token included.
        """
        started = time.perf_counter()
        if options is not None:
            check_kind("options", options, GenerationOptions)
        options = (options or GenerationOptions()).replace(**changes)
        prompt_ids = encode_prompt(prompt, self.tokenizer, self.target.vocab_size)
        seed = None
        if options.temperature > 0:
            seed = fresh_seed() if options.seed is None else options.seed
        random = self.randomness(seed, options.choice)
        session = self.session(prompt_ids, options, random, criterion)
        return Stream(session, self.target, self.verifier, prompt_ids, seed, started)

    def session(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        random: Randomness,
        criterion: Criterion | None = None,
    ) -> Session:
        """A fresh session: the seam for tests that bring their own randomness."""
        if options.stop and self.tokenizer is None:
            raise ConfigError(f"stop={options.stop!r} needs a tokenizer; pass tokenizer=...")
        room = room_for(prompt_ids, options, self.target)
        law = self.law(options, len(prompt_ids))
        rules = StopRules(
            eos_token_ids=frozenset(end_tokens(options, self.target)),
            stop=tuple(options.stop),
            max_new_tokens=room,
        )
        capacity = len(prompt_ids) + min(room, MAX_TREE_NODES) + self._max_nodes + self._num_roots
        target = self._start_target(capacity)
        try:
            drafting = self._drafting(capacity, target)
        except BaseException:  # not enough memory, say: the target's goes back all the same
            target.close()
            raise
        return Session(
            list(prompt_ids),
            target=target,
            drafting=drafting,
            law=law,
            random=random,
            stop=StopState(rules, self.incremental_text(), criterion),
            room=room,
            clock=StageClock(self.target.synchronize),
            pending=self._pending(random),
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens, special ones left out; empty without a tokenizer."""
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def incremental_text(self) -> IncrementalText:
        """The text of one answer, token by token."""
        return IncrementalText(self.decode, self._stray_byte)

    @cached_property
    def _stray_byte(self) -> int | None:
        return find_stray_byte(self.decode)

    @property
    def lossless(self) -> bool:
        """Whether answers follow the target's own law."""
        return not isinstance(self.verifier, RootVerifier) or self.verifier.lossless

    @property
    def keeps_seeds(self) -> bool:
        """Whether the same seed gives plain decoding's text, and not just its law."""
        return isinstance(self.verifier, ExactVerifier) or (
            self.drafter is None and not isinstance(self.verifier, RootVerifier)
        )

    @property
    def _num_roots(self) -> int:
        return self.verifier.num_roots if isinstance(self.verifier, RootVerifier) else 1

    def _pending(self, random: Randomness) -> PendingLaw | None:
        verifier = self.verifier
        return PendingLaw(verifier, random) if isinstance(verifier, RootVerifier) else None

    @property
    def _max_nodes(self) -> int:
        return 0 if self.policy is None else self.policy.max_nodes

    def randomness(self, seed: int | None, choice: int = 0) -> SeededRandomness:
        """The noise of a request; greedy requests (seed None) draw none of it."""
        return SeededRandomness(seed or 0, choice, device=self.target.device)

    def law(self, options: GenerationOptions, prompt_length: int) -> RequestLaw:
        """The sampling side of a request: its processors, penalties and filters."""
        if options.logits_processors and self.drafter and self.verifier.reads_rejected:
            raise ConfigError(
                f"{type(self.verifier).__name__} reads laws behind tokens that may be rejected, which "
                "logits_processors of your own must not see; use a method that verifies by 'exact' or "
                "'rejection'"
            )
        return RequestLaw(
            options,
            prompt_length=prompt_length,
            eos_token_ids=end_tokens(options, self.target),
            vocab_size=self.target.vocab_size,
            encode=self._spellings if self.tokenizer is not None else None,
            device=self.target.device,
        )

    @property
    def _taps(self) -> list[tuple[int, ...]]:
        """Of each part that reads the target's hidden states, the drafter first."""
        readers = (self.drafter, self.policy)
        return [part.taps for part in readers if isinstance(part, FeatureDrafter | FeaturePolicy)]

    def _start_target(self, capacity: int) -> ModelState:
        if self._taps and isinstance(self.target, FeatureTarget):
            return self.target.start_tapped(capacity, union_of(self._taps))
        return self.target.start(capacity)

    def _drafting(self, capacity: int, target: ModelState) -> Drafting | None:
        if self.drafter is None or self.policy is None:
            return None
        takes = self._takes(target)
        drafter = (
            self.drafter.start_reading(capacity, takes.pop(0))
            if isinstance(self.drafter, FeatureDrafter)
            else self.drafter.start(capacity)
        )
        policy = (
            self.policy.start_reading(takes.pop(0))
            if isinstance(self.policy, FeaturePolicy)
            else self.policy.start()
        )
        check_selection(self.policy, policy)
        return Drafting(
            drafter,
            policy,
            self.policy.max_nodes,
            chains_only=not self.target.scores_trees,
            reader=drafter if isinstance(drafter, LawReader) else None,
        )

    def _takes(self, target: ModelState) -> list[TakeFeatures]:
        """What each part that reads hidden states calls for them, in the order of `_taps`."""
        if not self._taps:
            return []
        assert isinstance(target, FeatureState)  # `check_features` saw to it
        return shared(target.take_features, self._taps)

    def _spellings(self, word: str) -> list[list[int]]:
        """A word's tokens at the start of a text and inside it."""
        forms = (word, " " + word)
        encode = self.tokenizer
        return [encode(form, add_special_tokens=False)["input_ids"] for form in forms]  # type: ignore[misc]
