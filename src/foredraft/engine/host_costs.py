"""Seconds of a round that no pass accounts for: the host's work, from short decoding."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from foredraft.config import GenerationOptions
from foredraft.costs import DraftCosts, PassCosts
from foredraft.engine.decoder import decode
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import MIN_REPEATS, random_tokens, typical
from foredraft.protocols import PolicyKind, Target, Verdict, Verifier
from foredraft.results import RoundRecord
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal

DECODE_ROUNDS = 40
DECODE_TOKENS = 320
"""Enough for `DECODE_ROUNDS` rounds that accept a whole chain of 7."""
PHRASE_TOKENS, PHRASES = 16, 6
"""The prompt of timed decoding: a random phrase of so many tokens, so many times."""
GREEDY = GenerationOptions(temperature=0.0)


def host_s(rounds: Sequence[RoundRecord]) -> float:
    """Seconds of a round beside draft and target: verification, stop rules, text, cache commits."""
    return max(typical([r.total_s - r.draft_s - r.target_s for r in rounds]), 0.0)


def beyond_plain_s(rounds: Sequence[RoundRecord], plain: Sequence[RoundRecord]) -> float:
    """Seconds of `host_s` that rounds of drafts take more than those of plain decoding."""
    drafted = [r for r in rounds if r.num_drafted] or rounds
    return max(host_s(drafted) - host_s(plain), 0.0)


def draft_host_s(rounds: Sequence[RoundRecord], passes: PassCosts | None) -> float:
    """Seconds of a draft beside the draft model's passes, from rounds that drafted if any did.

    What the passes of a round took is priced and not timed, so that host work and passes make up the
    whole draft; small differences of large numbers may fall below 0, and count as 0.
    """
    priced = DraftCosts(0.0, passes)
    drafted = [r for r in rounds if r.num_drafted] or rounds
    return max(typical([r.draft_s - priced(r.draft_rows, r.context) for r in drafted]), 0.0)


def plain_rounds(
    engine: Engine, budget_s: float, options: GenerationOptions = GREEDY
) -> tuple[RoundRecord, ...]:
    """Rounds of an answer by plain decoding, whatever the engine's drafter."""
    plain = engine.without_drafts()
    return _rounds(plain, plain.verifier, _prompt(engine.target), budget_s, options)


def drafted_rounds(
    engine: Engine, budget_s: float, options: GenerationOptions = GREEDY
) -> tuple[RoundRecord, ...]:
    """Rounds of decoding a random phrase that comes again and again, whatever the target would say.

    So every drafter has something to draft, and what it copies is accepted. The engine's own verifier
    does its work in each round all the same.
    """
    prompt = _prompt(engine.target)
    return _rounds(engine, _Recital(prompt, engine.verifier), prompt, budget_s, options)


class _Recital:
    """Verifies against a text that begins with the prompt, and repeats its phrase for ever.

    What another verifier decides is worked out first, since that is what is timed, and counts for nothing.
    """

    proposals = frozenset(Proposal)
    policies = frozenset(PolicyKind)
    chains_only = False

    def __init__(self, prompt: Sequence[int], verifier: Verifier) -> None:
        self._phrase, self._said = prompt[:PHRASE_TOKENS], len(prompt)
        self._verifier, self.reads_rejected = verifier, verifier.reads_rejected

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """Accept the nodes that say the text's next tokens.

        Open roots are the target's own and say what they like: all under the first of them is accepted.
        """
        decided = self._verifier.verify(tree, laws, random)
        recited = self._recite(tree)
        # of open roots the next law is what the verifier has left, so that none is worked out in vain
        return dataclasses.replace(recited, left=decided.left)

    def _recite(self, tree: DraftTree) -> Verdict:
        if tree.open_roots:
            return _all_under_first_root(tree)
        path, token_ids = [0], [self._next()]
        while children := [
            n for n in tree.children[path[-1]] if tree.token_ids[n] == token_ids[-1]
        ]:
            path.append(children[0])
            token_ids.append(self._next())
        return Verdict(tuple(path), tuple(token_ids))

    def _next(self) -> int:
        self._said += 1
        return self._phrase[(self._said - 1) % len(self._phrase)]


def _all_under_first_root(tree: DraftTree) -> Verdict:
    node = 0
    while tree.children[node]:
        node = tree.children[node][0]
    return Verdict(tree.path(node), tree.path_tokens(node))


def _rounds(
    engine: Engine,
    verifier: Verifier,
    prompt: list[int],
    budget_s: float,
    options: GenerationOptions,
) -> tuple[RoundRecord, ...]:
    """Rounds of one answer; the first of them, a warm-up, is left out where there are more.

    At least `MIN_REPEATS` are kept, however small the budget, where the context has room for them.
    """
    began = time.perf_counter()
    options = options.replace(max_new_tokens=DECODE_TOKENS, ignore_eos=True, stop=())
    session = engine.session(prompt, options, engine.randomness(options.seed))
    for count, _ in enumerate(decode(session, verifier)):
        late = time.perf_counter() - began > budget_s
        if count >= DECODE_ROUNDS or (late and count >= MIN_REPEATS):
            session.cancel()
    return tuple(session.rounds[1:] or session.rounds)


def _prompt(target: Target) -> list[int]:
    """A random phrase, again and again, that fills no more than half of the context."""
    prompt = random_tokens(target, PHRASE_TOKENS) * PHRASES
    limit = target.context_length
    return prompt if limit is None else prompt[: max(limit // 2, 1)]
