"""Passes of static shapes, captured once and replayed: CUDA graphs over buckets of rows and of context.

A pass over n nodes behind L cached rows is run in the smallest bucket that holds it. Inputs are copied into
buffers that stay where they are; padding rows see nothing but themselves and write behind the live rows,
where the next pass writes over them. A graph is captured when its bucket is first needed, and the one unused
for longest goes when there are too many. What fits no bucket runs as ever.

How a pass is captured is an object, so that shapes, masks and writes are the same where no GPU is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from foredraft.backends.graph_cache import StaticRows
from foredraft.backends.hf_taps import HeadInputs, Taps
from foredraft.backends.kv_cache import KVCache
from foredraft.backends.own_pass import own_pass
from foredraft.errors import ConfigError

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Buckets of rows in a pass."""
CONTEXT = 256
"""Buckets of cached rows are this times powers of two."""
MOST_GRAPHS = 32
WARM_UPS = 2
"""Passes before a capture, in which libraries choose their kernels."""

Outputs = tuple[Tensor, ...]
Run = Callable[[], Outputs]


class Capture(Protocol):
    """How a pass over static buffers becomes one that is replayed."""

    def capture(self, run: Run) -> Run:
        """The same pass, which reads and writes the very tensors that `run` did."""
        ...


class CudaCapture:
    """Captures into CUDA graphs, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ConfigError(
                f"cuda_graphs=True needs a CUDA device and the model is on {device}; give device='cuda', or "
                "leave it out"
            )
        self._device = device
        self._pool: Any = None

    def capture(self, run: Run) -> Run:
        """Warm up on a side stream, then capture."""
        side: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()
        self._pool = graph.pool()

        def replay() -> Outputs:
            graph.replay()
            return output

        return replay


class EagerReplay:
    """Runs the pass again over its static buffers: what a graph does, on any device."""

    def __init__(self) -> None:
        self.num_captured = 0

    def capture(self, run: Run) -> Run:
        """The pass itself."""
        self.num_captured += 1
        return run


@dataclass(frozen=True, slots=True)
class Bucket:
    """The static shape of a pass.

    Attributes:
        rows: N of them, padding included.
        context: L cached rows that a row may see, its own pass's included.
    """

    rows: int
    context: int

    @classmethod
    def holding(cls, rows: int, before: int, capacity: int) -> Bucket | None:
        """The smallest for a pass over `rows` behind `before` cached ones; None where there is none."""
        padded = next((size for size in ROWS if size >= rows), None)
        if padded is None or before + padded > capacity:
            return None
        context = CONTEXT
        while context < before + padded:
            context *= 2
        return cls(padded, min(context, capacity))


@dataclass(frozen=True, slots=True)
class Reads:
    """What is read of a pass beside its logits.

    Attributes:
        taps: hidden states, as in `FeatureTarget.start_tapped`.
        head_input: what the language-model head reads.
    """

    taps: tuple[int, ...] = ()
    head_input: bool = False


NOTHING = Reads()


class _Static:
    """The input buffers of one bucket, and its replay."""

    def __init__(self, bucket: Bucket, device: torch.device, mask_dtype: torch.dtype) -> None:
        self.ids = torch.zeros(1, bucket.rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.ids)
        self.slots = torch.zeros(bucket.rows, dtype=torch.int64, device=device)
        shape = (1, 1, bucket.rows, bucket.context)
        self.mask = torch.zeros(shape, dtype=mask_dtype, device=device)
        self.replay: Run | None = None


class GraphedPasses:
    """Passes of one model, by buckets. Threads take turns, since captures share their memory.

    Args:
        model: the `transformers` model.
        taps, head_inputs: where its hidden states are read.
        capture: how passes are captured.
        device: where it is, all of it.
        float_masks: the dtype of additive masks; None where masks are bool.
        most_graphs: how many are kept.
    """

    def __init__(
        self,
        model: Any,
        taps: Taps,
        head_inputs: HeadInputs,
        capture: Capture,
        device: torch.device,
        float_masks: torch.dtype | None = None,
        most_graphs: int = MOST_GRAPHS,
    ) -> None:
        self._model, self._taps, self._head_inputs = model, taps, head_inputs
        self._capture, self._device = capture, device
        self._float_masks, self._most = float_masks, most_graphs
        self._graphs: OrderedDict[tuple[Bucket, Reads, int], _Static] = OrderedDict()
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def run(
        self,
        token_ids: Sequence[int],
        cache: KVCache,
        positions: Tensor,
        mask: Tensor | None,
        reads: Reads = NOTHING,
    ) -> Outputs | None:
        """Score nodes that become pending in the cache, as `ForwardPass` does inside `KVCache.writing`.

        Args:
            token_ids: [n] tokens.
            cache: of full attention alone.
            positions: int64 [n].
            mask: [1, 1, n, rows so far + n] as `TreeMasks.build` gave it; None for a row that sees all.
            reads: what else is wanted.

        Returns:
            Logits [n, rows of the head], each tapped state [n, h], the head's input [n, h]; None where no
            bucket holds the pass: then nothing was written.
        """
        rows, count = StaticRows.of(cache), len(token_ids)
        if rows is None:
            return None
        bucket = Bucket.holding(count, rows.live, rows.capacity)
        if bucket is None:
            return None
        with self._turn:
            static = self._static(bucket, reads, rows)
            self._fill(static, token_ids, positions, mask, rows.live)
            if static.replay is None:
                static.replay = self._capture.capture(self._pass(static, rows, bucket, reads))
            with cache.writing(count):
                outputs = tuple(output[:count].clone() for output in static.replay())
                rows.note_written()
            return outputs

    def _static(self, bucket: Bucket, reads: Reads, rows: StaticRows) -> _Static:
        """The buffers of a bucket over the cache where it is now."""
        key = bucket, reads, rows.place
        static = self._graphs.pop(key, None)
        if static is None:
            rows.clear_free()
            static = _Static(bucket, self._device, self._float_masks or torch.bool)
        self._graphs[key] = static
        if len(self._graphs) > self._most:
            self._graphs.popitem(last=False)
        return static

    def _fill(
        self,
        static: _Static,
        token_ids: Sequence[int],
        positions: Tensor,
        mask: Tensor | None,
        live: int,
    ) -> None:
        """Copy a pass's inputs into the buffers; the padding's are those of harmless rows."""
        count, padded = len(token_ids), len(static.slots)
        ids = [*token_ids, *[token_ids[-1]] * (padded - count)]
        static.ids.copy_(torch.tensor([ids]), non_blocking=True)
        static.positions.copy_(positions[-1])
        static.positions[0, :count] = positions
        torch.arange(live, live + padded, out=static.slots)
        seen, unseen = self._mask_values()
        static.mask.fill_(unseen)
        columns = live + count
        static.mask[..., :count, :columns] = seen if mask is None else mask
        own = static.mask[0, 0, :, live : live + padded]
        own[count:, count:].fill_diagonal_(seen)

    def _mask_values(self) -> tuple[float, float]:
        """For columns that are seen, and for others."""
        if self._float_masks is None:
            return True, False
        return 0.0, torch.finfo(self._float_masks).min

    def _pass(self, static: _Static, rows: StaticRows, bucket: Bucket, reads: Reads) -> Run:
        cache = rows.cache(static.slots, bucket.context)

        def run() -> Outputs:
            taps, heads = self._taps.collecting(), self._head_inputs.collecting()
            with own_pass(), taps as states, heads as seen:
                output = self._model(
                    input_ids=static.ids,
                    attention_mask=static.mask,
                    position_ids=static.positions,
                    cache=cache,
                    use_cache=True,
                )
            shown = seen[-1:] if reads.head_input else []
            return tuple(o[0] for o in (output.logits, *(states[t] for t in reads.taps), *shown))

        return run
