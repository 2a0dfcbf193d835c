"""A trace shows how an answer was made, and changes nothing about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.bench.trace.document import TraceDocument, make_trace
from foredraft.bench.trace.page import render
from foredraft.cli.trace import trace
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.load import load
from foredraft.engine.trace.shown import TraceRound
from foredraft.engine.trace.watch import Watch, watched
from foredraft.methods import parse_method
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.protocols import Drafter
from foredraft.results import Statistics
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.bench.traced import (
    END,
    HOSTILE,
    PROMPT,
    Asking,
    CountingTable,
    Speaker,
    ids_of,
    speaking,
)
from tests.scripted import (
    ScriptedDrafter,
    cycle,
    empty,
    noise,
    perfect,
    right,
    with_siblings,
    wrong,
)
from tests.tiny_folders import byte_tokenizer, save_folder

VOCAB_SIZE = 5
TEXT = (0, 1, 0, 2, 0)
PROB_RTOL = 1e-3
"""Probabilities are kept to four digits."""

OPTIONS = st.builds(
    GenerationOptions,
    max_new_tokens=st.integers(1, 14),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 9),
    eos_token_ids=st.sampled_from([(), (3,)]),
)
K_CONFIGS = st.sampled_from(["1", "1,1,1", "2,2", "3,1,2"])
LEGAL = [
    *((kind, "exact") for kind in Proposal),
    *((kind, "rejection") for kind in (Proposal.SAMPLED, Proposal.RESAMPLED)),
    (Proposal.SAMPLED, "traversal"),
]


def table(seed: int) -> CountingTable:
    """A target or a draft model that counts its passes."""
    model = CountingTable.random(VOCAB_SIZE, seed=seed)
    assert isinstance(model, CountingTable)
    return model


def untimed(stats: Statistics) -> Sequence[Any]:
    """What was drafted and verified in each round, and what came of it."""
    return [replace(r, draft_s=0.0, target_s=0.0, verify_s=0.0, total_s=0.0) for r in stats.rounds]


def assert_unchanged(engine: Engine, models: Sequence[CountingTable], options: Any) -> None:
    """The watched engine gives the same tokens by the same rounds, with as many passes of every model."""
    results, passes = [], []
    for each in (engine, watched(engine, Watch())):
        before = [model.num_passes for model in models]
        results.append(each.generate(TEXT, options))
        passes.append([m.num_passes - n for m, n in zip(models, before, strict=True)])
    plain, seen = results
    assert seen.token_ids == plain.token_ids
    assert seen.accepted == plain.accepted
    assert untimed(seen.stats) == untimed(plain.stats)
    assert passes[0] == passes[1]


# --- watching changes nothing -----------------------------------------------------------------------


@given(seed=st.integers(0, 20), shape=K_CONFIGS, legal=st.sampled_from(LEGAL), options=OPTIONS)
@settings(max_examples=80)
def test_watching_a_draft_model_changes_nothing(
    seed: int, shape: str, legal: tuple[Proposal, str], options: GenerationOptions
) -> None:
    proposal, rule = legal
    target, draft = table(seed), table(seed + 100)
    drafter = DraftModelDrafter(draft, proposal)
    engine = Engine(target, drafter, FixedPolicy(shape), verifier(rule))
    assert_unchanged(engine, [target, draft], options)


@given(
    children=st.integers(1, 2 * VOCAB_SIZE),
    levels=st.integers(0, 6),
    max_nodes=st.integers(1, 9),
    reads=st.booleans(),
    proposal=st.sampled_from(list(Proposal)),
    options=OPTIONS,
)
@settings(max_examples=100)
def test_watching_adds_no_draft_pass_whatever_a_policy_asks_for(
    children: int,
    levels: int,
    max_nodes: int,
    reads: bool,
    proposal: Proposal,
    options: GenerationOptions,
) -> None:
    """Children for which there is no room, levels that are ended read or unread, more than the support."""
    target, draft = table(1), table(2)
    policy = Asking(children, levels, max_nodes, reads)
    engine = Engine(target, DraftModelDrafter(draft, proposal), policy)
    assert_unchanged(engine, [target, draft], options)


@given(seed=st.integers(0, 20), length=st.integers(1, 6), which=st.integers(0, 5), options=OPTIONS)
@settings(max_examples=60)
def test_watching_a_drafter_without_a_law_changes_nothing(
    seed: int, length: int, which: int, options: GenerationOptions
) -> None:
    target = table(seed)
    text = [*TEXT, *Engine(target).generate(TEXT, options).token_ids]
    drafters: list[Drafter] = [
        ScriptedDrafter(script, max_nodes=40, branches=True)
        for script in (
            perfect(text, length),
            wrong(text, length, VOCAB_SIZE),
            with_siblings(cycle(text, length), 3, 1, VOCAB_SIZE),
            noise(seed, length, VOCAB_SIZE),
            empty(),
        )
    ]
    drafters.append(NgramDrafter(min_match=1))
    assert_unchanged(Engine(target, drafters[which]), [target], options)


# --- what it shows ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 20), shape=K_CONFIGS, legal=st.sampled_from(LEGAL), options=OPTIONS)
@settings(max_examples=60)
def test_p_and_q_are_the_models_own(
    seed: int, shape: str, legal: tuple[Proposal, str], options: GenerationOptions
) -> None:
    """Every node has both, read from the tables at the request's temperature."""
    proposal, rule = legal
    target, draft = table(seed), table(seed + 100)
    engine = Engine(target, DraftModelDrafter(draft, proposal), FixedPolicy(shape), verifier(rule))
    document = make_trace(engine, TEXT, options)
    for shown in document.rounds:
        assert (shown.nodes[0].p, shown.nodes[0].q) == (None, None)
        for node in shown.nodes[1:]:
            after = shown.nodes[node.parent].token_id
            for model, value in ((target, node.p), (draft, node.q)):
                assert value == pytest.approx(law(model, after, options)[node.token_id], PROB_RTOL)
        token, after = shown.tokens[-1], shown.nodes[shown.last].token_id
        expected = law(target, after, options)[token.token_id]
        assert token.p == pytest.approx(expected, PROB_RTOL)


