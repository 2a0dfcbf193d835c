"""The names that `import foredraft` gives, and what they promise."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

import foredraft

CLASSES = [name for name in foredraft.__all__ if inspect.isclass(getattr(foredraft, name))]


def test_public_names_are_listed_in_order() -> None:
    assert foredraft.__all__ == sorted(foredraft.__all__)


@pytest.mark.parametrize("name", foredraft.__all__)
def test_a_listed_name_is_there(name: str) -> None:
    assert getattr(foredraft, name).__name__ == name


def test_dir_shows_what_is_listed() -> None:
    assert set(foredraft.__all__) <= set(dir(foredraft))


def test_every_public_error_is_listed() -> None:
    errors = inspect.getmembers(foredraft.errors, inspect.isclass)
    assert {name for name, _ in errors} <= set(foredraft.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = foredraft.nothing


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_and_its_methods_are_documented(name: str) -> None:
    cls = getattr(foredraft, name)
    assert inspect.getdoc(cls)
    own = [m for m in vars(cls).items() if not m[0].startswith("_")]
    undocumented = [
        member
        for member, value in own
        if isinstance(value, property | classmethod) or inspect.isfunction(value)
        if not inspect.getdoc(value)
    ]
    assert undocumented == []


def test_the_loader_documents_every_argument() -> None:
    page = inspect.getdoc(foredraft.load) or ""
    for argument in inspect.signature(foredraft.load).parameters:
        assert f"{argument}:" in page


@pytest.mark.parametrize("name", ["GenerationOptions", "Result", "Statistics", "Step"])
def test_values_cannot_be_changed(name: str) -> None:
    cls = getattr(foredraft, name)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_every_error_is_a_foredraft_error() -> None:
    for name in CLASSES:
        cls = getattr(foredraft, name)
        if issubclass(cls, Exception):
            assert issubclass(cls, foredraft.ForedraftError)


def test_wrong_values_are_value_errors_too() -> None:
    assert issubclass(foredraft.ConfigError, ValueError)
    assert issubclass(foredraft.PromptError, ValueError)


def test_names_are_imported_when_they_are_used() -> None:
    """So that `import foredraft` and `foredraft --version` are quick."""
    code = (
        "import sys, foredraft\n"
        "print('torch' in sys.modules)\n"
        "foredraft.PromptError\n"
        "print('torch' in sys.modules)\n"
        "foredraft.Engine\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
