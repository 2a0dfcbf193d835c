"""`foredraft data` as it is typed, for its tests: a tiny model's folder, prompts in a file, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from foredraft.cli.main import app
from foredraft.train.corpus import Corpus
from tests.tiny_folders import save_folder
from tests.train.stock_templates import Stock

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
SMALL = ("--dtype", "float32", "--batch", "8", "--max-length", "96")
WRITE = (*SMALL, "--max-user-tokens", "24", "--max-reply-tokens", "24", "--greedy-share", "0.3")
CHATS = [
    {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]},
    {"turns": ["on", "the mat"]},
    {"prompt": "the mat", "response": "the cat sat"},
]


def model_folder(folder: Path, stock: Stock, **changes: Any) -> Path:
    """A tiny model with a chat template."""
    return save_folder(folder, stock.tokenizer(), **changes)


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def run(*arguments: str | Path, of: str = "data") -> Result:
    """The command in this process; faults of ours are raised."""
    done = CliRunner().invoke(app, [of, *map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def generate(model: Path, out: Path, *arguments: str | Path) -> Result:
    """A corpus that is made."""
    done = run("generate", "--model", model, "--out", out, *arguments)
    assert done.exit_code == 0, done.stderr
    return done


def complaint(code: int, *arguments: str | Path) -> str:
    """The last line on stderr of a command that is refused."""
    done = run(*arguments)
    assert done.exit_code == code, done.output
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def tokens_of(folder: Path) -> list[list[int]]:
    """Every conversation of a corpus."""
    return [sample.token_ids.tolist() for sample in Corpus(folder)]


def texts_of(folder: Path, stock: Stock) -> list[list[str]]:
    """What the assistant wrote in each conversation."""
    tokenizer = stock.tokenizer()
    return [
        [tokenizer.decode(sample.token_ids[a:b].tolist()) for a, b in sample.spans]
        for sample in Corpus(folder)
    ]
