"""The page's files: all of them there, kept to themselves, and open without a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from foredraft.serve.page.routes import FILES, PAGE_PATHS, path_of
from tests.serve.live import Live, live

KEY = "a-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(api_keys=(KEY,)) as running:
        yield running


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_every_file_is_served_with_its_headers(server: Live, path: str) -> None:
    response = server.http.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert not any("unsafe" in part or "http" in part for part in policy)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-type"].endswith("charset=utf-8")
    tag = response.headers["etag"]
    again = server.http.get(path, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag
    assert server.http.get(path, headers={"if-none-match": '"old"'}).status_code == 200


def test_the_files_name_each_other_and_nothing_outside() -> None:
    folder = files("foredraft.serve.page")
    there = {each.name for each in folder.iterdir() if each.name.endswith((".html", ".css", ".js"))}
    assert there == set(FILES)
    texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in FILES}
    named = {
        match
        for text in texts.values()
        for match in re.findall(r"(?:/page|from \"\.)/([\w.]+)", text)
    }
    assert named == set(FILES) - {"index.html"}
    outside = {match for text in texts.values() for match in re.findall(r"https?://[\w.]+", text)}
    assert outside == {"http://www.w3.org"}  # the name of a form of drawings, never asked for


def test_the_page_is_open_and_the_api_is_not(server: Live) -> None:
    assert server.http.get("/").text.startswith("<!DOCTYPE html>")
    assert server.http.get("/v1/models").status_code == 401
    assert server.http.get("/page/").status_code == 401
    assert server.http.get("/page/../page.js").status_code == 401
    assert server.http.post("/").status_code == 405
    key = {"Authorization": f"Bearer {KEY}"}
    assert server.http.get("/v1/models", headers=key).status_code == 200
    assert server.http.get("/page/routes.py", headers=key).status_code == 404


def test_responses_are_counted_by_their_path(server: Live) -> None:
    server.http.get(path_of("tree.js"))
    key = {"Authorization": f"Bearer {KEY}"}
    counts = server.http.get("/metrics", headers=key).text
    assert 'foredraft_requests_total{path="/page/tree.js",status="200"}' in counts
