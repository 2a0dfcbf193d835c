"""Measures quality in three parts, each of which goes on where it was: roots, answers, tasks.

```
quality.json    what was asked for, provenance
roots.jsonl     a line per context and drafter: candidates, and the laws of their accepted lengths
answers/        a benchmark run whose answers are scored (scores.jsonl beside its records)
tasks/          the same on the generated tasks, which stand in tasks.jsonl
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

from foredraft.bench.folder import RunFolder
from foredraft.bench.json_lines import JsonLines
from foredraft.bench.papers import Progress, measure_wide
from foredraft.bench.plan import check_same
from foredraft.bench.provenance import provenance
from foredraft.bench.quality.contexts import (
    RootChoices,
    context_name,
    root_choices,
    sampled_context,
)
from foredraft.bench.quality.plan import QualityPlan
from foredraft.bench.quality.tasks import make_tasks
from foredraft.bench.questions import Question
from foredraft.bench.runner import BenchRun, Measure, encode_question
from foredraft.bench.scoring import Scores, enter_scored
from foredraft.engine.engine import Engine
from foredraft.engine.load import Models, load_models
from foredraft.errors import ConfigError
from foredraft.files import in_use, write_json, write_text
from foredraft.methods import parse_method

PLAN, ROOTS_FILE, ANSWERS, TASKS = "quality.json", "roots.jsonl", "answers", "tasks"
TASKS_FILE = "tasks.jsonl"


class QualityRun:
    """One measurement in its folder. Iterate to make what is missing.

    Args:
        plan: what to measure.
        path: the folder; a measurement with the same plan is gone on with.
        report: receives a sentence at each long step.
        measure: as in `BenchRun`.

    Raises:
        ConfigError: the folder holds another measurement, or is in use.
    """

    def __init__(
        self,
        plan: QualityPlan,
        path: Path,
        report: Callable[[str], None] = lambda sentence: None,
        measure: Measure = measure_wide,
    ) -> None:
        self.plan, self.path = plan, path
        self._report, self._measure = report, measure
        begun = read_plan(path)
        if begun is not None:
            check_same(plan.as_dict(), begun, str(path))
        self._lines = roots_lines(path)
        self._finished = {choices.key for choices in self._lines.read(RootChoices.from_dict)}

    def __iter__(self) -> Iterator[Progress]:
        with in_use(self.path, by="benchmark"):
            if read_plan(self.path) is None:
                write_json(self.path / PLAN, {**self.plan.as_dict(), "provenance": provenance()})
            yield from self._roots()
            yield from self._answers(ANSWERS)
            file = self.path / TASKS_FILE
            lines = [json.dumps(task.as_question()) for task in make_tasks(self.plan.tasks)]
            write_text(file, "\n".join(lines) + "\n")
            yield from self._answers(TASKS)

    # --- the law of the root --------------------------------------------------------------------

    def _roots(self) -> Iterator[Progress]:
        contexts = self._contexts()
        total = len(contexts) * len(self.plan.drafters)
        if len(self._finished) >= total:
            return
        models = self._load()
        plain = Engine(models.target, tokenizer=models.tokenizer)
        drafting = {
            drafter: models.engine(parse_method(self.plan.drafting(drafter)))
            for drafter in self.plan.drafters
        }
        for number, (name, question) in enumerate(contexts.items()):
            for drafter, engine in drafting.items():
                if (name, drafter) not in self._finished:
                    ids = encode_question(question, (), models)
                    self._lines.append(
                        asdict(self._choices(plain, engine, ids, name, drafter, number))
                    )
                    self._finished.add((name, drafter))
                    yield Progress("roots", len(self._finished), total)

    def _choices(
        self,
        plain: Engine,
        engine: Engine,
        prompt_ids: list[int],
        name: str,
        drafter: str,
        number: int,
    ) -> RootChoices:
        options = self.plan.answers.options
        if options.seed is not None:
            options = options.replace(seed=options.seed + number)
        context = sampled_context(plain, prompt_ids, options, name)
        return root_choices(
            plain,
            engine,
            context,
            options,
            names=(name, drafter),
            candidates=self.plan.candidates,
            drafts=self.plan.drafts,
        )

    def _contexts(self) -> dict[str, Question]:
        """Questions by the name of the context that begins with them: suites in turn, again if too few."""
        suites = self.plan.answers.questions
        named = [[(suite.name, q) for q in suite.questions] for suite in suites]
        dealt = [pair for rank in zip_longest(*named) for pair in rank if pair is not None]
        chosen = islice(cycle(dealt), self.plan.contexts)
        return {context_name(suite, q.id, i): q for i, (suite, q) in enumerate(chosen)}

    def _load(self) -> Models:
        methods = [parse_method(self.plan.drafting(drafter)) for drafter in self.plan.drafters]
        return load_models(
            self.plan.model,
            methods=methods,
            dtype=self.plan.dtype,
            device=self.plan.device,
            report=self._report,
        )

    # --- answers --------------------------------------------------------------------------------

    def _answers(self, part: str) -> Iterator[Progress]:
        plan = self.plan.answers
        if part == TASKS:
            plan = self.plan.answered_tasks(self.path / TASKS_FILE)
        folder = self.path / part
        run = BenchRun(
            plan,
            RunFolder(folder),
            report=self._report,
            enter=enter_scored(Scores(folder)),
            measure=self._measure,
        )
        for step in run:
            yield Progress(part, step.done, step.total)


def read_plan(path: Path) -> dict[str, Any] | None:
    """What was asked for; None where no measurement was begun.

    Raises:
        ConfigError: it cannot be read.
    """
    file = path / PLAN
    if not file.exists():
        return None
    try:
        document: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return dict(document)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); measure anew in another --out"
        ) from None


def roots_lines(path: Path) -> JsonLines:
    """The file of root choices."""
    return JsonLines(path / ROOTS_FILE, "a record of a context", "the context is measured again")
