"""Hidden states read off a Hugging Face model by hooks: no copied modeling file, no second pass.

Hooks are put in once for each tapped place and stay. They collect only into what the thread that runs
the pass has opened (`Taps.collecting`), so sessions in several threads share one model, and passes of
sequences that are not tapped leave nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.errors import CacheError, ModelError

CHECK_TOKENS = (0, 1, 2, 1)
"""What taps are compared with the model's own hidden states on."""


class Taps:
    """The places of one model where hidden states can be read: k in 0 .. n - 1 is the input of layer k,
    n the output of the decoder, after its final norm."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._name = type(model).__name__
        self._lock = threading.Lock()
        self._open = threading.local()
        self._hooked: set[int] = set()

    def require(self, taps: Sequence[int]) -> None:
        """Make these places readable.

        Raises:
            ModelError: one is out of range, or gives something else than the model's `hidden_states`.
        """
        with self._lock:
            for tap in sorted({*taps} - self._hooked):
                self._add(tap)

    @contextmanager
    def collecting(self) -> Iterator[dict[int, Tensor]]:
        """Place -> hidden states [1, N, h] of the pass that this thread runs inside."""
        states: dict[int, Tensor] = {}
        self._open.states = states
        try:
            yield states
        finally:
            self._open.states = None

    def _add(self, tap: int) -> None:
        decoder, layers = self._decoder()
        if not 0 <= tap <= len(layers):
            raise ModelError(
                f"tap {tap} is not among the hidden states of {self._name}; it has 0 to {len(layers)}"
            )
        if tap < len(layers):
            hook = layers[tap].register_forward_pre_hook(self._input_hook(tap), with_kwargs=True)
        else:
            hook = decoder.register_forward_hook(self._output_hook(tap))
        try:
            self._check(tap)
        except BaseException:
            hook.remove()
            raise
        self._hooked.add(tap)

    def _decoder(self) -> tuple[nn.Module, nn.ModuleList]:
        """The decoder without its head, and its layers."""
        count = self._model.config.get_text_config(decoder=True).num_hidden_layers
        decoder = self._model.get_decoder()
        if decoder is self._model:  # Llama 4 names itself
            decoder = self._model.model
        for module in decoder.modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return decoder, module
        raise ModelError(
            f"{self._name} has no list of {count} layers, so its hidden states cannot be read; "
            "use a drafter that does not need them"
        )

    def _input_hook(self, tap: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._keep(tap, args[0] if args else kwargs.get("hidden_states"))

        return hook

    def _output_hook(self, tap: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._keep(tap, output[0])

        return hook

    def _keep(self, tap: int, states: Any) -> None:
        collected = getattr(self._open, "states", None)
        if collected is not None:
            collected[tap] = states

    @torch.inference_mode()
    def _check(self, tap: int) -> None:
        """Compare with what the model itself calls its hidden states, in one pass."""
        device = self._model.get_input_embeddings().weight.device
        ids = torch.tensor([CHECK_TOKENS], device=device)
        with self.collecting() as states:
            output = self._model(input_ids=ids, use_cache=False, output_hidden_states=True)
        expected = output.hidden_states
        same = (
            expected is not None
            and tap < len(expected)
            and isinstance(states.get(tap), Tensor)
            and states[tap].shape == expected[tap].shape
            and _equal(states[tap], expected[tap])
        )
        if not same:
            raise ModelError(
                f"what enters layer {tap} of {self._name} is not what it calls hidden state {tap}; "
                "use a drafter that does not read hidden states"
            )


def _equal(read: Tensor, expected: Tensor) -> bool:
    """Bit for bit, NaN and all; a model over several devices gives its outputs on the first."""
    read = read.to(expected.device)
    return torch.allclose(read, expected, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a pass showed of its N rows.

    Attributes:
        states: tap -> hidden states [1, N, h].
        heads: inputs [1, N, h] of the language-model head, one for each time that it ran.
    """

    states: dict[int, Tensor]
    heads: list[Tensor]

    @property
    def head_input(self) -> Tensor | None:
        """[N, h] that the head read last; None if it did not run as a module."""
        return self.heads[-1][0] if self.heads else None

    def of(self, part: slice) -> Shown:
        """What it showed of some of them."""
        states = {tap: state[:, part] for tap, state in self.states.items()}
        return Shown(states, [seen[:, part] for seen in self.heads])


class FeatureBuffer:
    """Features of one sequence: of pending nodes until the commit, of committed tokens until taken."""

    def __init__(
        self, taps: Sequence[int], size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """`size` is F, all taps together."""
        self._taps, self._device = tuple(taps), device
        self._pending: list[Tensor] = []
        self._committed: list[Tensor] = []
        self._nothing = torch.empty(0, size, dtype=dtype, device=device)

    def add(self, states: dict[int, Tensor], rows: int) -> None:
        """Take the features of a pass over that many nodes, which are pending now.

        Raises:
            CacheError: the pass did not show each tapped state of each node once.
        """
        read = [states.get(tap) for tap in self._taps]
        for tap, state in zip(self._taps, read, strict=True):
            if state is None or state.shape[:2] != (1, rows):
                raise CacheError(
                    f"the pass over {rows} tokens did not show hidden state {tap} of each; "
                    "the model does not run its layers as it did when it was loaded"
                )
        self._pending.append(torch.cat([s[0].to(self._device) for s in read if s is not None], -1))

    def commit(self, path: Sequence[int]) -> Tensor | None:
        """Keep these pending nodes, drop the others; the features [n, F] that are kept, if any."""
        kept = None
        if self._pending and len(path):
            kept = torch.cat(self._pending)
            if len(path) < len(kept):
                kept = kept[torch.tensor(path, device=self._device)]
            self._committed.append(kept)
        self._pending = []
        return kept

    def restore(self, features: Tensor) -> None:
        """Take features [n, F] of committed tokens that no pass has shown."""
        self._committed.append(features)

    def take(self) -> Tensor:
        """Features [n, F] since the last call."""
        taken = torch.cat(self._committed) if self._committed else self._nothing
        self._committed = []
        return taken


class HeadInputs:
    """What enters a model's language-model head, by a hook that is put in when it is first asked for."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._open = threading.local()
        self._is_hooked = False

    def require(self) -> None:
        """Put the hook in; a model without a head of its own shows nothing."""
        with self._lock:
            head = None if self._is_hooked else self._model.get_output_embeddings()
            if head is not None:
                head.register_forward_pre_hook(self._hook())
                self._is_hooked = True

    @contextmanager
    def collecting(self) -> Iterator[list[Tensor]]:
        """The inputs [1, N, h] of the head, in passes that this thread runs inside."""
        seen: list[Tensor] = []
        self._open.seen = seen
        try:
            yield seen
        finally:
            self._open.seen = None

    def _hook(self) -> Any:
        """A function, which `copy.deepcopy` of the model takes as it is; a method would bring its locks."""

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._keep(args)

        return hook

    def _keep(self, args: tuple[Any, ...]) -> None:
        seen = getattr(self._open, "seen", None)
        if seen is not None and args and isinstance(args[0], Tensor):
            seen.append(args[0])
