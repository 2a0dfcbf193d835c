"""The page of a live server in a real browser: opened, watched, asked."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from foredraft import Engine
from foredraft.engine.batch import Progress
from foredraft.methods import parse_method
from tests.serve.live import Live, target, tokenizer
from tests.serve.turns import TurnRounds

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
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


class SlowRounds(TurnRounds):
    """Rounds that leave time to do something meanwhile."""

    def round(self) -> list[Progress]:
        time.sleep(0.05)
        return super().round()


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
        from playwright.sync_api import expect

        either = re.compile("|".join(names))
        expect(self.page.locator("#state")).to_have_text(either, timeout=20_000)
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


def rooted() -> Engine:
    """An engine that drafts from open roots, whose rounds cannot be told."""
    parts = parse_method("mcsd-improved-lossy:tree=2,1").build(target())
    return Engine(target(), parts.drafter, parts.policy, parts.verifier, tokenizer=tokenizer())
