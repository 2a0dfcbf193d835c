"""A comparison says which methods are lossy."""

from __future__ import annotations

from foredraft.bench.compare import compare_runs
from tests.bench.synthetic_runs import noisy_run


def test_lossy_methods_are_named_in_the_notes() -> None:
    a, b = (noisy_run(seed, {"autoregressive": 1.0, "m": 0.5}, prompts=8) for seed in (0, 1))
    assert not [note for note in compare_runs(a, b).notes if "lossless" in note]
    b.plan["lossy"] = ["m"]
    (note,) = [note for note in compare_runs(a, b).notes if "lossless" in note]
    assert note.startswith("m: lossless: no")
