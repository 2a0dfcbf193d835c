"""Any Hugging Face causal language model as a target or a draft model, through its own `forward`."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foredraft.backends import hf_facts, hf_probe
from foredraft.backends.graphs import Capture, CudaCapture, GraphedPasses, Reads
from foredraft.backends.grouped_attention import use_grouped_attention
from foredraft.backends.hf_taps import FeatureBuffer, HeadInputs, Taps
from foredraft.backends.kv_cache import KVCache
from foredraft.backends.own_pass import own_pass
from foredraft.backends.tree_attention import Topology, TreeMasks
from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError, ModelError, VocabularyError

PROBE_CAPACITY = 64


class ForwardPass:
    """Calls the model with the arguments that it understands."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.num_rows: int = model.get_input_embeddings().weight.shape[0]
        known = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in known
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    @torch.inference_mode()
    def __call__(
        self,
        token_ids: Sequence[int],
        *,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        mask: Any = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits [N, rows of the head]; where the model can, only the last row if no more is asked.

        Args:
            token_ids: [N] tokens.
            cache: where to write; None computes without a cache.
            positions: int64 [N]; None counts on from the cache.
            mask: what `TreeMasks.build` gave; None leaves masks to the model.
            last_only: nothing but the last row will be read.
        """
        arguments: dict[str, Any] = dict(self._last_only) if last_only else {}
        if cache is not None:
            arguments["cache"] = cache
        if positions is not None and self._takes_positions:
            arguments["position_ids"] = positions[None]
        ids = torch.tensor([self.checked(token_ids)], device=self.device)
        with own_pass():
            output = self._model(
                input_ids=ids, attention_mask=mask, use_cache=cache is not None, **arguments
            )
        logits: Tensor = output.logits[0]
        return logits.to(self.device)

    def checked(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens; a `VocabularyError` where one has no embedding."""
        if min(token_ids) < 0 or max(token_ids) >= self.num_rows:
            wrong = next(i for i in token_ids if not 0 <= i < self.num_rows)
            raise VocabularyError(
                f"token id {wrong} is not in the model's vocabulary of {self.num_rows}; "
                "check that the prompt was made with this model's tokenizer"
            )
        return list(token_ids)


class HFTarget:
    """A loaded Hugging Face causal LM behind the `Target` protocol. The model is put in eval mode.

    Every sequence gets a cache of our own making, which can be rolled back; caches of other kinds
    (static, quantised, offloaded) are never used. When the target is made, a small tree is scored
    against its single paths; a model that cannot score trees keeps to chains (`scores_trees`).

    In passes of ours, `sdpa` attention is computed in another way that gives the same
    (`grouped_attention`); the model itself is not changed.

    With rotary embeddings whose frequencies depend on the length (`dynamic`, `longrope`), the
    context ends where they start to change, so that output equals one-token decoding.

    Args:
        model: a `transformers` model, wherever its weights are (`device_map` included).
        tokenizer: its tokenizer; it bounds the vocabulary, so that padding ids are never emitted.

    Raises:
        ModelError: the model keeps recurrent state, has no KV cache, is an encoder-decoder, has
            weights on the meta device, or scores several tokens in one pass differently from one
            at a time.
    """

    def __init__(self, model: Any, tokenizer: Any | None = None) -> None:
        hf_facts.refuse_unsupported(model)
        self.model = model.eval()
        use_grouped_attention()
        self.tokenizer = tokenizer
        self.forward = ForwardPass(model)
        self._vocab_size = hf_facts.vocab_size(model, tokenizer)
        self._context_length = hf_facts.context_length(hf_facts.text_config(model))
        self._eos_token_ids = hf_facts.eos_token_ids(model, tokenizer)
        self._accelerators = [d for d in hf_facts.devices(model) if d.type != "cpu"]
        # One cache to reuse. A deque's pop and append are atomic, so threads may share the target.
        self._spare: deque[KVCache] = deque(maxlen=1)
        self.taps = Taps(model)
        self.head_inputs = HeadInputs(model)
        self.layout = hf_probe.learn_layout(model, self.device)
        self.graphs: GraphedPasses | None = None
        self.masks = self._masks_that_work()

    def capture_passes(self, capture: Capture | None = None) -> None:
        """Score in captured passes of static shapes where they fit; see `backends/graphs.py`.

        Args:
            capture: None takes CUDA graphs.

        Raises:
            ConfigError: the model is not on a CUDA device, is spread over several, or takes no masks.
        """
        capture = CudaCapture(self.device) if capture is None else capture
        if self.masks is None or len(set(hf_facts.devices(self.model))) > 1:
            raise ConfigError(
                f"cuda_graphs=True needs a model on one device that takes 4-D masks, and "
                f"{type(self.model).__name__} is none here; leave it out"
            )
        self.graphs = GraphedPasses(
            self.model,
            self.taps,
            self.head_inputs,
            capture,
            self.device,
            self.masks.float_dtype,
        )

    @property
    def vocab_size(self) -> int:
        """V: the smaller of the head's rows and the tokenizer's ids."""
        return self._vocab_size

    @property
    def context_length(self) -> int | None:
        """Most tokens in a sequence; None when there is no limit."""
        return self._context_length

    @property
    def hidden_size(self) -> int | None:
        """Numbers of what the language-model head reads; None where its weights do not tell."""
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        return int(weight.shape[1]) if isinstance(weight, Tensor) and weight.dim() == 2 else None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        return self._eos_token_ids

    @property
    def scores_trees(self) -> bool:
        """Whether a node sees its ancestors alone. If not, drafts are kept to chains."""
        return self.masks is not None

    @property
    def device(self) -> torch.device:
        """Where tokens go in and logits come out."""
        return self.forward.device

    def start(self, capacity: int) -> HFState:
        """Memory for one sequence, prepared for `capacity` tokens (it may grow past that)."""
        return HFState(self, self._cache(capacity))

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> TappedState:
        """As `start`, with hidden states of every committed token; see `FeatureTarget`.

        Raises:
            ModelError: a tap is out of range, or cannot be read from this model.
        """
        self.taps.require(taps)
        return TappedState(self, self._cache(capacity), taps)

    def start_showing(self, capacity: int) -> ShownState:
        """As `start`, with the last hidden states of every pass; see `ShowingTarget`."""
        self.head_inputs.require()
        return ShownState(self, self._cache(capacity))

    def _cache(self, capacity: int) -> KVCache:
        try:
            cache = self._spare.pop()
            cache.reserve(capacity)
        except IndexError:
            cache = KVCache(self.layout, capacity)
        return cache

    def take_back(self, cache: KVCache) -> None:
        """Keep the buffers of a finished sequence for the next one."""
        cache.reset()
        self._spare.append(cache)

    def synchronize(self) -> None:
        """Wait for the devices."""
        for device in self._accelerators:
            torch.accelerator.synchronize(device)

    def _masks_that_work(self) -> TreeMasks | None:
        """Masks with which trees score as their paths do; None if only chains do."""
        config = hf_facts.text_config(self.model)
        if not hf_facts.has_hidden_window(config, self.layout):
            self.masks = TreeMasks.for_model(config, self.layout, self.model.dtype)
            if self.masks is not None and self._trouble(hf_probe.TREE) is None:
                return self.masks
        self.masks = None
        trouble = self._trouble(hf_probe.CHAIN)
        if trouble is None:
            return None
        name, reason = type(self.model).__name__, hf_probe.first_line(trouble)
        raise ModelError(f"{name} cannot decode speculatively: {reason}") from trouble

    def _trouble(self, parents: Sequence[int]) -> Exception | None:
        """Why this tree cannot be scored in one pass; None if it can."""
        try:
            error = hf_probe.probe_error(
                lambda: self.start(PROBE_CAPACITY), self._alone, parents, self.vocab_size
            )
        except (MemoryError, torch.OutOfMemoryError):  # says nothing about the model
            raise
        except Exception as failure:
            return failure
        if error <= hf_probe.tolerance(self.model.dtype):
            return None
        return ModelError(
            f"several tokens in one pass score differently from one at a time (error {error:.2g})"
        )

    def _alone(self, token_ids: Sequence[int]) -> Tensor:
        return self.forward(token_ids)[:, : self.vocab_size]


class HFState:
    """One sequence in an `HFTarget`; see the `ModelState` protocol."""

    _reads = Reads()

    def __init__(self, target: HFTarget, cache: KVCache) -> None:
        self._target = target
        self._cache = cache
        self._topology = Topology(target.device)
        self._parents: list[int] = []

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._cache.length

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens in chunks, without reading logits. Nothing may be pending."""
        assert not self._parents, "commit or roll back before a prefill"
        for start in range(0, len(token_ids), MAX_TREE_NODES):
            chunk = token_ids[start : start + MAX_TREE_NODES]
            self._run(chunk, last_only=True)
            self.commit(range(len(chunk)))

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
        pending = [*self._parents, *parents]
        first, stop = len(self._parents), len(pending)
        self._topology.hold(pending)
        masks = self._target.masks
        if masks is None:
            assert self._topology.deepest(0, stop) == stop - 1, "this model scores chains only"
        mask = masks and masks.build(self._topology, self.length, first, stop)
        positions = self._topology.depths(first, stop) + self.length
        logits = self._replay(token_ids, positions, mask)
        if logits is None:
            logits = self._run(token_ids, positions=positions, mask=mask)
        self._parents = pending
        return logits[:, : self._target.vocab_size]

    def commit(self, path: Sequence[int]) -> None:
        """Keep these pending nodes (increasing indices), drop all others; empty is a rollback."""
        self._cache.commit(path)
        self._parents = []

    def close(self) -> None:
        """Give the buffers back to the target. The state must not be used afterwards."""
        self._target.take_back(self._cache)
        del self._cache

    def _replay(self, token_ids: Sequence[int], positions: Tensor, mask: Any) -> Tensor | None:
        """The same pass captured; None where passes are not captured or this one fits no bucket."""
        graphs = self._target.graphs
        if graphs is None or isinstance(mask, dict):
            return None
        checked = self._target.forward.checked(token_ids)
        outputs = graphs.run(checked, self._cache, positions, mask, self._reads)
        if outputs is None:
            return None
        self._keep(*outputs[1:])
        return outputs[0]

    def _keep(self, *states: Tensor) -> None:
        """Take the hidden states [n, h] of a captured pass, in the order of `Reads`."""

    def _run(self, token_ids: Sequence[int], **arguments: Any) -> Tensor:
        """One pass that writes the cache; arguments as in `ForwardPass`."""
        with self._cache.writing(len(token_ids)):
            return self._target.forward(token_ids, cache=self._cache, **arguments)


class TappedState(HFState):
    """One sequence whose hidden states are kept; see the `FeatureState` protocol."""

    def __init__(self, target: HFTarget, cache: KVCache, taps: Sequence[int]) -> None:
        super().__init__(target, cache)
        self._reads = Reads(taps=tuple(taps))
        size = len(taps) * hf_facts.text_config(target.model).hidden_size
        self._features = FeatureBuffer(taps, size, target.device, target.model.dtype)

    def take_features(self) -> Tensor:
        """Features [n, F] of the tokens committed since the last call, oldest first."""
        return self._features.take()

    def commit(self, path: Sequence[int]) -> None:
        """As `HFState.commit`; the features of kept nodes wait to be taken."""
        super().commit(path)
        self._features.commit(path)

    def _run(self, token_ids: Sequence[int], **arguments: Any) -> Tensor:
        with self._target.taps.collecting() as states:
            logits = super()._run(token_ids, **arguments)
        self._features.add(states, len(token_ids))
        return logits

    def _keep(self, *states: Tensor) -> None:
        shown = {tap: state[None] for tap, state in zip(self._reads.taps, states, strict=True)}
        self._features.add(shown, len(states[0]))


class ShownState(HFState):
    """One sequence whose last hidden states are shown; see the `ShowingState` protocol."""

    _hidden: Tensor | None = None
    _reads = Reads(head_input=True)

    def last_hidden(self) -> Tensor | None:
        """What the head read in the last pass, [N, H]; None if it did not run as a module."""
        return None if self._hidden is None else self._hidden.to(self._target.device)

    def _run(self, token_ids: Sequence[int], **arguments: Any) -> Tensor:
        with self._target.head_inputs.collecting() as seen:
            logits = super()._run(token_ids, **arguments)
        self._hidden = seen[-1][0] if seen else None
        return logits

    def _keep(self, *states: Tensor) -> None:
        self._hidden = states[0] if states else None
