"""What earlier requests have in common with a prompt is not read again, and changes no answer."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from foredraft.errors import ConfigError
from foredraft.serve.settings import ServeSettings
from tests.serve.live import MODEL, TREE, engines, live

STORY = "once upon a time there was a fox who lived near the old mill and liked to sing"


def told(client: OpenAI, prompt: str, **fields: Any) -> Any:
    request = {"max_tokens": 12, "temperature": 0, "seed": 1, **fields}
    return client.completions.create(model=MODEL, prompt=prompt, **request)


@pytest.mark.parametrize("method", list(engines()))
def test_a_second_request_does_not_read_the_same_start_again(method: str) -> None:
    chosen = {"extra_body": {"foredraft": {"method": method}}}
    with live() as warm:
        told(warm.client(), STORY, **chosen)
        again = told(warm.client(), STORY + ", and so on", **chosen)
    with live(prefix_cache_mb=0) as cold:
        told(cold.client(), STORY, **chosen)
        expected = told(cold.client(), STORY + ", and so on", **chosen)
    assert again.choices[0].text == expected.choices[0].text
    known = again.usage.prompt_tokens_details.cached_tokens
    assert 0 < known < again.usage.prompt_tokens
    assert expected.usage.prompt_tokens_details.cached_tokens == 0


def test_choices_of_one_request_count_their_prompt_once() -> None:
    with live() as server:
        told(server.client(), STORY)
        response = told(server.client(), STORY, n=3, temperature=1)
    assert response.usage.prompt_tokens_details.cached_tokens <= response.usage.prompt_tokens


def test_metrics_tell_what_is_kept() -> None:
    with live() as server:
        for _ in range(2):
            told(server.client(), STORY, extra_body={"foredraft": {"method": TREE}})
        lines = server.http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("foredraft_prefix"))
    assert float(values["foredraft_prefix_cache_hits"]) >= 1
    assert float(values["foredraft_prefix_cache_restored_tokens"]) > 0
    assert float(values["foredraft_prefix_cache_num_bytes"]) > 0


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_size_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_mb"):
        ServeSettings(model_name="any", prefix_cache_mb=value)
