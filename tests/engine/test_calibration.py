"""Calibration: known costs are found again, passes are those of decoding, and nothing is left behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import typer
from click.testing import Result
from torch import Tensor
from typer.testing import CliRunner

from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.cli.calibrate import calibrate as command
from foredraft.cli.calibrate import sentences
from foredraft.config import GenerationOptions
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.calibration import calibrate, draft_model
from foredraft.engine.cost_files import (
    costs_path,
    dtype_of,
    load_costs,
    save_costs,
    write_costs,
)
from foredraft.engine.host_costs import draft_host_s, drafted_rounds, host_s, plain_rounds
from foredraft.engine.pass_costs import MAX_REPEATS, MIN_REPEATS, PassTimes, measure_passes
from foredraft.errors import ConfigError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Verdict
from foredraft.results import RoundRecord
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import NO_PARENT, DraftTree, Proposal
from foredraft.verifiers.multi_root import MultiRootVerifier
from foredraft.verifiers.rejection import RejectionVerifier
from tests.scripted import ScriptedDrafter, Watched, empty
from tests.tiny_folders import save_folder
from tests.tiny_models import tiny_bloom, tiny_llama

Law = Callable[[int, int], float]
"""(rows, cached tokens) -> seconds."""


def linear(rows: int, context: int) -> float:
    """a + b n + c ctx."""
    return 0.020 + 0.001 * rows + 0.00001 * context


# --- a target whose passes take what a script says --------------------------------------------------


class TimedTarget(TableModel):
    """A table model with a clock of its own, which only its work moves."""

    def __init__(
        self,
        law: Law = linear,
        *,
        spike_every: int = 0,
        context_length: int | None = None,
        scores_trees: bool = True,
    ) -> None:
        super().__init__(torch.full((8, 8), 1 / 8), context_length=context_length)
        self.law, self.spike_every, self.scores_trees = law, spike_every, scores_trees
        self.now, self.unfinished = 100.0, 0.0
        self.passes: list[tuple[int, int]] = []
        self.parents: list[tuple[int, ...]] = []
        self.states: list[TimedState] = []

    def clock(self) -> float:
        """Work that nobody waited for has not moved it."""
        return self.now

    def synchronize(self) -> None:
        self.now, self.unfinished = self.now + self.unfinished, 0.0

    def start(self, capacity: int) -> TimedState:
        self.states.append(TimedState(self, capacity))
        return self.states[-1]


class TimedState:
    """Counts what is pending, and takes its time."""

    def __init__(self, target: TimedTarget, capacity: int) -> None:
        self._target, self.capacity = target, capacity
        self.length = self.pending = 0
        self.closed = False

    def prefill(self, token_ids: Sequence[int]) -> None:
        assert not self.pending
        self.length += len(token_ids)
        self._target.unfinished += 1.0

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        target = self._target
        target.passes.append((self.length, len(token_ids)))
        target.parents.append(tuple(parents))
        self.pending += len(token_ids)
        assert self.length + self.pending <= self.capacity
        target.unfinished += target.law(len(token_ids), self.length)
        if target.spike_every and len(target.passes) % target.spike_every == 0:
            target.unfinished += 5.0
        return torch.zeros(len(token_ids), target.vocab_size)

    def commit(self, path: Sequence[int]) -> None:
        assert not path
        self.pending = 0
        self._target.unfinished += 0.7  # a rollback takes time that is not the pass's

    def close(self) -> None:
        assert not self.pending
        self.closed = True


def measure(
    target: TimedTarget,
    nodes: Sequence[int] = (1, 2, 8),
    contexts: Sequence[int] = (16, 64),
    budget_s: float = 1e6,
) -> PassCosts:
    return measure_passes(target, nodes, contexts, budget_s, clock=target.clock)


@pytest.mark.parametrize("spike_every", [0, 5, 7], ids=["quiet", "20%-spikes", "14%-spikes"])
def test_a_known_law_is_found_again(spike_every: int) -> None:
    costs = measure(TimedTarget(spike_every=spike_every))
    for context, row in zip(costs.contexts, costs.seconds, strict=True):
        for rows, seconds in zip(costs.nodes, row, strict=True):
            assert seconds == pytest.approx(linear(rows, context), rel=1e-6)


def test_one_lucky_pass_does_not_count() -> None:
    """A pass that is read as too short stays out of the estimate, as the minimum would not let it."""
    repeats = ((((0.1,),),) + (((1.0,),),) * 8) + (((9.0,),),)
    assert PassTimes((1,), (0,), repeats).costs()(1, 0) == 1.0


def test_points_take_turns() -> None:
    target = TimedTarget()
    measure(target, budget_s=1e-9)
    one_round = [(context, rows) for context in (16, 64) for rows in (1, 2, 8)]
    assert target.passes == one_round * (1 + MIN_REPEATS)


def test_a_slow_minute_slows_all_points_alike() -> None:
    """Of three repeats the first alone is fast; what points cost relative to one another stays."""
    target = TimedTarget()
    slowness = [1.0, 1.0, 3.0, 3.0]  # the warm-up, then the repeats; a round has six passes
    target.law = lambda rows, context: (
        linear(rows, context) * slowness[(len(target.passes) - 1) // 6]
    )
    costs = measure(target, budget_s=1e-9)
    assert costs(8, 64) / costs(1, 64) == pytest.approx(linear(8, 64) / linear(1, 64))


def test_a_single_row_is_plain_decodings_pass_and_more_are_a_tree() -> None:
    target = TimedTarget()
    measure(target, budget_s=1e-9)
    by_rows = {len(parents): parents for parents in target.parents}
    assert by_rows == {
        1: (NO_PARENT,),
        2: (NO_PARENT, 0),
        8: (NO_PARENT, 0, 0, 1, 1, 2, 2, 3),
    }


def test_a_model_without_trees_is_timed_on_chains() -> None:
    target = TimedTarget(scores_trees=False)
    measure(target, budget_s=1e-9)
    assert (NO_PARENT, *range(7)) in target.parents


def test_states_are_rolled_back_and_closed() -> None:
    target = TimedTarget()
    measure(target)
    assert [state.length for state in target.states] == [16, 64]
    assert all(state.closed for state in target.states)


def test_states_are_closed_when_a_pass_fails() -> None:
    target = TimedTarget()

    def law(rows: int, context: int) -> float:
        if len(target.passes) > 4:
            for state in target.states:
                state.pending = 0
            raise MemoryError
        return 0.1

    target.law = law
    with pytest.raises(MemoryError):
        measure(target)
    assert all(state.closed for state in target.states)


def test_repeats_fill_the_budget_and_no_more() -> None:
    target = TimedTarget(lambda rows, context: 1.0)
    measure(target, nodes=(1, 2), contexts=(16,), budget_s=40.0)
    rounds = len(target.passes) // 2 - 1
    assert MIN_REPEATS < rounds < MAX_REPEATS
    assert 40.0 - 2 * 1.7 < target.now - 100.0 <= 40.0


def test_a_fast_model_ends_before_its_budget() -> None:
    target = TimedTarget()
    measure(target, nodes=(1,), contexts=(16,))
    assert len(target.passes) == 1 + MAX_REPEATS


@pytest.mark.parametrize(
    ("limit", "nodes", "contexts"),
    [
        (None, (1, 8, 64), (0, 64, 4000)),
        (4064, (1, 8, 64), (0, 64, 4000)),
        (4063, (1, 8, 64), (0, 64)),
        (100, (1, 8), (0, 64)),
        (10, (1,), (0,)),
        (1, (1,), (0,)),
    ],
)
def test_a_grid_is_cut_to_the_models_context(
    limit: int | None, nodes: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    costs = measure(TimedTarget(context_length=limit), (64, 8, 1), (4000, 64, 0), 1e-9)
    assert (costs.nodes, costs.contexts) == (nodes, contexts)


def test_where_no_context_fits_the_longest_possible_is_measured() -> None:
    assert measure(TimedTarget(context_length=100), (1, 8), (500,), 1e-9).contexts == (92,)


@pytest.mark.parametrize(
    ("nodes", "contexts", "budget_s"), [((0,), (1,), 1.0), ((1,), (), 1.0), ((1,), (1,), 0.0)]
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    nodes: Sequence[int], contexts: Sequence[int], budget_s: float
) -> None:
    target = TimedTarget()
    with pytest.raises(ConfigError):
        measure(target, nodes, contexts, budget_s)
    assert not target.states


# --- the host's share -------------------------------------------------------------------------------


def round_(draft_s: float, draft_rows: tuple[int, ...] = (), num_drafted: int = 2) -> RoundRecord:
    """A round whose draft took this long, its pass 0.1 s, and all else 0.003 s."""
    total_s = draft_s + 0.1 + 0.003
    return RoundRecord(
        50, (1,) * (num_drafted + 1), draft_rows, 0, 1, False, draft_s, 0.1, 0.001, total_s
    )


def test_the_rest_of_a_round_is_what_neither_draft_nor_target_takes() -> None:
    assert host_s([round_(0.5), round_(0.2), round_(0.0)]) == pytest.approx(0.003)


def test_drafting_is_timed_without_the_models_passes() -> None:
    passes = PassCosts((1, 2), (0,), ((0.010, 0.012),))
    rounds = [round_(0.025, (2, 1)), round_(0.023, (1, 1))]
    assert draft_host_s(rounds, passes) == pytest.approx(0.003)


def test_a_draft_faster_than_its_passes_takes_no_host_time() -> None:
    passes = PassCosts((1,), (0,), ((0.010,),))
    assert draft_host_s([round_(0.009, (1,))], passes) == 0.0


def test_rounds_without_a_draft_do_not_count_unless_there_are_no_others() -> None:
    idle = round_(0.001, num_drafted=0)
    assert draft_host_s([idle, idle, idle, round_(0.008)], None) == pytest.approx(0.008)
    assert draft_host_s([idle], None) == pytest.approx(0.001)


def limited(context_length: int | None) -> TableModel:
    """A table model of 50 tokens with room for a text of this length."""
    laws = torch.rand(50, 50, generator=torch.Generator().manual_seed(0)).double()
    return TableModel(laws / laws.sum(-1, keepdim=True), context_length=context_length)


@pytest.mark.parametrize("context_length", [None, 40])
def test_every_timed_round_of_a_copying_drafter_copies(context_length: int | None) -> None:
    """Whatever the target would say."""
    target = limited(context_length)
    drafter = Watched(NgramDrafter())
    rounds = drafted_rounds(Engine(target, drafter), 100.0)
    assert len(rounds) >= 2
    assert all(r.num_drafted for r in rounds if not r.cut)
    assert all(r.num_accepted == r.num_drafted for r in rounds)
    assert all(state.closed for state in drafter.states)


def test_timed_decoding_ends_with_its_budget() -> None:
    target = TableModel.random(50)
    assert len(plain_rounds(Engine(target), 1e-9)) == MIN_REPEATS
    assert len(plain_rounds(Engine(target), 1e9)) == 40


def test_a_context_of_two_tokens_still_has_a_round() -> None:
    assert len(plain_rounds(Engine(limited(2)), 1.0)) == 1


# --- the table --------------------------------------------------------------------------------------


def test_calibration_measures_each_model_once() -> None:
    target, draft = TableModel.random(8), TableModel.random(8, seed=1)
    said: list[str] = []
    engines = {
        "autoregressive": Engine(target),
        "ngram": Engine(target, NgramDrafter()),
        "speculative": Engine(target, DraftModelDrafter(draft)),
        "speculative:depth=2": Engine(target, DraftModelDrafter(draft)),
        "self": Engine(target, DraftModelDrafter(target)),
        "none": Engine(target, ScriptedDrafter(empty(), max_nodes=1)),
    }
    table = calibrate(
        target, engines, nodes=(1, 2), contexts=(4,), budget_s=0.05, report=said.append
    )
    assert list(table.drafts) == [name for name in engines if name != "autoregressive"]
    assert table.drafts["ngram"].passes is table.drafts["none"].passes is None
    passes = table.drafts["speculative"].passes
    assert passes is not None
    assert passes is table.drafts["speculative:depth=2"].passes
    assert table.drafts["self"].passes is table.target
    assert said.count("reading 4 tokens") == 2
    assert table.host_s > 0
    assert table.drafts["ngram"].host_s > 0
    assert table.provenance["repeats"] >= MIN_REPEATS


def test_a_target_can_be_calibrated_on_its_own() -> None:
    table = calibrate(TableModel.random(4), {}, nodes=(2,), contexts=(4,), budget_s=0.01)
    assert table.target.nodes == (1, 2)
    assert not table.drafts


class Slow(RejectionVerifier):
    """Takes its time, and notes whether laws were greedy."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.greedy = seconds, set[bool]()

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        self.greedy.add(laws.greedy)
        time.sleep(self.seconds)
        return super().verify(tree, laws, random)


