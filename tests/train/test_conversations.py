"""The masks of conversations: what the assistant wrote, for each chat template, or an error that says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import ConfigError
from foredraft.train.conversations import Exchange, LabelledTokens, Labeller, Tally, join
from foredraft.train.templates import decode, encode
from tests.tiny_folders import byte_tokenizer
from tests.train.stock_templates import (
    CHATML,
    GEMMA,
    LLAMA3,
    MARKED,
    STOCK,
    Stock,
    metaspace_tokenizer,
)

REPLIES = ["the cat sat on the mat.", "  two\n\nparagraphs? ", "¿Qué? 12 日本"]


def conversation(num_replies: int, system: bool = False) -> list[dict[str, str]]:
    """Alternating turns, each question another."""
    messages = [{"role": "system", "content": "Be brief."}] if system else []
    for index, reply in enumerate(REPLIES[:num_replies]):
        messages += [
            {"role": "user", "content": f"Question {index}?"},
            {"role": "assistant", "content": reply},
        ]
    return messages


def masked_texts(tokenizer: Any, samples: list[LabelledTokens]) -> list[str]:
    """What the spans decode to."""
    return [
        decode(tokenizer, sample.token_ids[first:stop])
        for sample in samples
        for first, stop in sample.spans
    ]


@pytest.mark.parametrize("num_replies", [1, 2, 3])
@pytest.mark.parametrize("system", [False, True], ids=["bare", "system"])
@pytest.mark.parametrize("name", STOCK)
def test_masks_decode_exactly_to_the_replies(name: str, system: bool, num_replies: int) -> None:
    stock = STOCK[name]
    tokenizer = stock.tokenizer()
    messages = conversation(num_replies, system)
    if system and not stock.system:
        with pytest.raises(ConfigError, match="System role not supported"):
            Labeller(tokenizer).label(messages)
        return
    samples = Labeller(tokenizer).label(messages)
    replies = [reply.strip() if stock.trims else reply for reply in REPLIES[:num_replies]]
    assert masked_texts(tokenizer, samples) == [stock.lead + r + stock.end for r in replies]
    assert len(samples) == min(num_replies, stock.samples[system])


@pytest.mark.parametrize("name", STOCK)
def test_each_reply_stands_behind_the_prompt_that_the_model_would_get(name: str) -> None:
    tokenizer = STOCK[name].tokenizer()
    messages = conversation(3)
    prompts = [
        encode(
            tokenizer,
            tokenizer.apply_chat_template(messages[:k], tokenize=False, add_generation_prompt=True),
        )
        for k in (1, 3, 5)
    ]
    samples = Labeller(tokenizer).label(messages)
    starts = [sample.token_ids[:first] for sample in samples for first, _ in sample.spans]
    assert starts == prompts


def test_a_conversation_ends_with_its_last_reply() -> None:
    tokenizer = CHATML.tokenizer()
    messages = conversation(1)
    asked = [*messages, {"role": "user", "content": "And?"}]
    assert Labeller(tokenizer).label(asked) == Labeller(tokenizer).label(messages)


def test_tokens_that_run_over_the_start_of_a_reply_are_kept_apart() -> None:
    """' the' is one token; the model gets 'bot: ' and writes 'the'."""
    template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = byte_tokenizer(chat_template=template, words=("Ġthe", "the"))
    assert len(encode(tokenizer, ": the")) < len(encode(tokenizer, ": ")) + 1
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "the end"}]
    samples = Labeller(tokenizer).label(messages)
    assert masked_texts(tokenizer, samples) == ["the end</s>"]
    (sample,) = samples
    assert decode(tokenizer, sample.token_ids) == "user: Q</s>assistant: the end</s>"


def test_tokens_that_cannot_be_kept_apart_are_refused() -> None:
    """Words carry the blank before them, so 'that' behind 'And what ' would get a second blank."""
    tokenizer = metaspace_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'And what ' + m['content'] + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'And what ' }}{% endif %}"
    )
    messages = [{"role": "user", "content": "Why"}, {"role": "assistant", "content": "that"}]
    with pytest.raises(ConfigError, match=r"run into those before it, .*And what ' into 'that"):
        Labeller(tokenizer).label(messages)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        (
            "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant] {% endif %}",
            r"ends a reply with '\\n', which begins with no token of its own",
        ),
        (
            "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '</s>' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant:<think>{% endif %}",
            "ends a prompt with 'user:Question 0\\?</s>assistant:<think>'|ends a prompt with .*<think>",
        ),
        (
            "{% for m in messages %}{{ m['role'] + ':' + (m['content'] | upper) + '</s>' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}",
            "writes the reply 'the cat sat on the mat.' as 'THE CAT",
        ),
    ],
    ids=["none", "no end", "opens with a thought", "shouts"],
)
def test_what_cannot_be_masked_is_refused_with_the_reason(
    template: str | None, reason: str
) -> None:
    tokenizer = byte_tokenizer(chat_template=template)
    with pytest.raises(ConfigError, match=reason):
        Labeller(tokenizer).label(conversation(1))


def test_a_reply_that_contains_its_end_is_refused() -> None:
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "a<|im_end|>b"},
    ]
    with pytest.raises(ConfigError, match=r"contains '<\|im_end\|>'"):
        Labeller(CHATML.tokenizer()).label(messages)


def test_a_conversation_without_a_reply_is_refused() -> None:
    with pytest.raises(ConfigError, match="no reply to learn from"):
        Labeller(CHATML.tokenizer()).label([{"role": "user", "content": "Q"}])


def marked_with(old: str, new: str) -> Any:
    """The marked template with a change."""
    assert old in MARKED.template
    return Stock(MARKED.template.replace(old, new), MARKED.specials, MARKED.end).tokenizer()


def test_markers_serve_where_the_prompt_is_no_prefix() -> None:
    tokenizer = marked_with("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>' }}")
    samples = Labeller(tokenizer).label(conversation(3))
    assert masked_texts(tokenizer, samples) == [reply + MARKED.end for reply in REPLIES]


@pytest.mark.parametrize(
    "ending",
    [
        "}}{% endgeneration %}{{ '<|im_end|>' }}",
        "+ '<|im_end|>\n\n' }}{% endgeneration %}",
    ],
    ids=["end left out", "blanks behind it"],
)
def test_markers_are_brought_to_the_end_of_the_turn(ending: str) -> None:
    tokenizer = marked_with("+ '<|im_end|>' }}{% endgeneration %}", ending)
    samples = Labeller(tokenizer).label(conversation(2))
    assert masked_texts(tokenizer, samples) == [reply + MARKED.end for reply in REPLIES[:2]]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "{% generation %}{{ message['content']",
            "{{ message['content'][:3] }}{% generation %}{{ message['content'][3:]",
            "writes the reply",
        ),
        (
            "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
            "{% generation %}{{",
            "{{ '<|im_start|>' }}{% if message['role'] == 'assistant' %}{% generation %}"
            "{{ message['role'] + '\n' +",
            "where a model would write",
        ),
    ],
    ids=["too late", "too early"],
)
def test_wrong_markers_are_refused(old: str, new: str, reason: str) -> None:
    tokenizer = marked_with(old, new)
    with pytest.raises(ConfigError, match=reason):
        Labeller(tokenizer).label(conversation(2))


_CHARACTERS = st.characters(codec="utf-8", exclude_characters="<")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1),
        min_size=1,
        max_size=3,
    )
)
def test_any_replies_are_masked_exactly(replies: list[str]) -> None:
    for stock in (CHATML, LLAMA3, GEMMA):
        tokenizer = _TOKENIZERS[stock.end]
        messages = []
        for reply in replies:
            messages += [
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": reply},
            ]
        texts = masked_texts(tokenizer, Labeller(tokenizer).label(messages))
        written = [reply.strip() if stock.trims else reply for reply in replies]
        assert texts == [text + stock.end for text in written]


_TOKENIZERS = {stock.end: stock.tokenizer() for stock in (CHATML, LLAMA3, GEMMA)}


def test_exchanges_join_where_the_next_prompt_repeats_them() -> None:
    grows = [Exchange([1, 2], [3, 4]), Exchange([1, 2, 3, 4, 5], [6])]
    assert join(grows) == [LabelledTokens([1, 2, 3, 4, 5, 6], ((2, 4), (5, 6)))]
    breaks = [*grows, Exchange([1, 2, 9], [7])]
    assert join(breaks) == [*join(grows), LabelledTokens([1, 2, 9, 7], ((3, 4),))]


def test_cutting_keeps_ids_and_spans_aligned() -> None:
    sample = LabelledTokens(list(range(10)), ((2, 4), (6, 9)))
    assert sample.cut(7) == LabelledTokens(list(range(7)), ((2, 4), (6, 7)))
    assert sample.cut(6) == LabelledTokens(list(range(6)), ((2, 4),))
    assert sample.cut(3) == LabelledTokens([0, 1, 2], ((2, 3),))
    assert sample.cut(2) is None
    assert sample.cut(10) == sample


def test_the_tally_counts_what_is_cut_and_what_is_lost() -> None:
    tally = Tally(max_length=4)
    short, long, lost = ([0, 1, 2], (1, 3)), (list(range(8)), (2, 6)), (list(range(8)), (4, 8))
    kept = [tally.fit(LabelledTokens(ids, (span,))) for ids, span in (short, long, lost)]
    assert [sample and sample.spans for sample in kept] == [((1, 3),), ((2, 4),), None]
    assert (tally.samples, tally.truncated, tally.dropped) == (2, 1, 1)
    assert (tally.tokens, tally.labelled, tally.labelled_share) == (7, 4, 4 / 7)
