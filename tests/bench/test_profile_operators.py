"""Groups of operators: each operator in exactly one, shares that sum to one, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import DeviceType

from foredraft.backends.hf import HFTarget
from foredraft.backends.joined_linears import join_linears
from foredraft.bench.profile.operator_times import (
    BETWEEN,
    SCOPE,
    OperatorTime,
    grouped,
    medians,
    operator_of,
    places,
    profile_operators,
    summed,
)
from foredraft.bench.profile.operators import (
    PRODUCTS,
    SHAPES,
    TURNS,
    WRITES,
    Group,
    Operator,
    Place,
    group_of,
    place_of,
)
from tests.tiny_models import TREE_MODELS, tiny_bloom, tiny_eager_llama, tiny_llama

KNOWN = sorted(PRODUCTS | SHAPES | TURNS | WRITES | {"aten::pow", "aten::embedding"})
NAMES = st.sampled_from(
    [*KNOWN, "aten::scaled_dot_product_attention", "triton_poi_fused_0", "x::y"]
)
OPERATORS = st.builds(Operator, st.sampled_from(Place), NAMES, NAMES)
TIMES = st.lists(
    st.builds(OperatorTime, OPERATORS, st.floats(1e-9, 1e-2), st.floats(0.2, 100)), max_size=20
)


@given(TIMES, st.floats(1e-6, 1.0))
def test_shares_sum_to_one_and_no_time_is_lost(times: list[OperatorTime], pass_s: float) -> None:
    found = grouped(times, pass_s)
    assert [row["name"] for row in found["groups"]] == [*(g.value for g in Group), BETWEEN]
    assert sum(row["share"] for row in found["groups"]) == pytest.approx(1)
    assert sum(row["ms"] for row in found["groups"]) == pytest.approx(1000 * pass_s)
    profiled = sum(row["profiled_ms"] for row in found["groups"][:-1])
    assert profiled == pytest.approx(1000 * sum(t.seconds for t in times))
    assert all(row["ms"] >= -1e-9 for row in found["groups"])


def test_operators_that_take_more_than_the_pass_are_scaled_down_to_it() -> None:
    times = [OperatorTime(Operator(Place.LINEAR, "aten::linear", "aten::mm"), 0.03, 2)]
    found = grouped(times, 0.02)
    rows = {row["name"]: row for row in found["groups"]}
    assert found["scale"] == pytest.approx(2 / 3)
    assert rows["linear layers"]["ms"] == pytest.approx(20)
    assert rows["linear layers"]["profiled_ms"] == pytest.approx(30)
    assert rows[BETWEEN]["ms"] == pytest.approx(0)


@given(OPERATORS)
def test_what_is_unknown_lands_in_other_and_is_listed(operator: Operator) -> None:
    found = grouped([OperatorTime(operator, 0.001, 1)], 0.01)
    assert (found["unknown"] == [operator.name]) is (group_of(operator) is Group.OTHER)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        (Operator(Place.ENDS, "aten::linear", "aten::mm"), Group.ENDS),
        (Operator(Place.LINEAR, "aten::linear", "aten::t"), Group.LINEAR),
        (Operator(Place.ATTENTION, "aten::matmul", "aten::bmm"), Group.ATTENTION),
        (Operator(Place.ATTENTION, "aten::copy_", "aten::copy_"), Group.CACHE),
        (Operator(Place.ATTENTION, "aten::contiguous", "aten::copy_"), Group.ATTENTION),
        (Operator(Place.ATTENTION, "aten::neg", "aten::neg"), Group.ROTARY),
        (Operator(Place.ATTENTION, "aten::strange", "aten::strange"), Group.OTHER),
        (Operator(Place.ELEMENTWISE, "aten::mul", "aten::mul"), Group.ELEMENTWISE),
        (Operator(Place.MODEL, "aten::arange", "aten::arange"), Group.MASKS),
        (Operator(Place.MODEL, "aten::unbind", "aten::select"), Group.CACHE),
        (Operator(Place.MODEL, "CompiledFxGraph 1", "aten::mm"), Group.LINEAR),
        (Operator(Place.MODEL, "CompiledFxGraph 1", "cpp_fused_add_0"), Group.OTHER),
        (
            Operator(Place.MODEL, "CompiledFxGraph 1", "aten::_flash_attention_forward"),
            Group.ATTENTION,
        ),
    ],
)
def test_groups(operator: Operator, group: Group) -> None:
    assert group_of(operator) is group


@pytest.fixture(params=TREE_MODELS.values(), ids=TREE_MODELS)
def target(request: pytest.FixtureRequest) -> HFTarget:
    build: Callable[[], Any] = request.param
    return HFTarget(build())


def one_pass(target: HFTarget, rows: int) -> Callable[[], float]:
    state = target.start(64)
    state.prefill([3, 4, 5, 6])

    def run() -> float:
        state.score([7] * rows, [-1, *range(rows - 1)])
        state.commit(())
        return 0.5

    return run


def calls(operators: list[OperatorTime], group: Group, *names: str) -> float:
    return sum(
        o.calls for o in operators if group_of(o.operator) is group and o.operator.name in names
    )


def test_every_operator_of_a_pass_is_known(target: HFTarget) -> None:
    operators, pass_s = profile_operators(target.model, one_pass(target, 3), passes=2)
    assert pass_s == 0.5
    found = grouped(operators, 1.0)
    assert found["unknown"] == []
    rows = {row["name"]: row for row in found["groups"]}
    layers = target.model.config.num_hidden_layers
    assert calls(operators, Group.CACHE, "aten::copy_") >= 2 * layers  # keys and values
    assert calls(operators, Group.ENDS, "aten::mm", "aten::addmm") == 1
    assert calls(operators, Group.LINEAR, "aten::mm", "aten::addmm") % layers == 0
    assert all(rows[name]["calls"] for name in ("attention", "linear layers", "embedding and head"))


def test_products_of_projections_and_of_attention_are_told_apart() -> None:
    target = HFTarget(tiny_eager_llama())
    operators, _ = profile_operators(target.model, one_pass(target, 3), passes=2)
    assert calls(operators, Group.LINEAR, "aten::mm") == 2 * 7
    assert calls(operators, Group.ATTENTION, "aten::bmm") == 2 * 2


def test_joined_layers_are_linear_layers_too() -> None:
    model = tiny_llama()
    join_linears(model)
    target = HFTarget(model)
    operators, _ = profile_operators(target.model, one_pass(target, 1), passes=2)
    assert calls(operators, Group.LINEAR, "aten::mm") == 2 * 4


def test_a_model_is_left_without_hooks_and_with_its_own_output() -> None:
    target = HFTarget(tiny_llama())
    state = target.start(16)
    before = state.score([3, 4], [-1, 0])
    state.commit(())
    with places(target.model):
        within = state.score([3, 4], [-1, 0])
    assert torch.equal(within, before)
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in target.model.modules()]
    assert not any(hook for pair in hooks for hook in pair)


def test_places_of_a_model_with_names_of_its_own() -> None:
    model = tiny_bloom()
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    kinds = {name: place_of(module, ends) for name, module in model.named_modules()}
    assert kinds["transformer.h.0.self_attention"] is Place.ATTENTION
    assert kinds["transformer.h.0.self_attention.query_key_value"] is Place.LINEAR
    assert kinds["transformer.h.0.mlp.gelu_impl"] is Place.ELEMENTWISE
    assert kinds["transformer.h.0"] is Place.ELEMENTWISE
    assert kinds["transformer.ln_f"] is Place.ELEMENTWISE
    assert kinds["transformer.word_embeddings"] is Place.ENDS
    assert kinds["lm_head"] is Place.ENDS
    assert kinds["transformer"] is Place.MODEL


def test_a_quantised_layer_is_linear_by_its_buffers() -> None:
    layer = nn.Module()
    layer.register_buffer("packed", torch.zeros(4, 4, dtype=torch.int8))
    assert place_of(layer, ()) is Place.LINEAR


def event(name: str, parent: Any = None, **times: float) -> Any:
    defaults = {"self_cpu_time_total": 5.0, "self_device_time_total": 0.0}
    return SimpleNamespace(
        name=name, cpu_parent=parent, device_type=DeviceType.CPU, **defaults | times
    )


def test_a_stalled_pass_does_not_show() -> None:
    first, second = (
        Operator(Place.LINEAR, "aten::linear", name) for name in ("aten::mm", "aten::t")
    )
    found = medians([{first: (1.0, 2)}, {first: (9.0, 2), second: (5.0, 1)}, {first: (2.0, 2)}])
    assert found == [OperatorTime(first, 2.0, 2), OperatorTime(second, 0.0, 0)]


def test_on_a_device_its_own_times_count_and_launches_belong_to_their_operator() -> None:
    scope = event(SCOPE + "LINEAR")
    outer = event("aten::linear", scope)
    inner = event("aten::mm", outer, self_device_time_total=20.0)
    launch = event("cudaLaunchKernel", inner, self_device_time_total=2.0)
    kernel = event("gemm_kernel", self_device_time_total=22.0)
    kernel.device_type = DeviceType.CUDA
    found = summed([scope, outer, inner, launch, kernel], on_device=True)
    product = Operator(Place.LINEAR, "aten::linear", "aten::mm")
    whole = Operator(Place.LINEAR, "aten::linear", "aten::linear")
    assert found == {product: (pytest.approx(22e-6), 1), whole: (0.0, 1)}
    assert operator_of(kernel) is None
    assert operator_of(scope) is None
