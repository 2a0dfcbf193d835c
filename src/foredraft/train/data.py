"""Making a corpus: what is asked for, what tells it from others, and the three ways to make it.

The target writes prompts and replies itself; or it answers the prompts of the user; or the user's
replies are taken as they are. Whichever it is, the same plan on the same folder goes on where it ended.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from foredraft.backends.identity import weights_digest
from foredraft.drafters.eagle.config import default_taps
from foredraft.errors import ConfigError, DataError
from foredraft.files import in_use
from foredraft.train.answering import KEPT_PER_SHARD, Keeper, Prompter
from foredraft.train.corpus import Corpus, CorpusWriter
from foredraft.train.digests import digest_of, tokenizer_digest
from foredraft.train.generation import ScriptsOf, generate_corpus
from foredraft.train.mending import accept_mended, noting_rows
from foredraft.train.openings import BUILTIN, read_follow_ups, read_openings, read_tasks
from foredraft.train.recording import StateRecorder
from foredraft.train.scripts import SHORTEST_DOCUMENT, Mixture, Script, conversation
from foredraft.train.sources import Source, open_source
from foredraft.train.templates import ChatFrame, chat_frame, reply_frame

ANSWERS = ("generate", "keep")
TOKENIZER = "tokenizer"
"""Folder beside the shards: the tokenizer, so that a corpus can be read without its model."""
BATCHES_A_SHARD = 8
MOST_FRUITLESS = 2048
"""Conversations in a row that the model may write without a reply; with more it would never end."""
Report = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """What a corpus is to be made of.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    num_tokens: int | None = None
    """Tokens in all; None, which only prompts allow, goes through all of them."""
    seed: int = 0
    """Same seed, same corpus."""
    batch: int = 128
    """Conversations that are decoded together."""
    openings: str = BUILTIN
    """How users begin who are written by the model: "builtin", "none", or a file with one a line."""
    prompts: str | None = None
    """A JSONL file or the name of a data set; None has the model write prompts."""
    answers: str = "generate"
    """"generate" has the model reply; "keep" takes the replies that are given."""
    mixture: Mixture = field(default_factory=Mixture)
    keep_states: bool = False
    """Keep the hidden states that training reads. The corpus is the same without."""
    taps: tuple[int, ...] | None = None
    """Which ones, beside the last; None takes those that a new EAGLE-3 head reads."""

    @property
    def shard(self) -> int:
        """Conversations of a shard: what a kill can lose."""
        return self.batch * BATCHES_A_SHARD

    def __post_init__(self) -> None:
        if self.answers not in ANSWERS:
            raise ConfigError(f"answers={self.answers!r} is none of {', '.join(ANSWERS)}")
        if self.prompts is None and self.answers == "keep":
            raise ConfigError(
                "answers='keep' needs conversations with replies; name them by prompts=..."
            )
        if self.keep_states and self.answers == "keep":
            raise ConfigError(
                "answers='keep' makes no pass of the model, so there are no hidden states to keep; leave "
                "keep_states out"
            )
        if self.taps is not None and not self.keep_states:
            raise ConfigError(
                "taps say which hidden states are kept, and none are; ask for keep_states too"
            )
        if self.prompts is None and self.num_tokens is None:
            raise ConfigError("a model that writes its own prompts never ends; give num_tokens=...")
        for owner in (self, self.mixture):
            for name, (allowed, holds) in _RULES.items():
                value = getattr(owner, name, None)
                if value is not None and not holds(value):
                    raise ConfigError(f"{name}={value!r} is not allowed; give {allowed}")


