"""Suites: every form of file gives the same conversation, and a limit keeps the mixture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import ConfigError
from foredraft.bench.questions import parse_questions
from foredraft.bench.suites import Question, Suite, fingerprint, read_suites

NUM_BUILTIN = 54
SPOKEN = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
"""Anything that can be said: control characters, quotes and other line separators among it."""


def user(content: str) -> dict[str, str]:
    """A message of the user's."""
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    """A message of the model's."""
    return {"role": "assistant", "content": content}


def parse(*entries: Any) -> tuple[Question, ...]:
    """The questions of a file with these objects."""
    lines = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return parse_questions(lines.encode(), "questions.jsonl", "questions")


def write(file: Path, *entries: Any) -> Path:
    """A file with these objects, and its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    return file


def ids(suite: Suite) -> list[str]:
    """The ids of a suite, in order."""
    return [question.id for question in suite.questions]


# --- forms of a question ----------------------------------------------------------------------------


@given(st.lists(SPOKEN, min_size=1, max_size=4), st.lists(SPOKEN, min_size=3, max_size=3))
def test_a_conversation_comes_back_as_it_was_written(
    turns: Sequence[str], answers: Sequence[str]
) -> None:
    (question,) = parse({"turns": turns})
    for k in range(len(turns)):
        said = [
            m
            for pair in zip(turns, answers, strict=False)
            for m in (user(pair[0]), assistant(pair[1]))
        ]
        assert question.prompt(answers[:k]) == [*said[: 2 * k], user(turns[k])]
        assert question.text(answers[:k]) == "\n\n".join(
            m["content"] for m in question.prompt(answers[:k])
        )


@given(SPOKEN, SPOKEN)
def test_all_forms_say_the_same(first: str, second: str) -> None:
    as_turns, as_messages = parse(
        {"turns": [first, second]}, {"messages": [user(first), user(second)]}
    )
    assert as_turns.turns == as_messages.turns
    forms = parse({"prompt": first}, {"turns": [first]}, {"messages": [user(first)]})
    assert {question.text([]) for question in forms} == {first}
    assert [question.prompt([]) for question in forms] == [[user(first)]] * 3


def test_messages_before_the_last_of_the_user_are_given() -> None:
    """Only what ends the list is answered; the rest is context, the system's message included."""
    opening = [
        {"role": "system", "content": "Be brief."},
        user("Hi"),
        assistant("Hello"),
        user("A?"),
    ]
    (question,) = parse({"messages": [*opening, user("B?")]})
    assert question.prompt([]) == opening
    assert question.prompt(["yes"]) == [*opening, assistant("yes"), user("B?")]


def test_a_prompt_can_be_changed_without_changing_the_question() -> None:
    (question,) = parse({"turns": ["one"]})
    question.prompt([])[0]["content"] = "two"  # type: ignore[index]
    assert question.text([]) == "one"


def test_files_of_mt_bench_load_as_they_are() -> None:
    (question,) = parse(
        {"question_id": 7, "category": "riddles", "turns": ["What am I?", "Why?"], "reference": []}
    )
    assert (question.id, question.category, len(question.turns)) == ("7", "riddles", 2)


def test_what_is_not_said_is_filled_in() -> None:
    """The line's number and the file's name; null is as good as nothing."""
    (question,) = parse({"prompt": "Hi", "id": None, "category": None, "turns": None})
    assert (question.id, question.category) == ("1", "questions")


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n',
        b'\n{"prompt": "a"}\n  \n{"prompt": "b"}',
        b'{"prompt": "a", "note": "\xe2\x80\xa8\xc2\x85"}\n{"prompt": "b"}\n',
    ],
    ids=["byte order mark and CRLF", "blank lines", "unicode line separators in a string"],
)
def test_lines_are_found_in_any_editors_file(data: bytes) -> None:
    assert [q.text([]) for q in parse_questions(data, "f", "c")] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{prompt: 1}", r"not JSON .*'\{prompt: 1\}'; write one object a line"),
        (b"[" * 100_000, "not JSON"),
        (b'{"id": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"5", r"line 2 is 5; write an object"),
        (b'{"promt": "x"}', r"has only the keys \['promt'\]; give exactly one of prompt"),
        (b'{"prompt": "x", "turns": ["y"]}', "has prompt and turns; give exactly one"),
        (b'{"prompt": 5}', "the prompt is 5; give a string"),
        (b'{"prompt": " "}', "the prompt is ' '; give a string that says something"),
        (b'{"prompt": "\\ud83d"}', r"holds '\\ud83d', which is half a character"),
        (b'{"prompt": "\xff"}', "line 2 has the byte 0xff, which is not UTF-8; save"),
        (b'{"turns": "x"}', "turns is 'x'; give a list"),
        (b'{"turns": []}', r"turns is \[\]; give a list"),
        (b'{"turns": ["x", 3]}', "a turn is 3; give a string"),
        (b'{"messages": []}', r"messages is \[\]; give a list"),
        (b'{"messages": ["x"]}', "'x' is not a message; write it like"),
        (b'{"messages": [{"role": "tool", "content": "x"}]}', "with one of the roles system, user"),
        (b'{"messages": [{"role": "user"}]}', "the content is None; give a string"),
        (
            b'{"messages": [{"role": "assistant", "content": "x"}]}',
            "the last message has the role 'assistant'; end with the user's",
        ),
        (b'{"prompt": "x", "id": true}', "the id is True; give a string"),
        (b'{"prompt": "x", "category": 3}', "the category is 3; give a string"),
        (b'{"prompt": "x", "id": "one"}', "line 2 has the id 'one' of line 1; give every"),
    ],
)
def test_a_line_that_is_no_question_is_refused(line: bytes, says: str) -> None:
    data = b'{"id": "one", "prompt": "a"}\n' + line
    with pytest.raises(ConfigError, match=says) as caught:
        parse_questions(data, "mine.jsonl", "c")
    assert str(caught.value).startswith("mine.jsonl, line 2")


