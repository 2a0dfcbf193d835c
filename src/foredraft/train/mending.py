"""Prompts that failed and were mended: what was made from the rows before is kept.

A row that cannot be used ends the making of a corpus. The user then changes the file, and its digest is
another; so the manifest remembers which rows the shards were made from, and a file that begins with the same
ones goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError, DataError
from foredraft.files import write_json
from foredraft.train.corpus import MANIFEST, UNFINISHED, CorpusWriter, read_manifest
from foredraft.train.sources import Source

READ = "read"
"""What the mark of an unfinished corpus says of the rows behind its shards."""
OF_PROMPTS = ("prompts", "prompts_digest")
"""What the facts of a corpus say of its prompts."""


def rows_digest(source: Source, rows: int) -> str:
    """Of the first rows of a source: what is said in them. Errors as in `Source`."""
    digest = hashlib.sha256()
    for said in islice(source, rows):
        digest.update(json.dumps(said.messages() + [turn.user for turn in said.turns]).encode())
    return digest.hexdigest()


@contextmanager
def noting_rows(writer: CorpusWriter, source: Source | None, rows_per_shard: int) -> Iterator[None]:
    """Inside, an error of a row is noted in the manifest, with the rows that were used before it."""
    try:
        yield
    except (ConfigError, DataError):
        if source is not None and writer.num_shards:
            rows = writer.num_shards * rows_per_shard
            read = {"rows": rows, "digest": rows_digest(source, rows)}
            writer.mark({**writer.manifest.get(UNFINISHED, {}), READ: read})
        raise


def accept_mended(folder: Path, facts: Mapping[str, Any], source: Source | None) -> None:
    """Let a corpus whose prompts failed go on with these, if they begin with the rows behind its shards.

    Args:
        folder: of the corpus; it may hold none.
        facts: of the corpus that is to be made.
        source: the prompts.

    Raises:
        DataError: the folder holds no corpus that can be read, or a row is of no known form.
    """
    if source is None or not (folder / MANIFEST).exists():
        return
    manifest = read_manifest(folder)
    read = (manifest.get(UNFINISHED) or {}).get(READ)
    if read and rows_digest(source, read["rows"]) == read["digest"]:
        write_json(folder / MANIFEST, {**manifest, **{name: facts[name] for name in OF_PROMPTS}})
