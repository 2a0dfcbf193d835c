"""What a request gives back, and the metrics, each defined once (see docs/metrics.md).

Ratios are ratios of sums, so results of several requests pool without weights. Usage counts emitted
tokens, after trimming. A round that a stop cut short is left out of acceptance figures: what the
draft was worth there is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

LOOP_NGRAM = 8
"""A token is inside a loop when the 8 tokens that end with it stood earlier in the answer."""

METRICS = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "cut_rounds",
    "drafted_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "path_acceptance_rate",
    "accepted_histogram",
    "accepted_per_depth",
    "wasted_tokens",
    "waste",
    "draft_passes",
    "target_passes",
    "loop_share",
    "tokens_per_s",
    "tokens_per_pass",
)
"""The metrics of `Statistics` that are reported by their own name."""

STAGES = ("draft", "target", "verify")
"""The stages of a round; what is left of its time is `other`."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was by the model alone: the log-softmax of its logits, in nats."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The most likely tokens at its place and their log-probabilities, the most likely first."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One draft and one target pass."""

    context: int
    """Tokens in the target's cache before the pass."""
    widths: tuple[int, ...]
    """[D + 1] nodes of the tree at each depth; the first are the roots, of which there is one unless they
    are candidates of the target's own."""
    draft_rows: tuple[int, ...]
    """[L] rows of each model pass of the drafter; empty for drafters without a model."""
    num_accepted: int
    num_emitted: int
    cut: bool
    """Whether a stop or a limit trimmed what was verified."""
    draft_s: float
    target_s: float
    verify_s: float
    total_s: float
    target_passes: int = 1
    """Passes of the target. Where roots are open, the first round has one more, which reads the law that its
    roots come from, and a root that ends the answer has none."""

    @property
    def num_drafted(self) -> int:
        """Draft tokens: every node but the roots."""
        return sum(self.widths) - self.widths[0]

    @property
    def depth(self) -> int:
        """Levels of the draft."""
        return len(self.widths) - 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to the answer."""

    token_ids: tuple[int, ...]
    text: str
    """Text that can be shown now; together the steps' texts are the answer's text."""
    num_accepted: int
    """How many of `token_ids`, counted from the front, came from the draft."""
    num_drafted: int
    finish_reason: FinishReason | None
    stopped_by: int | str | None
    """The end token or stop string that ended the answer."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`; empty if they were not asked for."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts and times of one request, or of several pooled.

    `in_loop` marks, for each round, whether its first token lies inside a loop.
    """

    rounds: tuple[RoundRecord, ...]
    prompt_tokens: int
    in_loop: tuple[bool, ...]
    loop_tokens: int
    prefill_s: float
    ttft_s: float
    """From the request to its first token, prefill included; summed over requests when pooled."""
    requests: int = 1
    stages: tuple[str, ...] = STAGES
    """The stages whose time the rounds tell. Peers in a benchmark do not let all of them be seen."""
    cached_prompt_tokens: int = 0
    """Of the prompt, tokens that the target had read in an earlier text and did not read again."""

    @classmethod
    def pool(cls, many: Iterable[Statistics]) -> Statistics:
        """Several requests as one: every metric below becomes a ratio of sums."""
        parts = list(many)
        return cls(
            rounds=tuple(r for s in parts for r in s.rounds),
            prompt_tokens=sum(s.prompt_tokens for s in parts),
            in_loop=tuple(flag for s in parts for flag in s.in_loop),
            loop_tokens=sum(s.loop_tokens for s in parts),
            prefill_s=sum(s.prefill_s for s in parts),
            ttft_s=sum(s.ttft_s for s in parts),
            requests=sum(s.requests for s in parts),
            stages=tuple(name for name in STAGES if all(name in s.stages for s in parts)),
            cached_prompt_tokens=sum(s.cached_prompt_tokens for s in parts),
        )

    # --- counts ---------------------------------------------------------------------------------

    @property
    def completion_tokens(self) -> int:
        """Emitted tokens, after trimming, the end token included."""
        return sum(r.num_emitted for r in self.rounds)

    @property
    def cut_rounds(self) -> int:
        """Rounds that a stop or limit trimmed; they do not count for acceptance."""
        return sum(r.cut for r in self.rounds)

    @property
    def whole_rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds that count for acceptance."""
        return tuple(r for r in self.rounds if not r.cut)

    @property
    def drafted_tokens(self) -> int:
        """Draft tokens of whole rounds."""
        return sum(r.num_drafted for r in self.whole_rounds)

    @property
    def accepted_tokens(self) -> int:
        """Accepted draft tokens of whole rounds."""
        return sum(r.num_accepted for r in self.whole_rounds)

    # --- acceptance -----------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None when nothing was drafted."""
        return _ratio(self.accepted_tokens, self.drafted_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """tau = 1 + accepted / rounds, as vLLM and EAGLE count it."""
        accepted = _ratio(self.accepted_tokens, len(self.whole_rounds))
        return None if accepted is None else 1 + accepted

    @property
    def path_acceptance_rate(self) -> float | None:
        """Accepted / (rounds x depth), the rate of the multi-candidate papers."""
        return _ratio(self.accepted_tokens, sum(r.depth for r in self.whole_rounds))

    @property
    def accepted_histogram(self) -> tuple[int, ...]:
        """[D + 1] whole rounds that accepted 0, 1, .. D draft tokens."""
        lengths = [r.num_accepted for r in self.whole_rounds]
        return tuple(lengths.count(n) for n in range(max(lengths, default=-1) + 1))

    @property
    def accepted_per_depth(self) -> tuple[float, ...]:
        """[D] share of the rounds that drafted to depth d (1..D) in which it was accepted."""
        depths = range(1, max((r.depth for r in self.whole_rounds), default=0) + 1)
        reached = ([r for r in self.whole_rounds if r.depth >= d] for d in depths)
        return tuple(
            sum(r.num_accepted >= d for r in rounds) / len(rounds)
            for d, rounds in zip(depths, reached, strict=True)
        )

    @property
    def wasted_tokens(self) -> int:
        """Draft tokens of whole rounds that were not accepted."""
        return self.drafted_tokens - self.accepted_tokens

    @property
    def waste(self) -> float | None:
        """Drafted but not accepted, per emitted token."""
        emitted = sum(r.num_emitted for r in self.whole_rounds)
        return _ratio(self.wasted_tokens, emitted)

    @property
    def loop_share(self) -> float | None:
        """Share of emitted tokens inside repeated 8-grams."""
        return _ratio(self.loop_tokens, self.completion_tokens)

    def acceptance_where(self, in_loop: bool) -> float | None:
        """`mean_acceptance_length` of the rounds that start inside (or outside) a loop."""
        rounds = [
            r
            for r, loop in zip(self.rounds, self.in_loop, strict=True)
            if loop == in_loop and not r.cut
        ]
        accepted = _ratio(sum(r.num_accepted for r in rounds), len(rounds))
        return None if accepted is None else 1 + accepted

    # --- time -----------------------------------------------------------------------------------

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds; prefill apart."""
        return sum(r.total_s for r in self.rounds)

    @property
    def tokens_per_s(self) -> float | None:
        """Emitted tokens / decode seconds."""
        return _ratio(self.completion_tokens, self.decode_s)

    @property
    def tokens_per_pass(self) -> float | None:
        """Emitted tokens / target passes."""
        return _ratio(self.completion_tokens, self.target_passes)

    @property
    def draft_passes(self) -> int:
        """Passes of the draft model or head; none of drafters without a model."""
        return sum(len(r.draft_rows) for r in self.rounds)

    @property
    def target_passes(self) -> int:
        """Passes of the target; prefill apart."""
        return sum(r.target_passes for r in self.rounds)

    def ms_per_round(self) -> dict[str, float | None]:
        """Where a round's time goes: draft, target, verify and the rest, in milliseconds.

        A stage that cannot be seen is None, and its time is part of the rest.
        """
        count = max(len(self.rounds), 1)
        parts = {
            "draft": sum(r.draft_s for r in self.rounds),
            "target": sum(r.target_s for r in self.rounds),
            "verify": sum(r.verify_s for r in self.rounds),
        }
        seen = {name: seconds for name, seconds in parts.items() if name in self.stages}
        rest = self.decode_s - sum(seen.values())
        times: dict[str, float | None] = {
            f"{name}_ms": 1000 * seen[name] / count if name in seen else None for name in STAGES
        }
        return {**times, "other_ms": 1000 * rest / count if seen else None}

    def as_dict(self) -> dict[str, Any]:
        """Every metric by its name, ready for JSON."""
        tpot = _ratio(1000 * self.decode_s, self.completion_tokens)
        return {
            "rounds": len(self.rounds),
            **{name: getattr(self, name) for name in METRICS},
            "mean_acceptance_length_in_loops": self.acceptance_where(in_loop=True),
            "mean_acceptance_length_outside_loops": self.acceptance_where(in_loop=False),
            "prefill_ms": 1000 * self.prefill_s / self.requests,
            "ttft_ms": 1000 * self.ttft_s / self.requests,
            "tpot_ms": tpot,
            **self.ms_per_round(),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One answer."""

    text: str
    token_ids: tuple[int, ...]
    """Emitted tokens, the end token included."""
    finish_reason: FinishReason
    stopped_by: int | str | None
    stats: Statistics
    seed: int | None
    """The seed that reproduces a sampled answer; None when greedy."""
    prompt_ids: tuple[int, ...]
    accepted: tuple[bool, ...]
    """For each token, whether it came from a draft."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`; empty if they were not asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """One for each of `prompt_ids`, None for the first; empty if they were not asked for."""

    def as_dict(self) -> dict[str, Any]:
        """The answer as one JSON document."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "stats": self.stats.as_dict(),
        }


