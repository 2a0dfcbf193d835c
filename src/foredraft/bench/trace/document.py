"""The document of a trace: every round's tree, tokens and times, ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.config import GenerationOptions
from foredraft.engine.cost_files import with_rounding
from foredraft.engine.engine import Engine
from foredraft.engine.prompts import Prompt
from foredraft.engine.trace.names import TokenNames
from foredraft.engine.trace.rounds import TracedRound, read_round
from foredraft.engine.trace.shown import TraceRound, show_round
from foredraft.engine.trace.watch import Watch, traceable, watched
from foredraft.errors import ConfigError
from foredraft.results import FinishReason, Result

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """How one answer was made."""

    model: str
    method: str
    verifier: str
    dtype: str
    """Of the target's logits, and what its weights were rounded to."""
    temperature: float
    seed: int | None
    """None when greedy."""
    prompt: str
    text: str
    finish_reason: FinishReason
    stopped_by: str | None
    """The end token's name or the stop string that ended the answer."""
    rounds: tuple[TraceRound, ...]
    statistics: dict[str, Any]
    """`Statistics.as_dict()`."""
    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return dataclasses.asdict(self)


def make_trace(
    engine: Engine,
    prompt: Prompt,
    options: GenerationOptions,
    *,
    model: str = "",
    method: str = "",
) -> TraceDocument:
    """Answer a prompt and keep how: the same tokens and passes as `engine.generate` has.

    Args:
        engine: any engine; it is not changed.
        prompt: as in `Engine.generate`.
        options: the request.
        model: the model's name, to be shown.
        method: the method's name, to be shown.

    Raises:
        ConfigError, PromptError, NumericsError: as in `Engine.generate`.
    """
    if not traceable(engine):
        raise ConfigError(
            f"a trace shows drafts that follow the text's last token, and {method or 'this method'} drafts "
            "from open roots; use foredraft bench, or another method"
        )
    watch = Watch()
    with watched(engine, watch).stream(prompt, options) as stream:
        # each round is read while the clock stands, before the next one begins
        rounds = [read_round(step, watch.take(), options.temperature) for step in stream]
        result = stream.result()
    names = TokenNames(engine)
    return TraceDocument(
        model=model,
        method=method,
        verifier=type(engine.verifier).__name__.removesuffix("Verifier").lower(),
        dtype=with_rounding(rounds[0].dtype, engine.target),
        temperature=options.temperature,
        seed=result.seed,
        prompt=_prompt_text(prompt, result.prompt_ids, engine),
        text=result.text,
        finish_reason=result.finish_reason,
        stopped_by=_ending(result, names),
        rounds=tuple(_rounds(rounds, result, engine, names)),
        statistics=result.stats.as_dict(),
    )


def _rounds(
    rounds: Sequence[TracedRound], result: Result, engine: Engine, names: TokenNames
) -> Iterator[TraceRound]:
    texts = added_texts(engine, result)
    for seen, record in zip(rounds, result.stats.rounds, strict=True):
        num_emitted = len(seen.emitted)
        yield show_round(seen, record, texts[:num_emitted], names)
        del texts[:num_emitted]


def added_texts(engine: Engine, result: Result) -> list[str]:
    """[T] what each token adds to the answer; joined they are the answer's text.

    Text that a stop string cut off is left out, and what no token completed goes to the last one.
    """
    incoming, room = engine.incremental_text(), len(result.text)
    texts = []
    for token in result.token_ids:
        texts.append(incoming.push([token])[:room])
        room -= len(texts[-1])
    texts[-1] += result.text[len(result.text) - room :]
    return texts


def _ending(result: Result, names: TokenNames) -> str | None:
    ending = result.stopped_by
    return names(ending) if isinstance(ending, int) else ending


def _prompt_text(prompt: Prompt, prompt_ids: Sequence[int], engine: Engine) -> str:
    """What the user wrote: the text, the messages' contents, or the text of the token ids."""
    if isinstance(prompt, str):
        return prompt
    said = [str(part.get("content") or "") for part in prompt if isinstance(part, Mapping)]
    return "\n\n".join(said) if said else engine.decode(prompt_ids)
