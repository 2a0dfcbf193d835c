"""An EAGLE objective from what the user chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.initial import DEFAULT_INIT
from foredraft.drafters.student_files import is_student_folder
from foredraft.errors import ConfigError
from foredraft.train.eagle import EagleLoss, EagleObjective
from foredraft.train.setting import Setting, check_kept
from foredraft.train.vocabulary import DRAFT_VOCAB

_RULES: Mapping[str, tuple[str, Any]] = {
    "steps_ahead": ("1 or more", lambda v: v >= 1),
    "decay": ("a number above 0", lambda v: 0 < v < math.inf),
    "later_share": ("above 0 and at most 1", lambda v: 0 < v <= 1),
    "sharpen": ("a number above 0", lambda v: 0 < v < math.inf),
    "feature": ("a number of 0 or more", lambda v: 0 <= v < math.inf),
    "soft_label": ("a number of 0 or more", lambda v: 0 <= v < math.inf),
    "noise": ("a number of 0 or more", lambda v: 0 <= v < math.inf),
}


def eagle_objective(
    setting: Setting,
    variant: int,
    chosen: Mapping[str, Any],
    *,
    draft_vocab: int | None,
    taps: Sequence[int] | None,
    init: str | None,
    start_from: Path | None,
    max_length: int,
    own_head: bool | None = None,
) -> tuple[EagleObjective, dict[str, Any]]:
    """The objective, and what it is as JSON.

    Args:
        setting: target and corpus.
        variant: 1 or 3.
        chosen: weights of `EagleLoss`, by the names of the options.
        draft_vocab: tokens of the head (EAGLE-3), or of the soft-label loss (EAGLE-1); 0 for all, None for
            `DRAFT_VOCAB`.
        taps: hidden states that are fused (EAGLE-3); None takes the usual ones.
        init: `last-layer` or `random`; None takes `DEFAULT_INIT`.
        start_from: folder of a head to go on from; it keeps its vocabulary and taps.
        max_length: tokens at which samples are cut.
        own_head: whether language-model rows are trained or the target's taken (EAGLE-3); None trains them,
            or keeps what the head to go on from has.

    Raises:
        ConfigError: a value out of its range, or one that the head to go on from does not have.
        ModelError: the folder holds no head of this variant for this target.
    """
    loss, longest = _loss(chosen), _longest(setting, max_length)
    size = DRAFT_VOCAB if draft_vocab is None else draft_vocab
    if start_from is None:
        begun = init or DEFAULT_INIT[variant]  # type: ignore[index]
        own: dict[str, Any] = {"own_lm_head": own_head, "taps": taps} if variant == 3 else {}
        ids = setting.draft_ids(size)
        head = EagleHead.for_target(
            setting.model,
            variant,  # type: ignore[arg-type]
            draft_ids=ids if variant == 3 else None,
            init=begun,
            max_positions=longest,
            **own,
        ).float()
    else:
        asked = None if variant == 1 else setting.kept_size(draft_vocab)
        head = _given(setting, variant, start_from, asked, own_head, taps, init).float()
        begun = setting.start_from(start_from, head)
        longest = max(head.config.max_position_embeddings, longest)
        head.config = replace(head.config, max_position_embeddings=longest)
        ids = setting.draft_ids(size) if variant == 1 else None
    objective = EagleObjective(head.train(), setting.model, loss, ids, setting.cache)
    return objective, {**_facts(setting, objective), "init": begun}


def _given(
    setting: Setting,
    variant: int,
    folder: Path,
    draft_vocab: int | None,
    own_head: bool | None,
    taps: Sequence[int] | None,
    init: str | None,
) -> EagleHead:
    """The head to go on from; what is asked for must be what it has."""
    if is_student_folder(folder):
        raise ConfigError(f"{folder} holds a draft model and no EAGLE head; give a head's folder")
    head = load_head(folder, setting.model, variant=variant)  # type: ignore[arg-type]
    check_kept(
        folder,
        draft_vocab=(draft_vocab, head.config.draft_vocab_size if head.config.is_reduced else 0),
        own_head=(own_head, head.own_lm_head),
        taps=(taps, head.config.taps),
        init=(init, "weights of its own"),
    )
    return head


def _longest(setting: Setting, max_length: int) -> int:
    """Positions that are trained."""
    return min(int(setting.corpus.lengths.max()), max_length)


def _loss(chosen: Mapping[str, Any]) -> EagleLoss:
    """The weights, by the names of the options: there, `steps` are the optimizer's."""
    for name, value in chosen.items():
        allowed, holds = _RULES[name]
        if not holds(value):
            raise ConfigError(
                f"--{name.replace('_', '-')} {value!r} is not allowed; give {allowed}"
            )
    return EagleLoss(**{"steps" if k == "steps_ahead" else k: v for k, v in chosen.items()})


def _facts(setting: Setting, objective: EagleObjective) -> dict[str, Any]:
    config = objective.head.config
    ids = objective.label_ids if config.variant == 1 else objective.head.target_ids
    names = {
        1: ("feature", "soft_label", "noise"),
        3: ("steps", "decay", "later_share", "sharpen"),
    }[config.variant]
    return {
        "kind": f"eagle{config.variant}",
        "taps": list(config.taps),
        "lm_head": "own" if objective.head.own_lm_head else "target",
        "loss": {name: value for name, value in asdict(objective.loss).items() if name in names},
        "draft_vocabulary": setting.vocabulary_identity(ids),
    }
