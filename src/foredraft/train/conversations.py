"""From conversations with replies to token ids and the spans that the assistant wrote.

A span is what the model would have generated: the reply's tokens and the token that ends its turn. It
starts where the rendering of the conversation so far, generation prompt included, ends. Where a template
writes earlier turns otherwise once others follow (dropped thoughts, a system prompt moved to the last
turn), each reply becomes a sample of its own, behind the very prompt the model would have been given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.errors import ConfigError
from foredraft.train.templates import UNCLEAR, Message, decode, encode, refusal, render, reply_end

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """Token ids of a conversation, and the spans `(first, stop)` of them that the assistant wrote."""

    token_ids: list[int]
    spans: tuple[Span, ...]

    @property
    def num_labelled(self) -> int:
        """Tokens inside the spans."""
        return sum(stop - first for first, stop in self.spans)

    def cut(self, max_length: int) -> LabelledTokens | None:
        """The first `max_length` tokens with their spans; None when the assistant wrote none of them."""
        spans = [(first, min(stop, max_length)) for first, stop in self.spans if first < max_length]
        return LabelledTokens(self.token_ids[:max_length], tuple(spans)) if spans else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the model was given, and what it wrote: its end-of-turn token is the last of `reply_ids`."""

    prompt_ids: list[int]
    reply_ids: list[int]


def join(exchanges: Iterable[Exchange]) -> list[LabelledTokens]:
    """As few samples as hold these exchanges: one goes on where its prompt repeats what came before."""
    samples: list[LabelledTokens] = []
    for exchange in exchanges:
        token_ids = exchange.prompt_ids + exchange.reply_ids
        spans: tuple[Span, ...] = ((len(exchange.prompt_ids), len(token_ids)),)
        before = samples[-1].token_ids if samples else None
        if before is not None and exchange.prompt_ids[: len(before)] == before:
            spans = samples.pop().spans + spans
        samples.append(LabelledTokens(token_ids, spans))
    return samples


