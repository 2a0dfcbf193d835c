"""The one owner of everything that belongs to one request."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foredraft.engine.clock import StageClock
from foredraft.engine.contracts import check_draft, check_verdict
from foredraft.engine.stopping import StopState, Taken
from foredraft.protocols import (
    DraftContext,
    DrafterState,
    DraftLimits,
    ModelState,
    PolicyState,
    RoundOutcome,
    Verdict,
)
from foredraft.results import FinishReason, RoundRecord, Step
from foredraft.sampling.law import RequestLaw, TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter's and a policy's state of one request, and the limits that hold in every round."""

    drafter: DrafterState
    policy: PolicyState
    max_nodes: int
    chains_only: bool


class Session:
    """Token ids, caches, randomness and stop state of one request.

    Between rounds the target's cache holds exactly the session's tokens but the last, which is the
    root of the next tree; drafters hold nothing of rejected branches.
    """

    def __init__(
        self,
        prompt_ids: list[int],
        *,
        target: ModelState,
        drafting: Drafting | None,
        law: RequestLaw,
        random: Randomness,
        stop: StopState,
        room: int,
        clock: StageClock,
    ) -> None:
        self.token_ids = list(prompt_ids)
        self.target = target
        self.random = random
        self.clock = clock
        self.finish_reason: FinishReason | None = None
        self.rounds: list[RoundRecord] = []
        self.prefill_s = 0.0
        self._drafting, self._law, self._stop = drafting, law, stop
        self._max_length = len(prompt_ids) + room
        self._closed = self._cancelled = False

    def prefill(self) -> None:
        """Cover the prompt without its last token, in the target and in the drafter."""
        with self.clock.stage("prefill"):
            self.target.prefill(self.token_ids[:-1])
            if self._drafting is not None:
                self._drafting.drafter.prefill(self.token_ids[:-1])
        self.prefill_s = self.clock.lap()["prefill"]

    def draft(self) -> DraftTree:
        """This round's tree; the root alone when there is no drafter or no room for a draft."""
        max_depth = self._max_length - len(self.token_ids) - 1  # the verifier adds one more
        if self._drafting is None or max_depth < 1:
            return DraftTree.root_only(self.token_ids[-1])
        limits = DraftLimits(max_depth, self._drafting.max_nodes, self._drafting.chains_only)
        context = DraftContext(self.token_ids, limits, self._law.draft, self.random)
        tree = self._drafting.drafter.draft(context, self._drafting.policy)
        check_draft(tree, self.token_ids[-1], limits, self._law.vocab_size)
        return tree

    def laws(self, tree: DraftTree, logits: Tensor) -> TargetLaws:
        """The target's laws over the scored tree, processed as they are read."""
        return self._law.laws(tree, logits, self.token_ids, self.random)

    def take(self, tree: DraftTree, verdict: Verdict) -> Step:
        """Trim what was verified at the first stop or limit, and make it text: ids, caches, counts."""
        check_verdict(verdict, tree, self._law.vocab_size)
        taken = self._stop.take(verdict.token_ids)
        kept = verdict.token_ids[: taken.num_kept]
        self.token_ids.extend(kept)
        self.finish_reason = taken.finish_reason
        self._commit(verdict.path[: taken.num_kept])
        self._record(tree, verdict, taken)
        return Step(
            token_ids=kept,
            text=taken.text,
            num_accepted=min(verdict.num_accepted, taken.num_kept),
            num_drafted=tree.num_drafted,
            finish_reason=taken.finish_reason,
            stopped_by=taken.stopped_by,
        )

    def cancel(self) -> None:
        """Ask for an end after the round in progress; may be called from another thread."""
        self._cancelled = True

    @property
    def goes_on(self) -> bool:
        """Whether another round follows."""
        return self.finish_reason is None and not self._cancelled

    def close(self) -> None:
        """Give all memory back; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.target.close()
        if self._drafting is not None:
            self._drafting.drafter.close()

    def _commit(self, path: tuple[int, ...]) -> None:
        self.target.commit(path)
        if self._drafting is not None:
            self._drafting.drafter.commit(path)

    def _record(self, tree: DraftTree, verdict: Verdict, taken: Taken) -> None:
        """Let the policy learn from the round, then count it: learning is part of the round's time."""
        cut = taken.num_kept < len(verdict.token_ids)
        widths = tree.widths
        if self._drafting is not None and not cut:
            spent = self.clock.spent
            outcome = RoundOutcome(
                tree, verdict.num_accepted, spent.get("draft", 0.0), spent["target"]
            )
            self._drafting.policy.observe(outcome)
        seconds = self.clock.lap()
        self.rounds.append(
            RoundRecord(
                context=len(self.token_ids) - taken.num_kept - 1,
                widths=widths,
                draft_rows=tree.draft_rows,
                num_accepted=verdict.num_accepted,
                num_emitted=taken.num_kept,
                cut=cut,
                draft_s=seconds.get("draft", 0.0),
                target_s=seconds["target"],
                verify_s=seconds["verify"],
                total_s=seconds["total"],
            )
        )
