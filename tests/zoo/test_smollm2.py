"""The embedded model itself, where `make model` has fetched it: what ships for it works on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foredraft
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.train.generation import run_scripts
from foredraft.train.lockstep import lockstep_attention
from foredraft.train.scripts import Mixture, conversation
from foredraft.train.templates import chat_frame
from foredraft.zoo import store
from foredraft.zoo.registry import SMOLLM2
from foredraft.zoo.shipped import shipped_head

FOLDERS = [store.home() / "models" / f"smollm2-{source.version}" for source in SMOLLM2.sources]
pytestmark = pytest.mark.skipif(
    not any(store.is_complete(folder) for folder in FOLDERS), reason="smollm2 is not fetched"
)
PROMPT = "Write a short poem about autumn."


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_its_head_changes_no_token_and_saves_passes() -> None:
    if shipped_head("smollm2") is None:
        pytest.skip("no head ships")
    engine = foredraft.load("smollm2", method="eagle2:depth=3:nodes=8:top_k=3", dtype="float32")
    assert isinstance(engine.drafter, EagleDrafter)
    messages = [{"role": "user", "content": PROMPT}]
    drafted = engine.generate(messages, max_new_tokens=32)
    plain = engine.without_drafts().generate(messages, max_new_tokens=32)
    assert drafted.token_ids == plain.token_ids
    tau = drafted.stats.mean_acceptance_length
    assert tau is not None
    assert tau > 1.3


def test_it_writes_conversations_in_half_precision() -> None:
    engine = foredraft.load("smollm2", method="autoregressive", dtype="bfloat16")
    frame, mixture = chat_frame(engine.tokenizer), Mixture(max_user_tokens=24, max_reply_tokens=8)
    scripts = [conversation(frame, mixture, 0, number) for number in range(8)]
    model = engine.target.model  # type: ignore[attr-defined]
    with lockstep_attention(model):
        samples, dropped = run_scripts(model, scripts, 8)[:2]
    assert len(samples) + dropped == 8
    assert samples
    for sample in samples:
        first = sample.spans[0][0]
        text = engine.tokenizer.decode(sample.token_ids[:first])
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_what_ships_names_no_folder_of_the_machine_it_was_made_on() -> None:
    for file in Path(foredraft.__file__).parent.glob("zoo/weights/*/*/*.json"):
        assert '"/' not in file.read_text(encoding="utf-8"), file
        assert " /" not in file.read_text(encoding="utf-8"), file
