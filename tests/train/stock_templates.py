"""Chat templates as the well-known model families have them, and tokenizers that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny_folders import SPECIAL_TOKENS, byte_tokenizer

_TURN = "{% for message in messages %}"
_REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
)


@dataclass(frozen=True)
class Stock:
    """A template, the tokens it needs, and what it writes.

    Attributes:
        trims: whether replies lose the blanks around them.
        system: whether a system prompt is taken.
        samples: samples that a conversation of three replies becomes, without and with a system prompt.
        lead: what stands in front of a reply that is the model's to write.
    """

    template: str
    specials: tuple[str, ...]
    end: str
    trims: bool = False
    system: bool = True
    samples: tuple[int, int] = (1, 1)
    lead: str = ""

    def tokenizer(self, **options: Any) -> Any:
        """A byte-level tokenizer with these special tokens and this template."""
        made = byte_tokenizer(chat_template=self.template, **options)
        made.add_tokens(list(self.specials), special_tokens=True)
        return made


CHATML = Stock(
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
)
LLAMA3 = Stock(
    "{{ '<s>' }}" + _TURN + "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|eot_id|>",
    trims=True,
)
GEMMA = Stock(
    "{{ '<s>' }}" + _REFUSES_SYSTEM + _TURN + "{% if (message['role'] == 'assistant') %}"
    "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ("<start_of_turn>", "<end_of_turn>"),
    "<end_of_turn>",
    trims=True,
    system=False,
)
MISTRAL = Stock(
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{{ '<s>' }}{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.last or (loop.length - loop.index == 1 and not "
    "add_generation_prompt) else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + '</s>' }}{% endif %}{% endfor %}",
    ("[INST]", "[/INST]"),
    "</s>",
    trims=True,
    samples=(1, 3),
    lead=" ",
)
"""The system prompt stands in the last user turn."""
ZEPHYR = Stock(
    _TURN + "{{ '<|' + message['role'] + '|>\n' + message['content'] + '</s>\n' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    (),
    "</s>",
)
"""The headers are text."""
MARKED = Stock(
    _TURN + "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    CHATML.specials,
    CHATML.end,
)
"""With generation blocks."""
FORGETFUL = Stock(
    _TURN
    + "{% if message['role'] != 'assistant' or loop.last %}{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    CHATML.specials,
    CHATML.end,
    samples=(3, 3),
)
"""Earlier replies are dropped."""
THINKING = Stock(
    _TURN
    + "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' and loop.last %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    (*CHATML.specials, "<think>", "</think>"),
    CHATML.end,
    samples=(3, 3),
    lead="<think>\n\n</think>\n\n",
)
"""Thoughts stand in the last reply only."""

STOCK = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "zephyr": ZEPHYR,
    "marked": MARKED,
    "forgetful": FORGETFUL,
    "thinking": THINKING,
}


def metaspace_tokenizer() -> Any:
    """Words that carry the blank before them, as SentencePiece writes them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    special = [*SPECIAL_TOKENS, "<unk>", *MISTRAL.specials]
    text = (
        "What is a cat? An animal. And a mat? A thing to sit on. Why is that 7 plus 2? Éva said no. zero (0) "
        "Tell me more Sure thing And now what ▁ Question 0? 1? 2?"
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 4, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    made.add_tokens(special, special_tokens=True)
    made.chat_template = MISTRAL.template
    return made
