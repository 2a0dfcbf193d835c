"""`foredraft bench` as it is typed: what a run leaves behind, how it exits, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from foredraft.bench.folder import COSTS, PLAN, RECORDS, RunFolder
from foredraft.bench.method_names import LOSSY
from foredraft.bench.peers import PeerSpec
from foredraft.bench.peers.hf import HFContender
from foredraft.bench.quality.run import QualityRun
from foredraft.bench.reproduce.run import ReproduceRun
from foredraft.bench.runner import BenchRun
from foredraft.cli.interrupts import INTERRUPTED, noticed_interrupts
from foredraft.cli.main import app
from foredraft.costs import CostTable
from tests.tiny_folders import save_folder

FAILURE, USAGE = 1, 2
METHODS = "ngram,hf,economize"
PROMPTS = ("the cat sat on the mat the cat", "mat mat mat mat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("suites") / "cats.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))
    return file


@pytest.fixture(scope="module", autouse=True)
def _quick_costs() -> Iterator[None]:
    """Costs are measured in their own tests; here they would take most of the time."""
    defaults = BenchRun.__init__.__defaults__
    assert defaults is not None
    quick = (*defaults[:-1], lambda *_: CostTable.flat(0.02, 0.002))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BenchRun.__init__, "__defaults__", quick)
        yield


def bench(*arguments: str | Path) -> Result:
    """The command in this process; faults of ours are raised."""
    words = ["bench", *map(str, arguments)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def run(folder: Path, suite: Path, out: Path, *more: str | Path) -> Result:
    """A short run of the tiny model."""
    options = ("--dtype", "float32", "--max-new-tokens", "8", "--methods", METHODS)
    return bench("run", "--model", folder, "--suite", suite, "--out", out, *options, *more)


@pytest.fixture(scope="module")
def done(folder: Path, suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("runs") / "first"
    assert run(folder, suite, out).exit_code == 0
    return out


def test_rounded_weights_are_named_and_make_another_run(
    folder: Path, suite: Path, tmp_path: Path
) -> None:
    rounded = ("--quantize", "int8", "--methods", "ngram,hf", "--limit", "1")
    assert run(folder, suite, tmp_path, *rounded).exit_code == 0
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["provenance"]["dtype"] == "float32 with int8 weights"
    assert all(row["identical"] == "yes" for row in document["rows"])
    assert "float32 with int8 weights" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / PLAN).read_text())["quantize"] == "int8"
    other = run(folder, suite, tmp_path, *rounded[2:])
    assert other.exit_code == USAGE
    assert "holds a run with --quantize 'int8', and this one has None" in other.stderr


def test_a_run_leaves_tables_plots_and_what_they_are_made_of(done: Path) -> None:
    names = {file.name for file in done.iterdir()}
    assert {PLAN, COSTS, RECORDS, "results.json", "report.md", "speedup.png"} <= names
    assert not [name for name in names if name.endswith(".partial")]
    document = json.loads((done / "results.json").read_text())
    rows = {(row["suite"], row["method"]): row for row in document["rows"]}
    assert {"autoregressive", "ngram", "hf"} <= {method for _, method in rows}
    assert {suite for suite, _ in rows} == {"cats", "all"}
    assert all(row["identical"] == "yes" for row in document["rows"])
    assert document["provenance"]["device"] == "cpu"


def test_the_terminal_shows_speedups_and_notes(done: Path, folder: Path, suite: Path) -> None:
    shown = bench("report", done)
    assert shown.exit_code == 0
    assert "speedup over plain decoding" in shown.stdout
    for method in ("autoregressive", "ngram", "hf"):
        assert method in shown.stdout
    assert "report.md" in shown.stdout


def test_a_finished_run_is_not_run_again(done: Path, folder: Path, suite: Path) -> None:
    before = (done / RECORDS).read_bytes()
    assert run(folder, suite, done).exit_code == 0
    assert (done / RECORDS).read_bytes() == before


def test_a_bug_exits_with_1_and_is_named(
    done: Path, folder: Path, suite: Path, tmp_path: Path
) -> None:
    out = tmp_path / "wrong"
    out.mkdir()
    for name in (PLAN, COSTS):
        (out / name).write_bytes((done / name).read_bytes())
    records = [json.loads(line) for line in (done / RECORDS).read_text().splitlines()]
    records[1]["answers"][1]["identical"] = "bug at token 3"
    (out / RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    found = run(folder, suite, out)
    assert found.exit_code == FAILURE
    assert "bug at token 3" in found.stdout
    assert bench("report", out).exit_code == 0  # it was made; the run is what failed


def test_rounds_are_priced_by_another_table(done: Path) -> None:
    def modelled(*arguments: str) -> float:
        assert bench("report", done, *arguments).exit_code == 0
        rows = json.loads((done / "results.json").read_text())["rows"]
        (row,) = (r for r in rows if (r["suite"], r["method"]) == ("all", "ngram"))
        assert row["modelled_speedup_vs_plain"] == pytest.approx(row["tokens_per_pass"], rel=0.3)
        return float(row["modelled_tokens_per_s"])

    flat, measured = modelled("--costs", "flat:level=0.1"), modelled()
    assert flat != measured


def test_a_run_compared_with_itself_has_no_difference(done: Path) -> None:
    shown = bench("compare", done, done, "--json")
    assert shown.exit_code == 0
    document = json.loads(shown.stdout.splitlines()[-1])
    assert {change["verdict"] for change in document["changes"]} == {"no difference"}
    assert "no difference" in bench("compare", done, done).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--methods", "ngramm"), "did you mean 'ngram'"),
        (("--methods", "speculative"), "needs a draft model"),
        (("--suite", "bultin"), "did you mean 'builtin'"),
        (("--repeats", "0"), "--repeats 0"),
        (("--limit", "-1"), "--limit -1"),
        (("--temperature", "-1"), "--temperature -1.0"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_loaded(
    tmp_path: Path, arguments: tuple[str, str], sentence: str
) -> None:
    found = bench("run", "--model", "no/such/model", "--out", tmp_path / "out", *arguments)
    assert found.exit_code == USAGE
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_folder_without_a_run_is_named(tmp_path: Path, done: Path, command: str) -> None:
    arguments = (tmp_path,) if command == "report" else (done, tmp_path)
    found = bench(command, *arguments)
    assert found.exit_code == USAGE
    assert "holds no benchmark run" in found.stderr


def test_brackets_in_names_are_no_markup(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "b[red].jsonl"
    questions = [{"id": "[/b]", "prompt": "cat " * 3000}, {"id": "[i]", "prompt": "the cat"}]
    file.write_text("\n".join(map(json.dumps, questions)))
    out = tmp_path / "o[/x]"
    done = run(folder, file, out)
    assert done.exit_code == 0
    assert "b[red]/[/b] was left out" in done.stderr + done.stdout
    assert "b[red]" in done.stdout
    assert "o[/x]" in done.stdout
    assert [len(record.answers) > 0 for record in RunFolder(out).records()] == [False, True]


def test_a_run_that_no_prompt_fits_says_so(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "cat " * 3000}))
    for _ in range(2):  # the second time there is nothing left to run
        done = run(folder, file, tmp_path / "out")
        assert done.exit_code == FAILURE
        assert "could be answered" in done.stderr


@pytest.fixture
def _no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without any peer's package."""
    monkeypatch.setattr(PeerSpec, "missing", lambda self: "it is not installed")