def law(model: TableModel, after: int, options: GenerationOptions) -> list[float]:
    """The softmax of logits / temperature after a token."""
    scores = model.logits_after([after]) / (options.temperature or 1.0)
    return list(scores.softmax(-1).tolist())


def test_the_q_of_copies_is_how_likely_they_are_thought() -> None:
    """By scores, so at temperature 0 alone, and of nodes that the policy was asked about."""
    engine = Engine(table(1), NgramDrafter(1))
    for options in (GenerationOptions(), GenerationOptions(temperature=1.0, seed=1)):
        document = make_trace(engine, TEXT, options)
        nodes = [node for shown in document.rounds for node in shown.nodes[1:]]
        known = [node.q for node in nodes if node.q is not None]
        assert nodes
        assert bool(known) == (options.temperature == 0)
        assert all(0 < q < 1 for q in known)


@pytest.mark.parametrize("shape", ["dynamic", "fixed"])
def test_hybrid_drafts_have_the_q_of_their_part(shape: str) -> None:
    """The model's where it drafted a node, by its number in the merged tree; else that of the copy."""
    draft, options = table(101), GenerationOptions(max_new_tokens=30)
    policy = DynamicTreePolicy(2, 3, 2) if shape == "dynamic" else FixedPolicy("2,1")
    hybrid = HybridDrafter(DraftModelDrafter(draft), NgramDrafter(1))
    engine = Engine(table(1), hybrid, MergingPolicy(policy, FixedPolicy.chain(4)))
    document = make_trace(engine, TEXT, options)
    assert [t.token_id for r in document.rounds for t in r.tokens] == list(
        engine.without_drafts().generate(TEXT, options).token_ids
    )
    from_model = from_copies = 0
    for shown in document.rounds:
        for node in shown.nodes[1:]:
            expected = law(draft, shown.nodes[node.parent].token_id, options)[node.token_id]
            is_models = node.q == pytest.approx(expected, PROB_RTOL)
            from_model += is_models
            from_copies += not is_models and node.q is not None
            assert node.q is None or 0 < node.q <= 1
    assert from_model > 10
    assert from_copies > 10