def test_ids_are_the_same_whether_written_as_numbers_or_strings() -> None:
    """Resuming knows questions by them, so the line number of one may not be the id of another."""
    with pytest.raises(ConfigError, match="line 2 has the id '2' of line 1"):
        parse({"id": 2, "prompt": "a"}, {"prompt": "b"})


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n \r\n"])
def test_a_file_without_a_question_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="mine has no questions; write one a line"):
        parse_questions(data, "mine", "c")


# --- names of suites --------------------------------------------------------------------------------


def test_a_file_is_called_by_its_stem_and_keeps_its_order_without_categories(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "mine.jsonl", *({"prompt": word} for word in "abc"))
    suites = read_suites(f"builtin/maths, {file}", None)
    assert [suite.name for suite in suites] == ["builtin/maths", "mine"]
    assert ids(suites[1]) == ["1", "2", "3"]
    assert {question.category for question in suites[0].questions} == {"maths"}


def test_files_of_one_stem_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    files = [write(tmp_path / folder / "question.jsonl", {"prompt": folder}) for folder in "ab"]
    suites = read_suites(",".join(map(str, files)), None)
    assert [suite.name for suite in suites] == ["a/question", "b/question"]
    assert [suite.questions[0].text([]) for suite in suites] == ["a", "b"]


@pytest.mark.parametrize("stem", ["builtin", "all"])
def test_a_file_never_takes_a_name_that_reports_use(tmp_path: Path, stem: str) -> None:
    file = write(tmp_path / "mine" / f"{stem}.jsonl", {"prompt": "x"})
    assert read_suites(str(file), None)[0].name == f"mine/{stem}"


def test_names_that_no_folder_tells_apart_are_refused(tmp_path: Path) -> None:
    files = [
        write(tmp_path / side / "a" / "q.jsonl", {"prompt": "x"}) for side in ("left", "right")
    ]
    with pytest.raises(ConfigError, match="2 suites would be called 'a/q'; rename"):
        read_suites(",".join(map(str, files)), None)


