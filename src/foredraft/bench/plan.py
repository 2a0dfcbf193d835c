"""What a benchmark is asked to do, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from foredraft.bench.suites import Suite, fingerprint, read_suites
from foredraft.config import GenerationOptions, check_quantization
from foredraft.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from foredraft.bench.peers import PeerSpec
    from foredraft.methods import Kind, Method

PLAIN = "autoregressive"
"""The method that every other one is checked against and divided by."""
DEFAULT_METHODS = (PLAIN, "ngram", "hf", "hf-lookup", "llama.cpp")


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """One benchmark run.

    Attributes:
        model: as in `foredraft.load`.
        suites: names and JSONL files, comma-separated (see `bench/suites.py`).
        methods: recipes and peers, each with its options.
        drafter: the draft model, or the EAGLE head, of every method that needs one and names none of its
            own; None where none does, or where what ships for the model is meant.
        limit: questions of each suite at most, spread evenly over its categories; None takes all.
        repeats: how often each prompt is answered by each method.
        max_new_tokens, temperature, top_p, top_k, seed: the request; when sampling, question i of a suite
            has seed + i.
        dtype, device, quantize, compile, cuda_graphs: as in `foredraft.load`.

    Raises:
        ConfigError: a suite, method or option that does not exist, a method named twice, a method that
            needs a draft model or a head when there is none or names one that does not exist, or a
            drafter that no method needs.
    """

    model: str = "smollm2"
    suites: str = "builtin"
    methods: tuple[str, ...] = DEFAULT_METHODS
    drafter: str | None = None
    limit: int | None = 10
    repeats: int = 1
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    quantize: str | None = None
    compile: bool = False
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigError(f"repeats={self.repeats} measures nothing; give 1 or more")
        check_quantization(self.quantize)
        _ = self.options, self.contestants, self.questions  # each raises what is wrong with it

    @cached_property
    def questions(self) -> tuple[Suite, ...]:
        """The suites, read."""
        return read_suites(self.suites, self.limit)

    @cached_property
    def options(self) -> GenerationOptions:
        """The request that every prompt makes; `seed` is set for each question."""
        return GenerationOptions(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed if self.temperature > 0 else None,
        )

    @cached_property
    def contestants(self) -> Mapping[str, Method | PeerSpec]:
        """Every method by its name on the command line, plain decoding always among them, in order."""
        if len(set(self.methods)) < len(self.methods):
            twice = next(name for name in self.methods if self.methods.count(name) > 1)
            raise ConfigError(f"method {twice!r} is named twice; leave one out")
        names = self.methods if PLAIN in self.methods else (PLAIN, *self.methods)
        specs = {name: _read(name, self.model) for name in names}
        _refuse_twins(specs)
        self._check_drafters(specs)
        return specs

    @property
    def needed(self) -> frozenset[Kind]:
        """What the methods draft with, those apart that name a drafter of their own."""
        return frozenset(kind for spec in self.contestants.values() if (kind := _needs(spec)))

    def _check_drafters(self, specs: Mapping[str, Method | PeerSpec]) -> None:
        """Every method has what it drafts with, and the drafter given is one that some method needs."""
        from foredraft.engine.drafters import given_source, kind_of, shipped_source
        from foredraft.methods import KINDS, Method

        needs = {name: kind for name, spec in specs.items() if (kind := _needs(spec))}
        only = next(iter(needs.values())) if len(set(needs.values())) == 1 else None
        source = given_source(self.drafter, self.model)
        given = None if source is None else kind_of(source, only)
        for name, kind in needs.items():
            ships = isinstance(specs[name], Method) and shipped_source(self.model, kind)
            if kind != given and not ships:
                raise ConfigError(
                    f"method {name!r} needs {KINDS[kind][0]}; give one with --drafter, or leave it out"
                )
        if given is not None and given not in needs.values():
            users = {"draft model": "speculative or hf-assisted", "head": "eagle2 or eagle"}
            raise ConfigError(
                f"--drafter {self.drafter} is not used by any of {', '.join(specs)}; "
                f"add {users[given]}, or leave it out"
            )

    def as_dict(self) -> dict[str, Any]:
        """What must agree when a run is resumed."""
        return {
            **asdict(self),
            "methods": list(self.contestants),
            "suites": [suite.name for suite in self.questions],
            "questions": fingerprint(self.questions),
        }

    def check_same(self, begun: Mapping[str, Any], folder: str) -> None:
        """Raise `ConfigError` if a run that was begun differs from this one."""
        older = {"compile": False, "cuda_graphs": False}  # runs that do not say
        check_same(self.as_dict(), {**older, **begun}, folder)


def check_same(wanted: Mapping[str, Any], begun: Mapping[str, Any], folder: str) -> None:
    """Raise `ConfigError` unless what was begun in a folder has all of these settings."""
    for name, value in wanted.items():
        if begun.get(name) != value:
            raise ConfigError(
                f"{folder} holds a run with {name}={begun.get(name)!r}, and this one has {value!r}; "
                "give another --out, or the same settings to go on with that run"
            )


def split_methods(text: str) -> tuple[str, ...]:
    """`A,B,C` as names. A comma before a digit is part of an option (`tree=4,2,2`)."""
    names: list[str] = []
    for part in text.split(","):
        part = part.strip()
        if names and part[:1].isdigit():
            names[-1] += "," + part
        else:
            names.append(part)
    if not all(names):
        raise ConfigError(f"methods {text!r} has an empty name; write them like ngram,hf,hf-lookup")
    return tuple(names)


def _refuse_twins(specs: Mapping[str, Method | PeerSpec]) -> None:
    """No method twice, under two spellings of the same options."""
    for i, (name, spec) in enumerate(specs.items()):
        for other, known in list(specs.items())[:i]:
            if _without_spelling(spec) == _without_spelling(known):
                raise ConfigError(f"methods {other!r} and {name!r} are the same; leave one out")


def _needs(spec: Method | PeerSpec) -> Kind | None:
    """What a method or peer must be given to draft with."""
    from foredraft.methods import Method

    if isinstance(spec, Method):
        return spec.needs_given
    return "draft model" if spec.needs_draft_model else None


def _without_spelling(spec: Method | PeerSpec) -> Any:
    """A method, or a peer by its name and settings: its text is how they were spelt."""
    chosen = getattr(spec, "settings", None) or getattr(spec, "options", None)
    return (spec.name, chosen, getattr(spec, "drafter", None))


def _read(text: str, model: str) -> Method | PeerSpec:
    from foredraft.bench.peers import PEERS, parse_peer  # late: `--help` need not wait for PyTorch
    from foredraft.engine.drafters import kind_of, own_source
    from foredraft.methods import RECIPES, parse_method, recipe_of

    name = text.split(":")[0]
    if name in PEERS:
        return parse_peer(text)
    if recipe_of(name):
        method = parse_method(text)
        own = own_source(method, model)
        method.check(method.needs if own is None else kind_of(own))
        return method
    raise ConfigError(f"unknown method {name!r}; {suggestion(name, [*RECIPES, *PEERS])}")
