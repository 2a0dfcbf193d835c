"""What `foredraft data` prints about a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foredraft.errors import DataError

if TYPE_CHECKING:
    from foredraft.train.corpus import Corpus, Sample, Unfinished

LEAST_SHARE, MOST_SHARE = 0.1, 0.95
"""Shares of tokens to learn from that are as a rule no mistake."""


def show_corpus(corpus: Corpus, num_samples: int, console: Console) -> None:
    """A table of the corpus, then some of its samples, spread over it."""
    table = Table(show_header=False, box=None)
    for name, value in _rows(corpus):
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)
    if num_samples and len(corpus):
        tokenizer = _tokenizer(corpus)
        for index in _spread(num_samples, len(corpus)):
            console.print(Text(f"\nconversation {index}", style="bold"))
            console.print(_decoded(corpus[index], tokenizer))


def unfinished_line(corpus: Corpus) -> str | None:
    """That a corpus is unfinished, how far it is and how to go on, in one sentence; None if it is whole."""
    left = corpus.unfinished
    if left is None:
        return None
    asked = "" if left.tokens is None else f" of the {left.tokens:,} asked for"
    way_on = "the same plan" if left.command is None else f"`{left.command}`"
    return (
        f"{corpus.folder} is unfinished, with {corpus.num_tokens:,} tokens{asked}; {way_on} goes on"
    )


def warnings_of(corpus: Corpus, wanted: int | None, without_states: int = 0) -> Iterator[str]:
    """What a user should know before training on it.

    Args:
        corpus: the corpus.
        wanted: tokens that were asked for, if they were.
        without_states: shards that lack the hidden states that were asked for.
    """
    share = corpus.num_labelled / max(1, corpus.num_tokens)
    if not LEAST_SHARE <= share <= MOST_SHARE:
        yield (
            f"{share:.0%} of the tokens are replies; a drafter learns from those only, and between "
            f"{LEAST_SHARE:.0%} and {MOST_SHARE:.0%} is usual: look at `foredraft data show {corpus.folder}`"
        )
    parts = corpus.manifest.get("joined", [corpus.manifest])
    if any(part.get("answers") == "keep" for part in parts):
        which = "the" if len(parts) == 1 else "some"
        yield (
            f"{which} replies are not the target's own, and a drafter of theirs is accepted less often; "
            "--answers generate has the target reply to the same prompts"
        )
    if without_states:
        yield (
            f"{without_states} of {len(corpus.manifest['shards'])} shards were written without the hidden "
            "states asked for; the first epoch of a training will compute theirs"
        )
    if wanted is not None and corpus.num_tokens < wanted:
        yield f"the prompts are at their end with {corpus.num_tokens:,} of {wanted:,} tokens"


def _rows(corpus: Corpus) -> Iterator[tuple[str, str]]:
    manifest, lengths = corpus.manifest, corpus.lengths
    yield "corpus", str(corpus.folder)
    if corpus.unfinished is not None:
        yield from _left(corpus.num_tokens, corpus.unfinished)
    yield "model", str(manifest.get("model", "unknown"))
    if "prompts" in manifest:
        kept = manifest.get("answers") == "keep"
        yield "prompts", f"{manifest['prompts']}, replies {'kept' if kept else 'by the model'}"
    shards = len(manifest["shards"])
    yield "conversations", f"{len(corpus):,} in {shards} shard{'' if shards == 1 else 's'}"
    if not len(corpus):
        return
    yield "tokens", f"{corpus.num_tokens:,}"
    yield (
        "replies",
        f"{corpus.num_labelled:,} tokens, {corpus.num_labelled / corpus.num_tokens:.0%}",
    )
    yield "lengths", f"mean {lengths.mean():.0f}, longest {lengths.max()} tokens"
    if "end_ids" in manifest:
        yield "cut", f"{_num_cut(corpus):,} end in the middle of a reply"
    yield "dropped", f"{sum(s.get('dropped', 0) for s in manifest['shards']):,} without a reply"


def _left(tokens: int, left: Unfinished) -> Iterator[tuple[str, str]]:
    done = f"{tokens:,} tokens, until the prompts are at their end"
    if left.tokens is not None:
        done = f"{tokens:,} of {left.tokens:,} tokens, {min(1, tokens / left.tokens):.0%}"
    yield "unfinished", done
    yield "go on with", left.command or "the same plan (it was not made from the command line)"


def _num_cut(corpus: Corpus) -> int:
    """Conversations whose last reply has no end-of-turn token: the length limit came first."""
    ends = set(corpus.manifest["end_ids"])
    return sum(int(sample.token_ids[sample.spans[-1][1] - 1]) not in ends for sample in corpus)


def _spread(count: int, total: int) -> list[int]:
    count = min(count, total)
    return [i * total // count for i in range(count)]


def _tokenizer(corpus: Corpus) -> Any:
    from transformers import AutoTokenizer

    from foredraft.train.data import TOKENIZER

    folder = corpus.folder / TOKENIZER
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds no tokenizer that can be read, so texts cannot be shown; --samples 0 leaves "
            "them out"
        ) from error


def _decoded(sample: Sample, tokenizer: Any) -> Text:
    """The text, with what the assistant wrote in brackets and in colour."""
    text, at = Text(), 0
    for first, stop in sample.spans:
        text.append(tokenizer.decode(sample.token_ids[at:first].tolist()))
        text.append(f"⟦{tokenizer.decode(sample.token_ids[first:stop].tolist())}⟧", style="green")
        at = stop
    return text.append(tokenizer.decode(sample.token_ids[at:].tolist()))
