"""What a repository's `custom_generate/generate.py` runs: the arguments of `generate`, unprepared."""

from __future__ import annotations

import copy
import functools
from typing import Any

from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from foredraft.engine.batch import MAX_BATCH
from foredraft.errors import ConfigError
from foredraft.hf.custom import CustomGenerate

KEPT = 4
"""Objects that are kept for calls of the same kind, with their engines."""


def generate(
    model: Any,
    *,
    drafter: Any | None = None,
    method: str | None = None,
    verifier: str | None = None,
    tree: str | None = None,
    max_batch: int = MAX_BATCH,
    tokenizer: Any | None = None,
    streamer: Any | None = None,
    assistant_model: Any | None = None,
    assistant_tokenizer: Any | None = None,
    generation_config: Any | None = None,
    **arguments: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """`model.generate(**arguments)`, decoded speculatively.

    Args:
        model: that `generate` was called on.
        drafter, method, verifier, tree, max_batch: as in `CustomGenerate`.
        tokenizer: for stop strings, and to hold draft models against.
        streamer: gets tokens as they come.
        assistant_model: a draft model, where `drafter` is none.
        assistant_tokenizer: must be left out: drafts are token ids of the model.
        generation_config: as in `generate`.
        **arguments: all others of `generate`.

    Returns, raises: as `CustomGenerate` does.
    """
    if assistant_tokenizer is not None:
        raise ConfigError(
            "assistant_tokenizer=... has no use here, as drafts are token ids of the model; leave it out, "
            "and give a draft model with the same tokens"
        )
    if assistant_model is not None and drafter is not None:
        raise ConfigError("assistant_model and drafter are both given; leave one out")
    custom = _custom(
        assistant_model if drafter is None else drafter,
        method,
        verifier,
        tree,
        max_batch,
        tokenizer,
    )
    # generate would want a tokenizer for them, which it does not hand on
    if generation_config is not None and generation_config.stop_strings:
        generation_config = copy.deepcopy(generation_config)
        arguments.setdefault("stop_strings", generation_config.stop_strings)
        generation_config.stop_strings = None
    return model.generate(
        custom_generate=custom, generation_config=generation_config, sink=streamer, **arguments
    )


@functools.lru_cache(maxsize=KEPT)
def _custom(
    drafter: Any, method: str | None, verifier: str | None, tree: str | None, most: int, words: Any
) -> CustomGenerate:
    return CustomGenerate(
        drafter, method=method, verifier=verifier, tree=tree, max_batch=most, tokenizer=words
    )
