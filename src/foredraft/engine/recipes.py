"""The recipes: which drafter, policy and verifier make up each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.recall import PAIR, SINGLE, TEXT, RecallWeights
from foredraft.engine.decisions import shaped
from foredraft.engine.draft_stops import stopped
from foredraft.engine.length_recipes import adaeagle, adaeagle_threshold, tree_by_length
from foredraft.engine.lengths import chosen_length
from foredraft.engine.parts import Parts, drafts_of, proposal_for
from foredraft.errors import ConfigError
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.policies.prices import Prices
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import Drafter, Policy, Target
from foredraft.tree import Proposal, parse_k_config
from foredraft.verifiers import verifier as make_verifier
from foredraft.verifiers.exact import ExactVerifier
from foredraft.verifiers.multi_root import NUCLEUS, MultiRootVerifier


def _autoregressive(*, verifier: str = "exact") -> Parts:
    """Plain decoding: one token a pass."""
    return Parts(None, None, make_verifier(verifier))


def _ngram(
    *,
    depth: int | None = None,
    tree: str | None = None,
    min: int = 2,
    max: int = 5,
    verifier: str = "exact",
) -> Parts:
    """Prompt lookup: copies of what followed the text's last tokens before."""
    drafter = NgramDrafter(min_match=min, max_match=max)
    return Parts(drafter, _policy(drafter, depth, tree), make_verifier(verifier))


def _speculative(
    draft_model: Target,
    *,
    depth: int | None = None,
    tree: str | None = None,
    decision: str | None = None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
    length: str | None = None,
    proposal: str | None = None,
    verifier: str = "exact",
) -> Parts:
    """A chain (or the given tree) of an independent draft model; a decision model may cut it short."""
    drafter = DraftModelDrafter(draft_model, proposal_for(verifier, proposal))
    shape = _policy(drafter, depth, tree)
    by_length = chosen_length(length, stop, draft_model)
    policy = shaped(shape, decision, threshold, rule, stop, by_length, drafter=drafter)
    return Parts(drafter, policy, make_verifier(verifier))


def _eagle_chain(
    head: EagleHead,
    depth: int,
    *,
    decision: str | None = None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
    length: str | None = None,
    proposal: str | None = None,
    window: int | None = None,
    verifier: str = "exact",
) -> Parts:
    """A chain of an EAGLE head; `depth` is part of the name. A decision model may cut it short."""
    drafter = _eagle_drafter(head, proposal, window, verifier)
    by_length = chosen_length(length, stop, head)
    policy = shaped(
        FixedPolicy.chain(depth), decision, threshold, rule, stop, by_length, drafter=drafter
    )
    return Parts(drafter, policy, make_verifier(verifier))


def _eagle(
    head: EagleHead,
    *,
    tree: str | None = None,
    stop: str | None = None,
    proposal: str | None = None,
    window: int | None = None,
    verifier: str = "exact",
) -> Parts:
    """The same tree of an EAGLE head in every round: EAGLE-1's of 25 nodes, or a k-config."""
    shape = StaticTreePolicy() if tree is None else FixedPolicy(tree)
    drafter = _eagle_drafter(head, proposal, window, verifier)
    return Parts(drafter, stopped(shape, stop), make_verifier(verifier))


def _eagle2(
    head: EagleHead,
    *,
    depth: int = 5,
    nodes: int = 24,
    top_k: int = 8,
    stop: str | None = None,
    length: str | None = None,
    spare: int | None = None,
    proposal: str | None = None,
    window: int | None = None,
    verifier: str = "exact",
) -> Parts:
    """EAGLE-2's dynamic tree; of sampled children, a tree whose budget is spent before drawing.

    `length` has its depth and nodes follow the predicted length, and `spare` levels more.
    """
    drafter = _eagle_drafter(head, proposal, window, verifier)
    shape = _dynamic(drafter.proposal, depth, nodes, top_k)
    return Parts(
        drafter, tree_by_length(shape, depth, head, stop, length, spare), make_verifier(verifier)
    )


def _hybrid(
    model: Target | EagleHead,
    *,
    depth: int = 8,
    min: int = 2,
    max: int = 5,
    least: float = 0.0,
    levels: int | None = None,
    nodes: int | None = None,
    top_k: int | None = None,
    tree: str | None = None,
    stop: str | None = None,
    proposal: str | None = None,
    verifier: str = "exact",
) -> Parts:
    """A branch of copies, `depth` long at most, merged with the tree of a head or draft model.

    That is a dynamic tree (`levels`, `nodes`, `top_k`) or the given k-config; stop rules may end it early.
    """
    drafts = drafts_of(model, proposal_for(verifier, proposal))
    drafter = HybridDrafter(drafts, NgramDrafter(min_match=min, max_match=max))
    shape = _model_shape(drafts.proposal, tree, {"levels": levels, "nodes": nodes, "top_k": top_k})
    policy = MergingPolicy(stopped(shape, stop), FixedPolicy.chain(depth), least)
    return Parts(drafter, policy, make_verifier(verifier))


def _model_shape(
    proposal: Proposal, tree: str | None, given: Mapping[str, int | None]
) -> FixedPolicy | DynamicTreePolicy | BudgetPolicy:
    """The k-config, or a dynamic tree of the numbers given; a default for each that is not."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if tree is not None:
        for name, value in chosen.items():
            raise ConfigError(
                f"{name}={value} and tree={tree!r} both give the shape; leave one out"
            )
        return FixedPolicy(tree)
    sizes = {"levels": 4, "nodes": 8, "top_k": 4} | chosen
    if sizes["levels"] < 1:
        raise ConfigError(f"levels={sizes['levels']} is not allowed; give 1 or more")
    return _dynamic(proposal, sizes["levels"], sizes["nodes"], sizes["top_k"])


def _dynamic(
    proposal: Proposal, depth: int, nodes: int, top_k: int
) -> DynamicTreePolicy | BudgetPolicy:
    """EAGLE-2's tree; of sampled children, a budget that is spent before drawing."""
    if proposal in (Proposal.SAMPLED, Proposal.RESAMPLED):
        return BudgetPolicy(nodes, depth, max_children=top_k)
    return DynamicTreePolicy(depth, nodes, top_k)


