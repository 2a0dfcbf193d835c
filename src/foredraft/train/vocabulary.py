"""The draft vocabulary: the tokens that a corpus' answers use most, so that a drafter's head can be small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import ConfigError, DataError
from foredraft.train.batches import Samples


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
    if not len(set(always)) < size <= vocab_size:
        raise ConfigError(
            f"a draft vocabulary of {size} tokens is not possible; give more than {len(set(always))} and at "
            f"most {vocab_size}, the target's"
        )
    counts = token_counts(corpus, vocab_size)
    counts[list(always)] = np.iinfo(np.int64).max
    most = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(most))


def coverage(corpus: Samples, draft_ids: Tensor, vocab_size: int) -> float:
    """The share of what the assistant wrote that a draft vocabulary has."""
    counts = token_counts(corpus, vocab_size)
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
