"""The page in a real browser, against a live server: what is shown, and what mouse and keyboard do.

Needs Chromium and the `playwright` package; skipped where one is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from foredraft import Engine
from foredraft.engine.batch import Progress
from foredraft.methods import parse_method
from tests.serve.live import (
    NGRAM,
    PLAIN,
    TREE,
    Live,
    engines,
    live,
    target,
    tokenizer,
    wait_until,
)
from tests.serve.turns import TurnRounds

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
WIDE, NARROW = (1600, 900), (360, 740)
KINDS = ("accepted", "recovered", "bonus", "plain")
QUESTION = "the cat sat on the mat, the cat sat"
LEAST_CONTRAST = 4.5
"""WCAG 2.2, level AA, for text of ordinary size."""
MOST_TAB_STOPS = 30
KEY = "a-secret"

CONTRASTS = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parts(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = {};
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("svg, :disabled, option")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    found[walker.currentNode.data.trim()] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return found;
}"""

NAMELESS = """() => {
  const controls = "button, input, select, textarea, summary, [tabindex], [role]";
  const named = (e) => e.labels?.length || e.textContent.trim()
    || ["aria-label", "aria-labelledby"].some((name) => e.getAttribute(name));
  return [...document.querySelectorAll(controls)]
    .filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML.slice(0, 90));
}"""


class SlowRounds(TurnRounds):
    """Rounds that leave time to do something meanwhile."""

    def round(self) -> list[Progress]:
        time.sleep(0.05)
        return super().round()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    every = engines()
    with live(with_engines={name: every[name] for name in (TREE, NGRAM, PLAIN)}) as running:
        yield running


