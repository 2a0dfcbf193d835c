"""Any Hugging Face causal language model as a target or a draft model, through its own `forward`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from foredraft.backends import hf_facts, hf_probe
from foredraft.backends.forward_pass import ForwardPass
from foredraft.backends.graphs import Capture, CudaCapture, GraphedPasses
from foredraft.backends.grouped_attention import SDPA, use_grouped_attention
from foredraft.backends.hf_passes import Scoring, ScoringPasses
from foredraft.backends.hf_state import HFState, ShownState, TappedState
from foredraft.backends.hf_taps import HeadInputs, Shown, Taps
from foredraft.backends.joint_pass import Joining
from foredraft.backends.kv_cache import KVCache
from foredraft.backends.prefix_cache import PrefixCache, bytes_of
from foredraft.backends.prefix_follower import PrefixFollower
from foredraft.backends.quantized import QuantizedLinear
from foredraft.backends.tree_attention import TreeMasks
from foredraft.errors import ConfigError, ModelError
from foredraft.meeting import Serve

PROBE_CAPACITY = 64
SPARE_CACHES = 8
"""Buffers of finished sequences that are kept for the next ones, at most."""
SPARE_ROWS = 8192
"""Rows that these may have together, the latest apart: a batch of long texts holds no memory for good."""

__all__ = ["ForwardPass", "HFState", "HFTarget", "ShownState", "TappedState"]


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
        prefix_cache_mb: memory in which the rows of earlier texts are kept, so that what texts have in
            common at their start is read once; None keeps nothing.

    Attributes:
        prefix_cache: what is kept of earlier texts, or None; sequences that start later use it.

    Raises:
        ConfigError: `prefix_cache_mb` is not above 0.
        ModelError: the model keeps recurrent state, has no KV cache, is an encoder-decoder, has
            weights on the meta device, or scores several tokens in one pass differently from one
            at a time.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None = None,
        *,
        prefix_cache_mb: float | None = None,
    ) -> None:
        max_bytes = None if prefix_cache_mb is None else bytes_of(prefix_cache_mb)
        hf_facts.refuse_unsupported(model)
        self.model = model.eval()
        use_grouped_attention()
        self.tokenizer = tokenizer
        self.forward = ForwardPass(model)
        self._vocab_size = hf_facts.vocab_size(model, tokenizer)
        self._context_length = hf_facts.context_length(hf_facts.text_config(model))
        self._eos_token_ids = hf_facts.eos_token_ids(model, tokenizer)
        self._accelerators = [d for d in hf_facts.devices(model) if d.type != "cpu"]
        # Caches to reuse. A deque's pop and append are atomic, so threads may share the target.
        self._spare: deque[KVCache] = deque(maxlen=SPARE_CACHES)
        self.taps = Taps(model)
        self.head_inputs = HeadInputs(model)
        self.layout = hf_probe.learn_layout(model, self.device)
        self.prefix_cache = (
            None if max_bytes is None else PrefixCache(max_bytes, self.layout.row_bytes)
        )
        self._weights = hf_facts.weights_mark(model)
        self.passes = ScoringPasses(self)
        self._joining: tuple[Joining | None] | None = None  # not tried out yet
        self._lock = threading.Lock()
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
        head = self.model.get_output_embeddings()
        if isinstance(head, QuantizedLinear):
            return head.in_features
        weight = getattr(head, "weight", None)
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
        cache = self._cache(capacity)
        return HFState(self, cache, self._follower(cache))

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> TappedState:
        """As `start`, with hidden states of every committed token; see `FeatureTarget`.

        Raises:
            ModelError: a tap is out of range, or cannot be read from this model.
        """
        self.taps.require(taps)
        cache = self._cache(capacity)
        return TappedState(self, cache, self._follower(cache, taps), taps)

    def start_showing(self, capacity: int) -> ShownState:
        """As `start`, with the last hidden states of every pass; see `ShowingTarget`."""
        self.head_inputs.require()
        cache = self._cache(capacity)
        return ShownState(self, cache, self._follower(cache))

    def _follower(self, cache: KVCache, taps: Sequence[int] = ()) -> PrefixFollower | None:
        prefixes = self.prefix_cache
        if prefixes is None:
            return None
        mark = hf_facts.weights_mark(self.model)
        if mark != self._weights:  # rows of other weights would be another model's text
            prefixes.clear()
            self._weights = mark
        return PrefixFollower(prefixes, cache, taps)

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
        while len(self._spare) > 1 and sum(c.capacity for c in tuple(self._spare)) > SPARE_ROWS:
            with suppress(IndexError):  # another thread has taken the last
                self._spare.popleft()

    @contextmanager
    def watching(self) -> Iterator[Shown]:
        """What the pass inside shows of its rows; complete once it has ended."""
        with self.taps.collecting() as states, self.head_inputs.collecting() as heads:
            yield Shown(states, heads)

    @property
    def serve(self) -> Serve:
        """What its states ask to score their nodes; see `JoiningTarget`."""
        return self.passes.run

    @property
    def joining(self) -> Joining | None:
        """How one pass joins rows of several sequences; None where each needs a pass of its own.

        Tried out when it is first asked for.
        """
        with self._lock:
            if self._joining is None:
                self._joining = (self._joining_that_works(),)
            return self._joining[0]

    def _joining_that_works(self) -> Joining | None:
        if self.masks is None or not self.forward.takes_positions:
            return None
        attends_by_ours = self.model.config._attn_implementation == SDPA
        ways = [Joining.APART, Joining.WHOLE] if attends_by_ours else [Joining.WHOLE]
        return next((joining for joining in ways if self._joins(joining)), None)

    def _joins(self, joining: Joining) -> bool:
        """Whether two sequences score in one pass as each does alone."""
        states = [HFState(self, self._cache(PROBE_CAPACITY)) for _ in range(2)]
        try:
            error = hf_probe.joint_error(
                states,
                lambda nodes: self.passes.together(
                    [Scoring(s, tuple(nodes), 0) for s in states], joining
                ),
                self.vocab_size,
            )
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever such a model says of two sequences
            return False
        finally:
            for state in states:
                state.close()
            self._spare.clear()  # buffers of this size are of no use to anybody
        return error <= hf_probe.tolerance(self.model.dtype)

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
                lambda: HFState(self, self._cache(PROBE_CAPACITY)),
                self._alone,
                parents,
                self.vocab_size,
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
