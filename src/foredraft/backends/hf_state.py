"""Sequences in a Hugging Face model: what is cached, pending and shown of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from foredraft.backends import hf_facts
from foredraft.backends.graphs import Reads
from foredraft.backends.hf_passes import Scoring
from foredraft.backends.hf_taps import FeatureBuffer, Shown
from foredraft.backends.kv_cache import KVCache
from foredraft.backends.own_memory import give_back
from foredraft.backends.prefix_follower import PrefixFollower
from foredraft.backends.tree_attention import Topology
from foredraft.config import MAX_TREE_NODES
from foredraft.meeting import ask

if TYPE_CHECKING:
    from foredraft.backends.hf import HFTarget


class HFState:
    """One sequence in an `HFTarget`; see the `ModelState` protocol."""

    reads = Reads()
    """The hidden states that a captured pass has to give."""

    def __init__(
        self, target: HFTarget, cache: KVCache, follower: PrefixFollower | None = None
    ) -> None:
        self._target = target
        self.cache = cache
        self.topology = Topology(target.device)
        self._parents: list[int] = []
        self._token_ids: list[int] = []  # pending
        self._follower = follower

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.cache.length

    @property
    def restored(self) -> int:
        """Tokens of the text's start whose rows came from the target's prefix cache."""
        return 0 if self._follower is None else self._follower.restored

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens in chunks, without reading logits. Nothing may be pending.

        The start of a text that the target's prefix cache knows is restored and not computed.
        """
        assert not self._parents, "commit or roll back before a prefill"
        for start in range(self._restore(token_ids), len(token_ids), MAX_TREE_NODES):
            chunk = token_ids[start : start + MAX_TREE_NODES]
            self.run(chunk, last_only=True)
            self._token_ids = list(chunk)
            self.commit(range(len(chunk)))
        if (
            len(token_ids) > MAX_TREE_NODES
        ):  # the passes of a long text leave much freed memory behind
            give_back()

    def _restore(self, token_ids: Sequence[int]) -> int:
        """How many tokens of a text that begins here were known."""
        if self._follower is None or self.length:
            return 0
        features = self._follower.restore(token_ids)
        if features is not None:
            self.show(features)
        return self._follower.restored

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Score N more pending nodes in one pass.

        Args:
            token_ids: [N] tokens.
            parents: [N] each one's parent among all pending nodes, or -1 for the committed text.

        Returns:
            Logits [N, V] in the model's dtype, made in inference mode: do not write into them.

        Raises:
            CacheError: the model did not write its cache as asked.
            VocabularyError: a token id has no embedding.
        """
        self._target.forward.check(token_ids)
        pending = [*self._parents, *parents]
        self.topology.hold(pending)
        if self._target.masks is None:
            deepest = self.topology.deepest(0, len(pending))
            assert deepest == len(pending) - 1, "this model scores chains only"
        scoring = Scoring(self, tuple(token_ids), len(self._parents))
        logits = ask(self._target.passes.run, scoring)
        self._parents = pending
        self._token_ids += token_ids
        return logits[:, : self._target.vocab_size]

    def commit(self, path: Sequence[int]) -> None:
        """Keep these pending nodes (increasing indices), drop all others; empty is a rollback."""
        self.cache.commit(path)
        features = self.settle(path)
        if self._follower is not None:
            self._follower.commit([self._token_ids[node] for node in path], features)
        self._parents, self._token_ids = [], []

    def close(self) -> None:
        """Give the buffers back to the target. The state must not be used afterwards."""
        self._target.take_back(self.cache)
        del self.cache

    def run(self, token_ids: Sequence[int], **arguments: Any) -> Tensor:
        """One pass over this sequence that writes its cache; arguments as in `ForwardPass`."""
        with self.cache.writing(len(token_ids)), self._target.watching() as shown:
            logits = self._target.forward(token_ids, cache=self.cache, **arguments)
        self.hear(shown, len(token_ids))
        return logits

    def hear(self, shown: Shown, rows: int) -> None:
        """What a pass showed of this sequence's rows, which are pending now."""

    def settle(self, path: Sequence[int]) -> Tensor | None:
        """The features [n, F] of pending nodes that were just committed, where any are kept."""
        return None

    def show(self, features: Tensor) -> None:
        """Features [n, F] of tokens that were restored."""


class TappedState(HFState):
    """One sequence whose hidden states are kept; see the `FeatureState` protocol."""

    def __init__(
        self,
        target: HFTarget,
        cache: KVCache,
        follower: PrefixFollower | None,
        taps: Sequence[int],
    ) -> None:
        super().__init__(target, cache, follower)
        self.reads = Reads(taps=tuple(taps))
        size = len(taps) * hf_facts.text_config(target.model).hidden_size
        self._features = FeatureBuffer(taps, size, target.device, target.model.dtype)

    def take_features(self) -> Tensor:
        """Features [n, F] of the tokens committed since the last call, oldest first."""
        return self._features.take()

    def settle(self, path: Sequence[int]) -> Tensor | None:
        """The features of kept nodes, which wait to be taken."""
        return self._features.commit(path)

    def show(self, features: Tensor) -> None:
        """Features of restored tokens wait to be taken as computed ones do."""
        self._features.restore(features)

    def hear(self, shown: Shown, rows: int) -> None:
        """Take the features of the pass."""
        self._features.add(shown.states, rows)


class ShownState(HFState):
    """One sequence whose last hidden states are shown; see the `ShowingState` protocol."""

    _hidden: Tensor | None = None
    reads = Reads(head_input=True)

    def last_hidden(self) -> Tensor | None:
        """What the head read in the last pass, [N, H]; None if it did not run as a module."""
        return None if self._hidden is None else self._hidden.to(self._target.device)

    def hear(self, shown: Shown, rows: int) -> None:
        """Keep what the head read."""
        self._hidden = shown.head_input