class Opened:
    """The page of a server, and everything that it asked for or complained about."""

    def __init__(self, server: Live, page: Any) -> None:
        self.server, self.page = server, page
        self.requests: list[Any] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(server.url)

    def set(self, **fields: Any) -> None:
        """Settings by their ids."""
        self.page.evaluate(
            """(fields) => {
              for (const [id, value] of Object.entries(fields)) {
                const control = document.getElementById(id.replace("_", "-"));
                if (typeof value === "boolean") control.checked = value;
                else control.value = value;
                control.dispatchEvent(new Event("input", { bubbles: true }));
              }
            }""",
            fields,
        )

    def ready(self, **fields: Any) -> Opened:
        """The page when it knows the model."""
        self.page.locator("#method option").first.wait_for(state="attached")
        self.set(**{"max_tokens": 24, "seed": 3, **fields})
        return self

    def ask(self, text: str = QUESTION) -> None:
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")

    def wait_for_state(self, *names: str) -> None:
        either = re.compile("|".join(names))
        playwright.expect(self.page.locator("#state")).to_have_text(either, timeout=20_000)
        self.page.wait_for_timeout(200)  # drawings follow seldom

    def text(self, selector: str) -> str:
        content: str = self.page.locator(selector).last.inner_text()
        return content

    def answered(self, text: str = QUESTION) -> None:
        self.ask(text)
        self.wait_for_state("finished")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked of the API."""
        return [json.loads(r.post_data) for r in self.requests if r.method == "POST"]


Open = Callable[..., Opened]


@contextmanager
def opening(browser: Any, complaining: bool = False) -> Iterator[Open]:
    """Opens pages; each must ask for nothing outside its server, and be silent unless it may complain."""
    contexts, pages = [], []

    def open_page(
        server: Live, size: tuple[int, int] = WIDE, scheme: str = "light", **options: Any
    ) -> Opened:
        viewport = {"width": size[0], "height": size[1]}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, **options))
        pages.append(Opened(server, contexts[-1].new_page()))
        return pages[-1]

    yield open_page
    for context in contexts:
        context.close()
    for each in pages:
        assert complaining or each.complaints == []
        outside = [r.url for r in each.requests if not r.url.startswith((each.server.url, "data:"))]
        assert outside == []


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    with opening(browser) as open_page:
        yield open_page


# --- an answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [TREE, NGRAM, PLAIN])
def test_an_answer_is_the_servers_with_its_tokens_by_kind(
    server: Live, opened: Open, method: str
) -> None:
    temperature = "0" if method == NGRAM else "1"  # greedy texts of a tiny model repeat themselves
    shown = opened(server).ready(method=method, temperature=temperature, compare=False)
    shown.answered()
    body = {**shown.bodies[0], "stream": False, "foredraft": {"method": method}}
    del body["stream_options"]
    document = server.http.post("/v1/chat/completions", json=body).json()
    content, own = document["choices"][0]["message"]["content"], document["usage"]["foredraft"]
    assert shown.page.locator(".answer .text").text_content() == content
    assert shown.page.locator(".round").count() == own["rounds"] + own["cut_rounds"]
    counts = {kind: shown.page.locator(f".answer .token.{kind}").count() for kind in KINDS}
    assert sum(counts.values()) == document["usage"]["completion_tokens"]
    assert counts == {kind: int(shown.text(f"#count-{kind}")) for kind in KINDS}
    if not own["cut_rounds"]:
        assert counts["accepted"] == own["accepted_tokens"]
    assert (counts["plain"] == sum(counts.values())) == (method == PLAIN)
    assert shown.text(".note").startswith(f"{sum(counts.values())} tokens in ")


def test_it_comes_round_by_round(browser: Any) -> None:
    with live(rounds=SlowRounds()) as slow, opening(browser) as open_page:
        shown = open_page(slow).ready(method=PLAIN, compare=False)
        shown.ask()
        shown.page.locator(".round").nth(2).wait_for(state="attached")
        assert shown.text("#state") == "answering"
        assert shown.page.locator("#stop").is_visible()
        shown.wait_for_state("finished")
        assert shown.page.locator(".round").count() > 3
        assert shown.page.locator("#send").is_visible()


def test_a_conversation_goes_on_and_can_be_left(server: Live, opened: Open) -> None:
    shown = opened(server).ready(compare=False)
    shown.answered("one")
    first = shown.page.locator(".answer .text").text_content()
    shown.answered("two")
    roles = [message["role"] for message in shown.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert shown.bodies[1]["messages"][1]["content"] == first
    shown.page.click("#new-chat")
    assert shown.page.locator(".answer").count() == 0
    assert shown.page.locator("#welcome").is_visible()
    assert shown.page.evaluate("document.activeElement.id") == "message"
    shown.answered("three")
    assert [m["content"] for m in shown.bodies[2]["messages"]] == ["three"]


def test_settings_are_asked_for(server: Live, opened: Open) -> None:
    shown = opened(server).ready(method=NGRAM, temperature="0", max_tokens=5, compare=False)
    shown.answered()
    (body,) = shown.bodies
    asked = {name: body[name] for name in ("temperature", "max_tokens", "seed", "foredraft")}
    own = {"method": NGRAM, "trace": True}
    assert asked == {"temperature": 0, "max_tokens": 5, "seed": 3, "foredraft": own}
    shown.set(seed="")
    shown.answered()
    shown.answered()
    assert len({body["seed"] for body in shown.bodies}) == 3
    options = shown.page.locator("#method option").all_text_contents()
    assert options == [TREE, NGRAM, PLAIN]


def test_a_wrong_setting_is_shown_before_anything_is_asked(server: Live, opened: Open) -> None:
    shown = opened(server).ready(max_tokens=0)
    shown.ask()
    assert shown.page.locator("#max-tokens").is_visible()
    assert shown.page.evaluate("document.activeElement.id") == "max-tokens"
    assert shown.bodies == []


# --- how it is made ----------------------------------------------------------------------------------


def test_the_tree_of_each_round_is_drawn(server: Live, opened: Open) -> None:
    shown = opened(server).ready(method=TREE, compare=False)
    shown.answered()
    page, count = shown.page, shown.page.locator(".round").count()
    assert shown.text("#round-title") == f"Round {count} of {count}"
    assert page.locator("#next").is_disabled()
    for _ in range(count - 1):
        page.click("#previous")
    assert shown.text("#round-title") == f"Round 1 of {count}"
    assert page.locator("#previous").is_disabled()
    tokens = page.locator(".round").first.locator(".token")
    kinds = tokens.evaluate_all("all => all.map(token => token.className.split(' ')[1])")
    assert page.locator("#tree .node").count() == 7 + (kinds[-1] != "accepted")
    assert page.locator("#tree .node.accepted").count() == kinds.count("accepted")
    odds = page.locator("#tree .odds").all_text_contents()
    assert odds[0] == "so far"
    assert all(re.match(r"p \S+%  q \S+%$", text) for text in odds[1:7])
    assert page.locator(".round.looked").get_attribute("data-round") == "0"
    page.click("#table-box summary")
    assert page.locator("#table tbody tr").count() == 6
    page.locator(".round").nth(1).click()
    assert shown.text("#round-title") == f"Round 2 of {count}"
    page.locator("#chart .bar").nth(2).locator("rect").first.click()
    assert shown.text("#round-title") == f"Round 3 of {count}"
    assert page.locator("#chart .bar").count() == count
    assert page.locator("#chart .bar rect").count() == page.locator(".answer .token").count()


def test_plain_decoding_is_measured_beside_it(server: Live, opened: Open) -> None:
    shown = opened(server).ready(method=TREE, temperature="1")
    shown.answered()
    mine, plain = shown.bodies
    assert plain == {**mine, "foredraft": {"method": PLAIN, "trace": True}}
    rates = [float(shown.text(f"#{name}-rate")) for name in ("mine", "plain")]
    found = re.match(
        r"([\d.]+)× plain decoding: the same request, one after the other", shown.text("#ratio")
    )
    assert found
    assert float(found[1]) == pytest.approx(rates[0] / rates[1], rel=0.05, abs=0.01)
    assert "the same words" in shown.text("#ratio")
    assert f"{found[1]}× plain decoding" in shown.text(".note")
    shown.answered("again")  # the plain answer is no part of the chat
    assert [m["role"] for m in shown.bodies[2]["messages"]] == ["user", "assistant", "user"]


def test_without_the_comparison_nothing_is_compared(server: Live, opened: Open) -> None:
    shown = opened(server).ready(compare=False)
    shown.answered()
    assert len(shown.bodies) == 1
    assert shown.text("#plain-rate") == "–"
    assert not shown.page.locator("#ratio").is_visible()
    shown.set(method=PLAIN)
    assert shown.page.locator("#compare").is_disabled()


# --- stops and errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["button", "escape"])
def test_a_stop_frees_the_place_and_keeps_what_came(browser: Any, way: str) -> None:
    with live(rounds=SlowRounds()) as slow, opening(browser) as open_page:
        shown = open_page(slow).ready(method=PLAIN, max_tokens=100)
        shown.ask()
        shown.page.locator(".round").nth(3).wait_for(state="attached")
        assert slow.service.worker.num_running == 1
        if way == "button":
            shown.page.click("#stop")
        else:
            shown.page.keyboard.press("Escape")
        shown.wait_for_state("stopped")
        wait_until(lambda: slow.service.worker.num_running == 0)
        assert shown.text(".note").endswith("stopped")
        kept = shown.page.locator(".answer .text").text_content()
        assert shown.page.evaluate("document.activeElement.id") == "message"
        shown.ask("go on")
        shown.page.locator(".answer").nth(1).locator(".round").first.wait_for(state="attached")
        said = [message["content"] for message in shown.bodies[1]["messages"]]
        assert said == [QUESTION, kept, "go on"]
        shown.page.click("#stop")


def test_a_full_server_is_told_and_asked_again(browser: Any) -> None:
    with (
        live(rounds=SlowRounds(), max_batch=1, max_queue=0) as slow,
        opening(browser, complaining=True) as open_page,
    ):
        shown = open_page(slow).ready(method=PLAIN)
        slow.service.worker.reserve(1)
        shown.ask()
        shown.wait_for_state("failed")
        assert "try again later" in shown.text("#problem-text")
        assert shown.page.locator(".answer").count() == 0
        slow.service.worker.release(1)
        shown.page.click("#again")
        shown.wait_for_state("finished")
        assert not shown.page.locator("#problem").is_visible()
        assert [m["content"] for m in shown.bodies[1]["messages"]] == [QUESTION]


def test_a_refusal_is_shown_in_the_servers_words(server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(server).ready()
        shown.ask("x" * 300)
        shown.wait_for_state("failed")
        assert "this model's context holds 192" in shown.text("#problem-text")
        assert shown.page.locator("#problem").get_attribute("role") == "alert"


def test_a_lost_connection_is_told(browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        with live(rounds=SlowRounds(), grace_s=0) as slow:
            shown = open_page(slow).ready(method=PLAIN)
            shown.page.route("**/v1/chat/completions", lambda route: route.abort())
            shown.ask()
            shown.wait_for_state("failed")
        assert "connection to the server was lost" in shown.text("#problem-text")


def test_an_answer_that_breaks_off_is_kept_and_told(server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(server).ready()
        piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "half an"}}]})
        kind = {"content_type": "text/event-stream", "body": f"data: {piece}\n\n"}
        shown.page.route("**/v1/chat/completions", lambda route: route.fulfill(**kind))
        shown.ask()
        shown.wait_for_state("failed")
        assert "connection to the server was lost" in shown.text("#problem-text")
        assert shown.text(".answer .text") == "half an"
        assert shown.text(".note").endswith("failed")


def test_an_error_within_a_stream_is_told(browser: Any) -> None:
    with (
        live(rounds=SlowRounds(), time_limit_s=0.5) as slow,
        opening(browser) as open_page,
    ):
        shown = open_page(slow).ready(method=PLAIN, max_tokens=100)
        shown.ask()
        shown.wait_for_state("failed")
        assert "took longer than the 0.5 seconds" in shown.text("#problem-text")
        assert shown.page.locator(".round").count() > 0


def test_a_method_without_trees_is_shown_as_text(browser: Any) -> None:
    parts = parse_method("mcsd-improved-lossy:tree=2,1").build(target())
    rooted = Engine(target(), parts.drafter, parts.policy, parts.verifier, tokenizer=tokenizer())
    with live(with_engines={"rooted": rooted}) as server, opening(browser) as open_page:
        shown = open_page(server).ready()
        shown.answered()
        assert [body["foredraft"]["trace"] for body in shown.bodies] == [False, True]
        assert shown.text(".note").startswith("24 tokens in ")
        assert shown.page.locator(".answer .text").text_content() != ""
        assert float(shown.text("#mine-rate")) > 0
        assert shown.page.locator("#tree").is_hidden()


def test_a_key_is_asked_for_and_kept_in_memory_alone(browser: Any) -> None:
    with live(api_keys=(KEY,)) as locked, opening(browser, complaining=True) as open_page:
        shown = open_page(locked)
        shown.page.locator("#key-dialog").wait_for(state="visible")
        shown.page.fill("#key", "wrong")
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_timeout(200)
        assert shown.page.locator("#key-dialog").is_visible()
        shown.page.fill("#key", KEY)
        shown.page.keyboard.press("Enter")
        shown.ready(compare=False).answered()
        assert not shown.page.locator("#key-dialog").is_visible()
        stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert shown.page.evaluate(stored) == '[{},{},""]'
        assert shown.page.input_value("#key") == ""
        shown.page.reload()
        shown.page.locator("#key-dialog").wait_for(state="visible")
        shown.page.keyboard.press("Escape")
        assert shown.text("#problem-text") == "This server needs an API key."


# --- for everybody -----------------------------------------------------------------------------------


def test_it_can_be_used_by_keyboard_alone(server: Live, opened: Open) -> None:
    shown = opened(server).ready(compare=False)
    page, press = shown.page, shown.page.keyboard.press

    def tab_to(element: str) -> None:
        for _ in range(MOST_TAB_STOPS):
            press("Tab")
            if page.evaluate("id => document.activeElement.id === id", element):
                visible = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert visible != "none" or element == "message"
                return
        raise AssertionError(f"{element} is out of reach")

    press("Tab")
    press("Enter")  # skips to the message
    press("Tab")
    tab_to("message")
    page.keyboard.type("a line")
    press("Shift+Enter")
    page.keyboard.type("and another")
    press("Enter")
    shown.wait_for_state("finished")
    assert shown.bodies[0]["messages"][0]["content"] == "a line\nand another"
    tab_to("previous")
    press("Enter")
    count = page.locator(".round").count()
    assert shown.text("#round-title") == f"Round {count - 1} of {count}"
    tab_to("theme")
    press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(
    server: Live, opened: Open, size: tuple[int, int], scheme: str
) -> None:
    shown = opened(server, size, scheme).ready(method=TREE)
    shown.answered()
    page = shown.page
    page.click("#settings summary")
    page.click("#table-box summary")
    assert page.evaluate(NAMELESS) == []
    faint = {t: c for t, c in page.evaluate(CONTRASTS).items() if c < LEAST_CONTRAST}
    assert faint == {}
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(sideways) == 0
    landmarks = ["header", "main", "aside", "h1"]
    assert [page.locator(name).count() for name in landmarks] == [1, 1, 1, 1]


def test_a_scheme_can_be_chosen_against_the_systems(server: Live, opened: Open) -> None:
    shown = opened(server, scheme="dark").ready()
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(paper)
    shown.page.click("#theme")
    light = shown.page.evaluate(paper)
    assert light != dark
    shown.page.click("#theme")
    assert shown.page.evaluate(paper) == dark
    assert shown.page.locator("#theme").get_attribute("aria-label") == "Colours: dark"


def test_kinds_differ_without_colours(server: Live, opened: Open) -> None:
    shown = opened(server).ready()
    style = "e => getComputedStyle(e).textDecorationLine + getComputedStyle(e).textDecorationStyle"
    forms = [shown.page.locator(f".legend .{kind}").evaluate(style) for kind in KINDS]
    assert len(set(forms)) == len(KINDS)


def test_a_screen_reader_hears_whole_pieces(server: Live, opened: Open) -> None:
    shown = opened(server).ready(compare=False)
    region = shown.page.locator("#spoken")
    assert region.get_attribute("aria-live") == "polite"
    shown.answered()
    assert "Answer finished: " in (region.text_content() or "")


def test_motion_stops_where_it_is_not_wanted(server: Live, opened: Open) -> None:
    shown = opened(server, reduced_motion="reduce").ready()
    assert (
        shown.page.locator("#mine-bar").evaluate("e => getComputedStyle(e).transitionProperty")
        == "none"
    )


def test_scripts_and_styles_from_elsewhere_do_not_run(server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(server).ready()
        broken = shown.page.evaluate("""() => {
          try { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 1'>"); }
          catch (error) { return error.name; }
        }""")
        assert broken == "TypeError"
        shown.page.evaluate("""() => {
          const image = document.createElement("img");
          image.src = "/v1/models";
          document.body.append(image);
        }""")
        shown.page.wait_for_timeout(100)
        assert any("Content Security Policy" in text for text in shown.complaints)
        assert not shown.page.evaluate("'ran' in window")


def test_spaces_and_control_characters_of_tokens_can_be_seen(server: Live, opened: Open) -> None:
    shown = opened(server)
    names = [" a b ", "    ", "\n\t", "\x00\x7f", "", "𝕏 y"]
    seen = shown.page.evaluate(
        "names => import('/page/dom.js').then(({ visible }) => names.map(visible))", names
    )
    assert seen == ["␣a b␣", "␣  ␣", "↵⇥", "␀␡", "", "𝕏 y"]


def test_whatever_is_said_is_shown_as_text(server: Live, opened: Open) -> None:
    hostile = "<b>bold</b><script>window.ran = 1</script> & more"
    shown = opened(server).ready(compare=False)
    shown.answered(hostile)
    assert shown.text(".question") == hostile
    assert shown.page.locator(".question b").count() == 0
