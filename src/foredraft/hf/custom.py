"""The callable for `generate(custom_generate=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.stopping_criteria import StopStringCriteria

from foredraft.engine.batch import MAX_BATCH
from foredraft.errors import ConfigError
from foredraft.hf.columns import Columns
from foredraft.hf.decoding import Call, Decoding, draw_seed, pad_of
from foredraft.hf.engines import Choice, Engines, in_eval_mode
from foredraft.hf.refusals import refuse
from foredraft.hf.rows import read_rows
from foredraft.protocols import Policy, Verifier
from foredraft.results import Statistics


class CustomGenerate:
    """Speculative decoding inside of a model's own `generate`: the same answers, in fewer passes.

    `model.generate(**inputs, custom_generate=CustomGenerate(...))` prepares everything as it always
    does, and hands over: logits processors, stopping criteria, generation config, padding on the left
    and return types are honoured. Each row of a batch drafts and accepts for itself, and passes are
    shared. An engine is built at a model's first call and kept as long as the model; the model itself
    stays as it is. Calls may run at the same time in several threads.

    Args:
        drafter: as in `foredraft.load`, or a drafter that is a part (`foredraft.protocols.Drafter`).
        policy: shapes the drafts; None takes the method's own.
        method: as in `foredraft.load`; None takes its default, which measures once what passes cost.
        verifier: as in `foredraft.load`, or a part. None is exact verification.
        tokenizer: the model's, for stop strings and to hold draft models against; `generate` does not
            hand on the one it is given.
        streamer: gets the prompts and then the tokens of every call; `generate` does not hand on the
            one it is given.
        max_batch: rows that decode side by side; the next starts when one has ended.
        **options: more of `foredraft.load`, such as `tree` or `force_vocabulary`.

    Raises:
        ConfigError: an option that is unknown or not allowed.

    `generate` hands on these arguments to each call: see `__call__`.
    """

    def __init__(
        self,
        drafter: Any | None = None,
        policy: Policy | None = None,
        *,
        method: str | None = None,
        verifier: str | Verifier | None = None,
        tokenizer: Any | None = None,
        streamer: Any | None = None,
        max_batch: int = MAX_BATCH,
        **options: Any,
    ) -> None:
        self.method, self.tokenizer, self.streamer = method, tokenizer, streamer
        self.max_batch = _checked_batch(max_batch)
        self.last_stats: Statistics | None = None
        """Statistics of the last call that ended, its rows pooled."""
        self._engines = Engines(Choice(drafter, policy, verifier, tokenizer, options))

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        method: str | None = None,
        max_batch: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        sink: Any | None = None,
        **prepared: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Called by `generate`, with what it has prepared.

        Args:
            model, input_ids, logits_processor, stopping_criteria, generation_config: as prepared;
                input_ids are int64 [B, T].
            method, max_batch: `generate(method=...)`: for this call, in place of the object's own.
            stop_strings: `generate(stop_strings=...)`: a row ends with the token that completes one;
                needs the object's tokenizer.
            sink: `generate(sink=streamer)`: a streamer for this call, in place of the object's own.
            **prepared: the other arguments for the model's passes.

        Returns:
            int64 [B, T + new]; with `return_dict_in_generate=True` a `GenerateDecoderOnlyOutput`, whose
            `cache` is None.

        Raises:
            ConfigError, PromptError, NumericsError: the call cannot be honoured, or a row fails.
        """
        refuse(generation_config, prepared)
        rows = read_rows(input_ids, prepared.get("attention_mask"), prepared.get("position_ids"))
        criteria = [*stopping_criteria, *self._stop_strings(stop_strings)]
        streamer = self.streamer if sink is None else sink
        columns = None
        if streamer is not None:
            columns = Columns(streamer, len(rows), pad_of(generation_config))
        seed = draw_seed(generation_config)  # before an engine is built, which may draw too
        call = Call(input_ids, rows, logits_processor, criteria, generation_config, columns, seed)
        most = self.max_batch if max_batch is None else _checked_batch(max_batch)
        with in_eval_mode(model):
            engine = self._engines.of(model, self.method if method is None else method)
            return self._decode(Decoding(engine, call, most), call)

    def _decode(self, decoding: Decoding, call: Call) -> Tensor | GenerateDecoderOnlyOutput:
        if call.columns is not None:
            call.columns.start(call.input_ids)
        decoding.run()
        if call.columns is not None:
            call.columns.end()
        self.last_stats = Statistics.pool(result.stats for result in decoding.results)
        return decoding.output()

    def _stop_strings(self, strings: str | Sequence[str] | None) -> list[StopStringCriteria]:
        if not strings:
            return []
        if self.tokenizer is None:
            raise ConfigError(
                f"stop_strings={strings!r} needs a tokenizer; give it to the object, as in "
                "CustomGenerate(tokenizer=...), since generate does not hand its own on"
            )
        given = [strings] if isinstance(strings, str) else list(strings)
        return [StopStringCriteria(self.tokenizer, given)]


def _checked_batch(max_batch: int) -> int:
    if type(max_batch) is not int or max_batch < 1:
        raise ConfigError(
            f"max_batch={max_batch!r} is not allowed; give a whole number of 1 or more"
        )
    return max_batch