@given(seed=st.integers(0, 20), shape=K_CONFIGS, legal=st.sampled_from(LEGAL), options=OPTIONS)
@settings(max_examples=60)
def test_rounds_hold_together(
    seed: int, shape: str, legal: tuple[Proposal, str], options: GenerationOptions
) -> None:
    """The tokens are the answer; the accepted nodes are the path that the accepted tokens spell."""
    proposal, rule = legal
    drafter = DraftModelDrafter(table(seed + 100), proposal)
    engine = Engine(table(seed), drafter, FixedPolicy(shape), verifier(rule))
    result = engine.generate(TEXT, options)
    document = make_trace(engine, TEXT, options)
    assert [t.token_id for r in document.rounds for t in r.tokens] == list(result.token_ids)
    assert [t.kind == "accepted" for r in document.rounds for t in r.tokens] == list(
        result.accepted
    )
    for shown, record in zip(document.rounds, result.stats.rounds, strict=True):
        assert shown.cut == record.cut
        assert len(shown.nodes) == sum(record.widths)
        assert_path(shown)


def assert_path(shown: TraceRound) -> None:
    """Accepted nodes follow one another from the root; the last token hangs on their end or is it."""
    path = [i for i, node in enumerate(shown.nodes) if node.accepted]
    assert path[0] == 0
    assert [shown.nodes[node].parent for node in path[1:]] == path[:-1]
    accepted = [token.token_id for token in shown.tokens if token.kind == "accepted"]
    assert [shown.nodes[node].token_id for node in path[1:]] == accepted
    *_, last = shown.tokens
    assert shown.last == (path[-2] if last.kind == "accepted" else path[-1])
    is_leaf = path[-1] not in {node.parent for node in shown.nodes}
    if last.kind != "accepted":
        plain = len(shown.nodes) == 1
        assert last.kind == ("plain" if plain else "bonus" if is_leaf else "recovered")


def kinds(document: TraceDocument) -> list[str]:
    """The kinds of each round's tokens, by their first letters."""
    return ["".join(token.kind[0] for token in shown.tokens) for shown in document.rounds]


def spoken(script: Callable[[list[int]], Any], **options: Any) -> TraceDocument:
    """Six letters and the end token, drafted by a script of the whole text."""
    answer = ids_of(b"abcdef")
    engine = speaking(b"abcdef", script([*PROMPT, *answer, END]))
    return make_trace(engine, PROMPT, GenerationOptions(**options))


def test_a_draft_that_is_right_gives_a_bonus_token() -> None:
    assert kinds(spoken(lambda text: perfect(text, 2))) == ["aab", "aab", "a"]


def test_a_draft_that_is_wrong_somewhere_gives_a_recovered_token() -> None:
    size = Speaker.vocab_size
    assert kinds(spoken(lambda text: right(text, 1, 3, size))) == ["ar", "ar", "ar", "a"]


def test_rounds_without_a_draft_are_plain() -> None:
    assert kinds(spoken(lambda text: empty())) == ["p"] * 7


def test_a_round_that_a_stop_cuts_is_marked() -> None:
    document = spoken(lambda text: perfect(text, 5), stop=("cd",))
    assert kinds(document) == ["aaaa"]
    assert document.rounds[0].cut
    assert [node.accepted for node in document.rounds[0].nodes] == [True] * 5 + [False]
    assert (document.text, document.finish_reason, document.stopped_by) == ("ab", "stop", "cd")


def test_a_round_that_ends_where_the_limit_is_is_whole() -> None:
    document = spoken(lambda text: perfect(text, 5), max_new_tokens=3)
    assert kinds(document) == ["aab"]
    assert not document.rounds[0].cut


def test_times_are_those_of_the_statistics() -> None:
    document = spoken(lambda text: perfect(text, 2))
    for stage in ("draft", "target", "verify", "other"):
        mean = sum(r.times[stage] for r in document.rounds) / len(document.rounds)
        assert mean == pytest.approx(document.statistics[f"{stage}_ms"], abs=1e-3)


