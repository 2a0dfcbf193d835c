"""Several corpora of one tokenizer as one: the model's own conversations beside answers to your prompts."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError
from foredraft.files import in_use, write_json
from foredraft.train.corpus import MANIFEST, UNFINISHED, read_manifest
from foredraft.train.data import TOKENIZER
from foredraft.train.state_cache import STATES

SHARED = ("format", "dtype", "vocab_size", "tokenizer", "end_ids")
"""What corpora must have in common to be read as one."""
LEFT_OUT = ("shards", UNFINISHED)
"""What is not said of a corpus that was joined."""
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)
"""Why a file system lets a file have no second name."""


def join_corpora(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Copy the shards of several corpora into a new one, which remembers how each was made.

    Hidden states that were kept are shared with it.

    Args:
        folders: the corpora, two or more; their shards stand in this order.
        out: a folder without a corpus; made if it does not exist.

    Returns:
        The manifest.

    Raises:
        ConfigError: they do not fit together (the message names what differs), two hold the same
            conversations, or `out` holds a corpus.
        DataError: a folder holds no corpus.
    """
    folders, out = [Path(folder) for folder in folders], Path(out)
    manifests = [read_manifest(folder) for folder in folders]
    _check_fit(folders, manifests)
    _check_apart(folders, manifests)
    with in_use(out, by="data generation"):
        if (out / MANIFEST).exists():
            raise ConfigError(f"{out} holds a corpus already; give another --out")
        shards: list[dict[str, Any]] = []
        for folder, manifest in zip(folders, manifests, strict=True):
            for entry in manifest["shards"]:
                name = f"shard-{len(shards):05d}.safetensors"
                shutil.copyfile(folder / entry["name"], out / name)
                shards.append({**entry, "name": name})
            _share_states(folder / STATES, out / STATES)
        if (folders[0] / TOKENIZER).is_dir():
            shutil.copytree(folders[0] / TOKENIZER, out / TOKENIZER, dirs_exist_ok=True)
        parts = [{k: v for k, v in m.items() if k not in LEFT_OUT} for m in manifests]
        whole = {**_common(manifests), "joined": parts, "shards": shards}
        write_json(out / MANIFEST, whole)
    return whole


def _share_states(states: Path, out: Path) -> None:
    """Hidden states that were kept, which go by the shards' contents: one file in both, if the disk can."""
    for file in states.glob("*/*"):
        place = out / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # of a run that was interrupted
        try:
            os.link(file, place)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(file, place)


def _check_fit(folders: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> None:
    if len(folders) < 2:
        raise ConfigError("joining takes two corpora or more")
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in SHARED:
            first, this = manifests[0].get(name), manifest.get(name)
            if first != this:
                raise ConfigError(
                    f"{folder} was made with {name}={this!r}, and {folders[0]} with {name}={first!r}; "
                    "only corpora of one tokenizer can be joined"
                )


def _check_apart(folders: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> None:
    """Refuse what would stand in the whole twice: samples that are held out would be trained on."""
    shards: dict[str, Path] = {}
    seeds: dict[tuple[str, int], Path] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        for entry in manifest["shards"]:
            if not entry["samples"]:
                continue
            digest = hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest()
            if digest in shards:
                raise ConfigError(f"{folder} and {shards[digest]} hold the same conversations")
            shards[digest] = folder
        for part in manifest.get("joined", [manifest]):
            if "prompts" in part or "seed" not in part:
                continue
            key = (part.get("weights", ""), part["seed"])
            if seeds.setdefault(key, folder) != folder:
                raise ConfigError(
                    f"{seeds[key]} and {folder} were both made with seed {part['seed']}, so they hold the "
                    "same questions; make one of them with another --seed"
                )


def _common(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all say alike: that they must, and the model's name and who answered where they do."""
    first, *others = manifests
    names = [*SHARED, "model", "answers"]
    return {
        name: first[name]
        for name in names
        if name in first and all(other.get(name) == first[name] for other in others)
    }
