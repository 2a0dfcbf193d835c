"""The page in a real browser: answers, and how they are made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.serve.browsing import (
    KINDS,
    MARKS,
    Open,
    SlowRounds,
    opening,
)
from tests.serve.live import NGRAM, PLAIN, TREE, Live, live

pytestmark = MARKS


# --- an answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [TREE, NGRAM, PLAIN])
def test_an_answer_is_the_servers_with_its_tokens_by_kind(
    page_server: Live, opened: Open, method: str
) -> None:
    temperature = "0" if method == NGRAM else "1"  # greedy texts of a tiny model repeat themselves
    shown = opened(page_server).ready(method=method, temperature=temperature, compare=False)
    shown.answered()
    body = {**shown.bodies[0], "stream": False, "foredraft": {"method": method}}
    del body["stream_options"]
    document = page_server.http.post("/v1/chat/completions", json=body).json()
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


def test_a_conversation_goes_on_and_can_be_left(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(compare=False)
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


def test_settings_are_asked_for(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(method=NGRAM, temperature="0", max_tokens=5, compare=False)
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


def test_a_wrong_setting_is_shown_before_anything_is_asked(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(max_tokens=0)
    shown.ask()
    assert shown.page.locator("#max-tokens").is_visible()
    assert shown.page.evaluate("document.activeElement.id") == "max-tokens"
    assert shown.bodies == []


# --- how it is made ----------------------------------------------------------------------------------


def test_the_tree_of_each_round_is_drawn(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(method=TREE, compare=False)
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
    page.wait_for_selector("#table tbody tr")
    assert page.locator("#table tbody tr").count() == 6
    page.locator(".round").nth(1).click()
    assert shown.text("#round-title") == f"Round 2 of {count}"
    page.locator("#chart .bar").nth(2).locator("rect").first.click()
    assert shown.text("#round-title") == f"Round 3 of {count}"
    assert page.locator("#chart .bar").count() == count
    assert page.locator("#chart .bar rect").count() == page.locator(".answer .token").count()


def test_plain_decoding_is_measured_beside_it(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(method=TREE, temperature="1")
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


def test_without_the_comparison_nothing_is_compared(page_server: Live, opened: Open) -> None:
    shown = opened(page_server).ready(compare=False)
    shown.answered()
    assert len(shown.bodies) == 1
    assert shown.text("#plain-rate") == "–"
    assert not shown.page.locator("#ratio").is_visible()
    shown.set(method=PLAIN)
    assert shown.page.locator("#compare").is_disabled()
