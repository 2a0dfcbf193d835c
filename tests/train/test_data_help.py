"""The defaults that `foredraft data generate --help` tells are those that hold."""

from __future__ import annotations

import dataclasses
import re

import pytest
import typer.main

from foredraft.cli.main import app
from foredraft.config import default_of
from foredraft.train.data import DataPlan
from foredraft.train.scripts import Mixture

NOT_NUMBERS = ("mixture", "openings", "follow_ups", "tasks", "max_looping", "keep_states", "taps")
TOLD = re.compile(r"\[default: (.*)\]")


def _options() -> dict[str, str]:
    data = typer.main.get_command(app).commands["data"]  # type: ignore[attr-defined]
    options = {option.name: option.help or "" for option in data.commands["generate"].params}
    return {name: found[1] for name, text in options.items() if (found := TOLD.search(text))}


def _defaults() -> dict[str, object]:
    owners = (Mixture, DataPlan)
    names = [(owner, field.name) for owner in owners for field in dataclasses.fields(owner)]
    return {name: default_of(owner, name) for owner, name in names if name not in NOT_NUMBERS}


def _as_told(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("name", _options())
def test_told_defaults_hold(name: str) -> None:
    assert _options()[name] == _as_told(_defaults()[name])


def test_every_number_has_its_default_told() -> None:
    assert set(_options()) >= _defaults().keys() - {"num_tokens", "prompts", "answers"}
