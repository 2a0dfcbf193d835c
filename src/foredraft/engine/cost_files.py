"""Cost tables in the user's cache: one for every model, dtype and device, as this machine runs them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from foredraft.backends.identity import quantization_of
from foredraft.backends.regional_compile import is_compiled
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.files import write_json
from foredraft.protocols import Target
from foredraft.zoo.store import home

FOLDER = "costs"
HASH_DIGITS = 10


def costs_path(model_name: str, dtype: str, device: torch.device | str) -> Path:
    """Where the table of a model is kept.

    The name tells apart whatever changes costs: thread count, instruction set, accelerator, and the
    versions of the libraries that compute.

    Args:
        model_name: as given to `foredraft.load`; folders and files count by where they are.
        dtype: of the weights, such as `bfloat16`; see `dtype_of`.
        device: where passes run.

    Raises:
        ConfigError: the user's home is not known.
    """
    device = torch.device(device)
    local = Path(model_name).expanduser()
    facts = [
        str(local.resolve()) if local.exists() else model_name,
        *(dtype, str(device), _hardware(device), str(torch.get_num_threads())),
        *(f"{package} {version(package)}" for package in ("torch", "transformers", "foredraft")),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:HASH_DIGITS]
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{local.name} {dtype} {device}").strip("-.")
    return home() / FOLDER / f"{words}-{digest}.json"


def load_costs(model_name: str, dtype: str, device: torch.device | str) -> CostTable | None:
    """The table kept for a model; None where there is none that can be read. Arguments as in `costs_path`."""
    file = costs_path(model_name, dtype, device)
    try:
        return CostTable.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # a ConfigError is a ValueError
        return None


def save_costs(table: CostTable, model_name: str, dtype: str, device: torch.device | str) -> Path:
    """Keep a table in place of the one before; returns where. Arguments as in `costs_path`.

    Raises:
        ConfigError: the disk refused it.
    """
    file = costs_path(model_name, dtype, device)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(file, error) from None
    write_costs(table, file)
    return file


def write_costs(table: CostTable, file: Path) -> None:
    """Replace the file with a table.

    Raises:
        ConfigError: the disk refused it.
    """
    try:
        write_json(file, table.as_dict())
    except OSError as error:
        raise _refused(file, error) from None


def arithmetic_of(target: Target) -> str:
    """What tables of one model are told apart by: the dtype, and whether passes are compiled or captured."""
    model = getattr(target, "model", None)
    compiled = isinstance(model, nn.Module) and is_compiled(model)
    captured = getattr(target, "graphs", None) is not None
    words = [dtype_of(target), *["compiled"] * compiled, *["captured"] * captured]
    return " ".join(words)


def dtype_of(target: Target) -> str:
    """The dtype of a target, such as `bfloat16` or `bfloat16 with int8 weights`; `unknown` without one."""
    dtype = getattr(getattr(target, "model", None), "dtype", None)
    name = "unknown" if dtype is None else str(dtype).removeprefix("torch.")
    return with_rounding(name, target)


def with_rounding(dtype: str, target: Target) -> str:
    """The name of a dtype, and what the target's weights were rounded to, if they were."""
    kind = quantization_of(getattr(target, "model", None))
    return dtype if kind is None else f"{dtype} with {kind} weights"


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.backends.cpu.get_cpu_capability()} x {os.cpu_count()}"


def _refused(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{file} cannot be written ({error.strerror or error}); name a file in a folder that can be, "
        "or set FOREDRAFT_HOME to one"
    )