@pytest.mark.usefixtures("_no_peers")
@pytest.mark.parametrize("methods", ["economize", "hf,llama.cpp"])
def test_a_run_whose_methods_are_all_skipped_is_refused(
    folder: Path, suite: Path, tmp_path: Path, methods: str
) -> None:
    done = run(folder, suite, tmp_path / "out", "--methods", methods)
    assert done.exit_code == USAGE
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: none of the methods asked for can be measured here (")
    for name in methods.split(","):
        assert f"{name} was skipped: it is not installed" in line
    assert not (tmp_path / "out" / RECORDS).exists()


@pytest.mark.usefixtures("_no_peers")
def test_one_method_that_takes_part_is_enough(folder: Path, suite: Path, tmp_path: Path) -> None:
    done = run(folder, suite, tmp_path / "out", "--methods", "hf,autoregressive")
    assert done.exit_code == 0


def test_a_run_whose_methods_all_drop_out_exits_with_2(
    folder: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time there is nothing left to run, and the answer is the same."""
    monkeypatch.setattr(BenchRun, "_warm_up", lambda *_: None)
    monkeypatch.setattr(HFContender, "answer", _fails)
    for _ in range(2):
        done = run(folder, suite, tmp_path / "out", "--methods", "hf")
        assert done.exit_code == USAGE
        assert done.stderr.splitlines()[-1].startswith("error: none of hf has an answer")


def _fails(*_: Any) -> Any:
    raise RuntimeError("it broke")


def test_an_interrupt_that_a_finaliser_swallows_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # Python says it there, and goes on

    class Leaves:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with noticed_interrupts() as interrupted:
        interrupted.heed()
        Leaves()
        with pytest.raises(KeyboardInterrupt):
            interrupted.heed()


@pytest.mark.parametrize("kind", ["file", "loop", "name"])
def test_a_folder_that_cannot_be_made_is_found_before_loading(
    suite: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / ("n" * 300 if kind == "name" else "out")
    if kind == "file":
        out.write_text("mine")
    elif kind == "loop":
        out.symlink_to(out)
    done = bench("run", "--model", "no/such/model", "--suite", suite, "--out", out)
    assert done.exit_code == USAGE
    (line,) = done.stderr.splitlines()
    assert "cannot be written" in line


def test_ctrl_c_keeps_what_is_finished(folder: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(json.dumps({"prompt": f"the cat {i}"}) for i in range(2000)))
    out = tmp_path / "out"
    words: list[Any] = ["--model", folder, "--suite", many, "--out", out, "--limit", 0]
    words += ["--methods", "ngram", "--dtype", "float32", "--max-new-tokens", 8]
    code = (
        "from foredraft.bench.runner import BenchRun\n"
        "from foredraft.costs import CostTable\n"
        "quick = lambda *_: CostTable.flat(0.02, 0.002)\n"
        "BenchRun.__init__.__defaults__ = (*BenchRun.__init__.__defaults__[:-1], quick)\n"
        "from foredraft.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", code, "bench", "run", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (out / RECORDS).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    kept = len(list(RunFolder(out).records()))
    assert 0 < kept < 2000
    assert f"{kept} of 2000 prompts are kept" in " ".join(stderr.split())


# --- papers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("reproduce", "adaeagel"), "nothing to reproduce called 'adaeagel'"),
        (("reproduce", "adaeagle", "--budget", "8"), "--budget is for improved-mcsd"),
        (("reproduce", "improved-mcsd", "--structures"), "--structures is for adaeagle"),
        (("reproduce", "adaeagle", "--drafter", "draft-model"), "is a draft model"),
        (("reproduce", "improved-mcsd", "--temperature", "hot"), "write it like 0,0.7,1"),
        (("reproduce", "improved-mcsd", "--budget", "8.5"), "write it like 8,16"),
        (("reproduce", "improved-mcsd", "--suite", "bultin"), "did you mean 'builtin'"),
        (("quality", "--drafters", "eagel3"), "did you mean 'eagle3'"),
        (("quality", "--contexts", "0"), "--contexts 0 measures nothing"),
        (("quality", "--tree", "4,x"), "not a list of widths"),
    ],
)
def test_mistakes_about_papers_are_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    found = bench(*arguments, "--out", tmp_path / "out")
    assert found.exit_code == USAGE
    assert sentence in found.stderr
    assert not (tmp_path / "out").exists()


def test_papers_are_run_to_their_reports(folder: Path, suite: Path, tmp_path: Path) -> None:
    draft = save_folder(tmp_path / "draft", hidden_size=16)
    shared = ("--model", folder, "--suite", suite, "--dtype", "float32", "--max-new-tokens", "6")
    out = tmp_path / "paper"
    reproduce = ("reproduce", "improved-mcsd", *shared, "--drafter", draft, "--out", out)
    quality = (
        *("quality", *shared, "--drafters", draft, "--out", out / "quality", "--tree", "2,1"),
        *("--max-roots", "2", "--contexts", "2", "--candidates", "3", "--tasks", "3"),
    )
    with pytest.MonkeyPatch.context() as patch:
        costs = CostTable.flat(0.02, 0.002, ("speculative", "mcsd", "mcsd-improved", LOSSY))
        for owner in (ReproduceRun, QualityRun):
            defaults = owner.__init__.__defaults__
            assert defaults is not None
            patch.setattr(owner.__init__, "__defaults__", (*defaults[:-1], lambda *_: costs))
        assert bench(*quality).exit_code == 0
        done = bench(*reproduce, "--temperature", "1")
        assert done.exit_code == 0
        again = bench(*reproduce, "--temperature", "1")
        assert again.exit_code == 0
    report = (out / "report.md").read_text()
    assert "## Quality by number of roots" in report
    assert "## Temperature 1, 2 prompts" in report
    assert str(out / "report.md") in done.stdout
