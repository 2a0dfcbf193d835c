"""How likely tokens are by the model alone: read off logits that decoding has at hand anyway."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.protocols import ModelState
from foredraft.results import TokenLogprob

PROMPT_ROWS = 128
"""Tokens of one prompt in a pass whose logits are read: 128 rows of 256k tokens are 128 MB in float32."""


def logprobs_of(logits: Tensor, token_ids: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """The log-probability of each token, and the `count` most likely ones at its place.

    Args:
        logits: [N, V] the model's own, any float dtype; row i is the law of token i.
        token_ids: [N] tokens.
        count: from 0; more than V are V.
    """
    laws = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    chosen = laws.gather(-1, torch.tensor(token_ids, device=laws.device)[:, None])[:, 0].tolist()
    top = laws.topk(min(count, laws.shape[-1]), dim=-1)
    likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(
        TokenLogprob(token_id, logprob, tuple(zip(*row, strict=True)))
        for token_id, logprob, row in zip(token_ids, chosen, likeliest, strict=True)
    )


def read_prompt(
    target: ModelState, token_ids: Sequence[int], count: int
) -> tuple[TokenLogprob | None, ...]:
    """Commit a prompt but for its last token, as a prefill does, and read the logits on the way.

    Args:
        target: an empty state.
        token_ids: [T] the prompt, the last token included.
        count: as in `logprobs_of`.

    Returns:
        [T] log-probabilities; None for the first token, which follows nothing.
    """
    read: list[TokenLogprob | None] = [None]
    for start in range(0, len(token_ids) - 1, PROMPT_ROWS):
        rows = token_ids[start : min(start + PROMPT_ROWS, len(token_ids) - 1)]
        logits = target.score(rows, range(-1, len(rows) - 1))
        read += logprobs_of(logits, token_ids[start + 1 : start + 1 + len(rows)], count)
        target.commit(range(len(rows)))
    return tuple(read)


class AnswerLogprobs:
    """Log-probabilities of one answer's tokens, round by round.

    Of a tree with open roots the first token is a root. Its law is the one after the path before, so
    those logits are kept from round to round.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: Tensor | None = None

    def keep(self, logits: Tensor) -> None:
        """Take the logits [1, V] of the first roots; of answers without open roots this is never called."""
        self._kept = logits

    def take(self, logits: Tensor, token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """What one round emitted.

        Args:
            logits: [A + 1, V] after each node of the accepted path; [0, V] for a root that ends the answer.
            token_ids: the tokens that belong to the answer, from the first.
        """
        if self._kept is not None:
            logits = torch.cat((self._kept, logits.to(self._kept.device)))
            self._kept = logits[-1:]
        return logprobs_of(logits[: len(token_ids)], token_ids, self._count)
