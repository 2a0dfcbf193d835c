"""The page of a trace in a real browser: what can be seen, and what mouse and keyboard do.

Needs Chromium and the `playwright` package; skipped where one is missing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.bench.trace.document import TraceDocument, make_trace
from foredraft.bench.trace.page import render
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.fixed import FixedPolicy
from tests.bench.traced import END, HOSTILE, PROMPT, Speaker, ids_of, speaking
from tests.scripted import Branches, Script, perfect, with_siblings, wrong

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, NARROW = (1280, 800), (360, 740)
SCHEMES = ("light", "dark")
KINDS = ("accepted", "recovered", "bonus", "plain")
LEAST_CONTRAST = 4.5
"""WCAG 2.2, level AA, for text of ordinary size."""
HOVER_MS = 150
"""Longer than the page waits before it takes a hover for one."""
MOST_TAB_STOPS = 10


# --- what is shown ----------------------------------------------------------------------------------


def mixed_script(text: Sequence[int]) -> Script:
    """No draft, a wrong one and a right tree in turn: 1, 1 and 3 tokens."""
    size = Speaker.vocab_size
    right = with_siblings(perfect(text, 2), 3, 1, size)
    scripts = {0: lambda so_far: [], 1: wrong(text, 3, size), 2: right}
    return lambda so_far: scripts[(len(so_far) - len(PROMPT)) % 5](so_far)


def huge_script(text: Sequence[int]) -> Script:
    """The largest tree that there may be, 7 x 8 x 8, with the right path in its midst."""

    def script(so_far: Sequence[int]) -> Branches:
        branches, level = [], [0]
        for depth, width in enumerate((7, 8, 8)):
            following = []
            for index, parent in enumerate(level):
                right = index == len(level) // 2 and len(so_far) + depth < len(text)
                for i in range(width):
                    token = text[len(so_far) + depth] if right and i == width // 2 else 3 + i
                    branches.append((parent, token))
                    following.append(len(branches))
            level = following
        return branches

    return script


def spoken(text: str, script: Callable[[Sequence[int]], Script], **options: Any) -> TraceDocument:
    engine = speaking(text, script([*PROMPT, *ids_of(text), END]))
    return make_trace(engine, PROMPT, GenerationOptions(**options), model="a model", method="mixed")


def drafted() -> TraceDocument:
    """A draft model's tree, with q."""
    target, draft = (TableModel.random(6, seed=seed) for seed in (1, 2))
    engine = Engine(target, DraftModelDrafter(draft), FixedPolicy("3,2,1"))
    return make_trace(engine, [1, 2], GenerationOptions(max_new_tokens=12))


def spaced() -> TraceDocument:
    """Tokens with spaces around and inside, as code has them."""
    document = drafted()
    rounds = tuple(
        replace(each, nodes=tuple(replace(node, name="  a b ") for node in each.nodes))
        for each in document.rounds
    )
    return replace(document, rounds=rounds)


PROSE = "the cat sat on the mat, and then it sat on the cat.\n\nthe end"
DOCUMENTS = {
    "mixed": spoken(PROSE, mixed_script),
    "hostile": spoken(HOSTILE * 2 + "x" * 150, mixed_script, max_new_tokens=999),
    "huge": spoken("the cat sat", huge_script, max_new_tokens=9),
    "drafted": drafted(),
    "spaced": spaced(),
    "cut": spoken("abcdefgh", lambda text: perfect(text, 6), stop=("cd",)),
}


# --- the browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A document's page, and everything that it asked for or complained about."""

    def __init__(self, name: str, page: Any, url: str) -> None:
        self.document, self.page, self.url = DOCUMENTS[name], page, url
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)

    def text(self, selector: str) -> str:
        content: str = self.page.locator(selector).text_content()
        return content

    @property
    def round(self) -> int:
        """The chosen round, counted from 0."""
        found = re.match(r"Round (\d+) of (\d+)$", self.text("#round-title"))
        assert found
        assert int(found[2]) == len(self.document.rounds)
        (selected,) = self.page.locator("#answer [aria-selected=true]").all()
        assert int(selected.get_attribute("data-round")) == int(found[1]) - 1
        return int(found[1]) - 1

    def focus_answer(self) -> None:
        """Go there by Tab, as a keyboard user does."""
        for _ in range(MOST_TAB_STOPS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.matches('#answer .round')"):
                return
        raise AssertionError("the answer is out of reach")


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a document's page; what it opened is closed, and must have been silent."""
    contexts, pages = [], []

    def open_page(
        name: str, size: tuple[int, int] = WIDE, scheme: str = "light", script: bool = True
    ) -> Opened:
        file = tmp_path / f"{name}.html"
        file.write_text(render(DOCUMENTS[name]), encoding="utf-8")
        viewport = {"width": size[0], "height": size[1]}
        contexts.append(
            browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=script)
        )
        pages.append(Opened(name, contexts[-1].new_page(), file.as_uri()))
        return pages[-1]

    yield open_page
    for context in contexts:
        context.close()
    for each in pages:
        assert each.complaints == []
        assert each.requests == [each.url]


