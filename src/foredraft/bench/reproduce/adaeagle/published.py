"""The figures of *AdaEAGLE* as it prints them.

AdaEAGLE: Optimizing Speculative Decoding via Explicit Modeling of Adaptive Draft Structures. arXiv
2412.18910v1. Vicuna-7B-v1.3 with the EAGLE-1 head, chains, greedy, batch 1, on an A800.
"""

from __future__ import annotations

from foredraft.bench.reproduce.published import Published

CITATION = (
    "AdaEAGLE: Optimizing Speculative Decoding via Explicit Modeling of Adaptive Draft Structures, "
    "arXiv 2412.18910v1 (A800; Vicuna-7B-v1.3 with its EAGLE-1 head; chains, greedy)"
)
PLAIN_SPEED = 40.56
"""Tokens per second of plain decoding, the mean of the paper's six sets; its table prints 50.56, which no
mean of its own columns gives."""
BEST_LENGTH = 63.72
"""Tokens per second of its best fixed length, 3."""
MAIN = Published(
    "Mean of MT-Bench, Alpaca, HumanEval, GSM8K, CNN/DM and NQ; the last two columns are worked out "
    "from its tokens per second",
    ("tau", "tokens/s", "vs plain", "vs best fixed length"),
    {
        name: (tau, speed, speed / PLAIN_SPEED, speed / BEST_LENGTH)
        for name, tau, speed in (
            ("plain decoding", 1.0, PLAIN_SPEED),
            ("fixed 2", 2.30, 58.36),
            ("fixed 3", 2.63, BEST_LENGTH),
            ("fixed 4", 2.86, 62.71),
            ("fixed 5", 3.00, 62.88),
            ("fixed 6", 3.08, 60.27),
            ("cumulative threshold (DDD)", 3.06, 64.43),
            ("AdaEAGLE", 2.93, 64.44),
            ("AdaEAGLE with threshold", 3.00, 65.20),
        )
    },
)
CALLS = Published(
    "Calls and waste on MT-Bench, counted, and per emitted token, worked out from them (emitted are accepted "
    "tokens and one for each target call; the oracle has tau 3.41 and 83.46 tokens/s there)",
    ("draft calls", "target calls", "wasted", "target passes", "draft passes", "waste"),
    {
        name: (drafted, calls, wasted, *(count / emitted for count in (calls, drafted, wasted)))
        for name, drafted, calls, wasted in (
            ("oracle", 33313, 13952, 0),
            ("AdaEAGLE", 55649, 14170, 26871),
            ("fixed 4", 58192, 14548, 29806),
        )
        for emitted in [drafted - wasted + calls]
    },
)
ABLATION = Published(
    "Ablation: tau and tokens/s on MT-Bench, then on Alpaca",
    ("MT tau", "MT tokens/s", "Alpaca tau", "Alpaca tokens/s"),
    {
        "no penalty on short predictions": (2.81, 64.62, 2.62, 63.08),
        "classification": (2.87, 64.27, 2.72, 63.64),
        "AdaEAGLE": (3.03, 66.35, 2.86, 64.67),
    },
)
TABLES = (MAIN, CALLS, ABLATION)
