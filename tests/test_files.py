"""Files are replaced whole, links stay links, and a place that cannot be written is found first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from foredraft.errors import ConfigError
from foredraft.files import check_writable, write_json, write_text


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    write_text(file, "old")
    write_text(file, "new — é")
    assert file.read_text(encoding="utf-8") == "new — é"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    write_text(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "half a character: \udc80")
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "x.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.txt").stat().st_mode) == 0o644


def test_a_good_place_is_left_as_it_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.txt")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.txt").write_text("mine")
    check_writable(tmp_path / "old.txt")
    assert (tmp_path / "old.txt").read_text() == "mine"


def test_a_bad_place_is_named(tmp_path: Path) -> None:
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    for place in (
        tmp_path,
        tmp_path / "no" / "x.txt",
        tmp_path / ("n" * 300),
        loop,
        pipe,
        Path("/dev/null"),
        tmp_path / "nul\0byte",
    ):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(place)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
