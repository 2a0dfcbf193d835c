"""Model folders as users have them: a tiny Llama with a byte-level tokenizer, saved to disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from tests.tiny_models import tiny_llama

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
"""Ids 0, 1 and 2, as the tiny models have them."""
WORDS = ("the", "cat", "sat", "on", "mat")
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

logging.disable_progress_bar()


def byte_tokenizer(
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    words: Sequence[str] = WORDS,
    chat_template: str | None = CHAT_TEMPLATE,
    adds_bos: bool = False,
) -> PreTrainedTokenizerFast:
    """Special tokens, the 256 bytes, then the words, each with the merges that lead to it."""
    tokens = [*special_tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    pad, bos, eos = special_tokens
    if adds_bos:
        tokenizer.post_processor = TemplateProcessing(f"{bos} $A", special_tokens=[(bos, 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=pad)
    made.chat_template = chat_template
    return made


def save_folder(folder: Path, tokenizer: Any | None = None, **changes: Any) -> Path:
    """A tiny Llama and its tokenizer, as `save_pretrained` writes them."""
    tokenizer = tokenizer or byte_tokenizer()
    tiny_llama(**{"vocab_size": len(tokenizer)} | changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
