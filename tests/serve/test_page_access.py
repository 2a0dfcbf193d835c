"""The page in a real browser: for everybody, and against what is hostile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.browsing import (
    KINDS,
    MARKS,
    NARROW,
    WIDE,
    Open,
    opening,
)
from tests.serve.live import TREE, Live

pytestmark = MARKS

LEAST_CONTRAST = 4.5
"""WCAG 2.2, level AA, for text of ordinary size."""
MOST_TAB_STOPS = 30

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


def test_it_can_be_used_by_keyboard_alone(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(compare=False)
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
    page_server: Live, opened: Open, size: tuple[int, int], scheme: str
) -> None:
    shown = opened(page_server, size, scheme).ready(method=TREE)
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


def test_a_scheme_can_be_chosen_against_the_systems(page_server: Live, opened: Open) -> None:
    shown = opened(page_server, scheme="dark").ready()
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(paper)
    shown.page.click("#theme")
    light = shown.page.evaluate(paper)
    assert light != dark
    shown.page.click("#theme")
    assert shown.page.evaluate(paper) == dark
    assert shown.page.locator("#theme").get_attribute("aria-label") == "Colours: dark"


def test_kinds_differ_without_colours(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready()
    style = "e => getComputedStyle(e).textDecorationLine + getComputedStyle(e).textDecorationStyle"
    forms = [shown.page.locator(f".legend .{kind}").evaluate(style) for kind in KINDS]
    assert len(set(forms)) == len(KINDS)


def test_a_screen_reader_hears_whole_pieces(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(compare=False)
    region = shown.page.locator("#spoken")
    assert region.get_attribute("aria-live") == "polite"
    shown.answered()
    assert "Answer finished: " in (region.text_content() or "")


def test_motion_stops_where_it_is_not_wanted(page_server: Live, opened: Open) -> None:
    shown = opened(page_server, reduced_motion="reduce").ready()
    assert (
        shown.page.locator("#mine-bar").evaluate("e => getComputedStyle(e).transitionProperty")
        == "none"
    )


def test_scripts_and_styles_from_elsewhere_do_not_run(page_server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(page_server).ready()
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


def test_spaces_and_control_characters_of_tokens_can_be_seen(
    page_server: Live, opened: Open
) -> None:
    shown = opened(page_server)
    names = [" a b ", "    ", "\n\t", "\x00\x7f", "", "𝕏 y"]
    seen = shown.page.evaluate(
        "names => import('/page/dom.js').then(({ visible }) => names.map(visible))", names
    )
    assert seen == ["␣a b␣", "␣  ␣", "↵⇥", "␀␡", "", "𝕏 y"]


def test_whatever_is_said_is_shown_as_text(page_server: Live, opened: Open) -> None:
    hostile = "<b>bold</b><script>window.ran = 1</script> & more"
    shown = opened(page_server).ready(compare=False)
    shown.answered(hostile)
    assert shown.text(".question") == hostile
    assert shown.page.locator(".question b").count() == 0
