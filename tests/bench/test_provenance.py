"""What a result says of where it came from."""

from __future__ import annotations

import sys

import pytest

from foredraft.bench.provenance import command


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/home/user/.venv/bin/foredraft", "foredraft train --steps 1"),
        ("/home/user/src/foredraft/__main__.py", "foredraft train --steps 1"),
        ("/clone/benchmarks/ties/run.py", "python benchmarks/ties/run.py train --steps 1"),
    ],
)
def test_a_command_names_its_program_and_no_place(
    program: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was started: a result is read on other machines."""
    monkeypatch.setattr(sys, "argv", [program, "train", "--steps", "1"])
    assert command() == said
