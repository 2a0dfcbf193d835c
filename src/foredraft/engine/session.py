"""The one owner of everything that belongs to one request."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.engine.clock import StageClock
from foredraft.engine.contracts import check_draft, check_verdict
from foredraft.engine.logprobs import AnswerLogprobs, read_prompt
from foredraft.engine.open_roots import PendingLaw
from foredraft.engine.stopping import StopState, Taken
from foredraft.protocols import (
    Company,
    CompanyState,
    DraftContext,
    DrafterState,
    DraftLimits,
    LawReader,
    ModelState,
    PolicyState,
    RestoringState,
    RoundOutcome,
    Verdict,
)
from foredraft.results import FinishReason, RoundRecord, Step, TokenLogprob
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
    reader: LawReader | None = None
    """The drafter's state again, if it learns from the target's laws."""


class Session:
    """Token ids, caches, randomness and stop state of one request.

    Between rounds the target's cache holds exactly the session's tokens but the last, which is the
    root of the next tree; drafters hold nothing of rejected branches. Where roots are open it holds all
    tokens, and a pending law takes the last token's place.
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
        pending: PendingLaw | None = None,
    ) -> None:
        self.token_ids = list(prompt_ids)
        self.target = target
        self.random = random
        self.clock = clock
        self.finish_reason: FinishReason | None = None
        self.rounds: list[RoundRecord] = []
        self.prefill_s = 0.0
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self.cached_prompt_tokens = 0
        self._drafting, self._law, self._stop = drafting, law, stop
        self._pending = pending
        count = law.options.logprobs
        self._logprobs = None if count is None else AnswerLogprobs(count)
        self._laws: TargetLaws | None = None  # of the tree in progress
        self._passes = 0  # of the target since the last round was recorded
        self._passes_before_s = 0.0  # their seconds, as far as no lap of the clock holds them
        self._max_length = len(prompt_ids) + room
        self._closed = self._cancelled = False

    def prefill(self) -> None:
        """Cover the prompt without its last token, in the target and in the drafter.

        Where roots are open it is covered whole, and the law after it is read. Plain decoding makes that
        pass in its first round, so it counts as the first round's here too.
        """
        with self.clock.stage("prefill"):
            self._prefill_target()
        if isinstance(self.target, RestoringState):
            self.cached_prompt_tokens = self.target.restored
        if self._pending is not None:
            with self.clock.stage("target"):
                self._read_pending(self._pending)
        if self._drafting is not None:
            whole = self._pending is not None
            with self.clock.stage("prefill"):
                self._drafting.drafter.prefill(self.token_ids if whole else self.token_ids[:-1])
        seconds = self.clock.lap()
        self.prefill_s, self._passes_before_s = seconds["prefill"], seconds.get("target", 0.0)

    def _prefill_target(self) -> None:
        count = self._law.options.prompt_logprobs
        if count is None:
            self.target.prefill(self.token_ids[:-1])
        else:
            self.prompt_logprobs = read_prompt(self.target, self.token_ids, count)

    def _read_pending(self, pending: PendingLaw) -> None:
        root = DraftTree.root_only(self.token_ids[-1])
        logits = self._pass(root)
        pending.read(self._law.laws(root, logits, self.token_ids, self.random), 0)
        if self._logprobs is not None:
            self._logprobs.keep(logits)
        self.target.commit([0])

    def _pass(self, tree: DraftTree) -> Tensor:
        self._passes += 1
        return self.target.score(tree.token_ids, tree.parents)

    def join(self, company: Company) -> None:
        """Tell the policy who shares the passes of the next round."""
        if self._drafting is not None and isinstance(self._drafting.policy, CompanyState):
            self._drafting.policy.join(company)

    def draft(self) -> DraftTree:
        """This round's tree; the roots alone when there is no drafter or no room for a draft."""
        max_depth = self._room - 1  # the verifier adds one more, or a root is one
        roots = () if self._pending is None else self._pending.choose_roots()
        if self._drafting is None or max_depth < 1:
            limits = DraftLimits(0, 0)
            return self._context(limits, roots[:1]).builder().build()
        limits = DraftLimits(max_depth, self._drafting.max_nodes, self._drafting.chains_only)
        context = self._context(limits, roots)
        tree = self._drafting.drafter.draft(context, self._drafting.policy)
        check_draft(tree, context, self._law.vocab_size)
        return tree

    def _context(self, limits: DraftLimits, roots: tuple[int, ...]) -> DraftContext:
        return DraftContext(self.token_ids, limits, self._law.draft, self.random, roots)

    def score(self, tree: DraftTree) -> Tensor:
        """The target's logits [N, V] after each node; [0, V] for a root that is the answer's last token."""
        if self._is_all(tree):
            return torch.empty(0, self._law.vocab_size)
        logits = self._pass(tree)
        if self._drafting is not None and self._drafting.reader is not None:
            self._drafting.reader.read(tree, logits, self.token_ids)
        return logits

    def laws(self, tree: DraftTree, logits: Tensor) -> TargetLaws:
        """The target's laws over the scored tree, processed as they are read."""
        self._laws = self._law.laws(tree, logits, self.token_ids, self.random)
        return self._laws

    @property
    def _room(self) -> int:
        """Tokens that the answer may still have."""
        return self._max_length - len(self.token_ids)

    def _is_all(self, tree: DraftTree) -> bool:
        """Whether the tree's root ends the answer, so that nothing after it is asked for."""
        return tree.open_roots and self._room == 1

    def take(self, tree: DraftTree, verdict: Verdict) -> Step:
        """Trim what was verified at the first stop or limit, and make it text: ids, caches, counts."""
        check_verdict(verdict, tree, self._law.vocab_size)
        taken = self._stop.take(verdict.token_ids)
        kept = verdict.token_ids[: taken.num_kept]
        is_scored = not self._is_all(tree)
        if self._pending is not None and taken.finish_reason is None:
            assert self._laws is not None
            self._pending.learn(verdict, self._laws)
        self.token_ids.extend(kept)
        self.finish_reason = taken.finish_reason
        logprobs = self._read_logprobs(verdict.path if is_scored else (), kept)
        self._commit(verdict.path[: taken.num_kept] if is_scored else ())
        self._record(tree, verdict, taken)
        return Step(
            token_ids=kept,
            text=taken.text,
            num_accepted=min(verdict.num_accepted, taken.num_kept),
            num_drafted=tree.num_drafted,
            finish_reason=taken.finish_reason,
            stopped_by=taken.stopped_by,
            logprobs=logprobs,
        )

    def _read_logprobs(
        self, path: tuple[int, ...], kept: tuple[int, ...]
    ) -> tuple[TokenLogprob, ...]:
        if self._logprobs is None:
            return ()
        assert self._laws is not None
        return self._logprobs.take(self._laws.logits(path), kept)

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
                tree,
                verdict.num_accepted,
                spent.get("draft", 0.0),
                spent["target"],
                verdict.path,
                verdict.token_ids,
            )
            self._drafting.policy.observe(outcome)
        seconds, before_s = self.clock.lap(), self._passes_before_s
        self.rounds.append(
            RoundRecord(
                context=len(self.token_ids) - taken.num_kept - (not tree.open_roots),
                widths=widths,
                draft_rows=tree.draft_rows,
                num_accepted=verdict.num_accepted,
                num_emitted=taken.num_kept,
                cut=cut,
                draft_s=seconds.get("draft", 0.0),
                target_s=seconds["target"] + before_s,
                verify_s=seconds["verify"],
                total_s=seconds["total"] + before_s,
                target_passes=self._passes,
            )
        )
        self._passes, self._passes_before_s = 0, 0.0
