"""Replicas of the server behind one address, on Ray Serve.

    serve run foredraft.serve.ray:app model=smollm2 replicas=2

Each replica is a process with the model, a worker and the server's own ASGI app. Ray's proxy spreads requests
over them and sends what waits to those that are left where one has died; Ray then begins another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from foredraft.engine.choosing import best_method
from foredraft.engine.several import load_several
from foredraft.errors import ConfigError, suggestion
from foredraft.serve.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

KEYS = "FOREDRAFT_API_KEY"
"""Where replicas find the keys that open them, apart by spaces: arguments are shown in Ray's dashboard."""
LIMITS = ("max_batch", "max_queue", "max_choices", "max_tokens", "max_body_bytes")
SECONDS = ("time_limit_s", "grace_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What every replica is, and how many there are.

    Attributes:
        model, drafter, dtype, device: as in `foredraft.load`.
        methods: recipes that requests may choose among, apart by spaces; None takes the model's best one.
        served_name: what requests call the model; None takes `model`.
        replicas: their number.
        cpus, gpus: what each takes of Ray's resources.
        limits: of `ServeSettings`, for each replica.
    """

    model: str = "smollm2"
    drafter: str | None = None
    dtype: str | None = None
    device: str | None = None
    methods: str | None = None
    served_name: str | None = None
    replicas: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    limits: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Replicas:
        """From the arguments of `serve run`, which are words, or those of a config file.

        Raises:
            ConfigError: an argument is unknown, or no number where one is needed.
        """
        own = [f.name for f in fields(cls) if f.name != "limits"]
        for name in arguments:
            if name not in (*own, *LIMITS, *SECONDS):
                known = suggestion(name, (*own, *LIMITS, *SECONDS))
                raise ConfigError(f"unknown argument {name!r} of a replica; {known}")
        read = {name: _read(name, value) for name, value in arguments.items()}
        limits = {name: read.pop(name) for name in (*LIMITS, *SECONDS) if name in read}
        made = cls(**read, limits=limits)
        made.settings()
        if made.replicas < 1:
            raise ConfigError(f"replicas={made.replicas} is not allowed; give 1 or more")
        return made

    def settings(self, api_keys: tuple[str, ...] = ()) -> ServeSettings:
        """A replica's limits. Errors as in `ServeSettings`."""
        name = self.served_name or self.model
        return ServeSettings(model_name=name, api_keys=api_keys, **self.limits)


def _read(name: str, value: Any) -> Any:
    """An argument in its type."""
    kinds = {"replicas": int, "cpus": float, "gpus": float}
    kind = kinds.get(name) or (int if name in LIMITS else float if name in SECONDS else str)
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not allowed; give a number") from None


def app(arguments: dict[str, Any]) -> Application:
    """The application that `serve run foredraft.serve.ray:app NAME=VALUE ..` starts.

    Args:
        arguments: the fields of `Replicas`, and limits of `ServeSettings`, by name.

    Raises:
        ConfigError: as in `Replicas.of`.
    """
    from ray import serve

    chosen = Replicas.of(arguments)
    settings = chosen.settings()

    def build() -> FastAPI:
        return build_app(chosen)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="foredraft",
        num_replicas=chosen.replicas,
        ray_actor_options={"num_cpus": chosen.cpus, "num_gpus": chosen.gpus},
        max_ongoing_requests=settings.capacity,
        graceful_shutdown_timeout_s=settings.grace_s,
    )
    return deployment.bind()


def build_app(chosen: Replicas) -> FastAPI:
    """A replica's app, in its own process: loads the model. Errors as in `load_several`."""
    from foredraft.serve.app import create_app
    from foredraft.serve.service import Service

    names = chosen.methods.split() if chosen.methods else None
    engines = load_several(
        chosen.model,
        names or [best_method(chosen.model, chosen.drafter)],
        drafter=chosen.drafter,
        dtype=chosen.dtype,
        device=chosen.device,
    )
    keys = tuple(os.environ.get(KEYS, "").split())
    return create_app(Service(chosen.settings(keys), engines))
