"""One sequence's hidden states for several readers: each has taps and a place in the text of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.protocols.target import TakeFeatures


def union_of(taps: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Every tap of any reader once; the first reader's come first and in its order."""
    return tuple(dict.fromkeys(tap for own in taps for tap in own))


def shared(take: TakeFeatures, taps: Sequence[Sequence[int]]) -> list[TakeFeatures]:
    """What each reader calls for its features.

    Args:
        take: gives the features of all committed tokens, of the taps of `union_of(taps)`.
        taps: of each reader.
    """
    if len(taps) == 1:
        return [take]
    source = _Source(take, union_of(taps))
    readers = [_Reader(source, own) for own in taps]
    source.readers = readers
    return [reader.take for reader in readers]


class _Source:
    """Hands what is new to every reader."""

    def __init__(self, take: TakeFeatures, taps: tuple[int, ...]) -> None:
        self._take, self._taps = take, taps
        self.readers: list[_Reader] = []

    def pull(self) -> None:
        """Cut what is new by taps, for each reader to take when it likes."""
        new = self._take()
        size = new.shape[-1] // len(self._taps)
        for reader in self.readers:
            places = [self._taps.index(tap) for tap in reader.taps]
            parts = [new[:, place * size : (place + 1) * size] for place in places]
            reader.waiting.append(torch.cat(parts, -1))


class _Reader:
    """What one reader has not taken yet."""

    def __init__(self, source: _Source, taps: Sequence[int]) -> None:
        self._source, self.taps = source, tuple(taps)
        self.waiting: list[Tensor] = []

    def take(self) -> Tensor:
        """Features [n, F] of the tokens committed since this reader's last call, oldest first."""
        self._source.pull()
        taken = torch.cat(self.waiting)
        self.waiting.clear()
        return taken
