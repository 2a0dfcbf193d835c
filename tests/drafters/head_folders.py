"""Head folders of every dialect for one tiny target, and what comes of loading them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ModelError
from tests.eagle_checkpoints import CONFIG, eagle1_tensors, eagle3_tensors, speculators_config
from tests.tiny_models import tiny_llama

DRAFT_SIZE = 32
LAYERS = 8
PUBLISHED_TAPS = (2, 4, 5)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
Files = tuple[dict[str, Any], dict[str, Tensor]]


@cache
def target() -> Any:
    """The model that all of these heads are for."""
    return tiny_llama(num_hidden_layers=LAYERS)


def eagle1(**changes: Any) -> Files:
    """config.json and tensors of an EAGLE-1 or -2 head, whose config is that of a Llama."""
    config = CONFIG | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | changes
    return config, eagle1_tensors(config, bias=config.get("bias", True))


def eagle3(**changes: Any) -> Files:
    """The same of an EAGLE-3 head with a draft vocabulary of 32."""
    config = CONFIG | {"draft_vocab_size": DRAFT_SIZE} | changes
    return config, eagle3_tensors(config)


def speculators3(**changes: Any) -> Files:
    """The same in the dialect of `speculators`."""
    config, tensors = eagle3(**changes)
    renamed = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    return speculators_config(config), renamed


def speculators1() -> Files:
    """An EAGLE-1 head in that dialect, without the bias of fc."""
    _, tensors = eagle1(bias=False)
    renamed = {
        name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): tensor
        for name, tensor in tensors.items()
    }
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "transformer_layer_config": dict(CONFIG),
        "layernorms": False,
        "fusion_bias": False,
    }
    return config, renamed


DIALECTS = {
    "eagle1": eagle1,
    "eagle3": eagle3,
    "speculators1": speculators1,
    "speculators3": speculators3,
}


def write(folder: Path, files: Files) -> Path:
    """A folder as it is published."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files[0]))
    save_file({name: t.contiguous() for name, t in files[1].items()}, folder / "model.safetensors")
    return folder


def load(folder: Path, files: Files, model: Any = None, **options: Any) -> EagleHead:
    """The head of a folder with these files."""
    return load_head(write(folder, files), model or target(), **options)


def refusal(folder: Path, files: Files, model: Any = None, **options: Any) -> str:
    """The message with which these files are refused."""
    with pytest.raises(ModelError) as caught:
        load(folder, files, model, **options)
    return str(caught.value)


def same_weights(one: EagleHead, other: EagleHead) -> bool:
    """Whether two heads have the same tensors, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) and tensor.dtype == second[name].dtype
        for name, tensor in first.items()
    )
