"""Records: what is kept of a prompt comes back as it was, whatever happens to the file's end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.bench.folder import PLAN, RECORDS, RunFolder
from foredraft.bench.records import Answer, PromptRecord, digest, record_of
from foredraft.errors import ConfigError
from foredraft.files import write_json
from foredraft.results import STAGES, RoundRecord, Statistics

SECONDS = st.integers(0, 10**8).map(lambda n: n / 10**7)
"""As exact as they are stored: to 0.1 microseconds."""


@st.composite
def rounds(draw: st.DrawFn) -> RoundRecord:
    widths = (draw(st.integers(1, 3)), *draw(st.lists(st.integers(1, 9), max_size=4)))
    accepted = draw(st.integers(0, len(widths) - 1))
    return RoundRecord(
        context=draw(st.integers(0, 4000)),
        widths=widths,
        draft_rows=tuple(draw(st.lists(st.integers(1, 9), max_size=4))),
        num_accepted=accepted,
        num_emitted=draw(st.integers(1, accepted + 1)),
        cut=draw(st.booleans()),
        draft_s=draw(SECONDS),
        target_s=draw(SECONDS),
        verify_s=draw(SECONDS),
        total_s=draw(SECONDS),
        target_passes=draw(st.integers(0, 2)),
    )


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    made = tuple(draw(st.lists(rounds(), max_size=4)))
    stats = Statistics(
        rounds=made,
        prompt_tokens=draw(st.integers(1, 4000)),
        cached_prompt_tokens=draw(st.integers(0, 9)),
        in_loop=tuple(draw(st.booleans()) for _ in made),
        loop_tokens=draw(st.integers(0, 50)),
        prefill_s=draw(SECONDS),
        ttft_s=draw(SECONDS),
        stages=draw(st.sampled_from(((), ("target",), STAGES))),
    )
    return Answer(tuple(draw(st.lists(st.integers(0, 99), max_size=6))), stats)


@st.composite
def records(draw: st.DrawFn) -> PromptRecord:
    text = st.text(max_size=6)
    kept = [
        record_of(
            draw(text), turn, (1, 2), draw(st.sampled_from(("yes", "tie at token 3"))), repeats
        )
        for turn, repeats in enumerate(
            draw(st.lists(st.lists(answers(), min_size=1, max_size=3), max_size=3))
        )
    ]
    return PromptRecord(draw(text), draw(text), draw(text), tuple(kept))


def timed(decode_s: float, token: int = 0) -> Answer:
    """An answer of one round that took that long."""
    done = RoundRecord(5, (1,), (), 0, 1, False, 0.0, decode_s, 0.0, decode_s)
    return Answer((token,), Statistics((done,), 5, (False,), 0, 0.0, 0.0))


@given(records())
def test_a_record_comes_back_from_json_as_it_was(record: PromptRecord) -> None:
    back = PromptRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    for kept, came in zip(record.answers, back.answers, strict=True):
        assert came.decode_s == pytest.approx(kept.decode_s, abs=1e-7)  # sums, and so not exact
        assert replace(came, decode_s=kept.decode_s) == kept
    assert replace(back, answers=record.answers) == record


@pytest.mark.parametrize(
    ("decode_s", "median"),
    [((3.0,), 3.0), ((3.0, 1.0), 1.0), ((3.0, 1.0, 2.0), 2.0), ((4.0, 1.0, 3.0, 2.0), 2.0)],
)
def test_the_median_repeat_stands_for_the_prompt(
    decode_s: tuple[float, ...], median: float
) -> None:
    kept = record_of("ngram", 0, (1, 2), "yes", [timed(s) for s in decode_s])
    assert kept.stats.decode_s == median
    assert kept.decode_s == decode_s


def test_digests_tell_answers_apart() -> None:
    assert digest([1, 23]) != digest([12, 3])
    assert digest([1, 23]) == digest((1, 23))


# --- the folder -------------------------------------------------------------------------------------


def folder_with(path: Path, *names: str) -> RunFolder:
    """A run of those finished prompts."""
    folder = RunFolder(path)
    folder.write_plan({"methods": ["ngram"], "suites": ["s"]})
    for name in names:
        folder.append(
            PromptRecord("s", name, "c", (record_of("ngram", 0, (1, 2), "yes", [timed(1.0)]),))
        )
    return folder


@given(st.data())
def test_a_file_cut_anywhere_loses_its_last_line_alone(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = folder_with(tmp_path_factory.mktemp("run"), "a", "b", "c")
    file = folder.path / RECORDS
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    left = file.read_bytes().count(b"\n")
    assert [record.id for record in folder.records()] == list("abc"[:left])
    again = RunFolder(folder.path)
    again.append(PromptRecord("s", "d", "c", ()))
    assert [record.id for record in again.records()] == [*"abc"[:left], "d"]


def test_a_spoilt_line_inside_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", "a", "b")
    file = folder.path / RECORDS
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0][:40], lines[1]]) + "\n")
    with pytest.raises(ConfigError, match=r"records\.jsonl, line 1 .* remove that line"):
        folder.read()


def test_a_folder_without_a_run_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no benchmark run"):
        RunFolder(tmp_path).read()


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder_with(tmp_path, "a")
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        RunFolder(tmp_path).read()


def test_a_run_lists_what_ran_in_the_order_of_its_plan(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", "a")
    other = replace(next(folder.records()), suite="t", id="z")
    folder.append(other)
    folder.write_plan({"methods": ["absent", "ngram"], "suites": ["t", "s", "u"]})
    run = folder.read()
    assert (run.methods, run.suites, run.costs) == (("ngram",), ("t", "s"), None)


def test_files_of_a_run_are_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