# --- text -------------------------------------------------------------------------------------------

TEXTS = st.one_of(st.text(max_size=20), st.binary(max_size=12), st.just(HOSTILE))


@given(text=TEXTS, length=st.integers(0, 4), stop=st.sampled_from([(), ("the",), ("e", "\n")]))
@settings(max_examples=50)
def test_the_tokens_texts_are_the_answers(
    text: str | bytes, length: int, stop: tuple[str, ...]
) -> None:
    """Characters in pieces, broken bytes, stop strings."""
    engine = speaking(text, perfect([*PROMPT, *ids_of(text), END], length))
    options = GenerationOptions(stop=stop)
    document = make_trace(engine, PROMPT, options)
    tokens = [token for shown in document.rounds for token in shown.tokens]
    assert document.text == engine.generate(PROMPT, options).text
    assert "".join(token.text for token in tokens) == document.text
    assert all(token.name for token in tokens)


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    document = make_trace(speaking("a😀b".encode(), empty()), PROMPT, GenerationOptions())
    tokens = [token for shown in document.rounds for token in shown.tokens]
    assert [token.text for token in tokens] == ["a", "", "", "", "😀", "b", ""]
    assert tokens[1].name == f"\ufffd{tokens[1].token_id}"
    assert tokens[-1].name == "</s>"


def test_without_a_tokenizer_tokens_have_numbers() -> None:
    document = make_trace(Engine(table(1)), TEXT, GenerationOptions(max_new_tokens=2))
    token = document.rounds[0].tokens[0]
    assert (token.name, token.text) == (f"#{token.token_id}", "")


def test_the_prompt_is_shown_as_the_user_gave_it() -> None:
    engine = speaking("x", empty())
    once = GenerationOptions(max_new_tokens=1)
    assert make_trace(engine, "the cat sat", once).prompt == "the cat sat"
    assert make_trace(engine, PROMPT, once).prompt == "the cat sat"
    engine.tokenizer = byte_tokenizer()  # with a chat template
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert make_trace(engine, messages, once).prompt == "Be brief.\n\nHi"


# --- the page ---------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """What a browser would make of the page: elements by name, attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def hostile_document(text: str) -> TraceDocument:
    """The text is prompt, answer, model and stop string at once."""
    answer = f"{text}|"
    engine = speaking(answer, perfect([*PROMPT, *ids_of(answer)], 3))
    document = make_trace(engine, PROMPT, GenerationOptions(), model=text, method=text)
    return replace(document, prompt=text, stopped_by=text)


@given(text=st.one_of(st.text(max_size=30), st.just(HOSTILE), st.just("<!--<script>")))
@settings(max_examples=25)
def test_no_text_becomes_markup(text: str) -> None:
    document = hostile_document(text)
    page = render(document)
    elements, plain = Elements(page), Elements(render(hostile_document("x")))
    assert set(elements.tags) == set(plain.tags)
    # the page has <b>s of its own, one of them for each depth and each of those in an <li>
    bold = [e.tags.count("b") - e.tags.count("li") for e in (elements, plain)]
    assert bold[0] == bold[1]
    data, _ = elements.scripts
    assert json.loads(data) == json.loads(json.dumps(document.as_dict()))
    assert "\0" not in page


def test_the_page_names_nothing_outside() -> None:
    elements = Elements(render(hostile_document("x")))
    assert "link" in elements.tags
    named = [v for name, v in elements.attributes if name in ("src", "href", "action", "srcset")]
    assert named == ["data:,"]
    page = render(hostile_document("x"))
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
    }


def test_the_page_says_what_was_asked_for() -> None:
    page = render(hostile_document("x"))
    for said in ("float32", "none (greedy)", "prefill included", "softmax of logits / 1"):
        assert said in page


def test_laws_that_are_no_numbers_are_left_out() -> None:
    """A draft model may fall apart; JSON has no NaN."""
    draft = table(2)
    draft._logits[:] = torch.nan
    engine = Engine(table(1), DraftModelDrafter(draft), Asking(2, 2, 4, reads=True))
    document = make_trace(engine, TEXT, GenerationOptions(max_new_tokens=4))
    json.dumps(document.as_dict(), allow_nan=False)


