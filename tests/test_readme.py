"""The README's example of a part of one's own runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import foredraft
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter

README = Path(__file__).parents[1] / "README.md"
PROMPT = (1, 2)


def test_the_policy_of_ones_own() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "class Confident" in block)
    target, draft = (TableModel.random(6, seed=seed, sharpness=2.0) for seed in (1, 2))
    names: dict[str, Any] = {
        "foredraft": foredraft,
        "target": target,
        "drafter": DraftModelDrafter(draft),
        "tokenizer": None,
    }
    exec(compile(code, str(README), "exec", dont_inherit=True), names)
    engine: foredraft.Engine = names["engine"]
    result = engine.generate(PROMPT, max_new_tokens=40)
    plain = engine.without_drafts().generate(PROMPT, max_new_tokens=40)
    assert result.token_ids == plain.token_ids
    depths = {record.depth for record in result.stats.rounds}
    assert len(depths) > 1  # it stops where it is unsure, and goes on elsewhere
