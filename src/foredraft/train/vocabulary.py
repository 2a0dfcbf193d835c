"""The draft vocabulary: the tokens that a corpus' answers use most, so that a drafter's head can be small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import ConfigError, DataError
from foredraft.train.batches import Samples

DRAFT_VOCAB = 8192
"""Tokens of a drafter's head where the user asks for no number."""


def draft_vocabulary(
    corpus: Samples, size: int, vocab_size: int, always: Sequence[int] = ()
) -> Tensor:
    """The most frequent tokens of what the assistant wrote; of equally frequent ones the lowest ids.

    Args:
        corpus: the samples.
        size: Vd, how many tokens.
        vocab_size: V of the target.
        always: tokens that are among them however rare, such as the model's end tokens.

    Returns:
        int64 [Vd], increasing.

    Raises:
        ConfigError: a size that is not possible.
        DataError: nothing is labelled, or a token is not in the target's vocabulary.
    """
    return most_frequent(token_counts(corpus, vocab_size), size, always)


def most_frequent(counts: NDArray[np.int64], size: int, always: Sequence[int] = ()) -> Tensor:
    """`draft_vocabulary` from counts, int64 [V], that are known already."""
    least, most = len(set(always)) + 1, len(counts)
    if not least <= size <= most:
        raise ConfigError(
            f"a draft vocabulary of {size} tokens is not possible; give {least} to {most}, the target's"
        )
    ranking = counts.copy()
    ranking[list(always)] = np.iinfo(np.int64).max
    return torch.from_numpy(np.sort(np.argsort(-ranking, kind="stable")[:size]))


def coverage(counts: NDArray[np.int64], draft_ids: Tensor) -> float:
    """The share of what the assistant wrote, by counts, int64 [V], that a draft vocabulary has."""
    return float(counts[draft_ids.numpy()].sum() / counts.sum())


def token_counts(corpus: Samples, vocab_size: int) -> NDArray[np.int64]:
    """int64 [V], how often the assistant wrote each token. Errors as in `draft_vocabulary`."""
    counts = np.zeros(vocab_size, np.int64)
    for index in range(len(corpus)):
        sample = corpus[index]
        for first, stop in sample.spans:
            found = np.bincount(sample.token_ids[first:stop], minlength=vocab_size)
            if len(found) > vocab_size:
                raise DataError(
                    f"sample {index} of the corpus has token {len(found) - 1}, and the model has "
                    f"{vocab_size}; give the corpus of this model, or make one"
                )
            counts += found
    if not counts.any():
        raise DataError(
            "the corpus labels no token as the assistant's, so there is nothing to learn; make it again"
        )
    return counts