def test_what_a_methods_verifier_takes_is_priced_at_the_requests_temperature() -> None:
    target = TableModel.random(8)
    fast, slow = Slow(), Slow(0.02)
    engines = {
        name: Engine(
            target,
            DraftModelDrafter(TableModel.random(8, seed=1), Proposal.SAMPLED),
            verifier=verifier,
        )
        for name, verifier in (("fast", fast), ("slow", slow))
    }
    options = GenerationOptions(temperature=0.7, top_k=3)
    table = calibrate(target, engines, options, nodes=(1,), contexts=(4,), budget_s=0.05)
    assert 0.02 < table.drafts["slow"].host_s < 0.06
    assert table.drafts["fast"].host_s < 0.02
    assert table.host_s < 0.02
    assert slow.greedy == {False}
    assert [table.provenance[name] for name in ("temperature", "top_k")] == [0.7, 3]
    calibrate(target, engines, nodes=(1,), contexts=(4,), budget_s=0.05)
    assert slow.greedy == {False, True}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_open_roots_are_timed_with_their_own_verifier(temperature: float) -> None:
    target = TableModel.random(8)
    engine = Engine(
        target,
        DraftModelDrafter(TableModel.random(8, seed=1), Proposal.SAMPLED),
        FixedPolicy((2, 1), num_roots=2),
        MultiRootVerifier(2),
    )
    rounds = drafted_rounds(engine, 0.05, GenerationOptions(temperature=temperature))
    assert all(r.num_accepted == r.depth for r in rounds if not r.cut)


