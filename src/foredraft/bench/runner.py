"""Runs a benchmark: every contender in turn on every prompt, each finished prompt kept."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.field import enter_field
from foredraft.bench.folder import RunFolder
from foredraft.bench.judge import Judge
from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.provenance import check_same_machine, provenance, weights_digest
from foredraft.bench.records import Answer, AnswerRecord, PromptRecord, record_of
from foredraft.bench.suites import Question
from foredraft.config import GenerationOptions
from foredraft.costs import CostTable
from foredraft.engine.calibration import calibrate
from foredraft.engine.cost_files import dtype_of
from foredraft.engine.engine import Engine
from foredraft.engine.load import Models, load_models
from foredraft.engine.prompts import encode_prompt
from foredraft.errors import ConfigError, PromptError
from foredraft.methods import Method, parse_method
from foredraft.protocols import Target

WARM_UP_TOKENS = 16

Report = Callable[[str], None]
Enter = Callable[[BenchPlan, Models, Report, Report], list[Contender]]
Measure = Callable[[Target, Mapping[str, Engine], GenerationOptions], CostTable]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is: `done` of `total` prompts, and the one just finished."""

    done: int
    total: int
    record: PromptRecord


class BenchRun:
    """One run in its folder. Iterate to run what is not finished yet; interrupting loses one prompt at most.

    Args:
        plan: what to run.
        folder: where to keep it; a run with the same plan is gone on with.
        report: receives a sentence at each long step, and every note.
        enter, measure: make the contenders and the cost table; the seams for tests.

    Raises:
        ConfigError: the folder holds another run, one of another machine, or is in use; or no method that
            was asked for can take part.
        ModelError: the model cannot be loaded.
        CacheError, NumericsError: a method of this project failed; what is finished is kept.
    """

    def __init__(
        self,
        plan: BenchPlan,
        folder: RunFolder,
        report: Report = lambda sentence: None,
        enter: Enter = enter_field,
        measure: Measure = calibrate,
    ) -> None:
        self.plan, self.folder = plan, folder
        self._report = report
        self._enter, self._measure = enter, measure
        begun = folder.read_plan()
        if begun is not None:
            plan.check_same(begun, str(folder.path))
        self._begun = begun
        self._finished = {record.key for record in folder.records()}
        self._notes: list[str] = list(begun["notes"]) if begun else []

    @property
    def total(self) -> int:
        """Prompts of the whole run."""
        return sum(len(suite.questions) for suite in self.plan.questions)

    @property
    def done(self) -> int:
        """Prompts that are finished."""
        return len(self._finished)

    def __iter__(self) -> Iterator[Progress]:
        if self.done == self.total:
            return
        with ExitStack() as stack:
            stack.enter_context(self.folder.in_use())
            models = load_models(
                self.plan.model,
                self.plan.drafter,
                needed=self.plan.needed,
                methods=[m for m in self.plan.contestants.values() if isinstance(m, Method)],
                dtype=self.plan.dtype,
                device=self.plan.device,
                quantize=self.plan.quantize,
                compile=self.plan.compile,
                cuda_graphs=self.plan.cuda_graphs,
                report=self._report,
            )
            field = self._enter(self.plan, models, self._note, self._report)
            for contender in field:
                stack.callback(contender.close)
            self._check_asked(field)
            self._begin(models, field)
            self._warm_up(models, field)
            self._check_asked(field)
            yield from self._answer_all(models, field)

    # --- before the first prompt ------------------------------------------------------------------

    def _check_asked(self, field: Sequence[Contender]) -> None:
        """Refuse a run of plain decoding alone where other methods were asked for."""
        if not {contender.name for contender in field} & set(self.plan.methods):
            raise ConfigError(
                f"none of the methods asked for can be measured here ({'; '.join(self._notes)}); name others "
                "with --methods"
            )

    def _begin(self, models: Models, field: Sequence[Contender]) -> None:
        """Keep the plan, and measure what passes cost if that was not done yet."""
        now = {
            **provenance(models.target.device),
            "dtype": dtype_of(models.target),
            "weights": weights_digest(getattr(models.target, "model", None)),
            "draft_weights": weights_digest(getattr(models.draft_model, "model", None)),
            "head_weights": weights_digest(models.head),
            "own_weights": _own_weights(models),
        }
        begun = self._begun
        if begun:
            check_same_machine(begun["provenance"], now, str(self.folder.path))
            if begun["provenance"]["revision"] != now["revision"]:
                self._note(f"the run went on at another revision, {now['revision']}")
        comparable = {contender.name: contender.comparable for contender in field}
        lossy = [c.name for c in field if isinstance(c, EngineContender) and not c.lossless]
        self._begun = {
            **self.plan.as_dict(),
            "comparable": {**(begun["comparable"] if begun else {}), **comparable},
            "lossy": lossy,
            "notes": self._notes,
            "provenance": begun["provenance"] if begun else {**now, "seed": self.plan.seed},
            "resumed": [*begun["resumed"], now] if begun else [],
        }
        self.folder.write_plan(self._begun)
        if not self.folder.has_costs:
            self._report("measuring what passes cost")
            engines = self._drafting(models, field)
            self.folder.write_costs(self._measure(models.target, engines, self.plan.options))

    def _drafting(self, models: Models, field: Sequence[Contender]) -> dict[str, Engine]:
        """Engines whose drafts cost what each contender's do; a peer's draft model is the shared one."""
        engines = {c.name: c.engine for c in field if isinstance(c, EngineContender)}
        for contender in field:
            if contender.name not in engines and self._drafts_with_model(contender):
                engines[contender.name] = models.engine(parse_method("speculative"))
        return engines

    def _drafts_with_model(self, contender: Contender) -> bool:
        spec = self.plan.contestants.get(contender.name)
        return spec is not None and spec.needs_draft_model

    def _warm_up(self, models: Models, field: list[Contender]) -> None:
        """A brief answer of each; what a contender cannot answer here is dealt with where it counts."""
        brief = self.plan.options.replace(
            max_new_tokens=min(WARM_UP_TOKENS, self.plan.max_new_tokens)
        )
        prompt_ids = encode_question(self.plan.questions[0].questions[0], (), models)
        for contender in list(field):
            self._report(f"warming up {contender.name}")
            try:
                self._answer(contender, prompt_ids, brief, field)
            except PromptError:
                continue

    # --- the prompts --------------------------------------------------------------------------------

    def _answer_all(self, models: Models, field: list[Contender]) -> Iterator[Progress]:
        plain = Engine(models.target, tokenizer=models.tokenizer)
        for suite in self.plan.questions:
            for number, question in enumerate(suite.questions):
                if (suite.name, question.id) in self._finished:
                    continue
                gc.collect()
                options = self._options(number)
                answers = self._converse(suite.name, question, options, models, plain, field)
                record = PromptRecord(suite.name, question.id, question.category, tuple(answers))
                self.folder.append(record)
                self._finished.add(record.key)
                yield Progress(self.done, self.total, record)

    def _options(self, number: int) -> GenerationOptions:
        """The request of a suite's question `number`: each has a seed of its own."""
        options = self.plan.options
        return options if options.seed is None else options.replace(seed=options.seed + number)

    def _converse(
        self,
        suite: str,
        question: Question,
        options: GenerationOptions,
        models: Models,
        plain: Engine,
        field: list[Contender],
    ) -> list[AnswerRecord]:
        """All turns of a question. Plain decoding's answer goes on the conversation, for every contender."""
        kept: list[AnswerRecord] = []
        texts: list[str] = []
        try:
            for turn in range(len(question.turns)):
                prompt_ids = encode_question(question, texts, models)
                order = random.Random(f"{suite}/{question.id}/{turn}")
                answers = self._take_turns(prompt_ids, options, order, field)
                plain_ids = answers[PLAIN][0].token_ids
                judge = Judge(plain, prompt_ids, plain_ids, options)
                for contender in field:
                    given = answers[contender.name]
                    identical = judge.judge(contender, given)
                    kept.append(record_of(contender.name, turn, prompt_ids, identical, given))
                texts.append(plain.decode(plain_ids))
        except PromptError as error:
            self._note(f"{suite}/{question.id} was left out from turn {len(texts) + 1} on: {error}")
        return kept

    def _take_turns(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        order: random.Random,
        field: list[Contender],
    ) -> dict[str, list[Answer]]:
        """Every contender's answers: all once, then all again, in an order drawn anew each time."""
        answers: dict[str, list[Answer]] = {contender.name: [] for contender in field}
        for _ in range(self.plan.repeats):
            for contender in order.sample(field, len(field)):
                if contender in field:
                    answers[contender.name] += self._answer(contender, prompt_ids, options, field)
        return answers

    def _answer(
        self,
        contender: Contender,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        field: list[Contender],
    ) -> list[Answer]:
        """One answer. A peer that fails is dropped with a note and the others go on; ours may not fail."""
        try:
            return [contender.answer(prompt_ids, options)]
        except PromptError:
            raise
        except Exception as error:
            if isinstance(contender, EngineContender):
                raise
            field.remove(contender)
            self._note(f"{contender.name} was dropped: {type(error).__name__}: {error}")
            return []

    def _note(self, sentence: str) -> None:
        if sentence in self._notes:
            return
        self._notes.append(sentence)
        self._report(sentence)
        if self._begun is not None:
            self._begun["notes"] = self._notes
            self.folder.write_plan(self._begun)


def _own_weights(models: Models) -> dict[str, str | None] | None:
    """Of each drafter that methods name; None without any, as in runs that knew of none."""
    modules = {name: getattr(drafter, "model", drafter) for name, drafter in models.own.items()}
    return {name: weights_digest(module) for name, module in sorted(modules.items())} or None


def encode_question(question: Question, answers: Sequence[str], models: Models) -> list[int]:
    """The prompt of the next turn as token ids."""
    has_template = bool(getattr(models.tokenizer, "chat_template", None))
    prompt = question.prompt(answers) if has_template else question.text(answers)
    return encode_prompt(prompt, models.tokenizer, models.target.vocab_size)
