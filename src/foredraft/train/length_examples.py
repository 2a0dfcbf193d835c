"""Labelled positions on disk, in parts of some texts each, so that an interrupted labelling goes on.

```
labels.json            what they depend on, and the parts in order
part-00000.safetensors features  [N, 2 h] in the target's dtype
                       lengths   float32 [N]
                       roots     int32 [N]
                       places    int32 [N]
                       samples   int32 [N], counted in the order in which texts were read
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from foredraft.errors import ConfigError, DataError
from foredraft.files import replace_with, write_json
from foredraft.train.batches import collate
from foredraft.train.corpus import Corpus, Sample
from foredraft.train.length_labels import Labeller, Labels

MANIFEST = "labels.json"
FORMAT = 1
TEXTS_A_PART = 32
"""What is lost by a kill at most."""
INTEGERS = ("roots", "places", "samples")


class LabelsFolder:
    """Labels of the texts of a corpus.

    Args:
        path: made if it does not exist; labels in it are gone on with.
        facts: what the labels depend on, as JSON.

    Raises:
        ConfigError: it holds labels that were made in another way.
        DataError: what is there cannot be read.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        fresh = json.loads(json.dumps({"format": FORMAT, **facts, "parts": []}))
        if (path / MANIFEST).exists():
            self._manifest = _read_manifest(path / MANIFEST)
            self._check_same(fresh)
        else:
            path.mkdir(parents=True, exist_ok=True)
            self._manifest = fresh
            write_json(path / MANIFEST, fresh)

    @property
    def num_texts(self) -> int:
        """Texts that were read."""
        return sum(part["texts"] for part in self._manifest["parts"])

    @property
    def num_positions(self) -> int:
        """Positions that are labelled."""
        return sum(part["positions"] for part in self._manifest["parts"])

    def add(self, labels: Labels, num_texts: int) -> None:
        """Write the labels of some texts as one part; their numbers go on behind those of earlier parts."""
        name = f"part-{len(self._manifest['parts']):05d}.safetensors"
        count = len(labels.lengths)
        if count:
            tensors = {f.name: getattr(labels, f.name).cpu().contiguous() for f in fields(Labels)}
            tensors["samples"] = tensors["samples"] + self.num_texts
            tensors |= {key: tensors[key].int() for key in INTEGERS}
            with replace_with(self.path / name) as part:
                save_file(tensors, part)
        entry = {"name": name, "texts": num_texts, "positions": count}
        self._manifest = {**self._manifest, "parts": [*self._manifest["parts"], entry]}
        write_json(self.path / MANIFEST, self._manifest)

    def read(self) -> Labels:
        """All labels.

        Raises:
            DataError: there are none, or a part cannot be read.
        """
        parts = [self._part(entry) for entry in self._manifest["parts"] if entry["positions"]]
        if not parts:
            raise DataError(
                f"{self.path} holds no labelled position: no reply of the corpus is of the kind that is "
                "labelled (greedy ones at temperature 0); give another corpus"
            )
        joined = {f.name: torch.cat([part[f.name] for part in parts]) for f in fields(Labels)}
        return Labels(**joined | {key: joined[key].long() for key in INTEGERS})

    def _part(self, entry: Mapping[str, Any]) -> dict[str, Tensor]:
        file = self.path / entry["name"]
        try:
            tensors = load_file(file)
            if any(len(tensors[f.name]) != entry["positions"] for f in fields(Labels)):
                raise ValueError(f"it does not hold {entry['positions']} positions")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DataError(
                f"{file} is no part of labels ({error}); remove {self.path} and label them again"
            ) from error
        return tensors

    def _check_same(self, fresh: Mapping[str, Any]) -> None:
        for name in sorted((self._manifest.keys() | fresh.keys()) - {"parts"}):
            before, now = self._manifest.get(name), fresh.get(name)
            if before != now:
                raise ConfigError(
                    f"{self.path} holds labels that were made with {name}={before!r}, and this is "
                    f"{name}={now!r}; give the same, or another folder"
                )


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not isinstance(manifest["parts"], list):
            raise ValueError(f"format {manifest['format']!r}, and {FORMAT} is read")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error}); give another folder") from None
    return manifest


def label(
    labeller: Labeller,
    corpus: Corpus,
    folder: LabelsFolder,
    *,
    positions: int,
    max_length: int,
    tokens_per_batch: int,
    seed: int,
    report: Callable[[int], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Label texts, in an order of the seed, until enough positions are; False if it was stopped before.

    Args:
        positions: how many, about; a corpus may have fewer.
        max_length: tokens at which texts are cut.
        tokens_per_batch: of a pass at most, padding included.
        report: called with the number of positions that are done.
        stop: asked before each pass.
    """
    order = np.random.default_rng(seed).permutation(len(corpus)).tolist()
    while folder.num_positions < positions and folder.num_texts < len(order):
        chosen = order[folder.num_texts : folder.num_texts + TEXTS_A_PART]
        texts = [corpus[index] for index in chosen]
        found: list[Labels] = []
        for batch in _batches(texts, max_length, tokens_per_batch):
            if stop():
                return False
            picked = [texts[i] for i in batch]
            found.append(labeller(collate(picked, max_length, np.array(batch)).to(labeller.device)))
        folder.add(_sorted(found), len(texts))
        report(folder.num_positions)
    return True


def _batches(texts: Sequence[Sample], max_length: int, tokens: int) -> Iterator[list[int]]:
    """Texts of similar length together, as many as fit once padded."""
    lengths = [min(len(text.token_ids), max_length) for text in texts]
    batch: list[int] = []
    for i in sorted(range(len(texts)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _sorted(found: Sequence[Labels]) -> Labels:
    """Joined, text by text and place by place."""
    joined = {f.name: torch.cat([getattr(part, f.name) for part in found]) for f in fields(Labels)}
    order = np.lexsort((joined["places"].cpu().numpy(), joined["samples"].cpu().numpy()))
    index = torch.from_numpy(order).to(joined["lengths"].device)
    return Labels(**{name: tensor[index] for name, tensor in joined.items()})


@dataclass(frozen=True, slots=True)
class Split:
    """Which positions are trained on, choose and report, bool [N] each."""

    train: Tensor
    choosing: Tensor
    reporting: Tensor


def split(labels: Labels, share: float) -> Split:
    """Whole texts, evenly spaced; the held-out ones in two halves: what one half chose, the other reports.

    Raises:
        DataError: one of the three is empty.
    """
    number = labels.samples.double()
    held_out = ((number + 1) * share).floor() > (number * share).floor()
    texts, place = torch.unique(labels.samples[held_out], return_inverse=True)
    if len(texts) < 2 or bool(held_out.all()):
        raise DataError(
            f"the labelled texts leave too few to train on, to choose by and to report on at "
            f"held_out={share:g}; label more positions"
        )
    reporting = torch.zeros_like(held_out)
    reporting[held_out] = place % 2 == 1
    return Split(~held_out, held_out & ~reporting, reporting)
