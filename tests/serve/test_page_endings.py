"""The page in a real browser: stops, errors and keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.browsing import (
    MARKS,
    QUESTION,
    SlowRounds,
    opening,
    rooted,
)
from tests.serve.live import PLAIN, Live, live, wait_until

pytestmark = MARKS

KEY = "a-secret"


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


def test_a_refusal_is_shown_in_the_servers_words(page_server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(page_server).ready()
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


def test_an_answer_that_breaks_off_is_kept_and_told(page_server: Live, browser: Any) -> None:
    with opening(browser, complaining=True) as open_page:
        shown = open_page(page_server).ready()
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
    with live(with_engines={"rooted": rooted()}) as lossy, opening(browser) as open_page:
        shown = open_page(lossy).ready()
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
