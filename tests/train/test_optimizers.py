"""Steps are those of torch's own optimizers: AdamW for everything, or Muon for the inner matrices."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.student import build_student
from foredraft.errors import ConfigError
from foredraft.train.draft_model import Owned
from foredraft.train.optimizers import Optimizers
from foredraft.train.options import OPTIMIZERS, TrainOptions
from tests.tiny_models import tiny_bloom, tiny_gpt2, tiny_llama, tiny_tied_llama

INNER = ("tall.weight", "wide.weight")
"""What Muon takes of `Net`."""
DRAFT_IDS = torch.arange(0, 82, 2)
"""As many as no layer of a tiny model has rows."""
LRS = (0.1, 0.03, 0.002)
GO, SKIP = torch.zeros(()), torch.ones(())


class Net(nn.Module):
    """A weight of every kind: ends, inner matrices of both shapes, vectors, an array of three axes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed_tokens = nn.Embedding(23, 8)
        self.tall = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.experts = nn.Parameter(torch.randn(3, 4, 4))
        self.wide = nn.Linear(12, 8, bias=False)
        self.lm_head = nn.Linear(8, 23, bias=False)


def options(optimizer: str = "muon", **changes: Any) -> TrainOptions:
    """Constants that are not the defaults of torch, nor ours."""
    values: dict[str, Any] = {"steps": 9, "lr": 0.5, "betas": (0.8, 0.97), "weight_decay": 0.05}
    return TrainOptions(optimizer=optimizer, **values | changes)


def gradients(module: nn.Module, seed: int) -> Iterator[Tensor]:
    """Random ones, the same for modules of the same weights."""
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(p.shape, generator=random) for p in module.parameters())


def differentiate(module: nn.Module, seed: int) -> None:
    """Put gradients where a backward pass would."""
    for parameter, gradient in zip(module.parameters(), gradients(module, seed), strict=True):
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient


def train(net: nn.Module, optimizers: Optimizers, seeds: Iterable[int]) -> None:
    """A step for each seed, the learning rate changing from one to the next."""
    for seed in seeds:
        differentiate(net, seed)
        optimizers.step(LRS[seed % len(LRS)], GO)


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, through dicts and lists."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.equal(b) if isinstance(a, Tensor) else bool(a == b)


def by_hand(net: Net, asked: TrainOptions, scale: str | None) -> list[torch.optim.Optimizer]:
    """torch's own two, with the constants of the options."""
    named = dict(net.named_parameters())
    inner = [named.pop(name) for name in INNER] if asked.optimizer == "muon" else []
    constants: dict[str, Any] = {"lr": 1.0, "weight_decay": asked.weight_decay}
    adamw = torch.optim.AdamW(named.values(), betas=asked.betas, fused=True, **constants)
    if not inner:
        return [adamw]
    return [adamw, torch.optim.Muon(inner, adjust_lr_fn=scale, **constants)]


def train_by_hand(net: Net, optimizers: list[torch.optim.Optimizer], seeds: Iterable[int]) -> None:
    """As `train`, without anything of ours."""
    for seed in seeds:
        for parameter, gradient in zip(net.parameters(), gradients(net, seed), strict=True):
            parameter.grad = gradient
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = LRS[seed % len(LRS)]
            optimizer.step()


# --- the steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torchs_optimizers(name: str) -> None:
    ours, theirs = Net(), Net()
    train(ours, Optimizers(ours, options(name)), range(5))
    train_by_hand(theirs, by_hand(theirs, options(name), "match_rms_adamw"), range(5))
    assert same(ours.state_dict(), theirs.state_dict())


def test_the_comparison_tells_the_scalings_apart() -> None:
    ours, theirs = Net(), Net()
    train(ours, Optimizers(ours, options()), range(2))
    train_by_hand(theirs, by_hand(theirs, options(), "original"), range(2))
    weights, others = ours.state_dict(), theirs.state_dict()
    assert {name for name in weights if not weights[name].equal(others[name])} == set(INNER)


@pytest.mark.parametrize("shape", [(64, 64), (16, 64), (64, 16)])
def test_a_step_of_muon_is_of_adamws_size(shape: tuple[int, int]) -> None:
    """0.2 of the learning rate, in the root mean square, whatever the shape and the gradient's size."""
    layer = nn.Linear(*shape, bias=False)
    before = layer.weight.detach().clone()
    optimizers = Optimizers(layer, options(weight_decay=0.0))
    layer.weight.grad = 1e-3 * torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
    optimizers.step(0.5, GO)
    size = (layer.weight.detach() - before).square().mean().sqrt()
    # Newton-Schulz leaves singular values between 0.5 and 1.5 instead of 1.
    assert float(size) == pytest.approx(0.2 * 0.5, rel=0.4)


def test_gradients_are_zero_again_in_the_same_memory() -> None:
    net = Net()
    optimizers = Optimizers(net, options())
    differentiate(net, 0)
    places = [p.grad.data_ptr() for p in net.parameters() if p.grad is not None]
    optimizers.step(0.1, GO)
    kept = [p.grad for p in net.parameters() if p.grad is not None]
    assert [gradient.data_ptr() for gradient in kept] == places
    assert not any(gradient.any() for gradient in kept)


