"""Loading by name: what works offline, and one clear sentence for everything that does not."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from foredraft.backends import hf_loading
from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_loading import default_dtype, hub_reachable, load_hf
from foredraft.errors import ConfigError, ForedraftError, ModelError
from tests.tiny_models import VOCAB_SIZE, tiny_llama, tiny_tied_llama

WORDS = {f"w{i}": i for i in range(90)}
IDS = torch.tensor([[3, 4, 5]])


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_llama(), tmp_path / "model")


def write_gguf(path: Path) -> Path:
    """A Llama of one layer with a byte-pair tokenizer of 64 entries."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "ab", *(f"x{i}" for i in range(58))])
    writer.add_token_types([3] * 3 + [1] * 61)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {
        "token_embd": (64, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (48, 32),
        "blk.0.ffn_up": (48, 32),
        "blk.0.ffn_down": (32, 48),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.2, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- what loads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_llama, tiny_tied_llama])
def test_a_local_folder(tmp_path: Path, make: Any) -> None:
    original = make()
    model, tokenizer = load_hf(save(original, tmp_path / "model"), dtype="float32", device="cpu")
    assert not model.training
    assert torch.equal(model(IDS).logits, original(IDS).logits)
    assert len(tokenizer) == len(WORDS) < VOCAB_SIZE
    assert HFTarget(model, tokenizer).vocab_size == len(WORDS)


def test_a_local_folder_has_no_revisions(tmp_path: Path) -> None:
    folder = save(tiny_llama(), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"revision='v1' is for hub models, and .* is local"):
        load_hf(folder, revision="v1")


def test_a_gguf_file(tmp_path: Path) -> None:
    model, tokenizer = load_hf(write_gguf(tmp_path / "tiny.gguf"), dtype="float32", device="cpu")
    assert model.dtype == torch.float32
    assert tokenizer("ab").input_ids == [5]
    target = HFTarget(model, tokenizer)
    assert (target.scores_trees, target.vocab_size, target.eos_token_ids) == (True, 64, (2,))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (None, default_dtype(torch.device("cpu"))),
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        (torch.float16, torch.float16),
    ],
)
def test_dtypes(folder: Path, dtype: Any, expected: torch.dtype) -> None:
    assert load_hf(folder, dtype=dtype, device="cpu")[0].dtype == expected


def test_a_device_map(folder: Path) -> None:
    model, tokenizer = load_hf(folder, dtype="float32", device_map={"": "cpu"})
    state = HFTarget(model, tokenizer).start(8)
    assert state.score([1, 2], [-1, 0]).shape == (2, len(WORDS))


# --- what does not ----------------------------------------------------------------------------------


def complaint(name: str | Path, **options: Any) -> str:
    """The error's text, which must name the value in one line."""
    with pytest.raises(ForedraftError) as caught:
        load_hf(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["./nowhere", "no/such/folder", "missing.gguf", "a b/c"])
def test_nothing_there(name: str) -> None:
    assert f"no model at {name!r}" in complaint(name)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    assert "neither a model folder nor a .gguf file" in complaint(file)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in complaint(tmp_path)


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert repr(str(folder)) in complaint(folder)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "cannot be loaded" in complaint(folder)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_truncated_safetensors(folder: Path, share: float) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(len(content) * share)])
    message = complaint(folder)
    assert "cannot be loaded" in message
    assert "check that its files are whole" in message


@pytest.mark.parametrize("kind", ["truncated", "nonsense"])
def test_a_broken_gguf_file(tmp_path: Path, kind: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:9000] if kind == "truncated" else b"nonsense" * 100)
    assert "check that its files are whole" in complaint(file)


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks weights (lm_head.weight)" in complaint(folder)


def test_remote_code_is_not_run_unasked(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    assert "trust_remote_code=True" in complaint(folder)


def test_wrong_options(folder: Path) -> None:
    assert "dtype='int3' is not allowed; give one of float32" in complaint(folder, dtype="int3")
    assert "exclude each other" in complaint(folder, device="cpu", device_map="auto")
    assert "device='warp' is not available" in complaint(folder, device="warp")
    with pytest.raises(ConfigError):
        load_hf(folder, dtype="int3")


def test_interrupts_are_not_swallowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hf_loading, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_hf(folder)


# --- the hub ----------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf_loading.urllib.request, "getproxies", dict)


def test_a_hub_id_without_network_fails_at_once() -> None:
    started = time.perf_counter()
    message = complaint("nobody/nothing")
    assert time.perf_counter() - started < 5
    assert "'nobody/nothing' is not in the local cache, and https://" in message
    assert "cannot be reached; connect, or give a local folder" in message


def test_the_original_error_is_kept() -> None:
    with pytest.raises(ModelError) as caught:
        load_hf("nobody/nothing")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.usefixtures("online")
def test_a_listening_hub_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_reachable()
    assert not hub_reachable()


@pytest.mark.usefixtures("online")
def test_a_proxy_is_asked_in_the_hubs_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(hf_loading.urllib.request, "getproxies", lambda: {"https": proxy})
        assert hub_reachable()


@pytest.mark.usefixtures("online")
def test_a_name_lookup_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: Any) -> None:
        release.wait(10)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    started = time.perf_counter()
    assert not hub_reachable(timeout_s=0.1)
    assert time.perf_counter() - started < 2
    release.set()


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", None)
    assert not hub_reachable()
