"""When, where and with what a result was made."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import foredraft
from foredraft.errors import ConfigError

SAME = (
    *("cpu", "threads", "device", "dtype", "python"),
    *("weights", "draft_weights", "head_weights", "own_weights"),
)
SAMPLE = 16
SAME_PACKAGES = ("torch", "transformers")
"""What must not change in the middle of a run."""
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "llama-cpp-python",
    "economize",
)


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """The command, time, revision, versions and hardware of this process.

    Args:
        device: where models run; None is the CPU.
    """
    return {
        "command": command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "foredraft": foredraft.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }


def check_same_machine(begun: dict[str, Any], now: dict[str, Any], folder: str) -> None:
    """Raise `ConfigError` if a run that was begun would go on with other hardware or libraries."""
    packages = {name: begun["packages"].get(name) for name in SAME_PACKAGES}
    before = {**{name: begun.get(name) for name in SAME}, **packages}
    after = {
        **{name: now.get(name) for name in SAME},
        **{name: now["packages"].get(name) for name in SAME_PACKAGES},
    }
    for name, value in before.items():
        if after[name] != value:
            raise ConfigError(
                f"{folder} holds a run begun with {name} {value}, and this is {name} {after[name]}; times "
                "of the two cannot be mixed: give another --out"
            )


def weights_digest(model: Any) -> str | None:
    """A hash of a model's weights: names, shapes, and both ends of every tensor; None without a model."""
    if model is None:
        return None
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        ends = torch.cat([flat[:SAMPLE], flat[-SAMPLE:]]).double().tolist()
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {ends}".encode())
    return found.hexdigest()[:16]


def command() -> str:
    """What was typed, with files as they were given; the program's own place is left out."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m foredraft
        program = program.parent
    if program.suffix != ".py":
        return shlex.join([program.name, *sys.argv[1:]])
    script = Path(*program.resolve().parts[-3:])  # benchmarks/NAME/run.py
    return shlex.join(["python", str(script), *sys.argv[1:]])


def revision() -> str | None:
    """The git commit of this package's source, with + when files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        if not Path(_git(here, "rev-parse", "--show-toplevel"), "src", "foredraft").samefile(
            here.parent
        ):
            return None  # installed inside a checkout of something else
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        dirty = _git(here, "status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if dirty else "")


def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def device_name(device: torch.device | None) -> str:
    """`cpu`, or an accelerator with its product name."""
    if device is None or device.type == "cpu":
        return "cpu"
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(where: Path, *arguments: str) -> str:
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
