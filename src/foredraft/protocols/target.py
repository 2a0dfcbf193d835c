"""What a target is: it scores draft trees, and remembers one sequence transactionally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from foredraft.meeting import Serve


class ModelState(Protocol):
    """A model's memory of one sequence: a transactional KV cache, or nothing at all.

    *Committed* tokens are part of the text; *pending* ones were scored since the last `commit` and are
    kept or dropped by the next one.
    """

    @property
    def length(self) -> int:
        """Committed tokens."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens without reading logits. Nothing may be pending."""
        ...

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Score N more pending nodes in one pass.

        Args:
            token_ids: [N] tokens.
            parents: [N] for each, the index of its parent among *all* pending nodes (those of earlier
                `score` calls since the last `commit` come first), or -1 for the committed text.

        Returns:
            Logits [N, V], before any processor; row i is the law of what follows node i.

        Raises:
            CacheError: the model did not write its cache as asked.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep these pending nodes (increasing indices, one root-to-node path); drop all others.

        Afterwards `length` has grown by `len(path)` exactly and nothing is pending. An empty path
        is a rollback.
        """
        ...

    def close(self) -> None:
        """Give the memory back. The state must not be used afterwards."""
        ...


@runtime_checkable
class Target(Protocol):
    """The big model."""

    @property
    def vocab_size(self) -> int:
        """V: token ids that can be emitted, padding rows left out."""
        ...

    @property
    def context_length(self) -> int | None:
        """Most tokens in a sequence; None when there is no limit."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        ...

    @property
    def scores_trees(self) -> bool:
        """Whether a node sees its ancestors alone. If not, drafts are kept to chains."""
        ...

    def start(self, capacity: int) -> ModelState:
        """Memory for one sequence, prepared for `capacity` tokens (it may grow past that)."""
        ...

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read next measures finished work."""
        ...


@runtime_checkable
class JoiningTarget(Target, Protocol):
    """A target that scores nodes of several sequences in one pass."""

    @property
    def serve(self) -> Serve:
        """What its states `meeting.ask` to score their nodes."""
        ...


@runtime_checkable
class FeatureState(ModelState, Protocol):
    """A `ModelState` that also keeps hidden states of what it commits, until they are taken."""

    def take_features(self) -> Tensor:
        """Features [n, F] of the tokens committed since the last call, oldest first; n may be 0.

        On the target's device, in the dtype of its hidden states.
        """
        ...


@runtime_checkable
class FeatureTarget(Target, Protocol):
    """A target whose hidden states drafters may read."""

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> FeatureState:
        """As `start`, with features of every committed token.

        Args:
            capacity: tokens.
            taps: indices into Hugging Face's `hidden_states`: k in 0 .. n - 1 is the input of layer k, and
                n = num_hidden_layers the last hidden state after the final norm. The features of
                several taps stand behind one another in their order: F = len(taps) * hidden size.

        Raises:
            ModelError: a tap is out of range, or cannot be read from this model.
        """
        ...


@runtime_checkable
class ShowingState(ModelState, Protocol):
    """A `ModelState` that shows the last hidden states of its passes."""

    def last_hidden(self) -> Tensor | None:
        """What the language-model head read in the last `score`, [N, H]: after the final norm.

        None where the model does not run its head as a module. Made in inference mode.
        """
        ...


@runtime_checkable
class ShowingTarget(Target, Protocol):
    """A model whose last hidden states can be read while it drafts."""

    def start_showing(self, capacity: int) -> ShowingState:
        """As `start`, with the last hidden states of every pass."""
        ...


@runtime_checkable
class RestoringState(ModelState, Protocol):
    """A `ModelState` whose `prefill` may find the start of the text known from earlier ones."""

    @property
    def restored(self) -> int:
        """Tokens that were committed without being computed."""
        ...


TakeFeatures = Callable[[], Tensor]
"""Features [n, F] of the tokens committed since the last call, oldest first; n may be 0."""
