"""Numbers come to the host as they are, alone or together."""

from __future__ import annotations

import torch

from foredraft.sampling import transfer
from foredraft.sampling.transfer import to_host


def test_packed_numbers_are_the_same_numbers() -> None:
    """Whole numbers, halves, infinities and NaN survive the way through float64."""
    ids = torch.tensor([[2**40 + 1, -1], [7, 0]])
    values = torch.tensor([[0.1, -torch.inf], [3.0, 1e-30]])
    halves = torch.tensor([1.5, 65504.0], dtype=torch.bfloat16)
    packed = transfer.packed((ids, values, halves))
    assert (
        packed == (ids.tolist(), values.tolist(), halves.tolist()) == to_host(ids, values, halves)
    )
    (numbers,) = transfer.packed((torch.tensor([torch.nan]),))
    assert numbers[0] != numbers[0]