_AT_LEAST_1: tuple[str, Callable[[Any], bool]] = ("1 or more", lambda value: value >= 1)
_SHARE: tuple[str, Callable[[Any], bool]] = ("0 to 1", lambda value: 0 <= value <= 1)
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "num_tokens": _AT_LEAST_1,
    "seed": ("0 or more", lambda value: value >= 0),
    "batch": _AT_LEAST_1,
    "greedy_share": _SHARE,
    "documents": _SHARE,
    "max_document_tokens": (
        f"{SHORTEST_DOCUMENT} or more; documents=0 has none",
        lambda value: value >= SHORTEST_DOCUMENT,
    ),
    "more_turns": ("0 or more, and less than 1", lambda value: 0 <= value < 1),
    "temperatures": (
        "one or more above 0; greedy_share says how many replies are greedy",
        lambda values: values and all(0 < value < float("inf") for value in values),
    ),
    "top_p": ("more than 0, and 1 at most", lambda value: 0 < value <= 1),
    "max_user_tokens": _AT_LEAST_1,
    "max_reply_tokens": _AT_LEAST_1,
    "max_length": ("2 or more", lambda value: value >= 2),
}


class Made(NamedTuple):
    """What came out."""

    corpus: Corpus
    without_states: int
    """Shards that lack the hidden states asked for: they were there before those were."""

    @classmethod
    def of(cls, corpus: Corpus, recorder: StateRecorder | None) -> Made:
        """With the shards counted that `recorder` did not make."""
        return cls(corpus, 0 if recorder is None else recorder.shards_without(corpus))


def make_corpus(
    folder: Path,
    plan: DataPlan,
    model: Any,
    tokenizer: Any,
    name: str,
    begin: Callable[[int], None] = lambda tokens: None,
    report: Report = lambda tokens: None,
    command: str | None = None,
) -> Made:
    """Make a corpus, or what is missing of it.

    Args:
        folder: where; made if it does not exist.
        model: a `transformers` causal language model, in eval mode.
        name: what the user calls the model.
        begin: called once, with the tokens that are there already.
        report: called with numbers of tokens as they are added.
        command: what was typed, by which an unfinished corpus can be gone on with.

    Raises:
        ConfigError: the folder holds another corpus or is in use, or the chat template does not allow it.
        DataError: a row of the prompts is of no known form, or nothing to learn from came out.
        ModelError: hidden states are to be kept that the model does not have.
    """
    source = None if plan.prompts is None else open_source(plan.prompts)
    recorder = _recorder(plan, model)
    _check_context(plan, model)
    if source is None:
        plan = _with_words(plan, tokenizer)
    frame = _frame(model, tokenizer, source)
    facts = _facts(plan, model, tokenizer, name, frame, source)
    with in_use(folder, by="data generation"):
        accept_mended(folder, facts, source)
        writer = CorpusWriter(folder, facts)
        writer.mark({"tokens": plan.num_tokens, "command": command})
        if not (writer.num_shards and (folder / TOKENIZER).exists()):
            tokenizer.save_pretrained(folder / TOKENIZER)
        begin(writer.num_tokens)
        if plan.answers == "keep" and source is not None:
            with noting_rows(writer, source, KEPT_PER_SHARD):
                keeper = Keeper(tokenizer, source, plan.mixture.max_length)
                keeper.write(writer, plan.num_tokens, report)
        else:
            with noting_rows(writer, source, plan.shard):
                scripts = _scripts(plan, tokenizer, frame, source, writer)
                rows, tokens = plan.batch, plan.num_tokens
                generate_corpus(model, scripts, writer, tokens, rows, report, recorder)
        _check_outcome(writer.manifest, source)
        writer.finish()
    return Made.of(Corpus(folder), recorder)


def _with_words(plan: DataPlan, tokenizer: Any) -> DataPlan:
    """The plan with the words that users begin with as token ids."""
    mixture = dataclasses.replace(
        plan.mixture,
        openings=read_openings(plan.openings, tokenizer),
        follow_ups=read_follow_ups(plan.openings, tokenizer),
        tasks=read_tasks(plan.openings, tokenizer),
    )
    return dataclasses.replace(plan, mixture=mixture)


