"""Laws: what the request's options make of a model's logits, with each node's own path as context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError, NumericsError
from foredraft.sampling.processors import (
    Encode,
    banned_ids,
    resolve_bad_words,
    sampling_warpers,
    shaping_processors,
)
from foredraft.sampling.randomness import Randomness
from foredraft.sampling.transfer import to_host
from foredraft.tree import DraftTree


class RequestLaw:
    """The sampling side of one request: builds its processors and applies them to single rows.

    Args:
        options: the request.
        prompt_length: tokens of the prompt.
        eos_token_ids: the end tokens in force (empty when they are ignored).
        vocab_size: V of the target.
        encode: spells a word in tokens; needed only for bad words given as text.

    Raises:
        ConfigError: a token id outside the vocabulary, or a word without a tokenizer.
    """

    def __init__(
        self,
        options: GenerationOptions,
        *,
        prompt_length: int,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        encode: Encode | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.options = options
        self.greedy = options.temperature == 0
        self.vocab_size = vocab_size
        self._device = device
        self.end_tokens = frozenset(eos_token_ids)
        named_words = resolve_bad_words(options, encode)
        self._check_ids(options, named_words)
        bad_words = self._without_end_tokens(named_words)
        # an end token of the model's own that its head cannot emit needs no ban
        end = [token for token in eos_token_ids if 0 <= token < vocab_size]
        self._processors = shaping_processors(
            options,
            prompt_length=prompt_length,
            eos_token_ids=end,
            bad_words=bad_words,
            device=device,
        )
        self._warpers = sampling_warpers(options)
        self.draft = DraftLaw(
            options,
            vocab_size=vocab_size,
            prompt_length=prompt_length,
            eos_token_ids=eos_token_ids,
            bad_words=bad_words,
        )

    def _check_ids(self, options: GenerationOptions, bad_words: Sequence[Sequence[int]]) -> None:
        named = {
            "logit_bias": options.logit_bias,
            "suppress_tokens": options.suppress_tokens,
            "bad_words": [t for word in bad_words for t in word],
            "eos_token_ids": options.eos_token_ids or (),
        }
        for name, ids in named.items():
            for token in ids:
                if token >= self.vocab_size:
                    raise ConfigError(
                        f"{name} names token {token}; this model's ids go from 0 to "
                        f"{self.vocab_size - 1}"
                    )

    def _without_end_tokens(self, bad_words: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """As in `generate`, a lone end token cannot be a bad word."""
        return [w for w in bad_words if len(w) > 1 or w[0] not in self.end_tokens]

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the raw logits, with nothing to apply."""
        return self.greedy and not self._processors

    @property
    def reads_context(self) -> bool:
        """Whether a processor looks at the tokens so far; temperature and filters do not."""
        return bool(self._processors)

    def scores(self, row: Tensor, token_ids: Sequence[int] | Tensor) -> Tensor:
        """Processed scores of the token after `token_ids`.

        Args:
            row: logits [V], any float dtype.
            token_ids: [T] prompt, answer and the path to the node, in order; not looked at unless
                `reads_context`.

        Returns:
            float32 [V] (float64 stays); forbidden tokens are -inf; softmax gives the law.
        """
        scores = (row if row.dtype == torch.float64 else row.float())[None]
        if self._processors:
            context = torch.as_tensor(token_ids, dtype=torch.int64, device=row.device)[None]
            scores = scores.clone()  # users' processors may write in place; the row is the model's
            for processor in self._processors:
                scores = _checked(processor, processor(context, scores), row)
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores[0]

    def laws(
        self, tree: DraftTree, logits: Tensor, token_ids: Sequence[int], random: Randomness
    ) -> TargetLaws:
        """The target's laws over one scored tree; `token_ids` end with its root, unless it has open ones."""
        return TargetLaws(self, tree, logits, token_ids, random)


