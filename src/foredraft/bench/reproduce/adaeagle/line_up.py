"""Who takes part in the comparison of AdaEAGLE: draft lengths, rules, predictors, and fixed structures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

from foredraft.bench.plan import PLAIN
from foredraft.bench.reproduce.entries import Entry
from foredraft.config import METHODS
from foredraft.errors import ConfigError
from foredraft.zoo.shipped import ShippedKind, shipped

LONGEST = 8
"""Of the fixed lengths, and of the drafts that rules and predictors cut short."""
ADAPTIVE, PREDICTED, PREDICTED_THRESHOLD = "adaptive", "adaeagle", "adaeagle-threshold"
PREDICTORS = (("AdaEAGLE", PREDICTED), ("AdaEAGLE with threshold", PREDICTED_THRESHOLD))
HEAD, PREDICTOR = "eagle3", "length-eagle3"
"""The head that ships, and the length predictor that was trained for it."""
RULES = (
    ("confidence under 0.4", "confidence@0.4"),
    ("cumulative threshold (DDD)", "cumulative@-0.6"),
    ("entropy (AdaEDL)", "adaedl"),
    ("entropy (SVIP)", "svip@0.6"),
    ("heuristic of Hugging Face", "heuristic"),
)
"""Thresholds are the published ones, but SVIP's 0.3, which stops this head at once."""
DEPTHS, NODES = (3, 5, 7), (8, 16, 24)
TREES = ("2,2", "2,1,1", "2,1,1,1", "3,2", "4,1,1", "4,2", "2,2,2", "3,1,1,1,1", "4,3")
"""k-configs of up to 16 nodes."""
COPIED = 10
"""Length of the branch of copies of a fixed hybrid."""


def fixed_length(depth: int) -> str:
    """A chain of so many tokens."""
    return f"eagle-chain-{depth}"


FIXED_LENGTHS = tuple(fixed_length(depth) for depth in range(1, LONGEST + 1))
DEEPEST = fixed_length(LONGEST)
"""The chain that the oracle cuts in hindsight."""


def length_line_up(
    predictors: tuple[str, ...], *, shipped: bool, structures: bool
) -> tuple[Entry, ...]:
    """The paper's methods, the rules that it compares with, and the adaptive policy.

    Args:
        predictors: more length predictors, by name or folder: those of an ablation, or of another head.
        shipped: whether one ships for the head, which then stands first.
        structures: fixed trees and hybrids too.
    """
    return (
        Entry("plain decoding", PLAIN),
        *(Entry(f"fixed {depth}", fixed_length(depth)) for depth in range(1, LONGEST + 1)),
        *(Entry(label, f"{DEEPEST}:stop={rule}") for label, rule in RULES),
        *(Entry(label, name) for label, name in PREDICTORS if shipped),
        *(
            Entry(f"{label}, {os.path.basename(predictor)}", f"{name}:length={predictor}")
            for predictor in predictors
            for label, name in PREDICTORS
        ),
        Entry("adaptive", ADAPTIVE),
        *(Entry(name, name) for name in (fixed_structures() if structures else ())),
    )


def check_head(model: str, drafter: str | None) -> None:
    """Refuse a model for which there is no head to draft with.

    Args:
        model, drafter: as in `BenchPlan`.

    Raises:
        ConfigError: none ships and none is given, or a draft model is.
    """
    from foredraft.engine.drafters import given_source, kind_of, shipped_source  # late: PyTorch

    source = given_source(drafter, model)
    if source is None and shipped_source(model, "head") is None:
        raise ConfigError(
            f"no EAGLE head ships for {model}, and draft lengths are compared with one; give one with "
            "--drafter FOLDER"
        )
    if source is not None and kind_of(source, "head") != "head":
        raise ConfigError(
            f"--drafter {drafter} is a draft model, and draft lengths are compared with an EAGLE head; give "
            "the folder of one"
        )


def missing_predictor(model: str, drafter: str | None) -> str | None:
    """Why no length predictor that ships can take part; None where one can."""
    if PREDICTED not in METHODS:
        return "AdaEAGLE did not take part: this version has no length predictor"
    if drafter in (None, HEAD) and shipped(model, cast(ShippedKind, PREDICTOR)):
        return None
    return (
        "AdaEAGLE did not take part: no length predictor ships for this head; train one with `foredraft "
        "train length-predictor`, and name it with --predictors FOLDER"
    )


def fixed_structures() -> Iterator[str]:
    """Dynamic trees and k-configs, then all fixed structures with a branch of copies; without the chains."""
    for depth in DEPTHS:
        yield from (f"eagle2:depth={depth}:nodes={nodes}" for nodes in NODES)
    yield from (f"eagle:tree={tree}" for tree in TREES)
    branch = f"hybrid:depth={COPIED}"
    for depth in range(1, LONGEST + 1):
        yield f"{branch}:tree={','.join('1' * depth)}"
    for depth in DEPTHS:
        yield from (f"{branch}:levels={depth}:nodes={nodes}:top_k=8" for nodes in NODES)
    yield from (f"{branch}:tree={tree}" for tree in TREES)


def is_fixed(method: str) -> bool:
    """Whether the structure is the same in every round, or follows from the head's law alone."""
    return method in FIXED_LENGTHS or method in tuple(fixed_structures())