# --- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_text_is_the_answers_own(name: str, opened: Open) -> None:
    """Marks and names are drawn beside it, so that copying it gives the answer."""
    shown = opened(name)
    assert shown.text("#answer") == shown.document.text
    assert shown.text("#prompt") == shown.document.prompt.replace("\0", "\u2400")
    for index, each in enumerate(shown.document.rounds):
        kinds = shown.page.eval_on_selector_all(
            f"#round-{index} .token", "all => all.map(token => token.className)"
        )
        assert kinds == [f"token {token.kind}" for token in each.tokens]


def test_without_script_the_text_is_there(opened: Open) -> None:
    shown = opened("hostile", script=False)
    assert shown.text("#answer") == shown.document.text.replace("\0", "\u2400")
    assert shown.page.locator("noscript").inner_text().startswith("The rounds")
    assert not shown.page.locator("#round-card").is_visible()


def test_what_cannot_be_seen_has_a_mark(opened: Open) -> None:
    shown = opened("hostile")
    marks = shown.page.eval_on_selector_all(
        "#answer [data-mark]", "all => all.map(mark => mark.dataset.mark)"
    )
    assert {"↵", "⇥", "␀", "␛", "␣"} <= set(marks)
    names = shown.page.eval_on_selector_all(
        "#answer [data-name]", "all => all.map(token => token.dataset.name)"
    )
    assert names[-1] == "</s>"


def test_spaces_of_tokens_can_be_seen_at_their_edges(opened: Open) -> None:
    shown = opened("spaced")
    labels = shown.page.locator("#tree .node.rejected .label").all_text_contents()
    assert set(labels) == {"␣ a b␣"}


# --- the tree ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed", "huge", "drafted", "cut"])
def test_the_tree_has_every_node(name: str, opened: Open) -> None:
    shown = opened(name)
    shown.page.keyboard.press("Home")
    for each in shown.document.rounds:
        count = shown.page.locator
        accepted = sum(node.accepted for node in each.nodes) - 1
        has_q = [node.q is not None for node in each.nodes]
        *_, last = each.tokens
        extra = last.kind != "accepted"
        assert count("#tree .node").count() == len(each.nodes) + extra
        assert count("#tree .node.accepted").count() == accepted
        assert count("#tree .edge.kept").count() == accepted
        assert count(f"#tree .node.final.{last.kind}").count() == extra
        odds = shown.page.locator("#tree .node .odds").all_text_contents()
        assert odds[0] == "root"
        assert [" q " in text for text in odds] == [*has_q, *[False] * extra]
        shown.page.keyboard.press("ArrowRight")


def test_nodes_do_not_cover_one_another(opened: Open) -> None:
    shown = opened("drafted")
    boxes = shown.page.eval_on_selector_all(
        "#tree rect.outer",
        "all => all.map(r => r.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])",
    )
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    inside = shown.page.evaluate(
        "[...document.querySelectorAll('#tree .node')].every(node => {"
        " const box = node.querySelector('rect').getBBox();"
        " return [...node.querySelectorAll('text')].every(text => text.getBBox().width <= box.width) })"
    )
    assert inside


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_tree_of_512_nodes_scrolls_to_its_path(size: tuple[int, int], opened: Open) -> None:
    shown = opened("huge", size)
    panel = shown.page.locator("#tree").bounding_box()
    final = shown.page.locator("#tree .node.final rect.outer").bounding_box()
    assert panel["height"] <= size[1]
    assert panel["x"] <= final["x"]
    assert final["x"] + final["width"] <= panel["x"] + panel["width"]
    assert panel["y"] <= final["y"] <= panel["y"] + panel["height"]


