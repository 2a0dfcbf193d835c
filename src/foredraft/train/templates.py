"""Chat templates as token ids: what stands around the words of a user and of an assistant.

A template is a program; nothing can be read off its source. So everything here is found by rendering
conversations whose words are known and comparing the token ids: what all renderings share is the
template's, what differs is the words'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.errors import ConfigError

Message = Mapping[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""

UNWRITTEN = (
    "this model cannot write prompts itself: its chat template {behaviour}; give prompts of your own "
    "with --prompts"
)
ONE_TURN = (
    "a conversation of several turns cannot be answered reply by reply: the chat template {behaviour}; give "
    "conversations of one turn"
)
UNCLEAR = (
    "what the assistant wrote cannot be told from the rest: the chat template {behaviour}; use a "
    "template that does not, or one that marks replies with {{% generation %}} blocks"
)


def refusal(behaviour: str, why: str = UNWRITTEN) -> ConfigError:
    """The error that names what a template does, why it matters and the way out."""
    return ConfigError(why.format(behaviour=behaviour))


_WORDS = ("Why is that", "7 plus 2?", "Éva said no.", "zero (0)")
"""Probes that begin and end differently, so that renderings agree on nothing but the template."""
_FRESH = ("Tell me more", "Sure thing", "And now what")


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token ids around the turns of a chat, for a model that writes all of them itself.

    A conversation is `user_opening + u1 + between + a1 + end + next_user + u2 + between + a2 + end`,
    where `end` is `assistant_end_ids[0]`, and u and a are what the user and the assistant write.
    """

    user_opening: list[int]
    """From the start, with the default system prompt if there is one, to where the user's text begins."""
    between: list[int]
    """From the end of the user's text, with the token that ends the turn, to where a reply begins."""
    next_user: list[int]
    """From behind the end-of-turn token of a reply to where the next user's text begins."""
    user_end_ids: tuple[int, ...]
    """Tokens that end a user's turn: the template's own, which `between` holds, then eos if another."""
    assistant_end_ids: tuple[int, ...]
    """Tokens that end a reply: the template's own, then eos if another."""

    def user_text(self, written: Sequence[int]) -> list[int]:
        """What a user wrote, without the end of the turn and the filler (a space) that `between` repeats."""
        ends = [i for i, token in enumerate(written) if token in self.user_end_ids]
        text = list(written[: ends[0]] if ends else written)
        filler = self.between[: self.between.index(self.user_end_ids[0])]
        return text[: -len(filler)] if filler and text[-len(filler) :] == filler else text


def render(tokenizer: Any, messages: Sequence[Message], *, reply_follows: bool) -> str:
    """The text of a conversation; with `reply_follows`, up to where the next reply begins.

    Raises:
        ConfigError: there is no chat template, or it refuses these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "this model's tokenizer has no chat template, so nothing tells where a reply begins and ends; "
            "take an instruction-tuned model, or set tokenizer.chat_template"
        )
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=reply_follows
        )
    except Exception as error:  # templates raise what they like: jinja's errors, type errors
        raise ConfigError(f"the model's chat template refuses these messages: {error}") from error
    return str(text)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of rendered text, which holds its special tokens already."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Text of token ids, special tokens included."""
    return str(
        tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that stand for no text of their own: the special ones, and added ones that are no blanks."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids) | {
        token_id for token_id, token in added if token.special or token.content.strip()
    }


def chat_frame(tokenizer: Any) -> ChatFrame:
    """Find the frame of a tokenizer's chat template.

    Raises:
        ConfigError: there is no template, or what stands around the turns depends on what they say, or
            no token ends them.
    """
    singles = [_rendered(tokenizer, word) for word in _WORDS]
    opening, between = _shared_start(singles), _shared_end(singles)
    if any(len(opening) + len(between) >= len(one) for one in singles):
        raise refusal("does not write the user's words as they are")
    user_end = _first_end(tokenizer, between, "a user's turn")
    closing = _closing(tokenizer)
    reply_end = _first_end(tokenizer, closing, "a reply")
    eos = _eos(tokenizer)
    frame = ChatFrame(
        user_opening=opening,
        between=between,
        next_user=closing[reply_end + 1 :],
        user_end_ids=tuple(dict.fromkeys([between[user_end], *eos])),
        assistant_end_ids=tuple(dict.fromkeys([closing[reply_end], *eos])),
    )
    _verify(tokenizer, frame, closing)
    return frame


def reply_frame(tokenizer: Any) -> ChatFrame:
    """A frame that knows how replies end and nothing of the users, whose words are given elsewhere.

    Raises:
        ConfigError: there is no template, or no token ends a reply.
    """
    ends = (reply_end(tokenizer)[0], *_eos(tokenizer))
    return ChatFrame([], [], [], user_end_ids=(), assistant_end_ids=tuple(dict.fromkeys(ends)))


