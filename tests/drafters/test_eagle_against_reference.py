"""EAGLE heads and their drafts against a second reading of section 4, `tests/eagle_reference.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.drafters.eagle.head import EagleHead
from tests.drafters.head_attention import CausalAttention
from tests.eagle_checkpoints import (
    CASES,
    CONFIG,
    DRAFT_VOCAB_SIZE,
    FLAGS,
    Case,
    Draws,
    eagle1_tensors,
    eagle3_tensors,
)
from tests.eagle_reference import (
    Head1,
    Head3,
    drafted_logits,
    reference_draft_eagle1,
    reference_draft_eagle3,
    reference_logits_eagle1,
    reference_logits_eagle3,
    reference_training_time_test,
    target_ids,
)
from tests.tiny_models import SMALL, VOCAB_SIZE, tiny_llama

TEXT = (3, 14, 15, 92, 6, 53, 58, 9, 79)
PATH = (32, 38, 4)


def target_matrices() -> tuple[Tensor, Tensor]:
    """Embeddings and LM head [V, h] of a target."""
    draws = Draws(99)
    return draws.matrix(VOCAB_SIZE, 32), draws.matrix(VOCAB_SIZE, 32)


def random_features(width: int, length: int = len(TEXT) - 1) -> Tensor:
    return torch.randn(length, width, generator=torch.Generator().manual_seed(7))


def some_head(variant: int, **flags: Any) -> Head1 | Head3:
    config = CONFIG | flags
    embed, lm_head = target_matrices()
    if variant == 1:
        return Head1(eagle1_tensors(config), config, embed, lm_head)
    config["draft_vocab_size"] = DRAFT_VOCAB_SIZE
    return Head3(eagle3_tensors(config), config, embed)


# --- the reference against itself, and against transformers -----------------------------------------


def test_the_references_layer_is_a_llama_layer() -> None:
    """Norm, rotary positions, grouped attention and MLP as `transformers` has them."""
    config = LlamaConfig(**SMALL | CONFIG | {"rope_theta": None})
    config.rope_parameters = {"rope_type": "default", "rope_theta": CONFIG["rope_theta"]}
    config._attn_implementation = "eager"
    layer = LlamaDecoderLayer(config, 0).eval()
    layer.input_layernorm = torch.nn.Identity()
    tensors = eagle1_tensors(CONFIG)
    own = {k.removeprefix("layers.0."): v for k, v in tensors.items() if "layers.0." in k}
    layer.load_state_dict(own)
    embed, lm_head = target_matrices()
    features, length = random_features(32), len(TEXT) - 1
    paired = torch.cat((embed[list(TEXT[1:])], features), -1)
    x = paired @ tensors["fc.weight"].T + tensors["fc.bias"]
    rotary = LlamaRotaryEmbedding(config)(x[None], torch.arange(length)[None])
    mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        out = layer(x[None], attention_mask=mask, position_embeddings=rotary)
    ours = reference_logits_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT)
    torch.testing.assert_close(out[0] @ lm_head.T, ours, atol=1e-5, rtol=1e-5)


def test_drafting_goes_on_from_the_last_row() -> None:
    """The root's law is the last true row's; a draft row stands in the next true one's place."""
    embed, lm_head = target_matrices()
    tensors, features = eagle1_tensors(CONFIG), random_features(32)
    whole = reference_logits_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT)
    drafted = reference_draft_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT, PATH)
    assert drafted.shape == (1 + len(PATH), VOCAB_SIZE)
    torch.testing.assert_close(drafted[0], whole[-1])
    config = CONFIG | {"draft_vocab_size": DRAFT_VOCAB_SIZE}
    tensors, features = eagle3_tensors(config), random_features(96)
    whole = reference_logits_eagle3(tensors, config, embed, features, TEXT)
    drafted = reference_draft_eagle3(tensors, config, embed, features, TEXT, PATH)
    torch.testing.assert_close(drafted[0], whole[-1])
    assert drafted.shape == (1 + len(PATH), DRAFT_VOCAB_SIZE)


