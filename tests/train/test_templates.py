"""The frame of a chat template: what stands around the turns, put together again and compared."""

from __future__ import annotations

from typing import Any

import pytest

from foredraft.errors import ConfigError
from foredraft.train.templates import (
    ChatFrame,
    chat_frame,
    decode,
    encode,
    prompts_of_turns,
    reply_frame,
)
from tests.tiny_folders import byte_tokenizer
from tests.train.stock_templates import (
    CHATML,
    FORGETFUL,
    STOCK,
    THINKING,
    metaspace_tokenizer,
)

FRAMED = {name: stock for name, stock in STOCK.items() if stock not in (FORGETFUL, THINKING)}
TURNS = ("What is a cat?", "An animal.", "And a mat?", "A thing to sit on.")


def rendered(tokenizer: Any, turns: tuple[str, ...]) -> list[int]:
    """Token ids of a chat, up to where the next turn of the other side begins."""
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)
    ]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=len(turns) % 2 == 1
    )
    return encode(tokenizer, text)


def together(frame: ChatFrame, turns: list[list[int]]) -> list[int]:
    """A chat of three turns, put together from the frame."""
    first, reply, second = turns
    return [
        *frame.user_opening,
        *first,
        *frame.between,
        *reply,
        frame.assistant_end_ids[0],
        *frame.next_user,
        *second,
        *frame.between,
    ]


@pytest.mark.parametrize("name", FRAMED)
def test_a_chat_put_together_from_the_frame_is_its_rendering(name: str) -> None:
    tokenizer = FRAMED[name].tokenizer()
    frame = chat_frame(tokenizer)
    leads = ("", FRAMED[name].lead, "")
    turns = [encode(tokenizer, lead + text) for lead, text in zip(leads, TURNS, strict=False)]
    assert together(frame, turns) == rendered(tokenizer, TURNS[:3])


def test_a_frame_with_words_that_carry_their_blank() -> None:
    tokenizer = metaspace_tokenizer()
    frame = chat_frame(tokenizer)
    assert decode(tokenizer, frame.user_opening) == "<s>[INST]"
    assert decode(tokenizer, frame.between).endswith("[/INST]")
    assert decode(tokenizer, frame.assistant_end_ids) == "</s>"
    whole = rendered(tokenizer, TURNS[:1])
    user = whole[len(frame.user_opening) : -len(frame.between)]
    assert decode(tokenizer, user).strip() == TURNS[0]
    assert frame.user_text([*user, *frame.between, 5]) == user


def test_the_default_system_prompt_is_part_of_the_opening() -> None:
    tokenizer = CHATML.tokenizer()
    frame = chat_frame(tokenizer)
    assert decode(tokenizer, frame.user_opening) == (
        "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\n"
    )
    assert decode(tokenizer, frame.between) == "<|im_end|>\n<|im_start|>assistant\n"
    assert decode(tokenizer, frame.next_user) == "\n<|im_start|>user\n"


def test_eos_ends_a_turn_too_and_the_templates_own_end_comes_first() -> None:
    tokenizer = CHATML.tokenizer()
    frame = chat_frame(tokenizer)
    own = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert frame.user_end_ids == frame.assistant_end_ids == (own, tokenizer.eos_token_id)
    tokenizer.eos_token = "<|im_end|>"
    assert chat_frame(tokenizer).assistant_end_ids == (own,)


def test_the_users_text_ends_before_any_end_of_turn() -> None:
    frame = ChatFrame([1], [8, 2, 9], [3], user_end_ids=(2, 7), assistant_end_ids=(2, 7))
    assert frame.user_text([5, 6, 2, 9, 5]) == [5, 6]
    assert frame.user_text([5, 6, 8, 2]) == [5, 6]
    assert frame.user_text([5, 8, 6, 7]) == [5, 8, 6]
    assert frame.user_text([5, 6]) == [5, 6]


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (byte_tokenizer(chat_template=None), "no chat template"),
        (byte_tokenizer(), "ends a user's turn with .* no token of its own"),
        (FORGETFUL.tokenizer(), "writes a turn otherwise once|drops or rewrites what"),
        (
            byte_tokenizer(
                chat_template="{% for m in messages %}<s>{{ m['content'] | length }}</s>{% endfor %}"
            ),
            "drops or rewrites what a turn says",
        ),
        (
            byte_tokenizer(
                chat_template="{% for m in messages %}<s>{{ m['content'] }}</s>{{ loop.length }}{% endfor %}"
            ),
            "otherwise once others follow",
        ),
        (
            byte_tokenizer(
                chat_template="{% for m in messages %}<s>{{ m['content'] | upper }}</s>{% endfor %}"
            ),
            "drops or rewrites what a turn says",
        ),
    ],
    ids=["none", "no end of turn", "forgetful", "counts", "numbers the turns", "shouts"],
)
def test_what_has_no_frame_is_refused_with_the_reason(tokenizer: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        chat_frame(tokenizer)


def test_a_frame_holds_for_templates_that_write_thoughts_in_the_last_reply_only() -> None:
    """They write no reply after the last user turn, so a frame never meets them."""
    tokenizer = THINKING.tokenizer()
    turns = [encode(tokenizer, text) for text in TURNS[:3]]
    assert together(chat_frame(tokenizer), turns) == rendered(tokenizer, TURNS[:3])


@pytest.mark.parametrize("system", [None, "Be brief."], ids=["bare", "system"])
@pytest.mark.parametrize("name", FRAMED)
def test_prompts_with_replies_between_them_are_the_rendering(name: str, system: str | None) -> None:
    stock = FRAMED[name]
    tokenizer = stock.tokenizer()
    users, replies = TURNS[::2], TURNS[1::2]
    if system and (name == "mistral" or not stock.system):
        with pytest.raises(ConfigError, match=r"otherwise once others follow|not supported"):
            prompts_of_turns(tokenizer, users, system)
        return
    first, second = prompts_of_turns(tokenizer, users, system)
    written = encode(tokenizer, stock.lead + replies[0])
    end = reply_frame(tokenizer).assistant_end_ids[0]
    opening = [{"role": "system", "content": system}] if system else []
    said = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(TURNS[:3])
    ]
    text = tokenizer.apply_chat_template(opening + said, tokenize=False, add_generation_prompt=True)
    assert [*first, *written, end, *second] == encode(tokenizer, text)


def test_turns_are_answered_one_by_one_or_not_at_all_where_history_is_rewritten() -> None:
    tokenizer = FORGETFUL.tokenizer()
    (prompt,) = prompts_of_turns(tokenizer, TURNS[:1])
    assert prompt == rendered(tokenizer, TURNS[:1])
    with pytest.raises(ConfigError, match="give conversations of one turn"):
        prompts_of_turns(tokenizer, TURNS[::2])
