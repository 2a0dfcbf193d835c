"""What is installed from a wheel: everything that the source has, and a command that works from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import foredraft

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY.md", "src")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is made of: a build leaves things beside its source."""
    folder = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package alone; what it depends on is where the tests run."""
    folder = tmp_path_factory.mktemp("installed")
    _run(*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def _run(*command: str, **env: str) -> str:
    """Run it away from the source; what it prints."""
    done = subprocess.run(
        command,
        cwd=Path(sys.executable).parent,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _foredraft(installed: Path, *words: str, **env: str) -> str:
    script = installed / "bin" / "foredraft"
    return _run(sys.executable, str(script), *words, PYTHONPATH=str(installed), **env)


def test_the_wheel_holds_all_of_the_package(source: Path, wheel: Path) -> None:
    """Weights, pages, style sheets and data files too; nothing of the tests."""
    package = source / "src"
    files = {
        p.relative_to(package).as_posix() for p in (package / "foredraft").rglob("*") if p.is_file()
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == files
    assert any(name.endswith("eagle3/model.safetensors") for name in held)
    assert any(name.endswith("trace/page.html") for name in held)
    assert any(name.endswith("data/builtin.jsonl") for name in held)
    assert "foredraft/py.typed" in held


def test_the_wheel_holds_the_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "THIRD_PARTY.md"} <= names


def test_there_is_one_version(installed: Path) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert version == foredraft.__version__
    assert _foredraft(installed, "--version") == f"foredraft {version}\n"


def test_the_installed_package_is_the_one_that_runs(installed: Path) -> None:
    code = (
        "import json, foredraft; from foredraft import zoo\n"
        "head = zoo.shipped_head('smollm2')\n"
        "print(foredraft.__file__); print(json.loads((head / 'config.json').read_text()) != {})"
    )
    place, has_head = _run(sys.executable, "-c", code, PYTHONPATH=str(installed)).splitlines()
    assert Path(place).is_relative_to(installed)
    assert has_head == "True"


def test_help_lists_the_commands(installed: Path) -> None:
    text = _foredraft(installed, "--help")
    for command in ("generate", "chat", "serve", "trace", "calibrate", "bench", "data", "train"):
        assert command in text
    assert "--drafter" in _foredraft(installed, "chat", "--help")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("foredraft ch", "chat"),
        ("foredraft bench r", "reproduce"),
        ("foredraft chat --sys", "--system"),
    ],
)
def test_the_shell_completes(installed: Path, typed: str, offered: str) -> None:
    last = str(len(typed.split()) - 1)
    words = {"COMP_WORDS": typed, "COMP_CWORD": last}
    assert offered in _foredraft(installed, _FOREDRAFT_COMPLETE="complete_bash", **words).split()


def test_the_shell_is_told_how_to_complete(installed: Path) -> None:
    assert "_FOREDRAFT_COMPLETE" in _foredraft(installed, _FOREDRAFT_COMPLETE="source_bash")
