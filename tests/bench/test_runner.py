"""The runner: who answers when, what is kept, and how an interrupted run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.field import enter_field
from foredraft.bench.folder import PLAN, RECORDS, RunFolder
from foredraft.bench.plan import PLAIN, BenchPlan, split_methods
from foredraft.bench.records import Answer, PromptRecord
from foredraft.bench.runner import BenchRun, Enter
from foredraft.config import GenerationOptions
from foredraft.costs import CostTable
from foredraft.errors import CacheError, ConfigError, PromptError
from foredraft.results import Statistics
from tests.tiny_folders import save_folder

QUESTIONS = (
    {"id": "a", "prompt": "the cat sat on the mat the cat"},
    {"id": "b", "turns": ["on the mat", "sat the cat"]},
    {"id": "c", "prompt": "mat mat mat mat"},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture
def make_plan(model: Path, tmp_path: Path) -> Callable[..., BenchPlan]:
    """A plan on the tiny model and three questions, one of them of two turns."""
    file = tmp_path / "three.jsonl"
    file.write_text("\n".join(map(json.dumps, QUESTIONS)))

    def make(**changes: Any) -> BenchPlan:
        values: dict[str, Any] = {
            "model": str(model),
            "suites": str(file),
            "methods": (PLAIN, "ngram"),
            "max_new_tokens": 12,
            "dtype": "float32",
        }
        return BenchPlan(**values | changes)

    return make


class Spy:
    """Plain decoding that notes each call, and may do something else instead."""

    def __init__(self, name: str, engine: Any, calls: list[Any]) -> None:
        self.name, self.calls = name, calls
        self.comparable: str | None = None
        self.closed = False
        self.instead: Callable[[Answer], Answer] = lambda answer: answer
        self._inner = EngineContender(name, engine)

    def refuse(self, options: GenerationOptions) -> str | None:
        return None

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        self.calls.append((self.name, tuple(prompt_ids), options))
        return self.instead(self._inner.answer(prompt_ids, options))

    def close(self) -> None:
        self.closed = True


class Field:
    """Enters plain decoding and spies A and B, and remembers them."""

    def __init__(self, **instead: Callable[[Answer], Answer]) -> None:
        self.calls: list[Any] = []
        self.spies: list[Spy] = []
        self._instead = instead

    def __call__(self, plan: BenchPlan, models: Any, note: Any, report: Any) -> list[Contender]:
        (plain,) = enter_field(
            BenchPlan(model=plan.model, suites=plan.suites, methods=(PLAIN,)), models, note, report
        )
        assert isinstance(plain, EngineContender)
        self.spies = [Spy(name, plain.engine, self.calls) for name in ("A", "B")]
        for spy in self.spies:
            spy.instead = self._instead.get(spy.name, spy.instead)
        return [plain, *self.spies]


def start(plan: BenchPlan, folder: Path, enter: Enter = enter_field) -> BenchRun:
    """A run that measures no costs."""
    return BenchRun(
        plan, RunFolder(folder), enter=enter, measure=lambda *_: CostTable.flat(0.025, 0.0025)
    )


def run_all(plan: BenchPlan, folder: Path, enter: Enter = enter_field) -> list[PromptRecord]:
    """The records of a run from its start or from where it was."""
    for _ in start(plan, folder, enter):
        pass
    return list(RunFolder(folder).read().records)


def counted(records: Sequence[PromptRecord]) -> list[Any]:
    """What must not depend on time: who answered what, in which rounds."""
    return [
        (r.key, a.method, a.turn, a.identical, a.digest, [x.widths for x in a.stats.rounds])
        for r in records
        for a in r.answers
    ]


# --- a whole run ------------------------------------------------------------------------------------


def test_every_method_answers_every_turn(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    records = run_all(make_plan(methods=(PLAIN, "ngram", "hf")), tmp_path / "out")
    assert [(r.id, len(r.of(m))) for r in records for m in (PLAIN, "ngram", "hf")] == [
        (question, turns) for question, turns in (("a", 1), ("b", 2), ("c", 1)) for _ in range(3)
    ]
    assert {a.identical for r in records for a in r.answers} == {"yes"}
    assert all(a.num_tokens == 12 for r in records for a in r.answers)


def test_all_answer_before_any_answers_again_and_the_order_changes(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    field = Field()
    run_all(make_plan(repeats=8), tmp_path / "out", field)
    order = [name for name, *_ in field.calls[2:]]  # after the warm-up
    blocks = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert len(blocks) == 4 * 8
    assert {tuple(block) for block in blocks} == {("A", "B"), ("B", "A")}
    again = Field()
    run_all(make_plan(repeats=8), tmp_path / "again", again)
    assert [name for name, *_ in again.calls] == [name for name, *_ in field.calls]
    assert [spy.closed for spy in field.spies] == [True, True]


def test_plain_decodings_answer_goes_on_the_conversation_for_all(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    lie = Answer((5, 6), Statistics((), 1, (), 0, 0.0, 0.0))
    field = Field(A=lambda answer: lie)
    run_all(make_plan(), tmp_path / "out", field)
    prompts = {name: [ids for n, ids, _ in field.calls[2:] if n == name] for name in "AB"}
    assert prompts["A"] == prompts["B"]
    second = prompts["A"][2]  # a, b first turn, b second turn
    assert len(second) > len(prompts["A"][1]) + 12


def test_each_question_has_a_seed_of_its_own_and_repeats_share_it(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    field = Field()
    run_all(make_plan(temperature=1.0, seed=40, repeats=2), tmp_path / "out", field)
    seeds = [options.seed for name, _, options in field.calls[2:] if name == "A"]
    assert seeds == [40, 40, 41, 41, 41, 41, 42, 42]


def test_sampled_answers_of_an_exact_method_are_plain_decodings(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    records = run_all(make_plan(temperature=1.0), tmp_path / "out")
    assert {a.identical for r in records for a in r.of("ngram")} == {"yes"}


# --- judgement --------------------------------------------------------------------------------------


def wrong(answer: Answer) -> Answer:
    """Another last token: nothing that rounding explains."""
    return Answer((*answer.token_ids[:-1], (answer.token_ids[-1] + 1) % 200), answer.stats)


def test_a_wrong_answer_is_a_bug_and_one_that_need_not_agree_is_not_judged(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    field = Field(A=wrong, B=wrong)

    def enter(*arguments: Any) -> list[Contender]:
        entered = field(*arguments)
        field.spies[1].comparable = "other weights"
        return entered

    records = run_all(make_plan(), tmp_path / "out", enter)
    assert {a.identical for r in records for a in r.of("A")} == {"bug at token 11"}
    assert {a.identical for r in records for a in r.of("B")} == {"n/a"}


def test_the_worst_of_several_repeats_is_kept(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    seen: list[Answer] = []

    def sometimes(answer: Answer) -> Answer:
        seen.append(answer)
        return wrong(answer) if len(seen) % 2 else answer

    records = run_all(make_plan(repeats=2), tmp_path / "out", Field(A=sometimes))
    assert {a.identical for r in records for a in r.of("A")} == {"bug at token 11"}


# --- interruption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 2, 3])
def test_an_interrupted_run_goes_on_where_it_was(
    make_plan: Callable[..., BenchPlan], tmp_path: Path, before: int
) -> None:
    whole = run_all(make_plan(), tmp_path / "whole")
    out = tmp_path / "out"
    list(islice(start(make_plan(), out), before))
    first = (out / RECORDS).read_bytes()
    again = start(make_plan(), out)
    assert (again.done, again.total) == (before, 3)
    assert [step.done for step in again] == list(range(before + 1, 4))
    assert (out / RECORDS).read_bytes().startswith(first)
    assert counted(RunFolder(out).read().records) == counted(whole)
    assert len(RunFolder(out).read().plan["resumed"]) == (before < 3)


def test_a_line_that_was_cut_off_is_run_again(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    whole = run_all(make_plan(), out)
    data = (out / RECORDS).read_bytes()
    for cut in (1, 2, 100, len(data) - 1):
        (out / RECORDS).write_bytes(data[:-cut])
        assert counted(run_all(make_plan(), out)) == counted(whole)


@pytest.mark.parametrize(
    "change",
    [{"max_new_tokens": 13}, {"methods": (PLAIN,)}, {"repeats": 2}, {"limit": 1}, {"seed": 1}],
)
def test_another_run_is_not_mixed_in(
    make_plan: Callable[..., BenchPlan], tmp_path: Path, change: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    list(islice(start(make_plan(), out), 1))
    with pytest.raises(ConfigError, match=r"holds a run with \w+=.* give another --out"):
        start(make_plan(**change), out)


def test_changed_questions_are_another_run(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    list(islice(start(make_plan(), out), 1))
    changed = [{**QUESTIONS[0], "prompt": "the mat"}, *QUESTIONS[1:]]
    (tmp_path / "three.jsonl").write_text("\n".join(map(json.dumps, changed)))
    with pytest.raises(ConfigError, match="questions="):
        start(make_plan(), out)


# --- trouble ----------------------------------------------------------------------------------------


def test_a_peer_that_fails_is_dropped_and_the_others_go_on(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    seen: list[Answer] = []

    def breaks(answer: Answer) -> Answer:
        seen.append(answer)
        if len(seen) == 3:  # the warm-up, the first question, the second
            raise RuntimeError("shapes do not match")
        return answer

    out = tmp_path / "out"
    records = run_all(make_plan(), out, Field(A=breaks))
    assert [len(r.of("A")) for r in records] == [1, 0, 0]
    assert [len(r.of("B")) for r in records] == [1, 2, 1]
    (note,) = RunFolder(out).read().plan["notes"]
    assert note == "A was dropped: RuntimeError: shapes do not match"


def test_a_prompt_that_cannot_be_answered_is_left_out_for_all(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    seen: list[Answer] = []

    def refuses(answer: Answer) -> Answer:
        seen.append(answer)
        if len(seen) == 4:  # the second turn of b
            raise PromptError("it is too long")
        return answer

    out = tmp_path / "out"
    records = run_all(make_plan(), out, Field(B=refuses))
    assert [len(r.answers) for r in records] == [3, 3, 3]
    (note,) = RunFolder(out).read().plan["notes"]
    assert note == "three/b was left out from turn 2 on: it is too long"


def test_a_failure_of_our_own_ends_the_run_and_keeps_what_is_finished(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    class Broken(EngineContender):
        calls = 0

        def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
            self.calls += 1
            if self.calls == 3:  # the warm-up, the first question, the second
                raise CacheError("a row is missing")
            return super().answer(prompt_ids, options)

    def enter(*arguments: Any) -> list[Contender]:
        plain = Field()(*arguments)[0]
        assert isinstance(plain, EngineContender)
        return [plain, Broken("ngram", plain.engine)]

    with pytest.raises(CacheError):
        run_all(make_plan(), tmp_path / "out", enter)
    assert [r.id for r in RunFolder(tmp_path / "out").records()] == ["a"]


def test_a_peer_that_fails_in_its_warm_up_is_dropped(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    def breaks(answer: Answer) -> Answer:
        raise TypeError("unexpected keyword")

    records = run_all(make_plan(), tmp_path / "out", Field(A=breaks))
    assert {a.method for r in records for a in r.answers} == {PLAIN, "B"}


def test_a_run_does_not_go_on_with_other_weights(
    make_plan: Callable[..., BenchPlan], model: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "model"
    shutil.copytree(model, mine)
    list(islice(start(make_plan(model=str(mine)), tmp_path / "out"), 1))
    shutil.rmtree(mine)
    save_folder(mine, seed=1)
    with pytest.raises(ConfigError, match="begun with weights"):
        run_all(make_plan(model=str(mine)), tmp_path / "out")


@pytest.mark.parametrize("name", ["cpu", "threads", "dtype", "device"])
def test_a_run_does_not_go_on_on_another_machine(
    make_plan: Callable[..., BenchPlan], tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    list(islice(start(make_plan(), out), 1))
    plan = json.loads((out / PLAN).read_text())
    plan["provenance"][name] = "another"
    (out / PLAN).write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=f"begun with {name} another"):
        run_all(make_plan(), out)


def test_a_folder_in_use_is_left_alone(make_plan: Callable[..., BenchPlan], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    with folder.in_use(), pytest.raises(ConfigError, match="in use by another benchmark"):
        run_all(make_plan(), folder.path)
    assert len(run_all(make_plan(), folder.path)) == 3


def test_records_without_a_plan_are_not_added_to(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_all(make_plan(), out)
    (out / PLAN).unlink()
    with pytest.raises(ConfigError, match=r"plan\.json is missing"):
        start(make_plan(), out)


def test_the_seed_of_a_question_does_not_depend_on_other_suites(
    make_plan: Callable[..., BenchPlan], tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "x", "prompt": "the mat"}))
    alone, beside = Field(), Field()
    plan = make_plan(temperature=1.0)
    run_all(plan, tmp_path / "alone", alone)
    both = make_plan(temperature=1.0, suites=f"{other},{plan.suites}")
    run_all(both, tmp_path / "beside", beside)

    def seeds(field: Field) -> set[Any]:
        return {(ids, options.seed) for name, ids, options in field.calls[2:]}

    assert seeds(alone) < seeds(beside)


# --- plans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": ("ngram", "ngram")}, "'ngram' is named twice"),
        ({"methods": ("ngramm",)}, "did you mean 'ngram'"),
        ({"methods": ("hf-asisted",)}, "did you mean 'hf-assisted'"),
        ({"methods": ("speculative",)}, "needs a draft model; give one with --drafter"),
        ({"methods": ("hf-assisted",)}, "needs a draft model; give one with --drafter"),
        ({"drafter": "small"}, "--drafter small is not used by any of autoregressive, ngram"),
        ({"repeats": 0}, "repeats=0"),
        ({"limit": 0}, "limit=0"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"suites": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"methods": ("ngram:depht=3",)}, "did you mean 'depth'"),
        ({"methods": ("ngram:depth=0",)}, "depth=0"),
        ({"methods": ("ngram:min=9",)}, "n-gram lengths 9..5"),
        ({"methods": ("ngram:tree=600",)}, "tree '600'"),
        ({"methods": ("ngram:verifier=exakt",)}, "did you mean 'exact'"),
        ({"methods": ("ngram:min=2:max=4", "ngram:max=4:min=2")}, "are the same"),
    ],
)
def test_mistakes_are_found_before_loading(
    make_plan: Callable[..., BenchPlan], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_plan(**change)


def test_plain_decoding_always_takes_part(make_plan: Callable[..., BenchPlan]) -> None:
    assert list(make_plan(methods=("ngram",)).contestants) == [PLAIN, "ngram"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ngram,hf", ("ngram", "hf")),
        (" ngram , hf ", ("ngram", "hf")),
        ("ngram:tree=4,2,2,hf", ("ngram:tree=4,2,2", "hf")),
        ("ngram:tree=4, 2,2", ("ngram:tree=4,2,2",)),
        ("ngram:tree=4,2,2:min=3", ("ngram:tree=4,2,2:min=3",)),
    ],
)
def test_methods_are_separated_by_commas(text: str, names: tuple[str, ...]) -> None:
    assert split_methods(text) == names


def test_an_empty_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty name"):
        split_methods("ngram,,hf")
