"""EAGLE written a second time: slow, plain and functional, from the papers' restatement alone.

Nothing of the library is used, so an agreement of the two is an agreement of two readings. Every pass
starts from scratch: no cache, no mask, one query and one head at a time.

Pairing, in both variants: row i takes what the target made of token i (its *feature*), the embedding of
token i + 1 and rotary position i; its logits are those of token i + 2. Rows behind the last feature are
draft rows: there the head's own output stands in for the feature.

Tensors are named as in the published checkpoints; the variant-3 layer may be called `midlayer` or, as in
the speculators dialect, `layers.0`. `config` holds the fields of a published `config.json`, flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Config = Mapping[str, Any]
Row = tuple[Tensor, Tensor, int]
"""Embedding [h], hidden state [h] and rotary position of one row of the head."""
Step = Callable[[tuple[int, ...]], Tensor]
"""Log-probabilities [V] of the token after the root and these draft tokens."""


# --- arithmetic -------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square along the last dimension, times a weight."""
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head's vector [D]: coordinates d and d + D/2 turn as one plane.

    The angle is position * theta^(-2d / D).
    """
    first, second = x.chunk(2)
    angles = position * theta ** (-2 * torch.arange(len(first), dtype=torch.float64) / len(x))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin))


def attend(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """One query [D] over the keys it may see: softmax(q.k / sqrt(D)) times the values."""
    scores = torch.stack([query @ key for key in keys]) / math.sqrt(len(query))
    weights = (scores - scores.max()).exp()
    return weights / weights.sum() @ torch.stack(list(values))


def linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    """The linear map `name`, with its bias if the checkpoint has one."""
    y = tensors[f"{name}.weight"] @ x
    return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y


def rope_theta(config: Config) -> float:
    """The base of the rotary frequencies, top level or nested; 10000 where none is given."""
    nested = config.get("rope_parameters") or {}
    return float(nested.get("rope_theta", config.get("rope_theta", 10000.0)))


# --- the layer --------------------------------------------------------------------------------------


class Layer:
    """The head's one decoder layer, evaluated on single rows."""

    def __init__(self, tensors: Tensors, config: Config, name: str) -> None:
        self.tensors, self.config, self.name = tensors, config, name
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config.get("num_key_value_heads") or self.num_heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.num_heads
        self.eps, self.theta = config["rms_norm_eps"], rope_theta(config)

    def norm(self, part: str, x: Tensor) -> Tensor:
        """One of the layer's norms."""
        return rms_norm(x, self.tensors[f"{self.name}.{part}.weight"], self.eps)

    def heads(self, part: str, x: Tensor) -> list[Tensor]:
        """A projection of the attention, cut into vectors [D] of single heads."""
        return list(linear(self.tensors, f"{self.name}.self_attn.{part}", x).split(self.head_dim))

    def queries(self, x: Tensor, position: int) -> list[Tensor]:
        """Rotated queries of every head."""
        return [rotate(q, position, self.theta) for q in self.heads("q_proj", x)]

    def keys(self, x: Tensor, position: int) -> list[Tensor]:
        """Rotated keys of every key-value head."""
        return [rotate(k, position, self.theta) for k in self.heads("k_proj", x)]

    def values(self, x: Tensor) -> list[Tensor]:
        """Values of every key-value head."""
        return self.heads("v_proj", x)

    def attention(
        self, query: Sequence[Tensor], keys: list[list[Tensor]], values: list[list[Tensor]]
    ) -> Tensor:
        """The attention block's output [h] for a row whose visible rows have these keys and values.

        Consecutive query heads share a key-value head.
        """
        group = self.num_heads // self.num_kv_heads
        mixed = [
            attend(q, [row[h // group] for row in keys], [row[h // group] for row in values])
            for h, q in enumerate(query)
        ]
        return linear(self.tensors, f"{self.name}.self_attn.o_proj", torch.cat(mixed))

    def feed_forward(self, x: Tensor) -> Tensor:
        """x + MLP(norm(x)), a gated SiLU."""
        normed, mlp = self.norm("post_attention_layernorm", x), f"{self.name}.mlp"
        gate = linear(self.tensors, f"{mlp}.gate_proj", normed)
        up = linear(self.tensors, f"{mlp}.up_proj", normed)
        return x + linear(self.tensors, f"{mlp}.down_proj", gate * torch.sigmoid(gate) * up)


class Head1:
    """EAGLE-1 and -2: fc(cat(embedding, feature)), a layer without its input norm, the target's LM head."""

    def __init__(self, tensors: Tensors, config: Config, embed: Tensor, lm_head: Tensor) -> None:
        self.tensors, self.embeddings = tensors, tensors.get("embed_tokens.weight", embed)
        self.lm_head = lm_head
        self.layer = Layer(tensors, config, "layers.0")

    def fuse(self, features: Tensor) -> Tensor:
        """A feature is a hidden state already."""
        return features

    def recycle(self, output: Tensor) -> Tensor:
        """The output is the next feature."""
        return output

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and what its result is added to."""
        x = linear(self.tensors, "fc", torch.cat((embedding, hidden)))
        return x, x

    def logits(self, output: Tensor) -> Tensor:
        """[V], without a norm: features are already behind the target's."""
        return self.lm_head @ output


class Head3:
    """EAGLE-3: fused features, two norms before the attention, an LM head of its own."""

    def __init__(self, tensors: Tensors, config: Config, embed: Tensor) -> None:
        self.tensors, self.config = tensors, config
        self.embeddings = tensors.get("embed_tokens.weight", embed)
        spelled = "midlayer" if "midlayer.hidden_norm.weight" in tensors else "layers.0"
        self.layer = Layer(tensors, config, spelled)
        self.eps = config["rms_norm_eps"]

    def fuse(self, features: Tensor) -> Tensor:
        """Features [T, 3h] of three layers as one hidden state [T, h] each."""
        return torch.stack([self._fuse_row(row) for row in features]) if len(features) else features

    def _fuse_row(self, row: Tensor) -> Tensor:
        if self.config.get("norm_before_fc"):
            row = rms_norm(row, self.tensors["input_norm.weight"], self.eps)
        if self.config.get("fc_norm"):
            norms = [t for name, t in sorted(self.tensors.items()) if name.startswith("fc_norm.")]
            parts = zip(row.chunk(len(norms)), norms, strict=True)
            row = torch.cat([rms_norm(part, norm, self.eps) for part, norm in parts])
        return linear(self.tensors, "fc", row)

    def recycle(self, output: Tensor) -> Tensor:
        """The next step's hidden state; it does not pass fc again."""
        if self.config.get("norm_output"):
            return rms_norm(output, self.tensors["norm.weight"], self.eps)
        return output

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads [2h], and what its result is added to [h]."""
        normed = self.layer.norm("hidden_norm", hidden)
        x = torch.cat((self.layer.norm("input_layernorm", embedding), normed))
        return x, normed if self.config.get("norm_before_residual") else hidden

    def logits(self, output: Tensor) -> Tensor:
        """[Vd], over the draft vocabulary."""
        return self.tensors["lm_head.weight"] @ rms_norm(
            output, self.tensors["norm.weight"], self.eps
        )


Head = Head1 | Head3


def last_output(head: Head, rows: Sequence[Row]) -> Tensor:
    """The un-normed output [h] of the last row, which sees itself and all rows before it."""
    layer = head.layer
    entered = [(*head.enter(embedding, hidden), position) for embedding, hidden, position in rows]
    keys = [layer.keys(x, position) for x, _, position in entered]
    values = [layer.values(x) for x, _, _ in entered]
    x, residual, position = entered[-1]
    return layer.feed_forward(residual + layer.attention(layer.queries(x, position), keys, values))


def true_rows(head: Head, features: Tensor, token_ids: Sequence[int]) -> list[Row]:
    """The rows of T features and the T + 1 tokens that they go with."""
    assert len(token_ids) == len(features) + 1
    return [
        (head.embeddings[token_ids[i + 1]], hidden, i)
        for i, hidden in enumerate(head.fuse(features))
    ]


def true_logits(head: Head, features: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of every true row."""
    rows = true_rows(head, features, token_ids)
    every = [last_output(head, rows[: n + 1]) for n in range(len(rows))]
    return torch.stack([head.logits(output) for output in every])


def drafted_logits(
    head: Head, features: Tensor, token_ids: Sequence[int], drafted: Sequence[int]
) -> Tensor:
    """Logits [1 + D, V] after the root, which is the last of `token_ids`, and after each draft token."""
    rows = true_rows(head, features, token_ids)
    result = []
    for depth in range(len(drafted) + 1):
        output = last_output(head, rows)  # everything again, from the first token on
        result.append(head.logits(output))
        if depth < len(drafted):
            rows.append(
                (head.embeddings[drafted[depth]], head.recycle(output), len(features) + depth)
            )
    return torch.stack(result)


# --- what tests compare with ------------------------------------------------------------------------


def reference_logits_eagle1(
    tensors: Tensors,
    config: Config,
    embed: Tensor,
    lm_head: Tensor,
    features: Tensor,
    token_ids: Sequence[int],
) -> Tensor:
    """Logits [T, V] of every row, from true features [T, h] and T + 1 tokens.

    `embed` [V, h] is used where the checkpoint has no embeddings of its own.
    """
    return true_logits(Head1(tensors, config, embed, lm_head), features, token_ids)


def reference_logits_eagle3(
    tensors: Tensors, config: Config, embed: Tensor, features: Tensor, token_ids: Sequence[int]
) -> Tensor:
    """Logits [T, Vd] of every row, from true features [T, 3h] and T + 1 tokens."""
    return true_logits(Head3(tensors, config, embed), features, token_ids)


def reference_draft_eagle1(
    tensors: Tensors,
    config: Config,
    embed: Tensor,
    lm_head: Tensor,
    features: Tensor,
    token_ids: Sequence[int],
    drafted: Sequence[int],
) -> Tensor:
    """Logits [1 + D, V] after the root and along a path of draft tokens."""
    return drafted_logits(Head1(tensors, config, embed, lm_head), features, token_ids, drafted)


def reference_draft_eagle3(
    tensors: Tensors,
    config: Config,
    embed: Tensor,
    features: Tensor,
    token_ids: Sequence[int],
    drafted: Sequence[int],
) -> Tensor:
    """Logits [1 + D, Vd] after the root and along a path of draft tokens (ids of the target)."""
    return drafted_logits(Head3(tensors, config, embed), features, token_ids, drafted)


def target_ids(tensors: Tensors, draft_vocab_size: int) -> list[int]:
    """Target id of each draft id: d2t holds the difference."""
    d2t = tensors.get("d2t")
    shift = [0] * draft_vocab_size if d2t is None else d2t.tolist()
    return [draft_id + shift[draft_id] for draft_id in range(draft_vocab_size)]


class DraftLaws:
    """A `Step` over the target's vocabulary: log q after the root and a path of draft tokens.

    Each node's row is made in a pass over the whole text and its own ancestors, and nothing else.
    """

    def __init__(
        self, head: Head, features: Tensor, token_ids: Sequence[int], ids: Sequence[int], vocab: int
    ) -> None:
        self.head, self.ids, self.vocab = head, ids, vocab
        self.text = true_rows(head, features, token_ids)
        self._outputs: dict[tuple[int, ...], Tensor] = {}

    def rows(self, path: tuple[int, ...]) -> list[Row]:
        """The text's rows, then one for each draft token of the path."""
        return self.text + [
            (
                self.head.embeddings[token],
                self.head.recycle(self.output(path[:depth])),
                len(self.text) + depth,
            )
            for depth, token in enumerate(path)
        ]

    def output(self, path: tuple[int, ...]) -> Tensor:
        """The un-normed output [h] of the path's last row."""
        if path not in self._outputs:
            self._outputs[path] = last_output(self.head, self.rows(path))
        return self._outputs[path]

    def logits(self, path: tuple[int, ...]) -> Tensor:
        """[V] by target id; -inf where the draft vocabulary has no token."""
        logits = self.head.logits(self.output(path))
        full = logits.new_full((self.vocab,), -math.inf)
        full[list(self.ids)] = logits
        return full

    def __call__(self, path: tuple[int, ...]) -> Tensor:
        return self.logits(path).log_softmax(-1)


def reference_training_time_test(
    head: Head, features: Tensor, token_ids: Sequence[int], num_steps: int
) -> Tensor:
    """Logits [S, T, V] of S unrolled steps over true text, as EAGLE-3 is trained.

    Step 0 takes the features; step s takes the outputs of step s - 1, and the tokens shifted left once
    more (id 0 behind the end). A row of step s stands s positions further right and sees the step-0 keys
    of the rows up to its own, and its own row's key of each step from 1 to s.
    """
    layer, hidden = head.layer, list(head.fuse(features))
    text = [*token_ids, *[0] * num_steps]
    keys: list[list[list[Tensor]]] = []  # of each step, of each row
    values: list[list[list[Tensor]]] = []
    result = []
    for step in range(num_steps):
        entered = [
            head.enter(head.embeddings[text[row + 1 + step]], state)
            for row, state in enumerate(hidden)
        ]
        keys.append([layer.keys(x, row + step) for row, (x, _) in enumerate(entered)])
        values.append([layer.values(x) for x, _ in entered])
        out = []
        for row, (x, residual) in enumerate(entered):
            seen_keys = keys[0][: row + 1] + [later[row] for later in keys[1:]]
            seen_values = values[0][: row + 1] + [later[row] for later in values[1:]]
            mixed = layer.attention(layer.queries(x, row + step), seen_keys, seen_values)
            out.append(layer.feed_forward(residual + mixed))
        result.append(torch.stack([head.logits(o) for o in out]))
        hidden = [head.recycle(o) for o in out]
    return torch.stack(result)


# --- trees ------------------------------------------------------------------------------------------


def best_tokens(law: Tensor, count: int) -> list[int]:
    """The `count` likeliest tokens, best first, the smaller id of equals."""
    ranked = sorted(range(len(law)), key=lambda token: (-float(law[token]), token))
    return [token for token in ranked[:count] if float(law[token]) > -math.inf]


def eagle2_tree(
    step: Step, top_k: int, depth_levels: int, nodes: int
) -> tuple[list[int], list[int]]:
    """EAGLE-2's dynamic tree, its root left out: tokens, and parents as indices of tokens (-1 the root).

    Level 1 is the root's `top_k` best tokens. Of each level, the `top_k` nodes with the greatest sum of
    log-probabilities get `top_k` children each. Of everything ever created the best `nodes` are kept,
    in order of creation; of equals the one created first, so that no node comes without its parent.
    """
    created: list[tuple[tuple[int, ...], float]] = []  # path from the root, score
    level: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth_levels):
        frontier = sorted(level, key=lambda node: -node[1])[:top_k]  # stable: ties as created
        level = []
        for path, score in frontier:
            law = step(path)
            level += [
                ((*path, token), score + float(law[token])) for token in best_tokens(law, top_k)
            ]
        created += level
    ranked = sorted(range(len(created)), key=lambda i: (-created[i][1], i))
    kept = [created[i][0] for i in sorted(ranked[:nodes])]
    return [path[-1] for path in kept], [kept.index(p[:-1]) if p[:-1] else -1 for p in kept]


def static_tree(step: Step, widths: Sequence[int]) -> tuple[list[int], list[int]]:
    """The tree in which every node at depth d - 1 has its widths[d - 1] best children, in level order."""
    kept: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for width in widths:
        level = [(*path, token) for path in level for token in best_tokens(step(path), width)]
        kept += level
    return [path[-1] for path in kept], [kept.index(p[:-1]) if p[:-1] else -1 for p in kept]


def tree_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The path of draft tokens that leads to each node."""
    result: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        result.append((*(result[parent] if parent >= 0 else ()), token))
    return result
