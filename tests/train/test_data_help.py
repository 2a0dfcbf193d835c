"""The defaults that `foredraft data generate --help` tells are those that hold."""

from __future__ import annotations

import dataclasses

import pytest
import typer.main
from typer.testing import CliRunner

from foredraft.cli.main import app
from foredraft.config import default_of
from foredraft.train.data import DataPlan
from foredraft.train.scripts import Mixture

NOT_NUMBERS = ("mixture", "follow_ups", "tasks", "max_looping", "keep_states", "taps")


def _options() -> dict[str, str]:
    data = typer.main.get_command(app).commands["data"]  # type: ignore[attr-defined]
    options = data.commands["generate"].params
    return {o.name: o.show_default for o in options if isinstance(o.show_default, str)}


def _defaults() -> dict[str, object]:
    owners = (Mixture, DataPlan)
    names = [(owner, field.name) for owner in owners for field in dataclasses.fields(owner)]
    return {name: default_of(owner, name) for owner, name in names if name not in NOT_NUMBERS}


def _as_told(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_the_help_shows_them() -> None:
    """As it is printed: brackets in a help text are taken for markup."""
    done = CliRunner().invoke(app, ["data", "generate", "--help"], env={"COLUMNS": "300"})
    words = " ".join(done.output.split())
    for name, shown in _options().items():
        assert f"[default: ({shown})]" in words, name


@pytest.mark.parametrize("name", _options())
def test_told_defaults_hold(name: str) -> None:
    assert _options()[name] == _as_told(_defaults()[name])


def test_every_number_has_its_default_told() -> None:
    assert set(_options()) >= _defaults().keys() - {"num_tokens", "prompts", "answers"}
