"""A reduced vocabulary that takes in the tokens of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import CohereConfig

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.other_rows import OtherRows
from foredraft.drafters.eagle.vocabulary import TextVocabulary
from foredraft.engine.decoder import decode
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Verdict, Verifier
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier
from tests.tiny_models import (
    SMALL,
    VOCAB_SIZE,
    build,
    tiny_cohere,
    tiny_gemma2,
    tiny_llama,
    tiny_phi,
)

IDS = torch.arange(3, 90, 2)
PROMPT = (3, 4, 5, 6, 3, 4)
SAMPLES = 600
FAMILIES = (tiny_llama, tiny_cohere, tiny_gemma2, tiny_phi)


def target_row_head(model: Any, ids: torch.Tensor | None = IDS, variant: int = 3) -> EagleHead:
    """A head of random weights that has the target's rows of `ids`."""
    torch.manual_seed(0)
    choices = {"draft_ids": ids, "own_lm_head": False} if variant == 3 else {}
    head = EagleHead.for_target(model, variant, init="random", **choices)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return head


class SmallTokenizer:
    """Knows fewer tokens than the model has rows."""

    eos_token_id = 2

    def __len__(self) -> int:
        return 90


def vocabulary(head: EagleHead, room: int = 1024) -> TextVocabulary:
    return TextVocabulary(head, OtherRows.of(head), room)


