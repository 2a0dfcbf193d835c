"""When, where and with what a result was made."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import foredraft

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "llama-cpp-python", "economize")


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """The command, time, revision, versions and hardware of this process.

    The command names files as they were given; no other path of this machine is told.
    """
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "foredraft": foredraft.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }


def revision() -> str | None:
    """The git commit of this package's source, with + when files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
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
