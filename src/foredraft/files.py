"""Files that are replaced whole: a reader finds the old one or the new one, never a part."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError

LOCK = ".lock"


@contextmanager
def in_use(folder: Path, by: str) -> Iterator[None]:
    """Keep other processes out of a folder; makes it, and finds out if it can be written.

    Raises:
        ConfigError: it cannot, or another one (`by` says what it does) is in there.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{folder} is in use by another {by}; wait for it, or give another --out"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written ({error.strerror or error}); "
            "give another --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replace_with(file: Path) -> Iterator[Path]:
    """A path to write to inside; what is written there then replaces `file` at once. A link stays a link.

    Raises:
        OSError: the disk refused it; what was there is still there, and nothing else is left.
    """
    place = Path(os.path.realpath(file))
    partial = place.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        yield partial
        share_with_others(partial)
        os.replace(partial, place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def share_with_others(*files: Path) -> None:
    """Give files the mode that new files have here: some libraries keep theirs to the user alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)


def write_text(file: Path, text: str) -> None:
    """Replace a text file at once. Errors as in `replace_with`."""
    with replace_with(file) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(file: Path, document: Any) -> None:
    """Replace a JSON file at once. Errors as in `write_text`."""
    write_text(file, json.dumps(document, indent=1) + "\n")


def check_writable(file: Path) -> None:
    """Find out, before minutes of work, that a file could not be written.

    Raises:
        ConfigError: it is a folder, a device or a pipe, or its folder is missing or cannot be written.
    """
    try:
        place = Path(os.path.realpath(file))
        found = _kind(place)
        if found is not None and stat.S_ISDIR(found):
            raise OSError(errno.EISDIR, "it is a folder")
        if found is not None and not stat.S_ISREG(found):
            raise OSError(errno.EEXIST, "there is something else than a file of that name")
        with tempfile.TemporaryFile(dir=place.parent):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{str(file)!r} cannot be written ({reason}); give a file in a folder that exists and that "
            "you may write to"
        ) from None


def _kind(place: Path) -> int | None:
    """The mode of what is there, if anything is; asking finds names that are too long, and loops of links."""
    try:
        return os.lstat(place).st_mode
    except FileNotFoundError:
        return None
