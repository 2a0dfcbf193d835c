"""What replicas are told: read from words or from a config file, and refused before Ray is asked."""

from __future__ import annotations

from typing import Any

import pytest

from foredraft.errors import ConfigError
from foredraft.serve.ray import Replicas


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"modell": "smollm2"}, "unknown argument 'modell' of a replica; did you mean 'model'"),
        ({"replicas": "two"}, "replicas='two' is not allowed; give a number"),
        ({"replicas": "0"}, "replicas=0 is not allowed"),
        ({"max_batch": "0"}, "max_batch=0 is not allowed"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Replicas.of(arguments)


def test_arguments_are_read_in_their_types() -> None:
    read = Replicas.of({"model": "m", "replicas": "2", "max_batch": "4", "time_limit_s": "1.5"})
    assert (read.replicas, read.settings().max_batch, read.settings().time_limit_s) == (2, 4, 1.5)
    assert read.settings(("key",)).api_keys == ("key",)
