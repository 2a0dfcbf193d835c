"""The measuring scripts: none is left behind when what it measures changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*/run.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.parent.name for script in SCRIPTS])
def test_a_script_explains_itself(script: Path) -> None:
    """It is imported whole, and its options are read."""
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout


def test_every_published_folder_says_how_it_was_made() -> None:
    folders = [p for p in (Path(__file__).parents[1] / "benchmarks").iterdir() if p.is_dir()]
    for folder in folders:
        made = [*folder.glob("run.py"), *folder.glob("plan.json"), *folder.glob("README.md")]
        assert made or folder.name == "__pycache__", f"{folder.name} has no command"