def _eagle_drafter(
    head: EagleHead, proposal: str | None, window: int | None, verifier: str
) -> EagleDrafter:
    return EagleDrafter(head, proposal_for(verifier, proposal), window=window)


def _mcsd(
    drafter: Target | EagleHead,
    *,
    tree: str = "4,2,2,1",
    proposal: str | None = None,
    decision: str | None = None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
    length: str | None = None,
    verifier: str = "rejection",
) -> Parts:
    """Multi-candidate speculative decoding (arXiv 2401.06706): a product tree of sampled candidates.

    `proposal=resampled` draws them with replacement.
    """
    drafts = drafts_of(drafter, proposal_for(verifier, proposal))
    by_length = chosen_length(length, stop, drafter)
    policy = shaped(FixedPolicy(tree), decision, threshold, rule, stop, by_length, drafter=drafts)
    return Parts(drafts, policy, make_verifier(verifier))


def _mcsd_improved_lossy(
    drafter: Target | EagleHead,
    *,
    tree: str = "2,4,3,1,1",
    roots: str = "multinomial",
    root_top_p: float | None = None,
    proposal: str | None = None,
    decision: str | None = None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
) -> Parts:
    """Target-initialised candidates (arXiv 2409.10644): another law than the target's, beyond one root.

    The first width is the number of roots, the others are those of the tree under each.
    """
    num_roots, *widths = parse_k_config(tree)
    if not widths:
        raise ConfigError(f"tree={tree!r} has roots and no drafts; write it like 2,4,3,1,1")
    if root_top_p is not None and roots != "nucleus":
        raise ConfigError(
            f"root_top_p={root_top_p} is the mass of a nucleus, and roots={roots!r} draws from none; give "
            "roots=nucleus, or leave it out"
        )
    drafts = drafts_of(drafter, proposal_for("rejection", proposal))
    fixed = FixedPolicy(widths, num_roots)
    policy = shaped(fixed, decision, threshold, rule, stop, drafter=drafts)
    top_p = NUCLEUS if root_top_p is None else root_top_p
    return Parts(drafts, policy, MultiRootVerifier(num_roots, roots, top_p))


def _mcsd_improved(
    drafter: Target | EagleHead,
    *,
    tree: str = "4,2,2,1",
    pair: float = PAIR,
    single: float = SINGLE,
    text: float = TEXT,
    proposal: str | None = None,
    decision: str | None = None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
    length: str | None = None,
    verifier: str = "rejection",
) -> Parts:
    """MCSD whose candidates are drawn from the drafter's law mixed with what the target said after the same
    tokens before, at nodes taken or not, and with what followed them in the text.

    `pair=0:single=0` leaves the target's laws out, `text=0` the text.
    """
    weights = RecallWeights(pair, single, text)
    drafts = drafts_of(drafter, proposal_for(verifier, proposal), weights)
    by_length = chosen_length(length, stop, drafter)
    policy = shaped(FixedPolicy(tree), decision, threshold, rule, stop, by_length, drafter=drafts)
    return Parts(drafts, policy, make_verifier(verifier))


def _adaptive(
    model: Target | EagleHead | None = None,
    *,
    nodes: int = 48,
    depth: int = 8,
    top_k: int = 5,
    copies: int = 32,
    min: int = 1,
    max: int = 5,
    refine: str = "yes",
) -> Parts:
    """The tree with the most expected tokens for its time, each round anew; copies join a model's drafts.

    `refine=no` keeps prices as they were measured, so that equal texts get equal drafts.
    """
    if refine not in ("yes", "no"):
        raise ConfigError(f"refine={refine!r} is not allowed; give yes or no")
    prices = Prices.assumed(has_model=model is not None)
    policy = AdaptivePolicy(
        prices,
        nodes=nodes,
        depth=depth,
        top_k=top_k,
        copies=copies,
        refine=refine == "yes",
    )
    copying = NgramDrafter(min_match=min, max_match=max)
    if model is None:
        return Parts(copying, policy, ExactVerifier())
    drafts = drafts_of(model, Proposal.COUPLED)
    return Parts(HybridDrafter(drafts, copying), policy, ExactVerifier())


RECIPES: Mapping[str, Callable[..., Parts]] = {
    "autoregressive": _autoregressive,
    "adaptive": _adaptive,
    "ngram": _ngram,
    "speculative": _speculative,
    "eagle-chain-K": _eagle_chain,
    "eagle": _eagle,
    "eagle2": _eagle2,
    "adaeagle": adaeagle,
    "adaeagle-threshold": adaeagle_threshold,
    "hybrid": _hybrid,
    "mcsd": _mcsd,
    "mcsd-improved": _mcsd_improved,
    "mcsd-improved-lossy": _mcsd_improved_lossy,
}
"""By name, as `config.METHODS` lists them; a K is a number that the user writes."""


def _policy(drafter: Drafter, depth: int | None, tree: str | None) -> Policy:
    if depth is not None and tree is not None:
        raise ConfigError(f"depth={depth} and tree={tree!r} both give the shape; leave one out")
    if tree is not None:
        return FixedPolicy(tree)
    return drafter.default_policy if depth is None else FixedPolicy.chain(depth)
