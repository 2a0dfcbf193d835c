"""Time of a pass by groups of operators, with `torch.profiler`.

The profiler makes a pass slower. Times of operators are their own (self) times, in which little of that is
found; what lies between them (Python, dispatch) is not taken from the profile: it is what the same pass
takes, without the profiler, beyond all of its operators.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from foredraft.bench.profile.operators import ATEN, Group, Operator, Place, group_of, place_of

SCOPE = "foredraft place: "
BETWEEN = "between operators"
RUNTIME = ("cuda", "cu", "hip", "xpu")
"""Calls of a device's runtime, which are part of the operator that made them."""
STDERR = 2
PROFILED_PASSES = 5
MOST_LISTED = 12
"""Operators that are listed by name."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Self time of one kind of operator in one pass."""

    operator: Operator
    seconds: float
    calls: float


def profile_operators(
    model: nn.Module, run: Callable[[], float], *, passes: int = PROFILED_PASSES
) -> tuple[list[OperatorTime], float]:
    """Operators of one pass, and seconds of the pass without the profiler: medians of passes in turn.

    Args:
        model: whose modules tell operators apart, by hooks that are there in the profiled passes alone.
        run: makes one pass, and gives the seconds that it took.
        passes: how many of either kind.

    Returns:
        One entry for each place, outermost operator and operator, longest first. Seconds are of the device
        where the model is on one, else of the CPU thread that runs the pass.
    """
    on_device = any(p.device.type == "cuda" for p in model.parameters())
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    seen, seconds = [], []
    for _ in range(passes):
        seconds.append(run())
        with places(model), _hushed():
            run()  # the first pass with hooks warms up
            with profile(activities=activities) as profiler:
                run()
        seen.append(summed(profiler.events() or (), on_device))
    return medians(seen), float(np.median(seconds))


@contextmanager
def _hushed() -> Iterator[None]:
    """Nothing on the process's stderr inside: the profiler's library tells there that it starts and stops."""
    kept = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def places(model: nn.Module) -> Iterator[None]:
    """Have every module of a model name its place to the profiler."""
    ends = tuple(
        end
        for end in (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
        if end is not None
    )
    handles = []
    try:
        for module in model.modules():
            scopes = _Scopes(SCOPE + place_of(module, ends).name)
            handles.append(module.register_forward_pre_hook(scopes.enter))
            handles.append(module.register_forward_hook(scopes.leave, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Scopes:
    """The profiler's ranges around a module's calls, which may be nested."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[Any] = []

    def enter(self, *_: Any) -> None:
        """Before a call."""
        self._open.append(record_function(self._name))
        self._open[-1].__enter__()

    def leave(self, *_: Any) -> None:
        """After it."""
        self._open.pop().__exit__(None, None, None)


def summed(events: Iterable[Any], on_device: bool = False) -> dict[Operator, tuple[float, int]]:
    """Self seconds and calls of one pass, by operator.

    Args:
        events: the profiler's; each has `name`, `cpu_parent`, `device_type` and self times in microseconds.
        on_device: whether to take the device's times.
    """
    found: dict[Operator, tuple[float, int]] = {}
    for event in events:
        operator = operator_of(event)
        if operator is not None:
            took = event.self_device_time_total if on_device else event.self_cpu_time_total
            seconds, calls = found.get(operator, (0.0, 0))
            found[operator] = seconds + took / 1e6, calls + (not _is_runtime(event.name))
    return found


def medians(passes: Sequence[Mapping[Operator, tuple[float, int]]]) -> list[OperatorTime]:
    """The median of each operator over passes, 0 in those without it; longest first."""
    names = {operator for one in passes for operator in one}
    found = [
        OperatorTime(name, *np.median([one.get(name, (0.0, 0)) for one in passes], axis=0).tolist())
        for name in names
    ]
    return sorted(found, key=lambda entry: (-entry.seconds, str(entry.operator)))


def operator_of(event: Any) -> Operator | None:
    """What a profiler's event is; None for ranges, kernels of a device, and the profiler's own."""
    if event.device_type != DeviceType.CPU or _is_range(event.name):
        return None
    while _is_runtime(event.name) and event.cpu_parent and not _is_range(event.cpu_parent.name):
        event = event.cpu_parent
    name = outermost = event.name
    above = event.cpu_parent
    while above is not None and not above.name.startswith(SCOPE):
        outermost = above.name if not _is_range(above.name) else outermost
        above = above.cpu_parent
    place = Place.MODEL if above is None else Place[above.name.removeprefix(SCOPE)]
    return Operator(place, outermost, name)


def _is_range(name: str) -> bool:
    return name.startswith((SCOPE, "ProfilerStep", "PyTorch Profiler"))


def _is_runtime(name: str) -> bool:
    return name.startswith(RUNTIME) and "::" not in name


def grouped(operators: Iterable[OperatorTime], pass_s: float) -> dict[str, Any]:
    """Groups of a pass, scaled to what it takes without the profiler.

    What the operators leave of the pass lies between them. If they take more than the pass (each is
    made a little slower by being watched), they are scaled down to it. Shares sum to one.

    Args:
        operators: of one pass.
        pass_s: the same pass without the profiler.

    Returns:
        `groups` (rows of `name`, `ms`, `share`, `profiled_ms`, `calls`), `operators` (the longest, by name),
        `unknown` (names of what no group is known for) and `scale`.
    """
    own = list(operators)
    total = sum(entry.seconds for entry in own)
    scale = min(1.0, pass_s / total) if total else 1.0
    rows = [
        _row(group.value, [e for e in own if group_of(e.operator) is group], scale, pass_s)
        for group in Group
    ]
    left_s = pass_s - total * scale
    between = {
        "name": BETWEEN,
        "ms": 1000 * left_s,
        "share": left_s / pass_s,
        "profiled_ms": None,
        "calls": None,
    }
    return {
        "groups": [*rows, between],
        "scale": scale,
        "operators": _by_name(own)[:MOST_LISTED],
        "unknown": sorted({e.operator.name for e in own if group_of(e.operator) is Group.OTHER}),
    }


def _row(name: str, own: list[OperatorTime], scale: float, pass_s: float) -> dict[str, Any]:
    profiled_s = sum(entry.seconds for entry in own)
    return {
        "name": name,
        "ms": 1000 * profiled_s * scale,
        "share": profiled_s * scale / pass_s,
        "profiled_ms": 1000 * profiled_s,
        "calls": sum(entry.calls for entry in own),
    }


def _by_name(operators: Iterable[OperatorTime]) -> list[Mapping[str, Any]]:
    """Operators by group and name, longest first."""
    found: dict[tuple[str, str], list[OperatorTime]] = defaultdict(list)
    for entry in operators:
        found[group_of(entry.operator).value, entry.operator.name.removeprefix(ATEN)].append(entry)
    rows = [
        {
            "name": name,
            "group": group,
            "profiled_ms": 1000 * sum(e.seconds for e in own),
            "calls": sum(e.calls for e in own),
        }
        for (group, name), own in found.items()
    ]
    return sorted(rows, key=lambda row: -row["profiled_ms"])
