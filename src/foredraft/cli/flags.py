"""Commands with many options of one kind: declared in a table, handed over as one mapping."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option.

    Attributes:
        kind: its type, as typer takes it.
        help: what it does.
        default: its value where it is not given.
        shown: what the help tells as its default; None lets typer tell.
    """

    kind: Any
    help: str
    default: Any = None
    shown: str | None = None

    def parameter(self, name: str) -> inspect.Parameter:
        """As a keyword of a command."""
        option = typer.Option(help=self.help, show_default=self.shown or True)
        return _parameter(name, self.kind, option, self.default)


def _parameter(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option])


def takes_flags(into: str, flags: Mapping[str, Flag]) -> Callable[[Command], Command]:
    """A command with a parameter `into`, values by name, takes these flags behind its other options."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in flags}
            command(**given, **{into: chosen})

        hints = get_type_hints(command, include_extras=True)
        own = getattr(command, "__signature__", None) or inspect.signature(command)
        parameters = [
            p.replace(annotation=hints.get(name, p.annotation))
            for name, p in own.parameters.items()
            if name != into
        ]
        parameters += [flag.parameter(name) for name, flag in flags.items()]
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return decorate


def given(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the user gave, of those that are None otherwise."""
    return {name: value for name, value in chosen.items() if value is not None}
