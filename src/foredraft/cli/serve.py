"""`foredraft serve`: an OpenAI-compatible server."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.bench.plan import split_methods
from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.errors import ConfigError
from foredraft.serve.settings import ServeSettings

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

LIMITS = ServeSettings(model_name="any")
"""Its defaults."""
KEYS = "FOREDRAFT_API_KEY"
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")


def serve(
    model: common.Model = "smollm2",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods that requests may choose among, comma-separated; the first answers where none is "
            "chosen."
        ),
    ] = None,
    drafter: common.Drafter = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    force_vocabulary: common.ForceVocabulary = False,
    host: Annotated[str, typer.Option(help="0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    served_name: Annotated[
        str | None, typer.Option(help="What requests call the model; else its own name.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar=KEYS, help="Opens the server; may be given several times."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(help="Answers decoded at the same time.")
    ] = LIMITS.max_batch,
    max_queue: Annotated[int, typer.Option(help="Answers that wait at most.")] = LIMITS.max_queue,
    max_choices: Annotated[
        int, typer.Option(help="Answers that one request may ask for.")
    ] = LIMITS.max_choices,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of one answer at most.")
    ] = LIMITS.max_tokens,
    max_body_bytes: Annotated[int, typer.Option(help="Of one request.")] = LIMITS.max_body_bytes,
    prefix_cache_mb: Annotated[
        float,
        typer.Option(
            help="Megabytes for rows of earlier texts, so that shared starts are not read again."
        ),
    ] = LIMITS.prefix_cache_mb,
    time_limit_s: Annotated[
        float | None, typer.Option(help="Seconds for one request; none by default.")
    ] = LIMITS.time_limit_s,
    grace_s: Annotated[
        float, typer.Option(help="Seconds for running answers after a signal to end.")
    ] = LIMITS.grace_s,
) -> None:
    """Serve a model to OpenAI's clients: chats and texts, streamed or whole, with the same words sooner."""
    with clear_failures():
        _check_installed()
        _refuse_blank_keys(api_key)
        _check_host(host)
        settings = ServeSettings(
            model_name=_name_of(model) if served_name is None else served_name,
            api_keys=tuple(api_key or ()),
            max_batch=max_batch,
            max_queue=max_queue,
            max_choices=max_choices,
            max_tokens=max_tokens,
            max_body_bytes=max_body_bytes,
            prefix_cache_mb=prefix_cache_mb,
            time_limit_s=time_limit_s,
            grace_s=grace_s,
        )
        engines = _load(
            model,
            methods,
            drafter,
            dtype=dtype,
            device=device,
            force_vocabulary=force_vocabulary,
        )
        _run(settings, engines, host, port)


def _check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the server needs {', '.join(missing)}; install it with: pip install 'foredraft[serve]'"
        )


def _check_host(host: str) -> None:
    if not host.strip():
        raise ConfigError(
            f"host={host!r} is not allowed; give an address, or 0.0.0.0 for all of them"
        )


def _refuse_blank_keys(given: list[str] | None) -> None:
    """A blank variable is a mistake in a script, and not the wish for a server that is open to all."""
    value = os.environ.get(KEYS)
    if value is not None and not value.strip() and not given:
        raise ConfigError(f"{KEYS} is set and holds no key; set it to a secret, or unset it")


def _name_of(model: str) -> str:
    """A model's own name: of a folder or file, that without its path."""
    return Path(model).expanduser().resolve().name if Path(model).expanduser().exists() else model


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _load(
    model: str, methods: str | None, drafter: str | None, **options: Any
) -> dict[str, Engine]:
    if methods is None:
        name = common.method_label(None, model, drafter)
        return {name: common.load_engine(model, drafter=drafter, **options)}
    return common.load_engines(model, split_methods(methods), drafter, **options)


def _run(settings: ServeSettings, engines: dict[str, Engine], host: str, port: int) -> None:
    from foredraft.serve.server import serve as serve_until_signal
    from foredraft.serve.service import Service

    console = common.console(stderr=True)
    console.print(f"{settings.model_name}: {', '.join(engines)}")
    if not settings.api_keys and not _is_local(host):
        console.print(f"{host} is open to others, and no --api-key is set: anybody may ask")
    serve_until_signal(Service(settings, engines), host, port, console.print)
