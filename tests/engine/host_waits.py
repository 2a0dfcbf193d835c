"""Counting the places where the host would wait for a device, on a machine without one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")
"""Operators whose result, or whose result's shape, the host needs."""
TOGETHER = "to_host"
"""What reads several tensors in one transfer."""


class HostWaits(TorchDispatchMode):
    """Inside, reads of tensors by the host are counted by the function that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.by_caller: Counter[str] = Counter()
        self._functions = _Lists(self)
        self._last_frame: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.name in WAITING:
            self.count(sys._getframe(1))
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> HostWaits:
        super().__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        super().__exit__(*error)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_caller.values())

    def count(self, frame: Any) -> None:
        """One more, unless it belongs to the transfer that the last one began."""
        while frame.f_code.co_filename == __file__ or "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        name = frame.f_code.co_name
        while name == "<genexpr>" or name == "<listcomp>":
            frame = frame.f_back
            name = frame.f_code.co_name
        again = name == TOGETHER and frame is self._last_frame
        self._last_frame = frame
        self.by_caller[name] += not again


class _Lists(TorchFunctionMode):
    """`tolist` and copies to numpy, which are no operators."""

    def __init__(self, waits: HostWaits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            self._waits.count(sys._getframe(1))
        return func(*args, **(kwargs or {}))
