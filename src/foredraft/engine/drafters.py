"""What a method drafts with: whether a source is a draft model or a head, and loading heads."""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foredraft import zoo
from foredraft.backends.hf_loading import hub_reachable
from foredraft.backends.identity import target_identity
from foredraft.backends.joined_linears import join_linears
from foredraft.backends.quantized import quantize_linears
from foredraft.drafters.eagle.checkpoint import is_head_folder, load_head
from foredraft.drafters.eagle.fields import TargetSizes, check_fits
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.storage import CONFIG
from foredraft.drafters.student import Student
from foredraft.drafters.student_files import is_student_folder, load_student
from foredraft.errors import ConfigError, ModelError, suggestion
from foredraft.methods import Kind, Method
from foredraft.protocols import Target
from foredraft.zoo.shipped import SHIPPED, shipped_drafters

RECIPE = "recipe.json"
"""What `foredraft train` writes beside a drafter."""
HEAD_FILES = ("*.json", "*.safetensors", "*.bin")
NAMED = {"none": "autoregressive", "ngram": "ngram"}
"""Drafters that are no model, and their methods."""


def kind_of(source: Any, needed: Kind | None = None) -> Kind:
    """What a drafter given by the user is.

    Args:
        source: a model or a head, or where one is.
        needed: what the method needs: so is taken what is not on this machine.
    """
    if isinstance(source, EagleHead):
        return "head"
    if not isinstance(source, str | Path):
        return "draft model"
    path = Path(os.path.expanduser(source))
    if is_head_folder(path):
        return "head"
    is_here = os.path.exists(path)  # False, not an error, where a name is too long for a path
    return needed if needed == "head" and not is_here else "draft model"


def shipped_source(model: Any, kind: Kind) -> Path | None:
    """The weights of a kind that come with the package for this model; None if there are none."""
    if not isinstance(model, str):
        return None
    if kind == "head":
        return zoo.shipped_head(model)
    return zoo.shipped(model, "draft-model")


def given_source(drafter: Any | None, model: Any) -> Any | None:
    """What the user gives to draft with: the folder where it is the name of one that ships for the model.

    Arguments as in `foredraft.load`.

    Raises:
        ConfigError: nothing of that name ships for this model, or it is nearly the name of a drafter.
    """
    if not isinstance(drafter, str) or drafter in NAMED:
        return drafter
    ships = shipped_drafters(model) if isinstance(model, str) else {}
    if drafter in ships:
        return ships[drafter]
    if drafter in SHIPPED and not os.path.exists(drafter):
        known = f"those that do are {', '.join(ships)}" if ships else "none does"
        raise ConfigError(
            f"no drafter {drafter!r} ships for this model ({known}); give the path of a folder"
        )
    if meant := nearly(drafter, [*NAMED, *ships]):
        raise ConfigError(f"there is no drafter {drafter!r}; did you mean {meant!r}?")
    return drafter


def check_model(model: Any) -> None:
    """Refuse the folder of a drafter where a model is wanted.

    Raises:
        ModelError: it holds one; the message says which, and where it belongs.
    """
    if not isinstance(model, str | Path):
        return
    what = "an EAGLE head" if kind_of(model) == "head" else "a draft model cut from its target"
    if kind_of(model) == "head" or is_student(model):
        raise ModelError(
            f"{str(model)!r} holds {what}, which drafts for a model and is none itself; give that model, and "
            "this folder as the drafter (--drafter on the command line)"
        )


def nearly(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one nearly is, if it is neither a folder nor a hub id of some owner."""
    if "/" in name or os.path.exists(name):  # false, and no error, for what cannot be a path
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), None)


def own_source(method: Method, model: Any) -> Path | None:
    """Where the drafter is that a method names for itself; None if it names none.

    Args:
        method: whose `drafter` is the name of one that ships for the model, or else a folder.
        model: as in `foredraft.load`.

    Raises:
        ConfigError: it is neither.
    """
    name = method.drafter
    if name is None:
        return None
    ships = shipped_drafters(model) if isinstance(model, str) else {}
    folder = os.path.expanduser(name)
    if name not in ships and not os.path.isdir(folder):
        known = f"{suggestion(name, ships)}; or" if ships else "none ships for this model;"
        raise ConfigError(
            f"the drafter of {method.name}:drafter={name} is neither shipped nor a folder; {known} give the "
            f"path of a folder, without a colon, such as {method.name}:drafter=path/to/folder"
        )
    return ships.get(name, Path(folder))


def read_head(source: Any, target: Target, quantize: str | None = None) -> EagleHead:
    """A head for a loaded target, from itself, a folder, or a repository of the hub.

    With `quantize`, the weights of one that is read are rounded; one that was given stays as it is.

    Raises:
        ConfigError: the target is no Hugging Face model.
        ModelError: the head cannot be found, or is not one for this target.
    """
    model = getattr(target, "model", None)
    if model is None:
        raise ConfigError(
            f"an EAGLE head drafts for a Hugging Face model, and the target is {type(target).__name__}"
        )
    if isinstance(source, EagleHead):
        check_fits(source.config, TargetSizes.of(model))
        return source
    folder = head_folder(source)
    head = load_head(folder, model)
    if quantize is None:
        join_linears(head)
    else:
        head.quantize(quantize)
    _warn_of_others_weights(folder, model)
    return head


def head_folder(source: str | Path) -> Path:
    """The folder of a head, from a path or a repository of the hub.

    Raises:
        ModelError: there is none.
    """
    path = Path(os.path.expanduser(source))
    return path if os.path.exists(path) else _fetch(str(source))


def is_student(source: Any) -> bool:
    """Whether a draft model is one that was cut from its target, in a folder of `foredraft train`."""
    return isinstance(source, str | Path) and is_student_folder(os.path.expanduser(source))


def read_student(
    source: str | Path, target: Target, tokenizer: Any | None, quantize: str | None = None
) -> Student:
    """A draft model that was cut from this target, from its folder; with `quantize`, its weights are rounded.

    Raises:
        ConfigError: the target is no Hugging Face model.
        ModelError: the folder cannot be read, or belongs to another target.
    """
    model = getattr(target, "model", None)
    if model is None:
        raise ConfigError(
            f"the draft model at {str(source)!r} needs the Hugging Face model that it was cut from, and "
            f"the target is {type(target).__name__}"
        )
    folder = Path(os.path.expanduser(source))
    loaded = load_student(folder, model)
    if quantize is not None:
        quantize_linears(loaded.model, quantize)
    student = Student(loaded, tokenizer)
    _warn_of_others_weights(folder, model)
    return student


def _warn_of_others_weights(folder: Path, model: Any) -> None:
    """Say so when a drafter was trained for other weights than the target's: nothing else would show it."""
    try:
        made_for = json.loads((folder / RECIPE).read_text(encoding="utf-8"))["target"]
        weights, dtype = made_for["weights"], made_for["dtype"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # it was not trained here
    own = target_identity(model)
    if dtype == own["dtype"] and weights != own["weights"]:
        warnings.warn(
            f"the drafter in {folder} was trained for other weights than this model's: texts stay right, but "
            "fewer of its tokens will be accepted; train one for this model",
            stacklevel=2,
        )


def _fetch(name: str) -> Path:
    """The local copy of a head on the hub."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            name, allow_patterns=list(HEAD_FILES), local_files_only=not hub_reachable()
        )
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"there is no head at {name!r} ({reason[0]}); give a folder with {CONFIG} and weights, or "
            "the id of a head on the hub"
        ) from error
    return Path(folder)
