"""What a profile says, as tables: the same ones on the terminal and in `profile.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.bench.tables import NOTHING, markdown_table, ms, number

Document = Mapping[str, Any]
ROUNDS = {
    "plain": "Rounds of plain decoding, temperature 0",
    "plain sampled": "Rounds of plain decoding, temperature 1, top-p 0.95",
    "greedy": "Rounds of {method}, temperature 0",
    "sampled": "Rounds of {method}, temperature 1, top-p 0.95",
}
"""By their keys in the document."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with what is said of it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()


def sections(document: Document) -> list[Section]:
    """All tables of a profile that have something to say, in order."""
    found = [
        _headlines(document),
        _passes(document),
        *map(_operators, document["operators"]),
        _decoding(document),
    ]
    found += list(_rounds(document))
    memory = document["memory"]
    return [*found, *([] if memory is None else [_memory(memory)])]


def markdown(document: Document, plots: Sequence[str] = ()) -> str:
    """The whole profile in Markdown; `plots` are the names of files beside it."""
    made = document["provenance"]
    hardware = made["cpu"] if made["device"] == "cpu" else made["device"]
    head = (
        f"# Profile: {document['model']}, {document['method']}\n\n{made['dtype']}, {hardware}, "
        f"{made['threads']} threads; {document['context']} tokens of context, {document['repeats']} repeats."
        f"\n\n```\n{made['command']}\n```"
    )
    parts = [head, *(f"![Time of a pass by groups of operators]({name})" for name in plots)]
    for section in sections(document):
        parts += [
            f"## {section.title}",
            markdown_table(section.header, section.rows),
            *section.remarks,
        ]
    return "\n\n".join([*parts, "## Provenance", _provenance(made)]) + "\n"


def _headlines(document: Document) -> Section:
    found = document["headlines"]
    widths = [
        (f"our pass of {rows}, of hf's one-token pass", number(value, 2))
        for rows, value in found["rows_vs_hf"].items()
    ]
    rows = (
        *widths,
        ("our pass of 1, in floors", number(found["floors"], 2)),
        ("plain decoding, speedup over hf", number(found["plain_speedup_vs_hf"], 2)),
        (f"{document['method']}, speedup over hf", number(found["method_speedup_vs_hf"], 2)),
        ("a draft level, of our pass of 1", _percent(found["draft_level_share"])),
        ("sampling and verification, of a round (top-p 0.95)", _percent(found["verify_share"])),
        ("all that is no pass, of a round (greedy)", _percent(found["host_share"])),
        ("memory growth, of the weights", number(found["memory_growth_ratio"], 2)),
    )
    return Section("In short", ("", ""), rows)


def _passes(document: Document) -> Section:
    least, bandwidth = document["floor"], document["bandwidth"]
    rows = tuple(
        (
            row["name"],
            ms(row["median_ms"]),
            f"{ms(row['q1_ms'])} to {ms(row['q3_ms'])}",
            _with_interval(row, "vs_hf"),
            _with_interval(row, "vs_own_one"),
            number(row["vs_floor"], 2),
        )
        for row in document["passes"]
    )
    kernels = ", ".join(f"{k} {v:.1f}" for k, v in bandwidth["kernels_gb_per_s"].items())
    remarks = [
        f"Bandwidth: {bandwidth['gb_per_s']:.1f} GB/s, the fastest of {kernels}.",
        f"The floor of a target pass: {least['weights_mb']:.0f} MB of weights and {least['kv_mb']:.0f} MB of "
        f"keys and values: {ms(least['ms'])} ms.",
    ]
    if (draft := document["draft_floor"]) is not None:
        remarks.append(f"Of a draft pass: {draft['weights_mb']:.0f} MB, {ms(draft['ms'])} ms.")
    header = ("pass", "ms", "quartiles", "/ hf, 1 token", "/ ours, 1 row", "/ floor")
    return Section(f"Passes behind {document['context']} tokens", header, rows, tuple(remarks))


def _operators(entry: Document) -> Section:
    rows = [
        (
            row["name"],
            ms(row["ms"]),
            _percent(row["share"]),
            _calls(row["calls"]),
            ms(row["profiled_ms"]),
        )
        for row in entry["groups"]
        if row["ms"] or row["calls"]
    ]
    longest = ", ".join(
        f"{row['name']} ({row['group']}) {ms(row['profiled_ms'])}" for row in entry["operators"][:5]
    )
    remarks = [f"The longest, in ms as profiled: {longest}."]
    if entry["scale"] < 1:
        remarks.append(
            f"Times are as profiled times {entry['scale']:.2f}: the profiler slows operators."
        )
    if entry["unknown"]:
        remarks.append(f"In no known group: {', '.join(entry['unknown'])}.")
    title = f"Operators of a pass of {entry['rows']}: {ms(entry['pass_ms'])} ms"
    return Section(
        title, ("group", "ms", "share", "calls", "ms as profiled"), tuple(rows), tuple(remarks)
    )


def _decoding(document: Document) -> Section:
    entry = document["decoding"]
    rows = tuple(
        (
            document["method"] if row["name"] == "method" else row["name"],
            ms(row["median_ms"]),
            f"{ms(row['q1_ms'])} to {ms(row['q3_ms'])}",
            _with_interval(row, "speedup_vs_hf"),
        )
        for row in entry["rows"]
    )
    title = f"Whole answers of {entry['tokens']} tokens, in turn"
    return Section(title, ("", "ms a token", "quartiles", "speedup over hf"), rows)


def _rounds(document: Document) -> Iterator[Section]:
    for key, title in ROUNDS.items():
        entry = document["rounds"].get(key)
        if entry is None:
            continue
        rows = tuple(
            (
                s["name"],
                ms(s["median_ms"]),
                _percent(s["share"]),
                str(s["rounds"]),
                number(s["rows"], 0),
            )
            for s in entry["stages"]
        )
        remark = (
            f"A round takes {ms(entry['round_ms'])} ms for {entry['tokens_per_round']:.2f} tokens and "
            f"{entry['nodes']:.1f} nodes (means). Verification is {_percent(entry['verify_share'])} of "
            f"it, all that is no pass {_percent(entry['host_share'])}."
        )
        named = title.format(method=document["method"])
        yield Section(named, ("stage", "ms", "share", "rounds", "rows"), rows, (remark,))


def _memory(entry: Document) -> Section:
    title = f"Memory of a fresh process at {entry['context'] or '?'} tokens"
    header = ("", "MB", "of the weights")
    if entry["note"]:
        return Section(title, header, (), (f"Not known: {entry['note']}.",))
    rows = [
        ("weights", number(entry["weights_mb"], 0), "1.00"),
        ("growth after imports", number(entry["growth_mb"], 0), number(entry["growth_ratio"], 2)),
        ("of it not read from files", number(entry["anonymous_growth_mb"], 0), NOTHING),
        ("at most", number(entry["peak_growth_mb"], 0), number(entry["peak_growth_ratio"], 2)),
        ("imports", number(entry["import_mb"], 0), NOTHING),
    ]
    if entry["device_peak_mb"] is not None:
        share = entry["device_peak_mb"] / entry["weights_mb"]
        rows.append(("device, at most", number(entry["device_peak_mb"], 0), number(share, 2)))
    return Section(title, header, tuple(rows))


def _with_interval(row: Document, name: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if low is None or low == high:
        return number(value, 2)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


def _calls(count: float | None) -> str:
    return number(count, 0)


def _provenance(made: Document) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    facts = [f"- {k}: {v}" for k, v in made.items() if k != "packages" and v is not None]
    return "\n".join([*facts, f"- packages: {packages}"])
