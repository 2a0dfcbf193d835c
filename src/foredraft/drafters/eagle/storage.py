"""Tensors of a checkpoint folder, read without running code that comes with it, and written whole."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import uuid
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from foredraft.errors import ModelError
from foredraft.files import write_json

T = TypeVar("T")

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
WEIGHTS = (SAFETENSORS, "pytorch_model.bin")
"""In order of preference; either may be sharded, with `<name>.index.json` naming the parts."""

WIDE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Types of numbers that can say that they are not finite."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        ModelError: there is none, or it holds no JSON object.
    """
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"folder {str(folder)!r} has no {CONFIG}; give a head's folder") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read ({error}); fetch it again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds no JSON object; fetch it again")
    return config


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder, on the CPU, as stored.

    Raises:
        ModelError: there are no weights, a part is missing or damaged, a number is not finite, or a
            pickle holds more than tensors.
    """
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for name, tensor in _read(file).items():
            if name in tensors:
                raise ModelError(f"{file.name} has {name} once more; fetch the folder again")
            if tensor.dtype in WIDE and not bool(tensor.isfinite().all()):
                raise ModelError(
                    f"{file} has numbers in {name} that are not finite; fetch the folder again, or train anew"
                )
            tensors[name] = tensor
    return tensors


def tensor_names(folder: Path) -> list[str]:
    """The names alone, without reading more than is needed. Errors as in `read_tensors`."""
    names: list[str] = []
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            names += _tried(file, _safetensors_names)
        else:
            names += _read(file)
    return names


def _safetensors_names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def weight_files(folder: Path) -> list[Path]:
    """The file of weights, or its parts.

    Raises:
        ModelError: there are none, or the index of the parts names something else than files beside it.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _parts(index)
    raise ModelError(f"folder {str(folder)!r} has no weights; it needs {' or '.join(WEIGHTS)}")


def _parts(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is no index of weights ({error}); fetch it again") from error
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise ModelError(f"{index} names {name!r}, which is not beside it; fetch it again")
    return [index.parent / name for name in names]


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        return _tried(file, load_file)
    return _tried(file, _read_pickle)


def _read_pickle(file: Path) -> dict[str, Tensor]:
    """A pickle of tensors; anything else in it is refused, and nothing of it is run."""
    mapped = zipfile.is_zipfile(file)  # then tensors stay on disk until they are used
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file} holds more than tensors, or is damaged, and is not loaded; convert it to "
            f"{SAFETENSORS} where you trust it"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ModelError(f"{file} is no mapping of names to tensors; give a head's weights")
    return content


def _tried(file: Path, read: Callable[[Path], T]) -> T:
    """What reading the file gives; whatever a library raises becomes one sentence."""
    try:
        return read(file)
    except ModelError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{file} cannot be read ({reason[0]}); fetch it again") from error


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """Replace the folder's config.json and model.safetensors, each at once, others of its files stay.

    Raises:
        ModelError: the disk refused it; the files that were there are still there.
    """
    from safetensors.torch import save_file

    partial = folder / f".{uuid.uuid4().hex}.partial"
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(whole, partial, metadata={"format": "pt"})
        os.replace(partial, folder / SAFETENSORS)
        write_json(folder / CONFIG, dict(config))
    except OSError as error:
        raise ModelError(
            f"the head cannot be written to {str(folder)!r} ({error.strerror or error}); give a "
            "folder that you may write to"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