# --- the command ------------------------------------------------------------------------------------

APP = typer.Typer()
APP.command()(trace)
FAILURE, USAGE = 1, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    """The command in this process; faults of ours are raised."""
    done = CliRunner().invoke(APP, [str(a) for a in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_command_writes_the_page_and_its_data(folder: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "trace.html", tmp_path / "trace.json"
    out.write_text("what was there before")
    words = ("--prompt", "the cat", "--max-new-tokens", "12", "--dtype", "float32")
    sampled = ("--temperature", "0.8", "--seed", "3", "--method", "ngram:min=1", "--tree", "2,2")
    done = run("--model", folder, *words, *sampled, "--out", out, "--data", data)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{out}: 12 tokens in ")
    assert sorted(tmp_path.iterdir()) == [out, data]
    document = json.loads(data.read_text(encoding="utf-8"))
    shown, _ = Elements(out.read_text(encoding="utf-8")).scripts
    assert json.loads(shown) == document
    assert document["method"] == "ngram:min=1, tree 2,2"
    assert (document["dtype"], document["temperature"], document["seed"]) == ("float32", 0.8, 3)
    assert document["prompt"] == "the cat"


def test_the_answer_is_the_one_of_generate(folder: Path, tmp_path: Path) -> None:
    """The chat template, stop strings and limits are the same."""
    data = tmp_path / "data.json"
    words = ("--prompt", "-", "--max-new-tokens", "20", "--dtype", "float32")
    out = tmp_path / "trace.html"
    done = run("--model", folder, *words, "--out", out, "--data", data, stdin="cat\n")
    assert done.exit_code == 0, done.stderr
    result = load(folder, dtype="float32").generate(
        [{"role": "user", "content": "cat"}], max_new_tokens=20
    )
    document = json.loads(data.read_text(encoding="utf-8"))
    assert document["text"] == result.text
    assert document["method"] == "adaptive"


@pytest.mark.parametrize(
    ("choices", "method"),
    [
        (("--drafter", "FOLDER", "--tree", "2,1"), "speculative, tree 2,1"),
        (("--drafter", "none"), "autoregressive"),
    ],
)
def test_a_method_that_was_not_named_has_a_name(
    folder: Path, tmp_path: Path, choices: tuple[str, ...], method: str
) -> None:
    data = tmp_path / "data.json"
    named = [str(folder) if word == "FOLDER" else word for word in choices]
    words = ("--prompt", "cat", "--max-new-tokens", "4", "--dtype", "float32")
    done = run("--model", folder, *words, *named, "--out", tmp_path / "a.html", "--data", data)
    assert done.exit_code == 0, done.stderr
    assert json.loads(data.read_text(encoding="utf-8"))["method"] == method


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--prompt", "cat", "--out", "nowhere/at/all.html"), USAGE, "cannot be written"),
        (("--prompt", "cat", "--data", "nowhere/at/all.json"), USAGE, "cannot be written"),
        (("--prompt", "cat", "--out", "."), USAGE, "it is a folder"),
        (("--prompt", "cat", "--out", "a.html", "--data", "./a.html"), USAGE, "give two files"),
        (("--prompt", ""), FAILURE, "the prompt is empty"),
        (("--prompt", "cat", "--temperature", "-1"), USAGE, "--temperature -1.0"),
    ],
    ids=["out", "data", "folder", "same", "prompt", "temperature"],
)
def test_refusals_come_before_the_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    """The model does not exist, and that is not what is said; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    done = run("--model", "./no-such-model", *arguments)
    assert done.exit_code == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_drafts_from_open_roots_are_refused_by_name() -> None:
    parts = parse_method("mcsd-improved-lossy:tree=2,1").build(TableModel.random(8, seed=1))
    engine = Engine(TableModel.random(8), parts.drafter, parts.policy, parts.verifier)
    with pytest.raises(ConfigError, match="mcsd-improved-lossy drafts from open roots"):
        make_trace(engine, [1, 2], GenerationOptions(), method="mcsd-improved-lossy")
