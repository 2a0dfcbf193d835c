"""Distilling a student: on the corpus, it learns the target's law of each next token that was answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.student import StudentModel
from foredraft.drafters.student_files import save_student
from foredraft.train.features import TargetFeatures
from foredraft.train.objective import Batch, LossReport
from foredraft.train.soft_loss import soft_cross_entropy
from foredraft.train.state_cache import StateCache
from foredraft.train.taught import Taught


class Owned(nn.Module):
    """The parameters that a student owns, as a module; the same memory as in the student."""

    def __init__(self, student: StudentModel) -> None:
        super().__init__()
        for name, parameter in student.owned.items():
            self.register_parameter(name.replace(".", "/"), parameter)


class DraftModelObjective:
    """Soft cross-entropy between target and student: -sum over v of p(v) log q(v).

    p is the target's law of the next token, restricted to the draft vocabulary; the mean is over the
    labelled tokens that the draft vocabulary has (in greedy text they are the target's own best ones).
    Target and student read a text once, in parallel at all positions; so there is one depth.

    Args:
        target_model: a `transformers` causal language model; it is only read.
        student: what was cut from it (`build_student`); its own parameters become float32.
        int8: save matrices as int8 with a scale a row, instead of bfloat16.
    """

    def __init__(
        self,
        target_model: Any,
        student: StudentModel,
        *,
        int8: bool = True,
        cache: StateCache | None = None,
    ) -> None:
        self._student, self._int8 = student, int8
        for parameter in student.owned.values():
            parameter.data = parameter.data.float()
        self._module = Owned(student)
        last = target_model.config.num_hidden_layers
        self._states = TargetFeatures(target_model, (last,), cache)
        self._taught = Taught.of(TargetEnds.of(target_model), student.draft_ids)

    @property
    def module(self) -> nn.Module:
        """The student's own parameters."""
        return self._module

    def __call__(self, batch: Batch) -> LossReport:
        """The loss of a batch: a token's state, in target and student, predicts the token behind it."""
        counts = batch.labelled[:, 1:] & self._taught.known[batch.token_ids[:, 1:]]
        states = self._states(batch).final[:, :-1][counts]
        taught = self._taught.logits(states)
        hidden = self._read(batch.token_ids[:, :-1])
        own = self._student.config.head == "own"
        weight = self._student.model.get_output_embeddings().weight if own else self._taught.rows
        count = int(counts.sum())
        rows = torch.full((count,), 1.0 / max(count, 1), device=hidden.device)
        result = soft_cross_entropy(hidden[counts], weight, taught, rows, self._taught.finish)
        hits = result.hits.sum()[None].float()
        asked = batch.labelled[:, 1:].sum()[None].float()  # tokens that it cannot say are missed
        loss = (
            result.loss + 0.0 * hidden.sum()
        )  # every parameter gets a gradient, if nothing counts too
        return LossReport(loss, hits, asked)

    def save(self, folder: Path) -> None:
        """Write the student into a folder."""
        save_student(self._student, folder, int8=self._int8)

    def _read(self, token_ids: Tensor) -> Tensor:
        """The student's final states [B, T, h]."""
        model = self._student.model.train(self._module.training)
        with torch.no_grad():
            embeds = model.get_input_embeddings()(token_ids).float()
        states: Tensor = model.get_decoder()(inputs_embeds=embeds, use_cache=False)[0]
        return states
