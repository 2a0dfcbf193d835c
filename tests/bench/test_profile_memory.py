"""Memory of a fresh process, and what is said where it cannot be told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from foredraft.bench.profile import memory
from foredraft.bench.profile.memory import PEAK, RESIDENT, memory_use, models_of, resident
from foredraft.engine.load import load
from tests.tiny_folders import save_folder


@pytest.mark.skipif(not memory.STATUS.exists(), reason="no /proc here")
def test_memory_grows_with_what_is_held() -> None:
    before = resident()
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    after = resident()
    assert before is not None
    assert after is not None
    assert after[RESIDENT] - before[RESIDENT] > 60 << 20
    assert after[PEAK] >= after[RESIDENT]


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    found = memory.measure({"model": "nothing is loaded"}, 16)
    assert found["growth_mb"] is None
    assert "does not tell" in found["note"]


def test_a_process_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho ModelError: no weights >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = memory_use({"model": "m"}, 16)
    assert found["growth_ratio"] is None
    assert found["note"] == "the process failed: ModelError: no weights"


def test_all_weights_of_an_engine_are_found(tmp_path: Path) -> None:
    folder, draft = save_folder(tmp_path / "m"), save_folder(tmp_path / "d", num_hidden_layers=1)
    engine = load(folder, method="speculative", drafter=draft, dtype="float32")
    assert models_of(engine) == [engine.target.model, engine.drafter.model.model]  # type: ignore[attr-defined, union-attr]
    assert models_of(engine.without_drafts()) == [engine.target.model]  # type: ignore[attr-defined]
