"""Small vocabularies of every family, built in code, and the ways a token sequence can be cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from foredraft.engine.text import Decode, IncrementalText, find_stray_byte

SCRIPTS = {
    "emoji": "ok 😀😀 done",
    "zwj": "a family 👨‍👩‍👧‍👦!",
    "hangul": "안녕하세요 세계",
    "devanagari": "नमस्ते दुनिया",
    "mixed": "naïve\n\n\tcafé — 東京 🚀\n",
}
BROKEN_BYTES = b"A\xf0\x9f\x98\x80\xff"
"""A letter, the four bytes of an emoji, and a byte that is never part of a character."""
CORPUS = ["the cat sat on the mat", "a stop\nUser: ionized gas", *SCRIPTS.values()]


@dataclass(frozen=True)
class Vocabulary:
    """Token ids below `size`, and what they mean."""

    size: int
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    byte_ids: Sequence[int] = ()
    """Token id of each byte, where there are such tokens."""

    def of_bytes(self, data: bytes) -> list[int]:
        """One token a byte."""
        return [self.byte_ids[byte] for byte in data]

    def sequences(self, max_size: int = 40) -> st.SearchStrategy[list[int]]:
        """Texts, garbage, and texts with garbage between them."""
        garbage = st.lists(st.integers(0, self.size - 1), max_size=40)
        texts = st.sampled_from(CORPUS).map(self.encode)
        broken = st.lists(st.sampled_from(BROKEN_BYTES), max_size=40 if self.byte_ids else 0)
        parts = st.lists(st.one_of(garbage, texts, broken.map(self.of_bytes)), max_size=4)
        return parts.map(lambda p: [token for part in p for token in part][:max_size])


def _of(tokenizer: Tokenizer, byte_tokens: Sequence[str] = ()) -> Vocabulary:
    return Vocabulary(
        tokenizer.get_vocab_size(),
        tokenizer.decode,
        lambda text: tokenizer.encode(text).ids,
        [tokenizer.token_to_id(token) for token in byte_tokens],
    )


def _byte_level() -> Vocabulary:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("\ufffd", normalized=False)])
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    symbols = {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}
    return _of(tokenizer, [symbols[byte] for byte in range(256)])


def _byte_fallback(decoder: decoders.Decoder) -> Vocabulary:
    specials = ("<unk>", "<s>", "</s>")
    pieces = ("▁", "▁the", "▁cat", "▁on", "▁▁", "the", "ionized", "▁ionized", "\ufffd", "é")
    letters = tuple("abcdefghijklmnopqrstuvwxyzU:!")
    byte_tokens = tuple(f"<0x{byte:02X}>" for byte in range(256))
    scores = {specials: 0.0, byte_tokens: -20.0, pieces: -1.0, letters: -5.0}
    scored = [(token, score) for tokens, score in scores.items() for token in tokens]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(specials))
    return _of(tokenizer, byte_tokens)


def _word_piece() -> Vocabulary:
    words = ["[UNK]", "the", "cat", "sat", "on", "mat", "a", "##s", "##ing", "stop", "##ped"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _of(tokenizer)


def _with_each_broken_byte_replaced(token_ids: Sequence[int]) -> str:
    """As sentencepiece does it: no replacement character stands for more than one byte."""
    return re.sub("[\udc80-\udcff]", "\ufffd", bytes(token_ids).decode("utf-8", "surrogateescape"))


BYTES = Vocabulary(
    256,
    lambda ids: bytes(ids).decode("utf-8", "replace"),
    lambda text: list(text.encode()),
    range(256),
)
EACH_BYTE = replace(BYTES, decode=_with_each_broken_byte_replaced)
LLAMA_DECODER = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
METASPACE_DECODER = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
VOCABULARIES = {
    "bytes": BYTES,
    "each-byte": EACH_BYTE,
    "byte-level": _byte_level(),
    "llama": _byte_fallback(LLAMA_DECODER),
    "metaspace": _byte_fallback(METASPACE_DECODER),
    "wordpiece": _word_piece(),
}


def incremental(decode: Decode) -> IncrementalText:
    """A fresh text over a vocabulary."""
    return IncrementalText(decode, find_stray_byte(decode))


def in_blocks(token_ids: Sequence[int], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut a sequence into blocks whose sizes repeat `sizes`."""
    start = turn = 0
    while start < len(token_ids):
        end = start + sizes[turn % len(sizes)]
        yield token_ids[start:end]
        start, turn = end, turn + 1


BLOCK_SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
