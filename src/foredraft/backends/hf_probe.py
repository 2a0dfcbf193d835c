"""Trying a model out when it is loaded: what it caches, whether a tree scores as its paths do.

Models that ignore masks or positions (ALiBi, custom code) raise nothing and answer wrongly. So a
small tree is scored in one pass, and each of its paths alone without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.kv_layout import KVLayout
from foredraft.errors import ModelError
from foredraft.protocols import ModelState

PREFIX_TOKENS = 8
TREE = (-1, 0, 0, 1, 2)
"""A root, two siblings, and a child under each."""
CHAIN = (-1, 0, 1, 2)

EXACT_TOLERANCE = 1e-2
ROUNDED_TOLERANCE = 0.1
"""Largest error of a row that passes: rms over the vocabulary, relative to the row's own spread.

Another order of sums gives 1e-6 in float32 (1e-3 with TF32) and 2e-2 in bfloat16. Nodes that see
their siblings are off by 0.35 in a trained model and by 0.1 in an untrained one."""

Reference = Callable[[Sequence[int]], Tensor]
"""Token ids [T] -> logits [T, V], computed without a cache."""


def learn_layout(model: Any, device: torch.device) -> KVLayout:
    """What each layer caches, read off one recorded forward pass of two tokens.

    Raises:
        ModelError: the pass fails, or the cache cannot be rolled back row by row.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
    try:
        with torch.inference_mode():
            model(input_ids=ids, cache=cache, use_cache=True)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot run a forward pass with a cache: {first_line(error)}"
        ) from error
    return KVLayout.of(cache)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type when it has none."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def probe_error(
    start: Callable[[], ModelState], reference: Reference, parents: Sequence[int], vocab_size: int
) -> float:
    """The largest relative error of scoring this tree in one pass instead of path by path."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (PREFIX_TOKENS + len(parents),), generator=random).tolist()
    prefix, nodes = ids[:PREFIX_TOKENS], ids[PREFIX_TOKENS:]
    state = start()
    state.prefill(prefix)
    scored = state.score(nodes, parents)
    state.close()
    errors = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = _path(parents, leaf)
        alone = reference(prefix + [nodes[node] for node in path])[-len(path) :]
        if alone.isnan().any():
            raise ModelError("its logits are NaN; check the weights, or try dtype=float32")
        errors.append(relative_error(scored[path], alone))
    return max(errors)


def joint_error(
    states: Sequence[ModelState],
    together: Callable[[Sequence[int]], Sequence[Tensor]],
    vocab_size: int,
) -> float:
    """The largest relative error of scoring a tree behind each of several texts in one pass.

    Args:
        states: fresh ones.
        together: scores nodes of these tokens behind each text, in the tree that was scored there last.
        vocab_size: V.
    """
    random = torch.Generator().manual_seed(1)
    nodes = torch.randint(vocab_size, (len(TREE),), generator=random).tolist()
    alone = []
    for number, state in enumerate(states):
        length = PREFIX_TOKENS + 3 * number
        state.prefill(torch.randint(vocab_size, (length,), generator=random).tolist())
        alone.append(state.score(nodes, TREE))
        state.commit(())
    joint = together(nodes)
    return max(
        relative_error(rows[:, :vocab_size], expected)
        for rows, expected in zip(joint, alone, strict=True)
    )


def tolerance(dtype: torch.dtype) -> float:
    """The largest `probe_error` that rounding in this dtype can explain."""
    return EXACT_TOLERANCE if torch.finfo(dtype).bits >= 32 else ROUNDED_TOLERANCE


def _path(parents: Sequence[int], leaf: int) -> list[int]:
    path = [leaf]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def relative_error(rows: Tensor, expected: Tensor) -> float:
    """[N, V] each: the worst row's rms difference over its spread; NaN counts as infinite."""
    difference = (rows.double() - expected.double()).square().mean(-1).sqrt()
    spread = expected.double().std(-1).clamp_min(torch.finfo(torch.float32).tiny)
    return float((difference / spread).nan_to_num(nan=torch.inf).max())
