"""The text behind which a profile is made: the questions of the built-in suite, one after another."""

from __future__ import annotations

from foredraft.bench.suites import BUILTIN, read_suites
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import random_tokens
from foredraft.engine.prompts import encode_prompt


def prompt_of(engine: Engine, count: int) -> list[int]:
    """So many token ids of real text, again from its start where it ends; random ones without a tokenizer."""
    if engine.tokenizer is None:
        return random_tokens(engine.target, count)
    (suite,) = read_suites(BUILTIN, None)
    text = "\n\n".join(question.text(()) for question in suite.questions)
    token_ids = encode_prompt(text, engine.tokenizer, engine.target.vocab_size)
    return (token_ids * (count // len(token_ids) + 1))[:count]
