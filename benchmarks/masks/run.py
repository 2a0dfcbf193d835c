"""What the dynamic sliced topology-aware mask saves: slicing stored rows against building them anew.

    python benchmarks/masks/run.py --out benchmarks/masks/results.json

A fixed tree's mask is stored for its largest depth, and a shorter draft takes its first rows and columns
(arXiv 2409.10644). Both ways end with the same 4-D mask, behind so many cached tokens; both are timed in
turn, and each row keeps the medians. No model is loaded. With `--pass-ms` the saving is told in passes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import write_results

from foredraft.backends.kv_layout import LayerLayout
from foredraft.backends.tree_attention import AttentionKind, Topology, TreeMasks
from foredraft.tree import parse_k_config

CPU = torch.device("cpu")
FORKS = ("2,1,1,1,1", "4,1,1,1,1", "8,1,1,1,1,1", "16,1,1,1,1,1")
"""W roots, each with a chain: they have no parent, as target-initialised candidates."""
ROOTED = ("2,4,3,1,1",)
"""The improved method's static tree of 82 nodes."""
PRODUCTS = ("4,2", "2,2,1,1", "4,2,2,1")
"""Trees under the text's last token; MCSD's has 45 rows with it."""
CONTEXTS = (64, 512, 2048)


def parents_of(shape: str, open_roots: bool) -> list[list[int]]:
    """The parents of the tree at every depth that may be drafted, the whole tree last."""
    widths = parse_k_config(shape)
    level = [-1] * widths[0] if open_roots else [-1]
    parents, prefixes = list(level), []
    nodes = list(range(len(level)))
    for width in widths[1:] if open_roots else widths:
        level = [node for node in nodes for _ in range(width)]
        nodes = list(range(len(parents), len(parents) + len(level)))
        parents = [*parents, *level]
        prefixes.append(parents)
    return prefixes


def masks() -> TreeMasks:
    """Those of a model whose layers all see everything, as `sdpa` takes them."""
    layer = LayerLayout(3, 64, 64, torch.bfloat16, CPU)
    return TreeMasks([AttentionKind(None, layer)], None)


class Forgetful(Topology):
    """Keeps its buffers and no rows: every tree is built anew, without the cost of new memory."""

    def hold(self, parents: Sequence[int]) -> None:
        """Build the tree with these parents."""
        self._held.become(())
        self._held.become(parents)


def mask_of(topology: Topology, parents: Sequence[int], context: int, build: TreeMasks) -> Any:
    """The 4-D mask of a pass over the whole tree."""
    topology.hold(parents)
    return build.build(topology, context, 0, len(parents))


def medians_us(ways: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Median microseconds of each way; they take turns."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, seconds in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - began)
    return [1e6 * statistics.median(seconds) for seconds in times]


def measure(shape: str, open_roots: bool, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for every depth and context of one tree."""
    prefixes, build = parents_of(shape, open_roots), masks()
    stored, forgetful = Topology(CPU), Forgetful(CPU)
    stored.hold(prefixes[-1])
    for depth, parents in enumerate(prefixes, 1):
        for context in CONTEXTS:
            ways = [partial(mask_of, way, parents, context, build) for way in (stored, forgetful)]
            assert torch.equal(ways[0](), ways[1]())
            slice_us, build_us = medians_us(ways, repeats)
            yield {
                "tree": shape,
                "open_roots": open_roots,
                "depth": depth,
                "nodes": len(parents),
                "context": context,
                "sliced_us": slice_us,
                "rebuilt_us": build_us,
                "ratio": build_us / slice_us,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument(
        "--pass-ms", type=float, default=None, help="milliseconds of a pass, to compare with"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [(shape, True) for shape in (*FORKS, *ROOTED)] + [(s, False) for s in PRODUCTS]
    rows = []
    with torch.inference_mode():
        for shape, open_roots in shapes:
            for row in measure(shape, open_roots, args.repeats):
                if args.pass_ms is not None:
                    saved_us = row["rebuilt_us"] - row["sliced_us"]
                    row["saved_share_of_pass"] = saved_us / (1000 * args.pass_ms)
                rows.append(row)
                print(row, flush=True)
    ratios = [row["ratio"] for row in rows]
    write_results(args.out, rows, repeats=args.repeats, median_ratio=statistics.median(ratios))


if __name__ == "__main__":
    main()
