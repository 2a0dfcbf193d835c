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
from foredraft.train.soft_loss import soft_cross_entropy, teacher_logits


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

    def __init__(self, target_model: Any, student: StudentModel, *, int8: bool = True) -> None:
        self._student, self._int8 = student, int8
        for parameter in student.owned.values():
            parameter.data = parameter.data.float()
        self._module = Owned(student)
        last = target_model.config.num_hidden_layers
        self._states = TargetFeatures(target_model, (last,))
        self._ends = TargetEnds.of(target_model)
        ids = student.draft_ids
        chosen = slice(None) if ids is None else ids
        self._rows = self._ends.lm_rows.detach()[chosen]
        bias = getattr(self._ends.lm_head, "bias", None)
        self._bias = None if bias is None else bias.detach()[chosen]
        self._known = torch.zeros(
            len(self._ends.lm_rows), dtype=torch.bool, device=self._rows.device
        )
        self._known[chosen] = True

    @property
    def module(self) -> nn.Module:
        """The student's own parameters."""
        return self._module

    def __call__(self, batch: Batch) -> LossReport:
        """The loss of a batch: a token's state, in target and student, predicts the token behind it."""
        counts = batch.labelled[:, 1:] & self._known[batch.token_ids[:, 1:]]
        taught = self._taught(self._states(batch).final[:, :-1][counts])
        hidden, weight, bias = self._predicted(batch.token_ids[:, :-1])
        count = int(counts.sum())
        rows = torch.full((count,), 1.0 / max(count, 1), device=hidden.device)
        result = soft_cross_entropy(hidden[counts], weight, taught, rows, bias)
        hits = result.hits.sum()[None].float()
        loss = (
            result.loss + 0.0 * hidden.sum()
        )  # every parameter gets a gradient, if nothing counts too
        return LossReport(loss, hits, torch.full_like(hits, count))

    def save(self, folder: Path) -> None:
        """Write the student into a folder."""
        save_student(self._student, folder, int8=self._int8)

    def _taught(self, states: Tensor) -> Tensor:
        """The target's logits [N, Vd] from its final states [N, h]."""
        logits = teacher_logits(states, self._rows)
        return self._ends.finish(logits if self._bias is None else logits + self._bias)

    def _predicted(self, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The student's final states [B, T, h], and weight and bias of its head.

        What scales the logits scales the states here; a soft cap leaves their order, and is left out.
        """
        model = self._student.model.train(self._module.training)
        with torch.no_grad():
            embeds = model.get_input_embeddings()(token_ids).float()
        states = model.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
        if self._ends.logit_scale != 1.0:
            states = states * self._ends.logit_scale
        if self._student.config.head == "target":
            return states, self._rows, self._bias
        head = model.get_output_embeddings()
        return states, head.weight, getattr(head, "bias", None)