def prompts_of_turns(
    tokenizer: Any, turns: Sequence[str], system: str | None = None
) -> list[list[int]]:
    """Token ids that stand before each reply to a user who says these turns.

    Returns:
        [K][..] the first prompt from the start, each later one from behind the token that ended the reply
        before it; all of them up to where the next reply begins.

    Raises:
        ConfigError: the template refuses these turns, or writes earlier ones otherwise once others follow.
    """
    opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    chats = [_chats(opening, turns, word) for word in _WORDS]
    rows = [[encode(tokenizer, render(tokenizer, m, reply_follows=True)) for m in c] for c in chats]
    prompts = [rows[0][0]]
    for turn in range(1, len(turns)):
        if any(row[turn][: len(row[turn - 1])] != row[turn - 1] for row in rows):
            raise refusal("writes earlier turns otherwise once others follow", why=ONE_TURN)
        shared = _shared_end([row[turn] for row in rows])
        prompts.append(shared[_first_end(tokenizer, shared, "a reply", why=ONE_TURN) + 1 :])
    return prompts


def _chats(opening: list[Message], turns: Sequence[str], reply: str) -> list[list[Message]]:
    """The chat up to each turn of the user, with the same reply to all."""
    said = [
        [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
        for turn in turns
    ]
    flat = [message for pair in said for message in pair]
    return [[*opening, *flat[: 2 * k + 1]] for k in range(len(turns))]


def reply_end(tokenizer: Any) -> list[int]:
    """What the template writes after the last reply: the token that ends it, and any blanks behind.

    Raises:
        ConfigError: there is no template, or no token ends a reply.
    """
    replies = []
    for word in _WORDS:
        said = [{"role": "user", "content": _FRESH[0]}, {"role": "assistant", "content": word}]
        replies.append(encode(tokenizer, render(tokenizer, said, reply_follows=False)))
    tail = _shared_end(replies)
    return tail[_first_end(tokenizer, tail, "a reply", why=UNCLEAR) :]


def _eos(tokenizer: Any) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]


def _rendered(tokenizer: Any, *words: str) -> list[int]:
    """Token ids of a chat that says these words in turn, the user first and last, and a reply follows."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": word} for i, word in enumerate(words)]
    return encode(tokenizer, render(tokenizer, messages, reply_follows=True))


def _closing(tokenizer: Any) -> list[int]:
    """The tokens between a reply's text and the text of the user's next turn."""
    first, fixed = _WORDS[:2]
    whole = _rendered(tokenizer, first, fixed, fixed)
    start = _shared_start([_rendered(tokenizer, first, fixed, word) for word in _WORDS])
    end = _shared_end([_rendered(tokenizer, first, word, fixed) for word in _WORDS])
    return whole[len(whole) - len(end) : len(start)]


def _shared_start(rows: Sequence[list[int]]) -> list[int]:
    length = min(map(len, rows))
    stop = next((i for i in range(length) if len({row[i] for row in rows}) > 1), length)
    return rows[0][:stop]


def _shared_end(rows: Sequence[list[int]]) -> list[int]:
    return _shared_start([row[::-1] for row in rows])[::-1]


def _first_end(tokenizer: Any, token_ids: Sequence[int], what: str, why: str = UNWRITTEN) -> int:
    """Where the token that ends a turn stands: the first special one, with only blanks before it."""
    special = special_ids(tokenizer)
    place = next((i for i, token in enumerate(token_ids) if token in special), None)
    if place is None or decode(tokenizer, token_ids[:place]).strip():
        after = decode(tokenizer, token_ids)
        raise refusal(f"ends {what} with {after!r}, which begins with no token of its own", why)
    return place


def _verify(tokenizer: Any, frame: ChatFrame, closing: list[int]) -> None:
    """Put a chat of other words together from the frame, and compare it with its rendering.

    Raises:
        ConfigError: they differ: the template rewrites earlier turns.
    """
    first, reply, second = _FRESH
    whole, start = _rendered(tokenizer, first, reply, second), _rendered(tokenizer, first)
    if whole[: len(start)] != start:
        raise refusal("writes a turn otherwise once others follow")
    rest = whole[len(start) :]
    places = range(len(rest) - len(closing) + 1)
    at = next((i for i in places if rest[i : i + len(closing)] == closing), 0)
    texts = {
        first: start[len(frame.user_opening) : len(start) - len(frame.between)],
        reply: rest[:at],
        second: rest[at + len(closing) : len(rest) - len(frame.between)],
    }
    for words, token_ids in texts.items():
        if decode(tokenizer, token_ids).strip() != words:
            raise refusal("drops or rewrites what a turn says")