# --- what a text adds -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=9), max_size=6))
def test_each_column_is_the_targets_logit_of_its_token(make: Any, texts: list[list[int]]) -> None:
    """With bias, scale and cap of the target; its own tokens first, then the text's, each once."""
    head = target_row_head(make())
    words = vocabulary(head)
    for text in texts:
        words.add(text)
    output = torch.randn(2, head.config.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits, whole = (
            head.project(head.final(output), words.more),
            head.ends.logits(head.norm(output)),
        )
    ids = words.ids
    assert ids is not None
    torch.testing.assert_close(logits, whole[:, ids])
    own = set(IDS.tolist())
    assert ids[: len(IDS)].tolist() == IDS.tolist()
    assert set(ids[len(IDS) :].tolist()) == {t for text in texts for t in text} - own
    assert len(set(ids.tolist())) == len(ids)


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30), max_size=5),
    room=st.integers(1, 12),
)
def test_the_latest_tokens_stay_where_room_ends(texts: list[list[int]], room: int) -> None:
    head = target_row_head(tiny_llama())
    words = vocabulary(head, room)
    added: list[int] = []
    for text in texts:
        words.add(text)
        new = [t for t in dict.fromkeys(text) if t not in IDS and t not in added]
        added = [*added, *new][-room:]
    assert words.ids is not None
    assert words.ids[len(IDS) :].tolist() == added
    output = torch.randn(1, head.config.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = head.ends.logits(head.norm(output))
        torch.testing.assert_close(
            head.project(head.final(output), words.more), whole[:, words.ids]
        )


def own_row_head(
    model: Any, turn: torch.Tensor, noise: float = 0.0, ids: torch.Tensor = IDS
) -> EagleHead:
    """A head whose own rows are the target's after a linear map, as far as noise leaves it."""
    head = EagleHead.for_target(model, 3, draft_ids=ids, init="random")
    rows = head.ends.lm_rows[ids] * head.ends.logit_scale @ turn
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        head.lm_head.weight.copy_(
            rows + noise * rows.std() * torch.randn(rows.shape, generator=random)
        )
    return head


def narrow_llama() -> Any:
    """Few enough dimensions for the rows of a tiny vocabulary to tell a map."""
    return tiny_llama(hidden_size=8, head_dim=4)


def narrow_cohere() -> Any:
    """The same, with logits that are scaled."""
    return build(CohereConfig(**SMALL | {"hidden_size": 8}, logit_scale=0.25))


@pytest.mark.parametrize("make", [narrow_llama, narrow_cohere])
def test_rows_that_were_not_learnt_go_through_the_map_of_those_that_were(make: Any) -> None:
    model = make()
    size = model.config.hidden_size
    turn = torch.randn(size, size, generator=torch.Generator().manual_seed(2))
    head = own_row_head(model, turn)
    words = vocabulary(head)
    words.add(range(VOCAB_SIZE))
    assert words.ids is not None
    assert sorted(words.ids.tolist()) == list(range(VOCAB_SIZE))
    output = torch.randn(2, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = head.norm(output) @ (head.ends.lm_rows * head.ends.logit_scale @ turn).T
        torch.testing.assert_close(
            head.project(head.final(output), words.more), whole[:, words.ids], atol=1e-2, rtol=1e-3
        )


def test_other_heads_keep_to_their_tokens() -> None:
    """All tokens, EAGLE-1, or rows that no map leads to."""
    model = tiny_llama()
    lost = own_row_head(model, torch.eye(model.config.hidden_size), noise=3.0)
    few = own_row_head(model, torch.eye(model.config.hidden_size), ids=IDS[:40])
    assert OtherRows.of(lost) is None
    assert OtherRows.of(few) is None  # 40 rows could be led to from any others
    for head in (lost, few, target_row_head(model, None), target_row_head(model, variant=1)):
        words = vocabulary(head)
        before = words.ids
        words.add(range(VOCAB_SIZE))
        assert (words.ids is None) == (before is None)
        if before is not None:
            assert words.ids is not None
            assert words.ids.tolist() == before.tolist()


# --- drafting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_of_an_answer_changes(temperature: float) -> None:
    target = HFTarget(tiny_llama())
    options = GenerationOptions(max_new_tokens=24, temperature=temperature, seed=3)
    drafter = EagleDrafter(target_row_head(target.model, torch.arange(3, 20)))
    got = Engine(target, drafter, DynamicTreePolicy(4, 9, 3)).generate(PROMPT, options)
    assert got.token_ids == Engine(target).generate(PROMPT, options).token_ids
    assert got.stats.drafted_tokens


def test_sampled_drafts_with_words_of_the_text_keep_the_targets_law() -> None:
    """The first token is verified against drafts of a vocabulary that the prompt has added to, and that
    has rows which the tokenizer does not know."""
    target = HFTarget(tiny_llama(), SmallTokenizer())
    drafter = EagleDrafter(
        target_row_head(target.model, torch.tensor([7, 8, 9, 95, 96])), Proposal.SAMPLED
    )
    engine = Engine(target, drafter, FixedPolicy("3,1"), verifier("rejection"))
    with torch.inference_mode():
        logits = target.model(torch.tensor([PROMPT])).logits[0, -1, : target.vocab_size]
    law = logits.float().softmax(-1).double().numpy()
    counts = np.zeros(len(law))
    for seed in range(SAMPLES):
        options = GenerationOptions(max_new_tokens=3, temperature=1.0, seed=seed)
        counts[engine.generate(PROMPT, options).token_ids[0]] += 1
    often = law * SAMPLES >= 5
    expected = np.append(law[often], law[~often].sum())
    expected *= SAMPLES / expected.sum()  # a law of float32 logits sums to 1 up to their rounding
    observed = np.append(counts[often], counts[~often].sum())
    assert chisquare(observed, expected).pvalue > 1e-4


class Watching:
    """A verifier that keeps the trees it is given."""

    def __init__(self, inner: Verifier) -> None:
        self._inner, self.trees = inner, list[DraftTree]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        self.trees.append(tree)
        return self._inner.verify(tree, laws, random)


def test_tokens_of_the_prompt_and_of_the_answer_can_be_drafted() -> None:
    """With no vocabulary but two tokens, whatever is drafted beside them is what the text added."""
    target = HFTarget(tiny_llama())
    drafter = EagleDrafter(target_row_head(target.model, torch.tensor([90, 91])))
    watching = Watching(Engine(target, drafter, FixedPolicy("3,2,1")).verifier)
    engine = Engine(target, drafter, FixedPolicy("3,2,1"), watching)  # type: ignore[arg-type]
    options = GenerationOptions(max_new_tokens=24, ignore_eos=True)
    session = engine.session(PROMPT, options, engine.randomness(0))
    drafted, text = set(), list(PROMPT)
    for step in decode(session, engine.verifier):
        tokens = set(watching.trees[-1].token_ids[1:])
        assert tokens <= {90, 91, *text}
        drafted |= tokens
        text += step.token_ids
    assert drafted & set(PROMPT)
    assert drafted - {90, 91, *PROMPT}