def _recorder(plan: DataPlan, model: Any) -> StateRecorder | None:
    """What keeps hidden states, if the plan asks for it. Errors as in `StateRecorder`."""
    if not plan.keep_states:
        return None
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    return StateRecorder(model, plan.taps or default_taps(layers))


def _frame(model: Any, tokenizer: Any, source: Source | None) -> ChatFrame:
    """The template's frame, with every token by which the model ends anything."""
    frame = chat_frame(tokenizer) if source is None else reply_frame(tokenizer)
    ends = getattr(model.generation_config, "eos_token_id", None)
    more = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return dataclasses.replace(
        frame,
        user_end_ids=tuple(dict.fromkeys((*frame.user_end_ids, *more))) if source is None else (),
        assistant_end_ids=tuple(dict.fromkeys((*frame.assistant_end_ids, *more))),
    )


def _check_context(plan: DataPlan, model: Any) -> None:
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if context is not None and plan.mixture.max_length > context:
        raise ConfigError(
            f"max_length={plan.mixture.max_length} is more than the model's context of {context} tokens; "
            f"give {context} or less"
        )


def _scripts(
    plan: DataPlan, tokenizer: Any, frame: ChatFrame, source: Source | None, writer: CorpusWriter
) -> ScriptsOf:
    if source is not None:
        return Prompter(tokenizer, source, frame, plan.mixture, plan.seed, plan.shard)

    def written(shard: int) -> list[Script]:
        _check_fruitful(plan, writer.manifest["shards"])
        numbers = range(shard * plan.shard, (shard + 1) * plan.shard)
        return [conversation(frame, plan.mixture, plan.seed, number) for number in numbers]

    return written


def _check_fruitful(plan: DataPlan, shards: Sequence[Mapping[str, Any]]) -> None:
    """Give up on a model that writes no reply: the last shards are empty, and there is no last one."""
    empty = itertools.takewhile(lambda shard: not shard["samples"], reversed(shards))
    tried = sum(shard.get("dropped", 0) for shard in empty)
    if tried >= MOST_FRUITLESS:
        raise DataError(
            f"none of the last {tried:,} conversations came to a reply within max_length="
            f"{plan.mixture.max_length} and max_user_tokens={plan.mixture.max_user_tokens}; begin in another "
            "folder with more of them, or give prompts of your own"
        )


def _facts(
    plan: DataPlan,
    model: Any,
    tokenizer: Any,
    name: str,
    frame: ChatFrame,
    source: Source | None,
) -> dict[str, Any]:
    """Everything on which the tokens of a corpus depend, as JSON has it: another value, another corpus."""
    facts: dict[str, Any] = {
        "model": name,
        "vocab_size": int(model.config.get_text_config(decoder=True).vocab_size),
        "tokenizer": tokenizer_digest(tokenizer),
        "end_ids": frame.assistant_end_ids,
        "answers": plan.answers,
    }
    if source is not None:
        facts |= {"prompts": source.name, "prompts_digest": source.digest()}
    if plan.answers == "keep":
        facts["max_length"] = plan.mixture.max_length
    else:
        mixture = asdict(plan.mixture)
        beginnings = [mixture.pop(name) for name in ("openings", "follow_ups", "tasks")]
        facts |= {
            "weights": weights_digest(model),
            "model_dtype": str(model.dtype).removeprefix("torch."),
            "seed": plan.seed,
            "batch": plan.batch,
            **mixture,
            "openings": digest_of(beginnings if source is None else beginnings[0]),
        }
    if source is None:
        facts["opening"] = frame.user_opening  # templates may write the date into it
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain


def _check_outcome(manifest: Mapping[str, Any], source: Source | None) -> None:
    what = "what the model wrote" if source is None else source.name
    if not manifest["shards"]:
        raise DataError(f"{what} holds no conversation; give one JSON object a line")
    if not sum(shard["labelled"] for shard in manifest["shards"]):
        raise DataError(
            f"no reply in {what} begins within max_length, so there is nothing to learn from; give a "
            "higher max_length, or shorter prompts"
        )
