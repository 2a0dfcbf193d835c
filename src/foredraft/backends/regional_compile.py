"""Regions of a model's layers as compiled functions: the norms and the feed-forward parts.

The regions of one kind are one function of any number of rows, so a model has as many graphs as it has kinds,
however many layers, and however drafts change their size. Attention and the cache stay as they are. Like all
that we exchange in a model, a region is compiled in passes of ours alone.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from typing import Any, cast

import torch
from torch import nn

from foredraft.backends.own_pass import in_own_pass
from foredraft.errors import ConfigError

REGIONS = ("input_layernorm", "post_attention_layernorm", "mlp")
"""Names of the regions in a decoder layer."""
BACKEND = "inductor"
"""What `torch.compile` compiles with."""
PREFIX = "Compiled"
"""Of the names of their classes."""
COMPILERS = ("g++", "clang++", "c++")


def compile_regions(model: nn.Module) -> int:
    """Have these regions compiled when a pass of ours comes to them; returns how many there are.

    The first passes then take many seconds, longer where the compiler's cache is empty.

    Raises:
        ConfigError: there is nothing to compile with on the model's device, or no such region.
    """
    _require_compiler(next(model.parameters()).device)
    regions: list[Any] = [
        region
        for layers in model.modules()
        if isinstance(layers, nn.ModuleList)
        for layer in layers
        for name in REGIONS
        if _is_plain(region := getattr(layer, name, None))
    ]
    if not regions:
        raise ConfigError(
            f"compile=True finds no part of {type(model).__name__} that it can compile; leave it out"
        )
    for region in regions:
        kind: Any = type(region)
        region.__class__ = compiled_class(kind)
    return len(regions)


def is_compiled(model: nn.Module) -> bool:
    """Whether a model has compiled regions, which change what its passes cost."""
    return any(type(module).__name__.startswith(PREFIX) for module in model.modules())


@functools.cache
def compiled_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Modules of this kind whose `forward` is compiled in passes of ours."""
    compiled = torch.compile(kind.forward, dynamic=True, backend=BACKEND)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = compiled if in_own_pass() else kind.forward
        return call(self, *args, **kwargs)

    return cast("type[nn.Module]", type(f"{PREFIX}{kind.__name__}", (kind,), {"forward": forward}))


def _is_plain(region: Any) -> bool:
    """A module that nobody else has wrapped or compiled."""
    if not isinstance(region, nn.Module) or "forward" in vars(region):
        return False
    hooks = region._forward_hooks or region._forward_pre_hooks
    return not hooks and not type(region).__name__.startswith(PREFIX)


def _require_compiler(device: torch.device) -> None:
    if device.type == "cpu":
        named = os.environ.get("CXX")
        if not any(shutil.which(name) for name in (named, *COMPILERS) if name):
            raise ConfigError(
                "compile=True needs a C++ compiler on a CPU and finds none; install g++, or leave it out"
            )
    elif importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"compile=True needs the package triton on {device.type} and finds none; install it, or "
            "leave it out"
        )
