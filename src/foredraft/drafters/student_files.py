"""Folders of draft models that were cut from their target (`student.py`).

One holds what was trained and no more:

```
foredraft.json      the kind, which layers, and what the target must look like
config.json         of the model that results
model.safetensors   layers and norms; int8 with a scale a row, or as trained; `draft_ids` and `lm_head.weight`
                    where the head is reduced and its own
```

Everything else (embeddings, the rest of the head) is the target's own memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.drafters.eagle.storage import read_tensors, write_checkpoint
from foredraft.drafters.int8_rows import pack, unpack
from foredraft.drafters.student import StudentConfig, StudentModel, build_student, target_facts
from foredraft.errors import ModelError
from foredraft.files import write_json

KIND_FILE, KIND, FORMAT = "foredraft.json", "draft-model", 1
DRAFT_IDS = "draft_ids"


def save_student(student: StudentModel, folder: Path, *, int8: bool = True) -> None:
    """Write what the student owns.

    Args:
        student: the student.
        folder: made if it does not exist; other files in it stay.
        int8: matrices as int8 with a scale a row, instead of bfloat16.

    Raises:
        ModelError: the disk refused it.
    """
    tensors = {name: p.detach().to(torch.bfloat16) for name, p in student.owned.items()}
    if int8:
        tensors = pack({name: p.detach().float() for name, p in student.owned.items()})
    if student.draft_ids is not None:
        tensors[DRAFT_IDS] = student.draft_ids.to(torch.int32)
    config = student.model.config.to_dict()
    config.pop("_name_or_path", None)  # where the target lies says nothing elsewhere
    write_checkpoint(folder, tensors, config)
    write_json(folder / KIND_FILE, {"kind": KIND, "format": FORMAT, **asdict(student.config)})


def is_student_folder(path: str | Path) -> bool:
    """Whether a folder holds a student."""
    try:
        found = json.loads((Path(path) / KIND_FILE).read_text(encoding="utf-8"))
        return isinstance(found, dict) and found.get("kind") == KIND
    except (OSError, ValueError):
        return False


def load_student(folder: str | Path, target_model: Any) -> StudentModel:
    """A student for its target, in the target's dtype and on its devices.

    Raises:
        ModelError: the folder holds none, it is another target's, or a tensor of it is missing, left over
            or of the wrong shape; the message names it.
    """
    folder = Path(folder)
    config = _read_config(folder)
    _check_target(folder, config, target_model)
    dtype = target_model.get_input_embeddings().weight.dtype
    tensors = unpack(read_tensors(folder), dtype)
    ids = tensors.pop(DRAFT_IDS, None)
    _check_ids(folder, ids, config)
    student = build_student(
        target_model,
        config.layers,
        draft_ids=None if ids is None else ids.to(torch.int64),
        own_head=config.head == "own",
    )
    _check_tensors(folder, tensors, student.owned)
    with torch.no_grad():
        for name, parameter in student.owned.items():
            parameter.copy_(tensors[name])
    return student


def _read_config(folder: Path) -> StudentConfig:
    file = folder / KIND_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["kind"] != KIND or found["format"] != FORMAT:
            raise ValueError(f"kind {found['kind']!r}, format {found['format']!r}")
        return StudentConfig(
            layers=tuple(int(layer) for layer in found["layers"]),
            head=found["head"],
            draft_vocab_size=found["draft_vocab_size"],
            target=dict(found["target"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{folder} holds no draft model that can be read ({KIND_FILE}: {error}); make one with "
            "`foredraft train draft-model`"
        ) from None


def _check_target(folder: Path, config: StudentConfig, target_model: Any) -> None:
    for name, value in target_facts(target_model).items():
        if config.target.get(name) != value:
            raise ModelError(
                f"{folder} is a draft model for a target with {name} {config.target.get(name)}, and this one "
                f"has {value}; give the target that it was trained for"
            )


def _check_ids(folder: Path, ids: Tensor | None, config: StudentConfig) -> None:
    rows = None if ids is None else len(ids)
    if rows != config.draft_vocab_size:
        raise ModelError(
            f"{folder} has draft_vocab_size {config.draft_vocab_size} in {KIND_FILE} and {rows} draft_ids; "
            "make it again"
        )
    if ids is not None and not _increasing_below(ids, config.target["vocab_size"]):
        raise ModelError(f"draft_ids in {folder} are not increasing token ids; make it again")


def _increasing_below(ids: Tensor, limit: int) -> bool:
    return bool((ids.diff() > 0).all() and ids[0] >= 0 and ids[-1] < limit)


def _check_tensors(
    folder: Path, tensors: Mapping[str, Tensor], owned: Mapping[str, nn.Parameter]
) -> None:
    trouble = next(_troubles(tensors, owned), None)
    if trouble is not None:
        raise ModelError(f"{trouble} in {folder}; make the draft model again")


def _troubles(tensors: Mapping[str, Tensor], owned: Mapping[str, nn.Parameter]) -> Iterator[str]:
    for name in sorted(owned.keys() | tensors.keys()):
        if name not in tensors:
            yield f"the tensor {name} is missing"
        elif name not in owned:
            yield f"there is a tensor {name} that the draft model has no place for"
        elif tensors[name].shape != owned[name].shape:
            shapes = tuple(tensors[name].shape), tuple(owned[name].shape)
            yield f"the tensor {name} has shape {shapes[0]} instead of {shapes[1]}"
        elif not tensors[name].is_floating_point():
            yield f"the tensor {name} holds {tensors[name].dtype} instead of weights"