def test_a_suite_named_twice_is_refused(tmp_path: Path) -> None:
    """However the second name is spelled: its questions would count twice in the pool of all."""
    file = write(tmp_path / "mine.jsonl", {"prompt": "x"})
    for text in ("builtin,builtin", f"{file},{tmp_path / '..' / tmp_path.name / 'mine.jsonl'}"):
        with pytest.raises(ConfigError, match="is named 2 times; name it once"):
            read_suites(text, None)
    with pytest.raises(ConfigError, match="'builtin' has the questions of 'builtin/chat' too"):
        read_suites("builtin/chat,builtin", None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("builtn", "did you mean 'builtin'"),
        ("builtin/cod", "did you mean 'builtin/code'"),
        ("builtin,", "neither a suite nor a file ''; available: builtin, builtin/chat"),
        ("missing.jsonl", 'or give a JSONL file, .* like {"id": "greeting"'),
        ("/", "neither a suite nor a file '/'"),
        ("a\0b", "neither a suite nor a file"),
        ("~no-such-user/x.jsonl", "neither a suite nor a file"),
    ],
)
def test_an_unknown_suite_is_refused_with_a_way_out(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_suites(name, None)


def test_a_fault_in_a_file_is_told_with_its_path(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", {"prompt": "x"}, {})
    with pytest.raises(ConfigError) as caught:
        read_suites(str(file), None)
    assert str(caught.value).startswith(f"{file.resolve()}, line 2")


# --- limits -----------------------------------------------------------------------------------------


@given(
    categories=st.lists(st.sampled_from("abcd"), min_size=1, max_size=20),
    limit=st.integers(1, 25),
)
def test_a_limited_suite_keeps_its_mixture(
    tmp_path_factory: pytest.TempPathFactory, categories: Sequence[str], limit: int
) -> None:
    file = write(
        tmp_path_factory.getbasetemp() / "mixture.jsonl",
        *({"id": i, "category": c, "prompt": "x"} for i, c in enumerate(categories)),
    )
    chosen, whole = read_suites(str(file), limit)[0], read_suites(str(file), None)[0]
    assert ids(chosen) == ids(whole)[:limit]
    assert len(chosen.questions) == min(limit, len(categories))
    assert sorted(map(int, ids(whole))) == list(range(len(categories)))

    available, taken = Counter(categories), Counter(q.category for q in chosen.questions)
    for category, count in taken.items():
        places = [int(q.id) for q in chosen.questions if q.category == category]
        assert places == [i for i, c in enumerate(categories) if c == category][:count]
    for category in available:  # a category is behind another only if it has no more to give
        short = taken[category] < max(taken.values()) - 1
        assert not short or taken[category] == available[category]
    first_round = dict.fromkeys(categories)
    assert [q.category for q in chosen.questions][: len(first_round)] == list(first_round)[:limit]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"limit={limit} leaves no question; give at least 1"):
        read_suites("builtin", limit)


# --- fingerprint ------------------------------------------------------------------------------------


def suite(name: str = "s", identity: str = "1", category: str = "c", **form: Any) -> Suite:
    """A suite of one question."""
    form = form or {"prompt": "x"}
    return Suite(name, parse({"id": identity, "category": category, **form}))


@pytest.mark.parametrize(
    "other",
    [
        [],
        [suite("t")],
        [suite(identity="2")],
        [suite(category="d")],
        [suite(prompt="y")],
        [suite(turns=["x", "x"])],
        [suite(messages=[{"role": "system", "content": "x"}, user("x")])],
        [suite(), suite("t")],
    ],
)
def test_a_fingerprint_tells_other_questions(other: Sequence[Suite]) -> None:
    assert fingerprint(other) != fingerprint([suite()])


def test_a_fingerprint_depends_on_nothing_but_the_questions() -> None:
    """Not on the form or notes of the file, nor on the order of a message's keys."""
    same = suite(messages=[{"content": "x", "role": "user", "name": "me"}], note="none of the hash")
    assert fingerprint([same]) == fingerprint([suite()])
    assert fingerprint(read_suites("builtin", 5)) == fingerprint(read_suites("builtin", 5))


# --- the built-in suite -----------------------------------------------------------------------------


def builtin() -> tuple[Question, ...]:
    """Its questions."""
    return read_suites("builtin", None)[0].questions


def test_the_builtin_suite_has_as_many_questions_in_every_category() -> None:
    counts = Counter(question.category for question in builtin())
    assert len(counts) >= 8
    assert set(counts.values()) == {NUM_BUILTIN // len(counts)}
    assert sum(counts.values()) == NUM_BUILTIN
    assert {question.id.rpartition("-")[0] for question in builtin()} == set(counts)


def test_the_builtin_suite_repeats_nothing() -> None:
    said = [turn[-1]["content"] for question in builtin() for turn in question.turns]
    assert len(set(said)) == len(said)


def test_the_builtin_suite_converses_where_it_should() -> None:
    two = {question.category for question in builtin() if len(question.turns) == 2}
    one = {question.category for question in builtin() if len(question.turns) == 1}
    assert two == {"chat", "rewriting"}
    assert not one & two


def test_the_builtin_suite_is_clean_text() -> None:
    """No control characters, stray spaces or replacement characters; letters beyond ASCII are letters."""
    for question in builtin():
        text = question.text([""] * (len(question.turns) - 1))
        assert text == text.strip()
        assert all(c.isascii() or c.isalpha() for c in text), question.id
        assert all(c.isprintable() or c == "\n" for c in text), question.id
        assert not any(line != line.rstrip() for line in text.split("\n")), question.id


def test_the_builtin_prompts_are_short_and_long() -> None:
    lengths = sorted(len(question.text([""] * (len(question.turns) - 1))) for question in builtin())
    assert lengths[0] < 80
    assert lengths[-1] > 1500
    passages = read_suites("builtin/summarisation", None)[0].questions
    assert all(250 <= len(question.text([]).split()) <= 450 for question in passages)
