"""A chat: questions and commands in turn, until the user has had enough."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from foredraft.cli.chat_commands import COMMAND, run_command
from foredraft.cli.chat_show import WAYS_ON, summary
from foredraft.cli.chat_state import INTERRUPTED, Conversation, Turn
from foredraft.cli.chat_terminal import Lines, Screen, read_turn
from foredraft.cli.failures import FAILURE
from foredraft.cli.interrupts import INTERRUPTED as INTERRUPTED_CODE
from foredraft.cli.interrupts import patient_interrupts
from foredraft.errors import ForedraftError, PromptError

if TYPE_CHECKING:
    from foredraft.config import GenerationOptions
    from foredraft.engine.switching import MethodSwitch

HOW_TO_LEAVE = "Ctrl-C again, Ctrl-D or /quit ends the chat"


class Chat:
    """A conversation with a model, and all that commands may change.

    Args:
        switch: the loaded model.
        model: its name.
        method: the name of its method.
        options: of every answer.
        conversation: what was said.
        screen: where it is shown.
        is_typed: whether a person types, who may go on after an error or Ctrl-C.
    """

    def __init__(
        self,
        switch: MethodSwitch,
        model: str,
        method: str,
        options: GenerationOptions,
        conversation: Conversation,
        screen: Screen,
        *,
        is_typed: bool,
    ) -> None:
        self.switch, self.model, self.method, self.options = switch, model, method, options
        self.conversation, self.screen = conversation, screen
        self.is_typed, self.ended, self._code = is_typed, False, 0

    def run(self, lines: Lines) -> int:
        """Answer until the lines end; the exit code, which tells a pipe whether everything was answered."""
        leaving = False
        while not self.ended:
            try:
                said = self._listen(lines)
            except KeyboardInterrupt:
                self.ended = leaving
                self._leave_if_piped()
                self.screen.note("" if self.ended else f"\n{HOW_TO_LEAVE}")
                leaving = True
                continue
            if said is None:
                break
            leaving = False
            self._hear(said.strip())
        return self._code

    def _listen(self, lines: Lines) -> str | None:
        try:
            return read_turn(lines)
        except PromptError as error:
            self._fail(str(error))
            return ""

    def _hear(self, said: str) -> None:
        is_command = said.startswith(COMMAND) and not said.startswith(2 * COMMAND)
        question = said.removeprefix(COMMAND) if said.startswith(COMMAND) else said
        try:
            if is_command:
                run_command(self, said)
            elif question:
                self.ask(question)
        except ForedraftError as error:
            self._fail(str(error), None if is_command else question)
        except KeyboardInterrupt:  # between answers: while a method is loaded, say
            self.screen.note("stopped")
            self._leave_if_piped()

    def _leave_if_piped(self) -> None:
        """Ctrl-C ends what nobody sits before."""
        if not self.is_typed:
            self.ended, self._code = True, INTERRUPTED_CODE

    def _fail(self, sentence: str, question: str | None = None) -> None:
        self.screen.complain(sentence, question)
        self._code = 0 if self.is_typed else FAILURE

    def ask(self, question: str, choice: int = 0) -> bool:
        """Answer a question; False where Ctrl-C came before the answer's first word, and nothing is kept.

        Args:
            choice: another one gives another answer, with the same seed too.

        Raises:
            PromptError: the conversation fills the context, or the chat template refuses it.
        """
        turn = self._answer(question, choice)
        if turn is None:
            self.screen.note("stopped before the first word; the question is forgotten")
        else:
            self.conversation.add(turn)
            self.screen.end_answer(
                turn.as_dict(), summary(turn, self.switch.engine.target.context_length)
            )
        if turn is None or turn.finish_reason == INTERRUPTED:
            self._leave_if_piped()
        return turn is not None

    def _answer(self, question: str, choice: int) -> Turn | None:
        """The turn that the question makes; None where no word came."""
        prompt_ids = self._encode(question)
        options = self._seeded().replace(choice=choice)
        pieces: list[str] = []
        reason = INTERRUPTED
        with (
            patient_interrupts() as interrupts,
            self.switch.engine.stream(prompt_ids, options) as stream,
            suppress(KeyboardInterrupt),  # the second one, which ends the pass itself
        ):
            for step in stream:
                pieces.append(step.text)
                self.screen.say(step.text)
                reason = step.finish_reason or INTERRUPTED
                if interrupts.came:
                    break
        text = "".join(pieces)
        if reason == INTERRUPTED and not text:
            return None
        seed = options.seed if options.temperature > 0 else None
        return Turn(question, text, reason, self.method, seed, choice, stream.stats)

    def _encode(self, question: str) -> list[int]:
        from foredraft.engine.prompts import encode_prompt

        engine = self.switch.engine
        messages = self.conversation.messages(question)
        prompt_ids = encode_prompt(messages, engine.tokenizer, engine.target.vocab_size)
        limit = engine.target.context_length
        if limit is not None and len(prompt_ids) >= limit:
            raise PromptError(
                f"with this question the conversation has {len(prompt_ids)} tokens, and this model's context "
                f"holds {limit}; {WAYS_ON}"
            )
        return prompt_ids

    def _seeded(self) -> GenerationOptions:
        """The options with a seed, so that a sampled answer can be had again."""
        from foredraft.sampling.randomness import fresh_seed

        if self.options.temperature == 0 or self.options.seed is not None:
            return self.options
        return self.options.replace(seed=fresh_seed())