def collect(
    steps: Sequence[Step],
    rounds: Sequence[RoundRecord],
    *,
    prompt_ids: Sequence[int],
    seed: int | None,
    prefill_s: float,
    ttft_s: float,
    prompt_logprobs: Sequence[TokenLogprob | None] = (),
    cached_prompt_tokens: int = 0,
) -> Result:
    """The answer that these steps spell, with its statistics."""
    last = steps[-1]
    assert last.finish_reason is not None
    return Result(
        text="".join(step.text for step in steps),
        token_ids=tuple(t for step in steps for t in step.token_ids),
        finish_reason=last.finish_reason,
        stopped_by=last.stopped_by,
        stats=count(
            steps,
            rounds,
            prompt_tokens=len(prompt_ids),
            prefill_s=prefill_s,
            ttft_s=ttft_s,
            cached_prompt_tokens=cached_prompt_tokens,
        ),
        seed=seed,
        prompt_ids=tuple(prompt_ids),
        accepted=tuple(i < s.num_accepted for s in steps for i in range(len(s.token_ids))),
        logprobs=tuple(logprob for step in steps for logprob in step.logprobs),
        prompt_logprobs=tuple(prompt_logprobs),
    )


def count(
    steps: Sequence[Step],
    rounds: Sequence[RoundRecord],
    *,
    prompt_tokens: int,
    prefill_s: float,
    ttft_s: float,
    cached_prompt_tokens: int = 0,
) -> Statistics:
    """The statistics of an answer as far as these steps, one a round, spell it."""
    loops = loop_mask(tuple(t for step in steps for t in step.token_ids))
    starts = list(accumulate((len(step.token_ids) for step in steps), initial=0))[:-1]
    return Statistics(
        rounds=tuple(rounds),
        prompt_tokens=prompt_tokens,
        in_loop=tuple(loops[start] for start in starts),
        loop_tokens=sum(loops),
        prefill_s=prefill_s,
        ttft_s=ttft_s,
        cached_prompt_tokens=cached_prompt_tokens,
    )


def loop_mask(token_ids: Sequence[int]) -> tuple[bool, ...]:
    """[T] whether the 8-gram that ends at each token occurred before."""
    seen: set[tuple[int, ...]] = set()
    mask = []
    for end in range(1, len(token_ids) + 1):
        gram = tuple(token_ids[max(0, end - LOOP_NGRAM) : end])
        mask.append(len(gram) == LOOP_NGRAM and gram in seen)
        seen.add(gram)
    return tuple(mask)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