@pytest.mark.parametrize("variant", [1, 3])
def test_training_time_test_is_drafting_at_every_position(variant: int) -> None:
    """Row t of step s is what drafting s true tokens behind the first t + 2 gives (section 4.7)."""
    head = some_head(variant)
    features = random_features(32 if variant == 1 else 96)
    steps = reference_training_time_test(head, features, TEXT, 3)
    for step in range(3):
        for row in range(len(features) - step):
            seen, rest = TEXT[: row + 2], TEXT[row + 2 : row + 2 + step]
            drafted = drafted_logits(head, features[: row + 1], seen, rest)
            torch.testing.assert_close(steps[step, row], drafted[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_of_the_dialect_changes_drafts(flag: str) -> None:
    """Else a comparison could not tell whether the flag was read."""
    features = random_features(96)
    plain = drafted_logits(some_head(3), features, TEXT, PATH)
    changed = drafted_logits(some_head(3, **{flag: True}), features, TEXT, PATH)
    at_once = flag != "norm_output"  # it changes what is recycled, so not the first row
    assert torch.allclose(plain[0], changed[0]) is not at_once
    assert not torch.allclose(plain[1], changed[1], atol=1e-2)


# --- the product's head -----------------------------------------------------------------------------


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def target_model() -> Any:
    return tiny_llama(num_hidden_layers=7)


@torch.no_grad()
def product_drafted(
    head: EagleHead, features: Tensor, token_ids: Any, path: Any
) -> tuple[Tensor, Tensor]:
    """Logits [T, V] of the true rows and [1 + D, V] along a path, by the library's head."""
    attend, length = CausalAttention(), len(features)
    embeds = head.embed(torch.tensor(token_ids[1:])[None])
    rotary = head.rotary(torch.arange(length)[None])
    output = head.step(embeds, head.fuse(features[None]), rotary, attend)
    whole, drafted = head.logits(output)[0], [head.logits(output)[0, -1]]
    output = output[:, -1:]
    for depth, token in enumerate(path):
        rotary = head.rotary(torch.tensor([[length + depth]]))
        output = head.step(
            head.embed(torch.tensor([[token]])), head.recycle(output), rotary, attend
        )
        drafted.append(head.logits(output)[0, 0])
    return whole, torch.stack(drafted)


def assert_same(logits: Tensor, expected: Tensor) -> None:
    """float32 against float64; absolute errors count beside logits around 1, relative ones beyond."""
    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=1e-5)


@every_case
def test_logits_of_a_loaded_head(case: Case, target_model: Any, tmp_path: Path) -> None:
    """Two readings, one answer: true rows, then a drafted path that recycles outputs."""
    head = load_head(case.write(tmp_path), target_model)
    reference = case.reference(target_model)
    features = random_features(32 if case.variant == 1 else 96)
    whole, drafted = product_drafted(head, features, TEXT, PATH)
    features = features.double()
    for n in (1, 4, 8):
        expected = drafted_logits(reference, features[:n], TEXT[: n + 1], ())[0]
        assert_same(whole[n - 1], expected)
    assert_same(drafted, drafted_logits(reference, features, TEXT, PATH))


@every_case
def test_ids_and_taps_of_a_loaded_head(case: Case, target_model: Any, tmp_path: Path) -> None:
    """d2t holds differences; without layer ids the taps are those of section 4.6."""
    head = load_head(case.write(tmp_path), target_model)
    if "d2t" in case.tensors():
        assert head.target_ids is not None
        assert head.target_ids.tolist() == target_ids(case.tensors(), DRAFT_VOCAB_SIZE)
    else:
        assert head.target_ids is None
    assert head.config.taps == ((7,) if case.variant == 1 else (2, 3, 4))