class TargetLaws:
    """The target's law after each node of one tree, processed when it is read and only then.

    Processors thus see the paths a verifier visits, each once, and nothing else. Nothing follows an
    end token, so what is read there is made up, and cut by the session.
    """

    def __init__(
        self,
        request: RequestLaw,
        tree: DraftTree,
        logits: Tensor,
        token_ids: Sequence[int],
        random: Randomness,
    ) -> None:
        self._request, self._tree, self._logits = request, tree, logits
        self._token_ids, self._random = token_ids, random
        self._scores: dict[int, Tensor] = {}
        self._argmax: list[int] | None = None
        self._max: list[float] = []

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0."""
        return self._request.greedy

    def scores(self, node: int) -> Tensor:
        """Processed scores [V] of what follows `node`, each row processed once.

        Raises:
            NumericsError: the row has a NaN, +inf, or no finite value.
        """
        if node not in self._scores:
            self._scores[node] = self._compute_scores(node)
        return self._scores[node]

    def choose(self, node: int) -> int:
        """The coupled choice after `node`: argmax(log p + G), G = 0 when greedy (design, section 4.1)."""
        if self._request.is_argmax and not self._has_ended(node):
            return self._choose_argmax(node)
        return int(self.perturbed(node).argmax())

    def perturbed(self, node: int) -> Tensor:
        """log p + G up to a constant, [V]: its argmax is the choice."""
        scores = self.scores(node)
        if self._request.greedy:
            return scores
        return scores + self._random.gumbel(self._position(node), len(scores))

    def probs(self, node: int) -> Tensor:
        """p after `node`, float64 [V], summing to 1; a point mass when greedy."""
        scores = self.scores(node)
        if self._request.greedy:
            return torch.nn.functional.one_hot(scores.argmax(), len(scores)).double()
        return scores.double().softmax(-1)

    def beliefs(self, node: int) -> Tensor:
        """As `probs`, but at temperature 0 the softmax of the processed scores: it ranks all tokens."""
        return self.scores(node).double().softmax(-1)

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """The model's own logits [len(nodes), V] of what follows these nodes; no option is applied."""
        return self._logits[list(nodes)]

    def _compute_scores(self, node: int) -> Tensor:
        row = self._logits[node]
        if self._has_ended(node):
            return torch.zeros_like(row)
        scores = self._request.scores(row, self._context(node))
        _check_row(float(scores.max()), self._position(node))
        return scores

    def _position(self, node: int) -> int:
        """Index, from the prompt's first token, of the token after `node`."""
        return len(self._token_ids) + self._tree.depths[node] + self._tree.open_roots

    def _has_ended(self, node: int) -> bool:
        """Whether the draft that leads to `node` holds an end token."""
        ends = self._request.end_tokens
        return bool(ends) and not ends.isdisjoint(self._tree.path_tokens(node))

    def _context(self, node: int) -> Tensor | Sequence[int]:
        """Prompt, answer and the path to `node`; empty when nobody reads it."""
        if not self._request.reads_context:
            return ()
        path = self._text.new_tensor(self._tree.path_tokens(node))
        return torch.cat((self._text, path))  # a copy: users' processors may keep or change it

    @cached_property
    def _text(self) -> Tensor:
        return torch.tensor(self._token_ids, dtype=torch.int64, device=self._logits.device)

    def _choose_argmax(self, node: int) -> int:
        if self._argmax is None:  # all rows at once: one wait for the device instead of one a node
            best = self._logits.max(-1)
            self._argmax, self._max = to_host(best.indices, best.values)
        assert self._argmax is not None
        _check_row(self._max[node], self._position(node))
        return self._argmax[node]


def _checked(processor: Any, scores: Any, row: Tensor) -> Tensor:
    """What a processor gave; a user's may give anything."""
    if isinstance(scores, Tensor) and scores.shape == (1, *row.shape):
        return scores
    given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    raise ConfigError(
        f"the logits processor {type(processor).__name__} returned {given}; "
        f"it must return a tensor of scores [1, {len(row)}]"
    )


def _check_row(largest: float, position: int) -> None:
    if not abs(largest) < math.inf:  # NaN compares false, and max() passes NaN on
        raise NumericsError(
            f"the target's logits for the token at position {position} have {largest} as their "
            "largest value; the weights or the dtype are at fault (try dtype=float32), a logits "
            "processor forbids every token, or the temperature is too close to 0"
        )


class DraftLaw:
    """How the request's options bear on drafts.

    A draft law may be any law at all as long as it is the one reported, so only what is cheap and
    pure applies: temperature, filters and bans. Penalties and the user's processors, which may keep
    state, never see a draft token.
    """

    def __init__(
        self,
        options: GenerationOptions,
        *,
        vocab_size: int,
        prompt_length: int,
        eos_token_ids: Sequence[int],
        bad_words: Sequence[Sequence[int]],
    ) -> None:
        self.greedy = options.temperature == 0
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self._temperature = options.temperature
        self._warpers: list[Any] = sampling_warpers(options)
        self._banned = banned_ids(options, bad_words)
        self._phrases = tuple(tuple(w) for w in bad_words if len(w) > 1)
        self._first_end = prompt_length + options.min_new_tokens

    def banned_after(self, text: Sequence[int], drafted: Sequence[int]) -> frozenset[int]:
        """Tokens the request forbids after `text` and then `drafted`.

        Suppressed tokens, the ends of bad words, and end tokens that would come too early.
        """
        banned = self._banned
        if len(text) + len(drafted) < self._first_end:
            banned = banned | self.eos_token_ids
        if not self._phrases:
            return banned
        longest = max(map(len, self._phrases))
        tail = (*text[-longest:], *drafted)
        return banned.union(w[-1] for w in self._phrases if tail[-len(w) + 1 :] == w[:-1])

    def align(self, logits: Tensor) -> Tensor:
        """Logits [F, V'] of a drafter as [F, V]: ids that only one side has get -inf or go."""
        missing = self.vocab_size - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self.vocab_size]
        return torch.nn.functional.pad(logits, (0, missing), value=-math.inf)

    def probs(self, logits: Tensor) -> Tensor:
        """q after temperature and filters: float64 [F, V]; point masses when greedy."""
        if self.greedy:
            best = logits.max(-1).indices  # argmax is six times as slow in bfloat16
            return torch.nn.functional.one_hot(best, logits.shape[-1]).double()
        scores = logits.float()
        for warper in self._warpers:  # temperature and filters do not read the context
            scores = warper(None, scores)
        return scores.double().softmax(-1)

    def coupled_scores(self, logits: Tensor, noise: Tensor) -> Tensor:
        """T (log q + G) up to a constant a row, [F, V]: what coupled proposals are ranked by.

        q has temperature T. The softmax of these is how likely the drafter thinks each token is to be the
        target's choice, the noise being known; as T goes to 0 it becomes the law of the logits themselves.
        """
        return logits.double() + self._temperature * noise