# --- which weights --------------------------------------------------------------------------------


def sizes(module: nn.Module, optimizer: str = "muon") -> dict[str, int]:
    """How many weights each optimizer has."""
    state = Optimizers(module, options(optimizer)).state()
    return {name: len(one["param_groups"][0]["params"]) for name, one in state.items()}


def test_adamw_alone_has_every_weight() -> None:
    assert sizes(Net(), "adamw") == {"adamw": len(list(Net().parameters()))}


def test_an_optimizer_without_weights_is_left_out() -> None:
    assert sizes(nn.Linear(3, 4, bias=False)) == {"muon": 1}
    assert sizes(nn.ModuleDict({"embed_tokens": nn.Embedding(3, 4)})) == {"adamw": 1}


def test_frozen_weights_stay() -> None:
    net = Net()
    net.tall.requires_grad_(False)
    net.lm_head.requires_grad_(False)
    frozen = [net.tall.weight, net.tall.bias, net.lm_head.weight]
    before = [weight.detach().clone() for weight in frozen]
    optimizers = Optimizers(net, options())
    assert not {id(p) for p in optimizers.parameters} & set(map(id, frozen))
    train(net, optimizers, range(2))
    assert all(map(torch.equal, before, frozen))


def eagle3(target: Any) -> nn.Module:
    """A head with an lm_head of its own."""
    return EagleHead.for_target(target, 3, draft_ids=DRAFT_IDS)


def student(target: Any) -> nn.Module:
    """What a draft model with a head of its own trains."""
    return Owned(build_student(target, 1, draft_ids=DRAFT_IDS, own_head=True))


@pytest.mark.parametrize(
    ("drafter", "target"),
    [
        (eagle3, tiny_llama),
        (student, tiny_llama),
        (student, tiny_tied_llama),
        (student, tiny_gpt2),
        (student, tiny_bloom),
    ],
)
def test_muon_takes_the_matrices_of_a_drafter_except_its_lm_head(
    drafter: Callable[[Any], nn.Module], target: Callable[[], Any]
) -> None:
    trained = [p for p in drafter(target()).parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim == 2]
    inner = [p for p in matrices if len(p) != len(DRAFT_IDS)]
    assert len(inner) == len(matrices) - 1
    expected = {"adamw": len(trained) - len(inner), "muon": len(inner)}
    assert sizes(drafter(target())) == expected


# --- steps that are skipped -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_skipped_step_changes_nothing(name: str, bad: float) -> None:
    net, untouched = Net(), Net()
    optimizers, others = (Optimizers(one, options(name)) for one in (net, untouched))
    train(net, optimizers, range(2))
    train(untouched, others, range(2))
    weights, state = copy.deepcopy((net.state_dict(), optimizers.state()))
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, bad)
    optimizers.step(LRS[1], SKIP)
    assert same(net.state_dict(), weights)
    assert same(optimizers.state(), state)
    train(net, optimizers, range(2, 5))
    train(untouched, others, range(2, 5))
    assert same(net.state_dict(), untouched.state_dict())
    assert same(optimizers.state(), others.state())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_can_be_skipped(name: str) -> None:
    net, untouched = Net(), Net()
    optimizers, others = (Optimizers(one, options(name)) for one in (net, untouched))
    differentiate(net, 8)
    optimizers.step(0.1, SKIP)
    assert same(net.state_dict(), Net().state_dict())
    train(net, optimizers, range(3))
    train(untouched, others, range(3))
    assert same(net.state_dict(), untouched.state_dict())


# --- checkpoints ----------------------------------------------------------------------------------


def through_a_file(value: Any) -> Any:
    """What is read back of what was saved."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_state_is_gone_on_with_exactly(name: str) -> None:
    net, later = Net(), Net(seed=1)
    optimizers = Optimizers(net, options(name))
    train(net, optimizers, range(3))
    weights, state = through_a_file((net.state_dict(), optimizers.state()))
    train(net, optimizers, range(3, 6))
    later.load_state_dict(weights)
    others = Optimizers(later, options(name))
    others.load(state)
    train(later, others, range(3, 6))
    assert same(later.state_dict(), net.state_dict())
    assert same(others.state(), optimizers.state())


def test_muon_remembers_more_than_the_weights() -> None:
    """Without its state a run goes on otherwise; so the test above is one of `load`."""
    net, later = Net(), Net()
    optimizers = Optimizers(net, options())
    train(net, optimizers, range(3))
    later.load_state_dict(net.state_dict())
    others = Optimizers(later, options())
    fresh = others.state()["muon"]
    others.load({"adamw": through_a_file(optimizers.state()["adamw"]), "muon": fresh})
    train(net, optimizers, range(3, 4))
    train(later, others, range(3, 4))
    assert not any(net.get_parameter(n).equal(later.get_parameter(n)) for n in INNER)
    assert net.norm.weight.equal(later.norm.weight)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "Muon", "", None, 3])
def test_an_unknown_optimizer_is_refused_by_one_sentence(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        options(name)
    assert str(caught.value) == f"optimizer={name!r} is not allowed; give one of adamw, muon"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_module_without_trainable_weights_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="there is nothing to train"):
        Optimizers(Net().requires_grad_(False), options(name))
