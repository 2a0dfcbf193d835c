"""The figures of *Improving Multi-candidate Speculative Decoding* as it prints them.

X. Lu, Y. Zeng, F. Ma, Z. Yu, M. Levorato: Improving Multi-Candidate Speculative Decoding. arXiv
2409.10644v3; PMLR 262:382-394. On one RTX 4090, 200 new tokens; targets Llama-2-7B-chat and
Vicuna-7B-v1.5, draft models of 68 M and 1.1 B (TinyLlama) parameters.
"""

from __future__ import annotations

from foredraft.bench.reproduce.published import Published

CITATION = (
    "Improving Multi-Candidate Speculative Decoding, arXiv 2409.10644v3, PMLR 262:382-394 (RTX 4090; "
    "Llama-2-7B-chat and Vicuna-7B-v1.5 with draft models of 68 M and 1.1 B parameters)"
)


PAIRS = ("68M, Llama-2", "68M, Vicuna", "TinyLlama, Llama-2", "TinyLlama, Vicuna")
SETS = ("MT-Bench", "TriviaQA", "Alpaca")
SD, MCSD, STATIC, DYNAMIC = (
    "SD, chain of 4", "MCSD (4,2,2,1)", "improved, static (2,4,3,1,1)", "improved, dynamic (16 roots)",
)  # fmt: skip

SPEEDUPS = Published(
    "Speedup over plain decoding at temperature 0.7, mean of MT-Bench, TriviaQA and Alpaca (figure 3)",
    PAIRS,
    {
        SD: (1.34, 1.40, 1.06, 1.03),
        MCSD: (1.49, 1.61, 1.21, 1.20),
        STATIC: (1.90, 1.75, 1.21, 1.21),
    },
)
DYNAMIC_SPEEDUPS = Published(
    "Speedup over plain decoding at temperature 1, 16 roots, depth 5 (appendix); its bars of MCSD are those "
    "of figure 3 again",
    PAIRS,
    {SD: (1.24, 1.28, 0.92, 0.92), DYNAMIC: (2.69, 2.75, 1.45, 1.46)},
)
ACCEPTANCE = Published(
    "Accepted path / draft depth at temperature 0.7, draft model of 68 M (table 2)",
    tuple(f"{target}, {name}" for target in ("Llama-2", "Vicuna") for name in SETS),
    {
        SD: (0.17, 0.15, 0.20, 0.18, 0.21, 0.21),
        MCSD: (0.29, 0.21, 0.34, 0.31, 0.33, 0.35),
        STATIC: (0.47, 0.53, 0.52, 0.40, 0.51, 0.46),
    },
)
QUALITY = Published(
    "MT-Bench score of Llama-2-7B by number of roots (table 1); plain decoding has 6.29, and one root is "
    "within 0.05 of it",
    ("TinyLlama", "68M"),
    {"2 roots": (5.07, 5.83), "3 roots": (4.32, 5.69)},
)
TABLES = (SPEEDUPS, DYNAMIC_SPEEDUPS, ACCEPTANCE, QUALITY)