def test_an_engine_with_another_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine 'other' has another target"):
        calibrate(TableModel.random(4), {"other": Engine(TableModel.random(4))})


def test_only_a_target_counts_as_a_draft_model() -> None:
    class Head(NgramDrafter):
        model = "weights"

    target = TableModel.random(4)
    assert draft_model(Engine(target, Head())) is None
    assert draft_model(Engine(target)) is None
    assert draft_model(Engine(target, DraftModelDrafter(target))) is target


@pytest.mark.parametrize("model", [tiny_llama, tiny_bloom])
def test_a_real_model_is_calibrated(model: Callable[[], object]) -> None:
    target = HFTarget(model())
    engines = {"ngram": Engine(target, NgramDrafter())}
    table = calibrate(target, engines, nodes=(1, 4), contexts=(16, 64), budget_s=0.2)
    assert table.target.contexts == (16, 64)
    assert table.drafts["ngram"].host_s > 0
    assert len(target._spare) == 2  # every cache came back: of the target alone, and of an engine


# --- files ------------------------------------------------------------------------------------------

TABLE = CostTable(
    PassCosts((1, 8), (64,), ((0.02, 0.022),)), 0.001, {"ngram": DraftCosts(0.0001)}, {"threads": 1}
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_table_is_kept_and_found(home: Path) -> None:
    assert load_costs("smollm2", "bfloat16", "cpu") is None
    file = save_costs(TABLE, "smollm2", "bfloat16", "cpu")
    assert file.is_relative_to(home)
    assert load_costs("smollm2", "bfloat16", torch.device("cpu")) == TABLE
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_each_model_dtype_device_and_thread_count_has_its_own(home: Path) -> None:
    threads = torch.get_num_threads()
    keys = [("a/b", "float32", "cpu"), ("c/b", "float32", "cpu"), ("a/b", "bfloat16", "cpu")]
    paths = {costs_path(*key) for key in [*keys, ("a/b", "float32", "meta")]}
    try:
        torch.set_num_threads(threads + 1)
        paths.add(costs_path(*keys[0]))
    finally:
        torch.set_num_threads(threads)
    assert len(paths) == 5
    assert costs_path(*keys[0]) in paths


def test_a_folder_is_the_same_model_by_any_of_its_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert costs_path("./model", "float32", "cpu") == costs_path(
        str(tmp_path / "model"), "float32", "cpu"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', "\x00", '"x"'])
def test_a_file_that_cannot_be_read_is_ignored_and_replaced(home: Path, text: str) -> None:
    file = costs_path("m", "float32", "cpu")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert load_costs("m", "float32", "cpu") is None
    save_costs(TABLE, "m", "float32", "cpu")
    assert load_costs("m", "float32", "cpu") == TABLE


def test_bytes_that_are_no_text_are_ignored(home: Path) -> None:
    file = costs_path("m", "float32", "cpu")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff\xfe")
    assert load_costs("m", "float32", "cpu") is None


def test_a_failed_write_leaves_the_old_table(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_costs(TABLE, "m", "float32", "cpu")

    def full(source: str, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        save_costs(CostTable.flat(1.0, 1.0), "m", "float32", "cpu")
    assert load_costs("m", "float32", "cpu") == TABLE
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_home_that_is_a_file_is_one_sentence(home: Path) -> None:
    home.write_text("")
    with pytest.raises(ConfigError, match="set FOREDRAFT_HOME"):
        save_costs(TABLE, "m", "float32", "cpu")
    assert load_costs("m", "float32", "cpu") is None


def test_a_file_in_no_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_costs(TABLE, tmp_path / "nowhere" / "costs.json")


def test_the_dtype_is_that_of_the_weights() -> None:
    assert dtype_of(HFTarget(tiny_llama(dtype=torch.bfloat16))) == "bfloat16"
    assert dtype_of(TableModel.random(4)) == "unknown"


# --- the command ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


def run(*arguments: str | Path) -> Result:
    """The command in this process; faults of ours are raised."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


FAST = ("--nodes", "4,1", "--contexts", "16,64", "--budget", "0.1", "--dtype", "float32")


def test_the_command_shows_and_keeps_its_table(home: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    done = run("--model", folder, *FAST, "--out", out)
    assert done.exit_code == 0, done.stderr
    for part in (
        "16 tokens",
        "64 tokens",
        "(1.00)",
        "a pass of 4 rows",
        "A draft of adaptive costs",
    ):
        assert part in done.stdout
    kept = load_costs(str(folder), "float32", "cpu")
    assert kept == CostTable.from_dict(json.loads(out.read_text()))
    assert kept.provenance["dtype"] == "float32"
    assert str(costs_path(str(folder), "float32", "cpu")) in done.stderr


def test_the_last_line_is_the_table_and_a_draft_model_has_levels(home: Path, folder: Path) -> None:
    done = run("--model", folder, "--drafter", folder, *FAST, "--json")
    table = CostTable.from_dict(json.loads(done.stdout.splitlines()[-1]))
    passes = table.drafts["adaptive"].passes
    assert passes is not None
    assert passes.nodes == (1, 4)


def test_the_temperature_is_an_option(home: Path, folder: Path) -> None:
    done = run("--model", folder, *FAST, "--temperature", "0.7", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["provenance"]["temperature"] == 0.7
    assert run("--model", folder, "--temperature=-1").exit_code == 2


def test_contexts_past_the_models_are_left_out_with_a_note(home: Path, folder: Path) -> None:
    done = run("--model", folder, *FAST, "--contexts", "16,2045")
    assert "Left out, for this model's context is too short: contexts 2045." in done.stdout


def test_without_a_drafter_there_is_no_draft_to_price(home: Path, folder: Path) -> None:
    done = run("--model", folder, *FAST, "--drafter", "none", "--json")
    assert CostTable.from_dict(json.loads(done.stdout.splitlines()[-1])).drafts == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "1,x"), "--nodes '1,x' is no list of whole numbers"),
        (("--nodes", ""), "--nodes '' is no list of whole numbers"),
        (("--nodes", "0"), "--nodes [0] holds 0"),
        (("--nodes", "513"), "--nodes [513] holds 513"),
        (("--contexts=-1",), "--contexts [-1] holds -1"),
        (("--budget", "0"), "a budget of 0.0 seconds is not allowed"),
        (("--budget", "nan"), "a budget of nan seconds is not allowed"),
        (("--out", "no/such/folder.json"), "cannot be written"),
        (("--out", "."), "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_found_before_loading(arguments: tuple[str, ...], said: str) -> None:
    done = run("--model", "no/such-model", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr


def test_a_busy_machine_is_told() -> None:
    quiet, busy = (
        CostTable(TABLE.target, 0.001, provenance={"spread": spread}) for spread in (0.05, 0.5)
    )
    assert not any("busy" in sentence for sentence in sentences(quiet))
    assert "repeats of a pass differed by 50%" in sentences(busy)[-1]


def test_the_spread_is_that_of_a_typical_point() -> None:
    steady, unsteady = (1.0,) * 5, (1.0, 1.0, 1.0, 2.0, 2.0)
    repeats = zip(steady, unsteady, unsteady, strict=True)
    times = PassTimes((1, 2, 3), (0,), tuple((repeat,) for repeat in repeats))
    assert times.spread() == 1.0
