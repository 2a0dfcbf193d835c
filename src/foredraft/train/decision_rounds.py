"""Recorded rounds on disk: in parts of some prompts each, so that an interrupted recording goes on.

```
rounds.json            what they were recorded with, and the parts in order
part-00000.safetensors features  float32 [R, inputs], or bfloat16 where that loses nothing
                       labels    float32 [R]
                       depths    int16 [R]
                       rounds    int32 [R], counted from 0 in each part
                       prompts   int32 [R], counted from 0 in all
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, DataError
from foredraft.files import replace_with, write_json
from foredraft.train.corpus import Corpus
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_recording import Recorder, RoundRows

MANIFEST = "rounds.json"
FORMAT = 1
PROMPTS_A_PART = 20
"""What is lost by a kill at most."""


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """All rows of a recording, in order; R rows. Attributes as in `RoundRows`, and:

    Attributes:
        rounds: int64 [R] round of each row.
        prompts: int64 [R] prompt of each row.
    """

    features: Tensor
    labels: Tensor
    depths: Tensor
    rounds: Tensor
    prompts: Tensor


class RoundsFolder:
    """A recording.

    Args:
        path: made if it does not exist; a recording in it is gone on with.
        facts: what the rounds depend on, as JSON.

    Raises:
        ConfigError: it holds rounds that were recorded in another way.
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
    def num_prompts(self) -> int:
        """Prompts that are recorded."""
        return sum(part["prompts"] for part in self._manifest["parts"])

    def add(self, answers: Sequence[Sequence[RoundRows]]) -> None:
        """Write the rounds of some prompts as one part."""
        rounds = [rows for answer in answers for rows in answer]
        prompts = [
            self.num_prompts + i
            for i, answer in enumerate(answers)
            for rows in answer
            for _ in rows.labels
        ]
        name = f"part-{len(self._manifest['parts']):05d}.safetensors"
        if rounds:
            tensors = {
                "features": _compact(torch.cat([rows.features for rows in rounds])),
                "labels": torch.cat([rows.labels for rows in rounds]),
                "depths": torch.cat([rows.depths for rows in rounds]),
                "rounds": torch.tensor(
                    [i for i, rows in enumerate(rounds) for _ in rows.labels], dtype=torch.int32
                ),
                "prompts": torch.tensor(prompts, dtype=torch.int32),
            }
            with replace_with(self.path / name) as part:
                save_file(tensors, part)
        entry = {"name": name, "prompts": len(answers), "rounds": len(rounds), "rows": len(prompts)}
        self._manifest = {**self._manifest, "parts": [*self._manifest["parts"], entry]}
        write_json(self.path / MANIFEST, self._manifest)

    def read(self, num_prompts: int) -> RecordedRows:
        """Every row of the first prompts.

        Raises:
            DataError: there is none, or a part cannot be read.
        """
        parts, first = [], 0
        for entry in self._manifest["parts"]:
            if entry["rows"]:
                tensors = self._read_part(entry)
                parts.append({**tensors, "rounds": tensors["rounds"].long() + first})
                first += entry["rounds"]
        if not parts:
            raise DataError(
                f"{self.path} holds no recorded round; give more prompts or longer answers"
            )
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        mine = joined["prompts"] < num_prompts
        joined = {name: values[mine] for name, values in joined.items()}
        return RecordedRows(
            joined["features"].float(),
            joined["labels"],
            joined["depths"].long(),
            joined["rounds"],
            joined["prompts"].long(),
        )

    def _read_part(self, entry: Mapping[str, Any]) -> dict[str, Tensor]:
        file = self.path / entry["name"]
        try:
            tensors = load_file(file)
            names = ("features", "labels", "depths", "rounds", "prompts")
            if any(len(tensors[name]) != entry["rows"] for name in names):
                raise ValueError(f"it does not hold {entry['rows']} rows")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DataError(
                f"{file} is no part of recorded rounds ({error}); remove {self.path} and record them again"
            ) from error
        return tensors

    def _check_same(self, fresh: Mapping[str, Any]) -> None:
        for name in sorted((self._manifest.keys() | fresh.keys()) - {"parts"}):
            before, now = self._manifest.get(name), fresh.get(name)
            if before != now:
                raise ConfigError(
                    f"{self.path} holds rounds that were recorded with {name}={before!r}, and this is "
                    f"{name}={now!r}; give the same, or another folder"
                )


def _compact(features: Tensor) -> Tensor:
    """In half the room, where the drafter computes in bfloat16."""
    half = features.to(torch.bfloat16)
    return half if torch.equal(half.float(), features) else features


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not isinstance(manifest["parts"], list):
            raise ValueError(f"format {manifest['format']!r}, and {FORMAT} is read")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error}); give another folder") from None
    return manifest


def prompts_of(corpus: Corpus, options: DecisionOptions) -> list[list[int]]:
    """The prompts to answer: a conversation each, up to one of its replies, chosen by the seed.

    Raises:
        DataError: the corpus has too few.
    """
    random = np.random.default_rng(options.seed)
    found: list[list[int]] = []
    for index in random.permutation(len(corpus)).tolist():
        sample = corpus[index]
        firsts = [first for first, _ in sample.spans if 0 < first <= options.max_prompt]
        if firsts:
            first = firsts[int(random.integers(len(firsts)))]
            found.append([int(token) for token in sample.token_ids[:first]])
        if len(found) == options.prompts:
            return found
    raise DataError(
        f"{corpus.folder} has {len(found)} prompts of at most {options.max_prompt} tokens; ask for fewer "
        "by --prompts, or make a larger corpus"
    )


def record(
    engine: Engine,
    recorder: Recorder,
    prompts: Sequence[Sequence[int]],
    options: DecisionOptions,
    folder: RoundsFolder,
    *,
    report: Callable[[int], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Answer the prompts that are not recorded yet; False if it was asked to stop before the last one.

    Args:
        engine: of `recording_engine`, with this recorder.
        report: called with the number of prompts that are done.
        stop: asked before each prompt.
    """
    waiting: list[list[RoundRows]] = []
    for done in range(folder.num_prompts, len(prompts)):
        if stop():
            if waiting:
                folder.add(waiting)
            return False
        waiting.append(list(_answer(engine, recorder, prompts[done], options, done)))
        if len(waiting) == PROMPTS_A_PART or done + 1 == len(prompts):
            folder.add(waiting)
            waiting = []
        report(done + 1)
    return True


def _answer(
    engine: Engine, recorder: Recorder, prompt: Sequence[int], options: DecisionOptions, number: int
) -> Iterator[RoundRows]:
    """The rounds of one answer, which hangs on the seed and the prompt's own number alone."""
    recorder.take()
    asked = GenerationOptions(
        max_new_tokens=options.answer_tokens,
        temperature=options.sampling_temperature,
        seed=options.seed,
        choice=number,
    )
    engine.generate(list(prompt), asked)
    return iter(recorder.take())
