"""The document of a trace: every round's tree, tokens and times, ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from foredraft.bench.trace.names import TokenNames
from foredraft.bench.trace.rounds import TokenKind, TracedRound, read_round
from foredraft.bench.trace.watch import Watch, watched
from foredraft.config import GenerationOptions
from foredraft.engine.cost_files import with_rounding
from foredraft.engine.engine import Engine
from foredraft.engine.prompts import Prompt
from foredraft.errors import ConfigError
from foredraft.protocols import RootVerifier
from foredraft.results import FinishReason, Result, RoundRecord

FORMAT = 1
"""Version of the JSON form."""

Stage = Literal["draft", "target", "verify", "other"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Times = dict[Stage, float]


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of a draft tree; the root is the last token of the text before it."""

    parent: int
    token_id: int
    name: str
    """The token by itself."""
    p: float | None
    """The target's probability of this token after its parent: the softmax of logits / temperature (1 when
    greedy), before penalties and filters; None for the root."""
    q: float | None
    """The drafter's, likewise; None for the root and from drafters without a law."""
    accepted: bool
    """Whether it became part of the answer; the root always is part of the text."""


@dataclass(frozen=True, slots=True)
class TraceToken:
    """An emitted token."""

    token_id: int
    kind: TokenKind
    name: str
    """The token by itself."""
    text: str
    """What it adds to the answer. A token that holds a part of a character adds nothing, and the one that
    completes it adds all of it."""
    p: float | None
    """The target's probability of it, as in `TraceNode`; None where the logits are not finite."""


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One draft and one target pass."""

    nodes: tuple[TraceNode, ...]
    """[N] in level order."""
    tokens: tuple[TraceToken, ...]
    last: int
    """The node that the last token follows: where a recovered, bonus or plain token hangs."""
    cut: bool
    """Whether a stop or a limit cut off tokens that were verified."""
    draft_passes: int
    """Passes of the drafter's model."""
    times: Times
    """Milliseconds by stage."""


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
    if isinstance(engine.verifier, RootVerifier):
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
        yield TraceRound(
            nodes=_nodes(seen, names),
            tokens=tuple(
                TraceToken(token, kind, names(token), text, p)
                for (token, kind, p), text in zip(seen.emitted, texts[:num_emitted], strict=True)
            ),
            last=seen.last,
            cut=record.cut,
            draft_passes=len(record.draft_rows),
            times=_times(record),
        )
        del texts[:num_emitted]


def _nodes(seen: TracedRound, names: TokenNames) -> tuple[TraceNode, ...]:
    columns = zip(seen.parents, seen.token_ids, seen.p, seen.q, strict=True)
    return tuple(
        TraceNode(parent, token, names(token), p, q, node in seen.accepted)
        for node, (parent, token, p, q) in enumerate(columns)
    )


def _times(record: RoundRecord) -> Times:
    stages = record.draft_s, record.target_s, record.verify_s
    draft, target, verify, other = (
        round(1000 * seconds, 4) for seconds in (*stages, record.total_s - sum(stages))
    )
    return {"draft": draft, "target": target, "verify": verify, "other": other}


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