def test_the_table_says_what_the_tree_shows(opened: Open) -> None:
    shown = opened("drafted")
    shown.page.locator("#table-box summary").click()
    rows = shown.page.locator("#table tbody tr")
    each = shown.document.rounds[shown.round]
    assert rows.count() == len(each.nodes) - 1
    fates = [row.split("\t")[-1] for row in rows.all_inner_texts()]
    assert fates == ["accepted" if node.accepted else "rejected" for node in each.nodes[1:]]


def test_nobody_knows_the_fate_of_what_was_cut_off(opened: Open) -> None:
    shown = opened("cut")
    shown.page.locator("#table-box summary").click()
    fates = shown.page.locator("#table tbody td:last-child").all_inner_texts()
    assert fates == ["accepted"] * 4 + ["cut off"] * 2


def test_bars_of_time_are_full(opened: Open) -> None:
    shown = opened("mixed")
    for bar in shown.page.locator(".bar").all():
        parts = [part.bounding_box()["width"] for part in bar.locator("span").all()]
        gaps = 2 * (len(parts) - 1)
        assert sum(parts) + gaps == pytest.approx(bar.bounding_box()["width"], abs=1)


# --- keyboard ---------------------------------------------------------------------------------------


def test_arrows_walk_through_the_rounds(opened: Open) -> None:
    shown = opened("mixed")
    shown.focus_answer()
    press, last = shown.page.keyboard.press, len(shown.document.rounds) - 1
    walk = [("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("ArrowDown", 2), ("ArrowUp", 1)]
    for key, expected in [*walk, ("End", last), ("ArrowRight", last), ("ArrowLeft", last - 1)]:
        press(key)
        assert shown.round == expected
        focused = shown.page.evaluate("document.activeElement.id")
        assert focused == f"round-{expected}"


def test_the_chosen_round_is_in_view_in_the_strip(opened: Open) -> None:
    shown = opened("hostile", NARROW)
    for key in ("End", "Home"):
        shown.page.locator("#answer [aria-selected=true]").press(key)
        strip = shown.page.locator("#strip").bounding_box()
        bar = shown.page.locator("#strip .chosen").bounding_box()
        assert strip["x"] <= bar["x"]
        assert bar["x"] + bar["width"] <= strip["x"] + strip["width"] + 1


def test_arrows_work_before_anything_is_focused(opened: Open) -> None:
    shown = opened("mixed")
    shown.page.keyboard.press("Home")
    shown.page.keyboard.press("ArrowRight")
    assert shown.round == 1


def test_arrows_scroll_the_tree_that_is_focused(opened: Open) -> None:
    shown = opened("huge")
    before = shown.round
    shown.page.locator("#tree").focus()
    shown.page.keyboard.press("ArrowRight")
    assert shown.round == before


def test_the_page_has_few_tab_stops_and_one_in_the_answer(opened: Open) -> None:
    shown = opened("mixed")
    stops: list[str] = []
    for _ in range(MOST_TAB_STOPS + 1):
        shown.page.keyboard.press("Tab")
        where = shown.page.evaluate("document.activeElement.id || document.activeElement.tagName")
        if where in ("BODY", *stops):
            break
        stops.append(where)
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert shown.page.evaluate(outline) != "none"
    assert len(stops) <= MOST_TAB_STOPS
    assert sum(stop.startswith("round-") for stop in stops) == 1
    assert {"tree", "next"} <= set(stops)


def test_buttons_step_and_end_at_the_ends(opened: Open) -> None:
    shown = opened("mixed")
    previous, following = shown.page.locator("#previous"), shown.page.locator("#next")
    shown.page.keyboard.press("Home")
    assert previous.is_disabled()
    following.click()
    assert shown.round == 1
    shown.page.locator("#answer [aria-selected=true]").press("End")
    assert following.is_disabled()


def test_what_changes_is_announced(opened: Open) -> None:
    shown = opened("cut")
    assert shown.page.locator("#summary").get_attribute("aria-live") == "polite"
    assert "cut off" in shown.text("#summary")
    assert shown.page.locator("#cut").is_visible()
    assert shown.page.locator("#answer").get_attribute("role") == "listbox"
    label = shown.page.locator("#round-0").get_attribute("aria-label")
    assert label == "Round 1: abcd"


# --- mouse ------------------------------------------------------------------------------------------


def hover(shown: Opened, index: int, selector: str = "#answer") -> None:
    """Point at a round and stay there."""
    shown.page.locator(f"{selector} [data-round='{index}']").hover()
    shown.page.wait_for_timeout(HOVER_MS)


@pytest.mark.parametrize("selector", ["#answer", "#strip"])
def test_pointing_at_a_round_selects_it(selector: str, opened: Open) -> None:
    shown = opened("mixed")
    for index in (0, 3, 1):
        hover(shown, index, selector)
        assert shown.round == index


def test_crossing_the_answer_selects_nothing(opened: Open) -> None:
    shown = opened("mixed")
    before = shown.round
    boxes = [shown.page.locator(f"#round-{index}").bounding_box() for index in (0, 1, 2)]
    for box in (
        boxes
    ):  # the mouse alone: `hover` first waits, and would stay for as long as a choice takes
        assert box is not None
        shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.page.mouse.move(1, 1)
    shown.page.locator("h1").hover()
    assert shown.round == before


def test_a_click_holds_a_round_until_escape(opened: Open) -> None:
    shown = opened("mixed")
    shown.page.locator("#round-2").click()
    assert shown.page.locator("#held").is_visible()
    hover(shown, 0)
    assert shown.round == 2
    shown.page.keyboard.press("Escape")
    assert not shown.page.locator("#held").is_visible()
    hover(shown, 1)
    assert shown.round == 1


# --- looks ------------------------------------------------------------------------------------------

CONTRAST = """selector => {
  const read = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ({ rgb }) =>
    rgb.reduce((sum, c, i) => sum + linear(c / 255) * [.2126, .7152, .0722][i], 0);
  const behind = (element) => {
    const box = element.closest('.node')?.querySelector('rect');
    const fill = box && getComputedStyle(box).fill;
    if (fill && fill !== 'none') return read(fill);
    for (let e = element; e; e = e.parentElement) {
      const colour = read(getComputedStyle(e).backgroundColor);
      if (colour.a === 1) return colour;
    }
  };
  return [...document.querySelectorAll(selector)].map(element => {
    const style = getComputedStyle(element);
    const [a, b] = [light(read(element.closest('svg') ? style.fill : style.color)), light(behind(element))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  });
}"""
"""The contrast of each element's text with the nearest opaque colour behind it, by WCAG's formula."""


def contrasts(shown: Opened, selector: str) -> list[float]:
    ratios: list[float] = shown.page.evaluate(CONTRAST, selector)
    return ratios


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read(scheme: str, opened: Open) -> None:
    """In and outside the chosen round, in each kind of node, and where text is muted."""
    shown = opened("mixed", scheme=scheme)
    shown.page.keyboard.press("Home")
    for _ in range(4):
        for kind in KINDS:
            assert min(contrasts(shown, f"#answer .{kind}")) >= LEAST_CONTRAST
        assert min(contrasts(shown, "#tree text")) >= LEAST_CONTRAST
        shown.page.keyboard.press("ArrowRight")
    others = ".legend .token, .hint, .facts dt, .figures small, .stages li, .stages span, .notes, h3, summary"
    assert min(contrasts(shown, others)) >= LEAST_CONTRAST


def test_the_contrast_check_can_fail(opened: Open) -> None:
    shown = opened("mixed")
    shown.page.add_style_tag(content=".hint { color: #999 }")
    assert min(contrasts(shown, ".hint")) < LEAST_CONTRAST


def test_light_and_dark_follow_the_system(opened: Open) -> None:
    colours = [
        opened("mixed", scheme=scheme).page.evaluate(
            "['body', '.card', '#answer .accepted'].map(s => document.querySelector(s)).flatMap("
            "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color])"
        )
        for scheme in SCHEMES
    ]
    light, dark = ([sum(map(float, re.findall(r"[\d.]+", c)[:3])) for c in cs] for cs in colours)
    assert light[0] > light[1]  # dark text on a light page
    assert dark[0] < dark[1]
    assert light[2] > dark[2]
    assert colours[0][5] != colours[1][5]


def test_kinds_differ_by_more_than_colour(opened: Open) -> None:
    shown = opened("mixed")
    lines = {
        kind: shown.page.eval_on_selector(
            f"#answer .{kind}",
            "e => getComputedStyle(e).textDecorationLine + getComputedStyle(e).textDecorationStyle",
        )
        for kind in KINDS
    }
    assert len(set(lines.values())) == len(KINDS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_narrow_screen_does_not_scroll_sideways(name: str, opened: Open) -> None:
    shown = opened(name, NARROW)
    shown.page.locator("#table-box summary").click()
    widths = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert max(shown.page.evaluate(widths)) <= NARROW[0]
