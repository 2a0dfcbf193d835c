"""What two runs have in common: methods and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foredraft.bench.folder import Run
from foredraft.bench.records import PromptRecord
from foredraft.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Common:
    """A prompt of both runs, as each has kept it."""

    suite: str
    first: PromptRecord
    second: PromptRecord


def paired_methods(a: Run, b: Run, pairs: Mapping[str, str]) -> dict[str, str]:
    """The methods of `a`, each with the one of `b` it is held against: its pair, or else its namesake.

    Raises:
        ConfigError: a method of a pair did not run, or there is nothing to compare.
    """
    for first, second in pairs.items():
        if first not in a.methods or second not in b.methods:
            raise ConfigError(
                f"pair {first}={second} needs {first!r} in the first run and {second!r} in the second; "
                f"they ran {', '.join(a.methods)}, and {', '.join(b.methods)}"
            )
    taken = set(pairs.values())
    found = {
        name: pairs.get(name, name)
        for name in a.methods
        if name in pairs or (name in b.methods and name not in taken)
    }
    if not found:
        raise ConfigError(
            f"the runs have no method in common ({', '.join(a.methods)}, and {', '.join(b.methods)}); "
            "pair differently named ones with --pair A=B"
        )
    return found


def common_prompts(a: Run, b: Run) -> list[Common]:
    """The prompts that both runs answered. One id with another prompt behind it shows by its length.

    Raises:
        ConfigError: there is none.
    """
    others = {record.key: record for record in b.records if record.answers}
    named = [
        Common(record.suite, record, others[record.key])
        for record in a.records
        if record.answers and record.key in others
    ]
    same_model = a.plan.get("model") == b.plan.get("model")
    common = [
        p for p in named if not same_model or _prompt_tokens(p.first) == _prompt_tokens(p.second)
    ]
    if not common:
        raise ConfigError(
            f"the runs have no prompt in common (suites {', '.join(a.suites)}, and {', '.join(b.suites)}); "
            "compare runs of the same suites"
        )
    return common


def _prompt_tokens(record: PromptRecord) -> int:
    return record.answers[0].stats.prompt_tokens
