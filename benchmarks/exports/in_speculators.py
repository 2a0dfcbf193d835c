"""What `speculators` computes with an exported head, compared with what we do.

    python in_speculators.py HEAD INPUTS

is run by `run.py` in an environment that has that package. `INPUTS` is a safetensors file:
`features` [1, T, F], `ids` int64 [1, T], and `logits` [S, T, Vd] of S unrolled steps. The last line is a JSON
document.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel
from torch import Tensor


def steps_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """[S, T, Vd] the logits of the package's own unrolled forward pass, seen where its head leaves them."""
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    length = inputs["ids"].shape[1]
    with torch.no_grad():
        model(
            hidden_states=inputs["features"],
            input_ids=inputs["ids"],
            document_ids=torch.zeros(1, length, dtype=torch.long),
            position_ids=torch.arange(length)[None],
            ttt_steps=len(inputs["logits"]),
        )
    return torch.stack(seen)


def main() -> None:
    folder, inputs = sys.argv[1], load_file(sys.argv[2])
    model = SpeculatorModel.from_pretrained(folder).float().eval()
    ours, theirs = inputs["logits"], steps_of(model, inputs)
    rows = [  # a step's last rows have no token left to read
        {
            "step": step,
            "rows": rows,
            "max_error": float((ours[step] - theirs[step])[:rows].abs().max()),
            "largest_logit": float(ours[step, :rows].abs().max()),
            "same_best_token": float(
                (ours[step].argmax(-1) == theirs[step].argmax(-1))[:rows].float().mean()
            ),
        }
        for step, rows in ((s, ours.shape[1] - s) for s in range(len(ours)))
    ]
    names = ("speculators", "transformers", "torch")
    print(json.dumps({"versions": {name: version(name) for name in names}, "steps": rows}))


if __name__ == "__main__":
    main()
