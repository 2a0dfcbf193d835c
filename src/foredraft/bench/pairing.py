"""What two methods or two runs have in common: methods, prompts and turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foredraft.bench.folder import Run
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Common:
    """A prompt of both runs, as each has kept it, with the turns whose prompts are the same."""

    first: PromptRecord
    second: PromptRecord

    @property
    def suite(self) -> str:
        """The suite it is from."""
        return self.first.suite

    @property
    def name(self) -> str:
        """Its suite and id."""
        return f"{self.first.suite}/{self.first.id}"


def same_turns(
    first: Sequence[AnswerRecord], second: Sequence[AnswerRecord]
) -> Iterator[tuple[AnswerRecord, AnswerRecord]]:
    """The answers of two methods or runs to the same turns of one prompt, in the order of the turns."""
    others = {answer.turn: answer for answer in second}
    for answer in sorted(first, key=lambda answer: answer.turn):
        if answer.turn in others:
            yield answer, others[answer.turn]


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


def common_prompts(a: Run, b: Run) -> tuple[list[Common], int]:
    """The prompts that both runs answered, and how many turns of the same name were other prompts.

    A turn is the same where its prompt has the same token ids in both runs. A later turn may be another
    prompt where plain decoding's answer before it was another.

    Raises:
        ConfigError: there is none.
    """
    others = {record.key: record for record in b.records}
    named = [Common(r, others[r.key]) for r in a.records if r.key in others]
    turns = [(_prompts(both.first), _prompts(both.second)) for both in named]
    same = [{turn for turn in x if x[turn] == y.get(turn)} for x, y in turns]
    common = [_only(both, kept) for both, kept in zip(named, same, strict=True) if kept]
    left_out = sum(len(x.keys() & y.keys()) for x, y in turns) - sum(map(len, same))
    if not common:
        raise ConfigError(_nothing_in_common(a, b, left_out))
    return common, left_out


def _prompts(record: PromptRecord) -> dict[int, str]:
    """The digest of each turn's prompt, which all methods answered."""
    return {answer.turn: answer.prompt for answer in record.answers}


def _only(both: Common, turns: set[int]) -> Common:
    return Common(*(_turns_of(record, turns) for record in (both.first, both.second)))


def _turns_of(record: PromptRecord, turns: set[int]) -> PromptRecord:
    answers = tuple(answer for answer in record.answers if answer.turn in turns)
    return dataclasses.replace(record, answers=answers)


def _nothing_in_common(a: Run, b: Run, left_out: int) -> str:
    if left_out:
        return (
            f"the runs have no prompt in common: the token ids of all {left_out} turns of the same name "
            "differ; compare runs of the same questions, with one tokenizer and chat template"
        )
    return (
        f"the runs have no prompt in common (suites {', '.join(a.suites)}, and {', '.join(b.suites)}); "
        "compare runs of the same suites"
    )
