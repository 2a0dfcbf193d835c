"""Who takes part in a run."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.backends.hf import HFTarget
from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.peers import PeerSpec, Shared
from foredraft.bench.plan import BenchPlan
from foredraft.config import GenerationOptions
from foredraft.engine.load import Models
from foredraft.errors import ModelError
from foredraft.methods import Method


class _SkipError(Exception):
    """Why a peer cannot take part."""


def enter_field(
    plan: BenchPlan, models: Models, note: Callable[[str], None], report: Callable[[str], None]
) -> list[Contender]:
    """Every contender that can take part, in the plan's order; each of the others leaves a note."""
    assert isinstance(models.target, HFTarget), "a name loads no other backend"
    shared = Shared(
        target=models.target,
        tokenizer=models.tokenizer,
        draft_model=getattr(models.draft_model, "model", None),
        model_source=plan.model,
        report=report,
    )
    field = []
    for name, spec in plan.contestants.items():
        try:
            field.append(_enter(name, spec, models, shared, plan.options))
        except _SkipError as reason:
            note(f"{name} was skipped: {reason}")
    return field


def _enter(
    name: str,
    spec: Method | PeerSpec,
    models: Models,
    shared: Shared,
    options: GenerationOptions,
) -> Contender:
    if isinstance(spec, Method):
        return EngineContender(name, models.engine(spec))
    reason = spec.missing()
    if reason is not None:
        raise _SkipError(reason)
    try:
        contender = spec.build(shared)
    except ModelError as error:
        raise _SkipError(str(error)) from None
    except Exception as error:  # another version of it, say: the others go on
        raise _SkipError(f"{type(error).__name__}: {error}") from error
    reason = contender.refuse(options)
    if reason is not None:
        contender.close()
        raise _SkipError(reason)
    return contender
