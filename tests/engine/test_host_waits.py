"""How often a round waits for the device: once for each level of the draft, and once to verify."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import Policy
from foredraft.sampling.transfer import to_host
from tests.drafters.eagle_rounds import make_head
from tests.engine.host_waits import HostWaits
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 20, 33, 7, 11, 40]


def waits_a_round(policy: Policy, head: str, **options: Any) -> tuple[HostWaits, int]:
    """What is counted over the rounds of one answer, and how many rounds there were."""
    model = tiny_llama()
    engine = Engine(HFTarget(model), EagleDrafter(make_head(model, head)), policy)
    request = GenerationOptions(max_new_tokens=30, ignore_eos=True, **options)
    with HostWaits() as waits, engine.stream(PROMPT, request) as stream:
        steps = iter(stream)
        next(steps)  # what is worked out once a request
        waits.by_caller.clear()
        rounds = sum(1 for _ in steps)
    return waits, rounds


@pytest.mark.parametrize("head", ["eagle1", "eagle3", "reduced"])
@pytest.mark.parametrize(
    ("policy", "levels"),
    [(FixedPolicy.chain(4), 4), (StaticTreePolicy(), 5)],
    ids=["chain", "tree"],
)
def test_a_greedy_round_waits_once_a_level_and_once_to_verify(
    head: str, policy: Policy, levels: int
) -> None:
    waits, rounds = waits_a_round(policy, head)
    assert rounds > 3
    assert rounds < waits.total <= rounds * (levels + 1), waits.by_caller


def test_a_sampled_round_waits_twice_more_for_every_node_that_is_visited() -> None:
    waits, rounds = waits_a_round(FixedPolicy.chain(4), "reduced", temperature=0.8, seed=1)
    drafting = waits.by_caller.pop("to_host")
    assert drafting <= rounds * 4
    assert waits.total <= rounds * 5 * 2, waits.by_caller


def test_what_counts_counts() -> None:
    numbers = torch.arange(4)
    with HostWaits() as waits:
        numbers.tolist()
        numbers[2].item()
        bool((numbers > 0).all())
        int(numbers.sum())
        numbers.nonzero()
        numbers.numpy()
        to_host(numbers, numbers.float())
    assert waits.total == 7
