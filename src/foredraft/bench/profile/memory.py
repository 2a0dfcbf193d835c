"""What memory a fresh process takes beyond its imports, to load a method and decode to some context."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from foredraft.bench.profile.floor import held_bytes
from foredraft.bench.profile.prompts import prompt_of
from foredraft.engine.calibration import draft_model
from foredraft.engine.engine import Engine
from foredraft.engine.load import load

DECODED = 32
"""Tokens at most that are decoded at the end of the context; those before them are the prompt."""
FIGURES = (
    *("context", "weights_mb", "import_mb", "growth_mb", "anonymous_growth_mb", "peak_growth_mb"),
    *("growth_ratio", "peak_growth_ratio", "device_peak_mb"),
)
STATUS = Path("/proc/self/status")
RESIDENT, PEAK, ANONYMOUS = "VmRSS", "VmHWM", "RssAnon"


def memory_use(choices: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Memory of a fresh process that loads an engine and decodes to `context` tokens.

    Args:
        choices: what `load` is given, by name; plain values, since they go to another process.
        context: tokens at the end; no more than the model's limit are taken.

    Returns:
        `context`; `weights_mb` (of the target and what drafts for it); `growth_mb` and `peak_growth_mb`
        (resident memory at the end, and the most there was, less that after the imports), both also by the
        weights (`growth_ratio`, `peak_growth_ratio`); `anonymous_growth_mb` (of memory that is no file's);
        `import_mb`; `device_peak_mb` on a GPU. Where the system does not tell (there is no /proc) or the
        process failed, the figures are None and `note` says why.
    """
    request = json.dumps({"choices": dict(choices), "context": context})
    command = [sys.executable, "-m", "foredraft.bench.profile.memory", request]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return _unknown(f"the process failed: {last}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _unknown(reason: str) -> dict[str, Any]:
    return dict.fromkeys(FIGURES) | {"note": reason}


def measure(choices: Mapping[str, Any], context: int) -> dict[str, Any]:
    """As `memory_use`, in this process, which has imported everything and loaded nothing yet."""
    before = resident()
    if before is None:
        return _unknown("this system does not tell a process's memory")
    engine = load(**choices)
    limit = engine.target.context_length
    context = context if limit is None else min(context, limit)
    prompt = prompt_of(engine, max(context - DECODED, 1))
    engine.generate(prompt, max_new_tokens=context - len(prompt), ignore_eos=True)
    after = resident()
    assert after is not None
    weights = held_bytes(*models_of(engine))
    growth, peak = after[RESIDENT] - before[RESIDENT], after[PEAK] - before[RESIDENT]
    return {
        "context": context,
        "weights_mb": weights / 1e6,
        "import_mb": before[RESIDENT] / 1e6,
        "growth_mb": growth / 1e6,
        "anonymous_growth_mb": (after[ANONYMOUS] - before[ANONYMOUS]) / 1e6,
        "peak_growth_mb": peak / 1e6,
        "growth_ratio": growth / weights,
        "peak_growth_ratio": peak / weights,
        "device_peak_mb": _device_peak_mb(engine),
        "note": None,
    }


def resident() -> dict[str, int] | None:
    """Bytes of this process: now, at most, and now of memory that is no file's; None where the system does
    not tell."""
    if not STATUS.exists():
        return None
    lines = (line.split() for line in STATUS.read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[-1] == "kB"}
    return {name: found[name] for name in (RESIDENT, PEAK, ANONYMOUS)}


def models_of(engine: Engine) -> list[nn.Module]:
    """The modules that hold an engine's weights: the target's, and those of what drafts for it."""
    drafts: Any = draft_model(engine)
    found = [getattr(engine.target, "model", None)]
    found += [getattr(drafts, name, None) for name in ("head", "model")]
    return [model for model in found if isinstance(model, nn.Module)]


def _device_peak_mb(engine: Engine) -> float | None:
    import torch

    device = engine.target.device
    return torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None


def main() -> None:
    """The other process: a request in, a line of JSON out."""
    print(json.dumps(measure(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