class Labeller:
    """The labelled tokens of conversations under one tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Find how the template ends a reply.

        Raises:
            ConfigError: there is no template, or no token ends a reply.
        """
        self._tokenizer = tokenizer
        self._tail = reply_end(tokenizer)
        self._marked = bool(_MARKER.search(str(tokenizer.get_chat_template())))

    def label(self, messages: Sequence[Message]) -> list[LabelledTokens]:
        """Samples that hold every reply of a conversation once; what follows the last reply is left out.

        Raises:
            ConfigError: the template does not tell which tokens of it the assistant writes.
        """
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not replies:
            raise ConfigError(
                "the conversation has no reply to learn from; give it one, or generate"
            )
        messages = messages[: replies[-1] + 1]
        if not self._marked:
            return join(self._exchange(messages[: i + 1]) for i in replies)
        marked = self._by_markers(messages)
        try:
            derived = join(self._exchange(messages[: i + 1]) for i in replies)
        except ConfigError:
            return [marked]
        if len(derived) == 1 and derived[0] != marked:
            raise _unclear(
                f"marks {self._shown(marked)} as what the assistant writes, where a model would write "
                f"{self._shown(derived[0])}"
            )
        return derived

    def _exchange(self, messages: Sequence[Message]) -> Exchange:
        """The last message as a reply to those before it."""
        prompt = render(self._tokenizer, messages[:-1], reply_follows=True)
        whole = render(self._tokenizer, messages, reply_follows=False)
        if not whole.startswith(prompt):
            raise _unclear(
                f"ends a prompt with {prompt[-30:]!r} and does not go on from there when it writes a reply "
                f"that is given: {whole[-60:]!r}"
            )
        _check_reply(messages[-1]["content"], whole[len(prompt) :])
        prompt_ids, whole_ids = self._encode_parts(prompt, whole)
        return Exchange(prompt_ids, self._until_end(whole_ids[len(prompt_ids) :]))

    def _encode_parts(self, prompt: str, whole: str) -> tuple[list[int], list[int]]:
        """Token ids of the prompt and, beginning with them, of the whole."""
        prompt_ids, whole_ids = encode(self._tokenizer, prompt), encode(self._tokenizer, whole)
        if whole_ids[: len(prompt_ids)] == prompt_ids:
            return prompt_ids, whole_ids
        apart = prompt_ids + encode(self._tokenizer, whole[len(prompt) :])
        if decode(self._tokenizer, apart) != decode(self._tokenizer, whole_ids):
            raise _unclear(
                f"lets the tokens of a reply run into those before it, {prompt[-10:]!r} into "
                f"{whole[len(prompt) :][:10]!r}"
            )
        return prompt_ids, apart

    def _until_end(self, reply_ids: list[int]) -> list[int]:
        """A rendered reply up to its end-of-turn token."""
        if reply_ids[-len(self._tail) :] != self._tail:
            raise _unclear(f"does not end every reply with {decode(self._tokenizer, self._tail)!r}")
        written = reply_ids[: len(reply_ids) - len(self._tail) + 1]
        if written.index(self._tail[0]) < len(written) - 1:
            end = decode(self._tokenizer, self._tail[:1])
            raise ConfigError(
                f"a reply contains {end!r}, the token that ends it; remove it from the text"
            )
        return written

    def _by_markers(self, messages: Sequence[Message]) -> LabelledTokens:
        """What the template's own generation blocks hold, each up to its end-of-turn token."""
        coded = self._tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        token_ids, mask = list(coded["input_ids"]), list(coded["assistant_masks"])
        spans = [self._to_end(token_ids, span) for span in _runs(mask)]
        contents = [m["content"] for m in messages if m["role"] == "assistant"]
        if len(spans) != len(contents):
            raise _unclear(f"marks {len(spans)} replies where the conversation has {len(contents)}")
        for content, (first, stop) in zip(contents, spans, strict=True):
            _check_reply(content, decode(self._tokenizer, token_ids[first:stop]))
        return LabelledTokens(token_ids[: spans[-1][1]], tuple(spans))

    def _to_end(self, token_ids: list[int], span: Span) -> Span:
        """A marked span, with the end-of-turn token right behind it and without the blanks after that."""
        first, stop = span
        end = self._tail[0]
        if token_ids[stop : stop + 1] == [end]:
            return first, stop + 1
        if end in token_ids[first:stop]:
            return first, token_ids.index(end, first) + 1
        raise _unclear("marks a reply without the token that ends it")

    def _shown(self, sample: LabelledTokens) -> str:
        return " and ".join(
            repr(decode(self._tokenizer, sample.token_ids[first:stop])[:40])
            for first, stop in sample.spans
        )


def _check_reply(content: str, written: str) -> None:
    """Blanks aside, the rendering has to hold the reply as it was given."""
    if "".join(content.split()) not in "".join(written.split()):
        raise _unclear(f"writes the reply {content[:40]!r} as {written[:40]!r}")


def _runs(mask: Sequence[int]) -> list[Span]:
    """Where a mask goes from 0 to 1 and back."""
    padded = [0, *mask, 0]
    edges = [i for i in range(len(mask) + 1) if padded[i] != padded[i + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _unclear(behaviour: str) -> ConfigError:
    return refusal(behaviour, UNCLEAR)


@dataclass(slots=True)
class Tally:
    """What became of the samples of a corpus, so that nothing is lost unseen."""

    max_length: int
    samples: int = 0
    truncated: int = 0
    dropped: int = 0
    """Samples of which `max_length` left no token that the assistant wrote."""
    tokens: int = 0
    labelled: int = 0

    def fit(self, sample: LabelledTokens) -> LabelledTokens | None:
        """A sample cut to the length limit and counted, or None, counted as dropped."""
        kept = sample.cut(self.max_length)
        if kept is None or not kept.num_labelled:
            self.dropped += 1
            return None
        self.samples += 1
        self.truncated += len(kept.token_ids) < len(sample.token_ids)
        self.tokens += len(kept.token_ids)
        self.labelled += kept.num_labelled
        return kept

    @property
    def labelled_share(self) -> float:
        """Tokens to learn from per token; 0 when there is none."""
        return self.labelled / self.tokens if self.tokens else 0.0
