"""What every test runs under: no network, one thread a process, reproducible examples."""

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from hypothesis import settings

from foredraft.costs import CostTable, DraftCosts, PassCosts

# Tests run in parallel processes; threads inside each would only wait for one another.
torch.set_num_threads(1)

settings.register_profile("offline", deadline=None, derandomize=True, database=None)
settings.load_profile("offline")


@pytest.fixture(autouse=True)
def _assumed_costs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive drafts are priced for a machine that is always the same: tests run beside other work.

    Tests of the measurement itself are marked `measures`.
    """
    if "measures" in request.keywords:
        return
    from foredraft.engine import adaptive_costs

    monkeypatch.setattr(adaptive_costs, "_measure", assumed_costs)


def assumed_costs(engine: Any, key: str) -> CostTable:
    """Wide passes are cheap, and a level costs a twentieth of one."""
    level = None if key == "copies" else PassCosts((1,), (0,), ((1e-3,),))
    target = PassCosts((1, 64), (0,), ((0.02, 0.03),))
    return CostTable(target, 1e-3, {key: DraftCosts(5e-4, level)}, {"spread": 0.0})
