"""The text behind which a profile is made: the questions of the built-in suite, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from foredraft.bench.suites import BUILTIN, read_suites
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import random_tokens
from foredraft.engine.prompts import Prompt, encode_prompt


def prompt_of(engine: Engine, count: int) -> list[int]:
    """So many token ids of real text, again from its start where it ends; random ones without a tokenizer.

    With a chat template, and room for it, the text is what the user says and the model's turn comes next.
    """
    if engine.tokenizer is None:
        return random_tokens(engine.target, count)
    (suite,) = read_suites(BUILTIN, None)
    text = "\n\n".join(question.text(()) for question in suite.questions)
    if not getattr(engine.tokenizer, "chat_template", None):
        return _repeated(_encoded(engine, text), count)
    asked = [_encoded(engine, [{"role": "user", "content": said}]) for said in (text, "Hello?")]
    end = common_end(*asked)
    body = asked[0][: len(asked[0]) - end]
    if count <= end:
        return _repeated(body, count)
    return _repeated(body, count - end) + asked[0][len(body) :]


def common_end(first: Sequence[int], second: Sequence[int]) -> int:
    """How many token ids at their ends are the same: what a template puts behind whatever was said."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _encoded(engine: Engine, prompt: Prompt) -> list[int]:
    return encode_prompt(prompt, engine.tokenizer, engine.target.vocab_size)


def _repeated(token_ids: list[int], count: int) -> list[int]:
    return (token_ids * (count // len(token_ids) + 1))[:count]
