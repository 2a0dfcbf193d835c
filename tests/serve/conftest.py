"""A browser for the tests of the page, and servers to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.browsing import CHROMIUM, FLAGS, Open, opening
from tests.serve.live import NGRAM, PLAIN, TREE, Live, engines, live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_server() -> Iterator[Live]:
    """All three methods, the one with trees first."""
    every = engines()
    with live(with_engines={name: every[name] for name in (TREE, NGRAM, PLAIN)}) as running:
        yield running


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens pages that are silent."""
    with opening(browser) as open_page:
        yield open_page
