"""Loading models by name, with errors that say in one sentence what is wrong."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from foredraft.backends.hf_probe import first_line
from foredraft.errors import ConfigError, ModelError

REACH_TIMEOUT_S = 3.0
DTYPES = ("float32", "bfloat16", "float16", "auto")


def load_hf(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name_or_path: a hub id, a folder written by `save_pretrained`, or a `.gguf` file, which is
            dequantised.
        dtype: one of `DTYPES` ("auto": as stored) or a torch dtype. None is bfloat16 on CUDA and on
            CPUs with bfloat16 instructions, else float32.
        device: where to put the model; None is CUDA if there is any, else the CPU.
        device_map: spread it over several devices instead, as in `transformers`.
        trust_remote_code: run Python code that comes with the model.
        revision: branch, tag or commit of a hub model.

    Returns:
        (model, tokenizer), the model in eval mode.

    Raises:
        ConfigError: an unknown dtype or device, both device and device_map, or the revision of a
            local model.
        ModelError: the model cannot be found or read.
    """
    if device is not None and device_map is not None:
        raise ConfigError("device and device_map exclude each other; give one of them")
    place = _place(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    weights = {"dtype": _dtype(dtype, place), "device_map": device_map}
    source, options = _source(str(name_or_path))
    if revision is not None and "local_files_only" not in options:
        raise ConfigError(
            f"revision={revision!r} is for hub models, and {str(name_or_path)!r} is local; leave it out"
        )
    options |= {"trust_remote_code": trust_remote_code, "revision": revision or "main"}
    try:
        tokenizer, model, info = _read(source, options, weights)
        if not hasattr(model, "hf_device_map"):  # set where the library has placed it already
            model.to(place)
    except Exception as error:
        raise ModelError(_explain(str(name_or_path), options, error)) from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ModelError(
            f"model {str(name_or_path)!r} lacks weights ({missing}); "
            "give the checkpoint of a complete causal language model"
        )
    return model.eval(), tokenizer


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device has instructions for it, else float32."""
    on_cuda = device.type == "cuda" and torch.cuda.is_bf16_supported()
    on_cpu = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if on_cuda or on_cpu else torch.float32


def hub_reachable(timeout_s: float = REACH_TIMEOUT_S) -> bool:
    """Whether the hub (or the proxy on the way to it) accepts a connection; False when set offline.

    The library itself retries for half a minute before it gives up.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    endpoint = urlsplit(constants.ENDPOINT)
    proxy = urllib.request.getproxies().get(endpoint.scheme)
    bypassed = urllib.request.proxy_bypass(endpoint.hostname or "")
    address = urlsplit(proxy) if proxy and not bypassed else endpoint
    answered = threading.Event()

    def connect() -> None:
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            socket.create_connection((address.hostname or "", port), timeout_s).close()
        except OSError:
            return
        answered.set()

    # In a thread, because the name lookup has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answered.is_set()


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """What to hand to `from_pretrained`: a folder or hub id, and options that belong to it."""
    path = Path(os.path.expanduser(name))  # a user that does not exist stays as it is
    if path.suffix == ".gguf" and os.path.isfile(path):
        return str(path.parent), {"gguf_file": path.name}
    if os.path.isdir(path):  # False, not an error, where a name is too long for a path
        if not (path / "config.json").is_file():
            raise ModelError(
                f"folder {name!r} has no config.json; "
                "give one written by save_pretrained, a .gguf file, or a hub id"
            )
        return str(path), {}
    if os.path.exists(path):
        raise ModelError(
            f"{name!r} is neither a model folder nor a .gguf file; give one of them, or a hub id"
        )
    if path.suffix == ".gguf" or not _may_be_hub_id(name):
        raise ModelError(
            f"no model at {name!r}; check the path, or give a hub id such as owner/name"
        )
    return name, {"local_files_only": not hub_reachable()}


def _may_be_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _read(
    source: str, options: dict[str, Any], weights: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Tokenizer, model and report; `options` apply to both, `weights` to the model alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if "gguf_file" in options:
        weights = weights | {"quantization_config": GgufConfig(dequantize=True)}
    model, info = AutoModelForCausalLM.from_pretrained(
        source, output_loading_info=True, **options, **weights
    )
    return tokenizer, model, info


def _place(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={str(device)!r} is not available ({first_line(error)}); "
            "give cpu, or a device that this PyTorch can use"
        ) from error


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if dtype is None:
        return default_dtype(device)
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} is not allowed; give one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, dtype)
    return found


def _explain(name: str, options: dict[str, Any], error: Exception) -> str:
    """One sentence: what failed, and the way out."""
    from huggingface_hub import constants

    reason, hub = first_line(error).rstrip("."), constants.ENDPOINT
    if "trust_remote_code" in str(error) and not options["trust_remote_code"]:
        return f"model {name!r} needs Python code of its own; trust it with trust_remote_code=True"
    if options.get("local_files_only") and "couldn't connect" in reason:
        return (
            f"model {name!r} is not in the local cache, and {hub} cannot be reached; "
            "connect, or give a local folder"
        )
    way_out = (
        f"check the name, and your access to it on {hub}"
        if "local_files_only" in options
        else "check that its files are whole, or fetch them again; it must have a tokenizer too"
    )
    return f"model {name!r} cannot be loaded ({reason}); {way_out}"
