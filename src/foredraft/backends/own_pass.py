"""Whether a pass is one of ours: what we exchange in a model acts there alone.

The same model object may be used by `transformers` itself, by other libraries and by a training. For them it
stays what it was, to the last rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_state = threading.local()


@contextmanager
def own_pass(joint: Any = None) -> Iterator[None]:
    """Inside, this thread's passes are ours; `joint` is what layers are to know of one over several
    sequences (`joint_pass.JointPass`)."""
    before = getattr(_state, "active", False), getattr(_state, "joint", None)
    _state.active, _state.joint = True, joint
    try:
        yield
    finally:
        _state.active, _state.joint = before
        _state.kept, _state.made = None, {}


def in_own_pass() -> bool:
    """Whether this thread is inside `own_pass`; never in what is being compiled, which others may run."""
    return not torch.compiler.is_compiling() and getattr(_state, "active", False)


def joint_pass() -> Any:
    """The pass over several sequences that this thread is inside, or None."""
    return getattr(_state, "joint", None)


def keep(value: Any) -> None:
    """Hold one value for a later layer of the same pass of this thread."""
    _state.kept = value


def kept() -> Any:
    """What was held last, or None."""
    return getattr(_state, "kept", None)


def once(source: Any, key: Hashable, make: Callable[[], T]) -> T:
    """What the layers of one pass all need of the same object, made by the first of them.

    Args:
        source: what it is made of. It is held until the pass ends, so that no other takes its identity.
        key: what else it depends on.
        make: makes it.
    """
    made = getattr(_state, "made", None)
    if made is None:
        made = _state.made = {}
    place = (id(source), key)
    if place not in made:
        made[place] = (source, make())
    found: T = made[place][1]
    return found
