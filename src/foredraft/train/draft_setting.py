"""A draft model's objective from what the user chose."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from foredraft.drafters.student import TAKES, StudentModel, build_student, pick_layers
from foredraft.drafters.student_files import load_student
from foredraft.train.draft_model import DraftModelObjective
from foredraft.train.setting import Setting, check_kept
from foredraft.train.vocabulary import DRAFT_VOCAB

LAYERS = 2


def draft_model_objective(
    setting: Setting,
    *,
    layers: int | None,
    take: str | None,
    draft_vocab: int | None,
    own_head: bool | None,
    int8: bool,
    start_from: Path | None,
) -> tuple[DraftModelObjective, dict[str, Any]]:
    """The objective, and what it is as JSON. None takes the default, or what is gone on from.

    Args:
        setting: target and corpus.
        layers: how many of the target's; `LAYERS`.
        take: which of them; the first.
        draft_vocab: tokens of the head, 0 for all; `DRAFT_VOCAB`.
        own_head: whether the head is trained; it is.
        int8: how weights are stored in the end.
        start_from: folder of a draft model to go on from; it keeps its layers and its head.

    Raises:
        ConfigError: a value out of its range, or one that the draft model to go on from does not have.
        ModelError: the folder holds no draft model of this target.
    """
    if start_from is not None:
        student = load_student(start_from, setting.model)
        _check_same(setting, start_from, student, layers, take, draft_vocab, own_head)
    else:
        student = build_student(
            setting.model,
            LAYERS if layers is None else layers,
            TAKES[0] if take is None else take,  # type: ignore[arg-type]
            setting.draft_ids(DRAFT_VOCAB if draft_vocab is None else draft_vocab),
            own_head is not False,
        )
    objective = DraftModelObjective(setting.model, student, int8=int8, cache=setting.cache)
    facts = {"kind": "draft-model", **asdict(student.config), "int8": int8}
    if start_from is not None:
        facts["init"] = setting.start_from(start_from, objective.module)
    return objective, facts


def _check_same(
    setting: Setting,
    folder: Path,
    student: StudentModel,
    layers: int | None,
    take: str | None,
    draft_vocab: int | None,
    own_head: bool | None,
) -> None:
    """Refuse choices that the draft model to go on from did not make."""
    config, count = student.config, setting.model.config.num_hidden_layers
    number = len(config.layers)
    taken = [name for name in TAKES if pick_layers(count, number, name) == config.layers]  # type: ignore[arg-type]
    check_kept(
        folder,
        layers=(layers, number),
        take=(take, take if take in taken else list(config.layers)),
        draft_vocab=(setting.kept_size(draft_vocab), config.draft_vocab_size or 0),
        own_head=(own_head, config.head == "own"),
    )
