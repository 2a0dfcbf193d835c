"""`foredraft chat`: turns, commands, Ctrl-C, pipes and files."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from typer.testing import CliRunner

from foredraft.cli.chat_commands import COMMANDS
from foredraft.cli.chat_loop import HOW_TO_LEAVE, Chat
from foredraft.cli.chat_state import Conversation
from foredraft.cli.chat_terminal import Screen
from foredraft.cli.main import app
from foredraft.config import GenerationOptions
from foredraft.engine.switching import MethodSwitch
from foredraft.errors import PromptError
from foredraft.train.sources import parse_row
from tests.tiny_folders import byte_tokenizer, save_folder

CTRL_C = KeyboardInterrupt()
TOKENS = 12
FAILURE, USAGE, INTERRUPTED = 1, 2, 130


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"), eos_token_id=None)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("draft"), seed=1)


@pytest.fixture(scope="module")
def switch(folder: Path) -> MethodSwitch:
    return MethodSwitch(folder, "ngram", dtype="float32", prefix_cache_mb=8)


class Script:
    """A user who says these lines, and presses Ctrl-C in between."""

    def __init__(self, *lines: str | KeyboardInterrupt | PromptError) -> None:
        self._lines: Iterator[str | BaseException] = iter(lines)
        self.prompts: list[str] = []

    def read(self, prompt: str) -> str | None:
        self.prompts.append(prompt)
        line = next(self._lines, None)
        if isinstance(line, BaseException):
            raise line
        return line


class Watched(Screen):
    """A screen that keeps what it shows, and presses Ctrl-C once so many characters were said."""

    def __init__(self, presses_at: int | None = None) -> None:
        super().__init__()
        self.said: list[str] = []
        self.noted: list[str] = []
        self.shown: list[RenderableType] = []
        self._presses_at = presses_at

    def say(self, text: str) -> None:
        self.said.append(text)
        if self._presses_at is not None and len("".join(self.said)) >= self._presses_at:
            self._presses_at = None
            os.kill(os.getpid(), signal.SIGINT)

    def note(self, line: str) -> None:
        self.noted.append(line)

    def show(self, what: RenderableType) -> None:
        self.shown.append(what)

    def complain(self, sentence: str, question: str | None = None) -> None:
        self.noted.append(f"error: {sentence}")


def talk(
    switch: MethodSwitch,
    *lines: str | KeyboardInterrupt | PromptError,
    presses_at: int | None = None,
    is_typed: bool = True,
    **options: float,
) -> tuple[Chat, Watched, int]:
    """A chat of these lines that is over, its screen and its exit code."""
    switch.change("ngram")
    screen = Watched(presses_at)
    request = GenerationOptions(**{"max_new_tokens": TOKENS} | options)
    chat = Chat(switch, "tiny", "ngram", request, Conversation(), screen, is_typed=is_typed)
    code = chat.run(Script(*lines))
    return chat, screen, code


# --- turns --------------------------------------------------------------------------------------------


def test_every_turn_knows_those_before(switch: MethodSwitch) -> None:
    chat, screen, code = talk(switch, "the cat", "", "sat on")
    first, second = chat.conversation.turns
    assert code == 0
    assert "".join(screen.said) == first.text + second.text
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "sat on"},
    ]
    expected = switch.engine.generate(messages, max_new_tokens=TOKENS)
    assert second.text == expected.text
    assert second.stats.prompt_tokens == len(expected.prompt_ids)


def test_earlier_turns_are_not_read_again(folder: Path) -> None:
    switch = MethodSwitch(folder, "ngram", dtype="float32", prefix_cache_mb=8)
    chat, _, _ = talk(switch, "the cat sat on the mat " * 4, "and then?")
    assert [turn.stats.cached_prompt_tokens > 0 for turn in chat.conversation.turns] == [
        False,
        True,
    ]


def test_a_line_that_ends_in_a_backslash_goes_on(switch: MethodSwitch) -> None:
    chat, _, _ = talk(switch, "the\\", "cat\\")
    assert [turn.question for turn in chat.conversation.turns] == ["the\ncat"]


def test_two_slashes_begin_a_question(switch: MethodSwitch) -> None:
    chat, _, _ = talk(switch, "//etc is a folder")
    assert chat.conversation.turns[0].question == "/etc is a folder"


def test_a_full_context_is_told_with_the_ways_on(switch: MethodSwitch) -> None:
    chat, screen, _ = talk(switch, "the cat", "mat " * 3000, "/clear", "sat")
    (sentence,) = (line for line in screen.noted if line.startswith("error: "))
    assert "holds 2048" in sentence
    assert "/undo" in sentence
    assert "/clear" in sentence
    assert [turn.question for turn in chat.conversation.turns] == ["sat"]


def test_an_answer_that_fills_the_context_says_so(switch: MethodSwitch) -> None:
    _, screen, _ = talk(switch, "mat " * 1000, max_new_tokens=2000)
    assert "the context of 2048 tokens is full" in screen.noted[-1]


def test_a_line_that_is_no_text_ends_nothing(switch: MethodSwitch) -> None:
    chat, screen, _ = talk(switch, PromptError("not text"), "the cat")
    assert screen.noted[0] == "error: not text"
    assert len(chat.conversation.turns) == 1


# --- Ctrl-C -------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(switch: MethodSwitch) -> None:
    chat, screen, code = talk(switch, "the cat", "sat", presses_at=5, max_new_tokens=500)
    first, second = chat.conversation.turns
    assert code == 0
    assert first.finish_reason == "interrupted"
    assert "".join(screen.said) == first.text + second.text
    assert 5 <= len(first.text) < 100
    assert 0 < first.stats.completion_tokens < 100
    assert "Ctrl-C" in screen.noted[0]
    assert second.finish_reason == "length"


def test_ctrl_c_at_the_prompt_clears_the_line_and_a_second_one_leaves(switch: MethodSwitch) -> None:
    chat, screen, code = talk(switch, CTRL_C, "the cat", CTRL_C, CTRL_C, "sat")
    assert code == 0
    assert [turn.question for turn in chat.conversation.turns] == ["the cat"]
    assert sum(HOW_TO_LEAVE in line for line in screen.noted) == 2


def test_ctrl_c_ends_a_chat_that_nobody_types(switch: MethodSwitch) -> None:
    chat, _, code = talk(switch, "the cat", "sat", presses_at=5, is_typed=False, max_new_tokens=500)
    assert code == INTERRUPTED
    assert [turn.finish_reason for turn in chat.conversation.turns] == ["interrupted"]


def test_a_second_ctrl_c_ends_the_pass_itself(
    switch: MethodSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round in progress is lost, what was said before it is kept, and the chat goes on."""
    target = switch.engine.target.model  # type: ignore[attr-defined]
    forward, passes = target.forward, []

    def pressed(*args: Any, **options: Any) -> Any:
        passes.append(1)
        if len(passes) == 8:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return forward(*args, **options)

    monkeypatch.setattr(target, "forward", pressed)
    chat, _, _ = talk(switch, "the cat", "sat", max_new_tokens=60)
    first, second = chat.conversation.turns
    assert first.finish_reason == "interrupted"
    assert len(first.stats.rounds) <= 7
    assert second.finish_reason == "length"


# --- commands -----------------------------------------------------------------------------------------


def test_an_unknown_command_is_told_the_nearest(switch: MethodSwitch) -> None:
    _, screen, _ = talk(switch, "/stat", "/undo now", "/undo")
    assert "did you mean '/stats'?" in screen.noted[0]
    assert "takes no 'now'" in screen.noted[1]
    assert "nothing to take back" in screen.noted[2]


def test_help_names_every_command(switch: MethodSwitch) -> None:
    _, screen, _ = talk(switch, "/help")
    (table,) = screen.shown
    names = [str(cell).split()[0] for cell in table.columns[0].cells]  # type: ignore[union-attr]
    assert [f"/{name}" for name in COMMANDS] == names[: len(COMMANDS)]


def test_the_method_changes_over_the_same_model(switch: MethodSwitch) -> None:
    target = switch.engine.target
    chat, screen, _ = talk(
        switch, "the cat", "/method autoregressive", "the mat", "/method ngrm", "/method", "sat"
    )
    assert [turn.method for turn in chat.conversation.turns] == [
        "ngram",
        "autoregressive",
        "autoregressive",
    ]
    assert switch.engine.target is target
    assert switch.engine.drafter is None
    assert any("did you mean 'ngram'?" in line for line in screen.noted)
    assert sum(r.num_drafted for r in chat.conversation.turns[1].stats.rounds) == 0


def test_a_drafter_is_read_when_a_method_needs_it_and_once(
    folder: Path, draft_folder: Path
) -> None:
    said: list[str] = []
    switch = MethodSwitch(
        folder,
        "ngram:depth=4",
        drafter=None,
        dtype="float32",
        prefix_cache_mb=8,
        report=said.append,
    )
    plain = switch.engine.without_drafts().generate("the cat", max_new_tokens=TOKENS)
    method = f"speculative:drafter={draft_folder}"
    for name in (method, f"{method}:tree=2,2", "ngram:depth=4"):
        assert switch.change(name).generate("the cat", max_new_tokens=TOKENS).text == plain.text
    assert sum("draft model" in line for line in said) == 1


def test_a_given_drafter_is_for_the_methods_that_take_it(folder: Path, draft_folder: Path) -> None:
    switch = MethodSwitch(folder, drafter=draft_folder, method="speculative", dtype="float32")
    drafter = switch.engine.drafter
    assert switch.change("autoregressive").drafter is None
    assert switch.change("speculative").drafter is drafter


def test_temperature_and_retry(switch: MethodSwitch) -> None:
    chat, screen, _ = talk(
        switch, "/temperature 1", "the cat", "/retry", "/temperature -1", "/temperature x", seed=3
    )
    (turn,) = chat.conversation.turns
    assert (turn.choice, turn.seed) == (1, 3)
    assert len(chat.conversation.stats) == 2
    first, second = "".join(screen.said), turn.text
    assert first.endswith(second)
    assert first.removesuffix(second) != second
    assert "temperature=-1.0 is not allowed" in screen.noted[-2]
    assert "no temperature" in screen.noted[-1]
    assert chat.options.temperature == 1


def test_a_retry_that_fails_loses_nothing(switch: MethodSwitch) -> None:
    chat, screen, _ = talk(switch, "/retry", "mat", "/system " + "mat " * 3000, "/retry")
    assert "ask something first" in screen.noted[0]
    assert [turn.question for turn in chat.conversation.turns] == ["mat"]


def test_system_undo_and_clear(switch: MethodSwitch) -> None:
    chat, _, _ = talk(switch, "/system Be brief.", "the", "cat", "/undo")
    assert chat.conversation.messages()[0] == {"role": "system", "content": "Be brief."}
    assert [turn.question for turn in chat.conversation.turns] == ["the"]
    chat.run(Script("/clear", "/system -", "/system"))
    assert chat.conversation.messages() == []


def test_stats_are_of_the_last_answer_and_of_all(switch: MethodSwitch) -> None:
    _, screen, _ = talk(switch, "/stats", "the cat", "sat", "/undo", "/stats")
    assert screen.noted[0] == "nothing was said yet"
    (table,) = screen.shown
    cells = [list(column.cells) for column in table.columns]  # type: ignore[union-attr]
    rows = {row[0]: row[1:] for row in zip(*cells, strict=True)}
    assert rows["tokens"] == (str(TOKENS), str(2 * TOKENS))
    assert set(rows) >= {"tokens/s", "acceptance length", "of them cached"}


def test_quit_ends_the_chat(switch: MethodSwitch) -> None:
    chat, _, code = talk(switch, "/quit", "the cat")
    assert code == 0
    assert not chat.conversation.turns


# --- files --------------------------------------------------------------------------------------------


def test_a_saved_chat_is_data_to_train_on(switch: MethodSwitch, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    chat, _, _ = talk(switch, "/system Be brief.", "the cat", "sat", f"/save {file}")
    (line,) = file.read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert parse_row(row, "chat").messages() == chat.conversation.messages()
    assert [answer["method"] for answer in row["answers"]] == ["ngram"] * 2


def test_a_saved_chat_can_be_read(switch: MethodSwitch, tmp_path: Path) -> None:
    file = tmp_path / "chat.md"
    chat, _, _ = talk(switch, "the cat", f"/save {file}", presses_at=5, max_new_tokens=500)
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# A chat with tiny")
    assert chat.conversation.turns[0].text.strip() in text
    assert "stopped by the user" in text


def test_no_file_is_overwritten_unless_asked(switch: MethodSwitch, tmp_path: Path) -> None:
    file = tmp_path / "chat.md"
    file.write_text("mine")
    _, screen, _ = talk(switch, "the cat", f"/save {file}", "/save", "/save chat.txt")
    assert f"/save! {file}" in screen.noted[1]
    assert "needs a file" in screen.noted[2]
    assert ".jsonl, .md" in screen.noted[3]
    assert file.read_text() == "mine"
    talk(switch, "the cat", f"/save! {file}")
    assert file.read_text(encoding="utf-8").startswith("# A chat")
    _, screen, _ = talk(switch, "the cat", f"/save {tmp_path / 'no' / 'chat.md'}")
    assert "cannot be written" in screen.noted[-1]


# --- the command --------------------------------------------------------------------------------------


def piped(folder: Path, *arguments: str, text: str, code: int = 0) -> tuple[str, str]:
    words = ["chat", "--model", str(folder), "--method", "ngram", "--dtype", "float32"]
    words += ["--max-new-tokens", str(TOKENS), *arguments]
    done = CliRunner().invoke(app, words, input=text, env={"COLUMNS": "200"})
    assert done.exit_code == code, done.stderr
    return done.stdout, done.stderr


def test_each_line_of_a_pipe_is_a_turn(folder: Path) -> None:
    out, _ = piped(folder, "--json", text="the cat\nsat\n")
    first, second = map(json.loads, out.splitlines())
    assert (first["question"], second["question"]) == ("the cat", "sat")
    assert second["stats"]["prompt_tokens"] > first["stats"]["prompt_tokens"]
    plain, notes = piped(folder, text="the cat\nsat\n/stats\n")
    assert plain == f"{first['text']}\n{second['text']}\n"
    assert "acceptance length" in notes


def test_a_pipe_goes_on_after_what_cannot_be_answered(folder: Path) -> None:
    text = f"{'mat ' * 3000}\n/nope\n/method eagle2\nthe cat\n"
    out, notes = piped(folder, "--json", text=text, code=FAILURE)
    first, second = map(json.loads, out.splitlines())
    assert "holds 2048" in first["error"]
    assert second["question"] == "the cat"
    assert "unknown command '/nope'" in notes
    assert "needs an EAGLE head; pass --drafter FOLDER" in notes


def test_the_options_reach_the_answer(folder: Path) -> None:
    options = ("--temperature", "1", "--top-p", "0.9", "--seed", "5", "--json", "--system", "cat")
    out, _ = piped(folder, *options, "--prefix-cache-mb", "0", text="the\n")
    document = json.loads(out)
    engine = MethodSwitch(folder, "ngram", dtype="float32").engine
    messages = [{"role": "system", "content": "cat"}, {"role": "user", "content": "the"}]
    expected = engine.generate(messages, temperature=1, top_p=0.9, seed=5, max_new_tokens=TOKENS)
    assert (document["text"], document["seed"]) == (expected.text, 5)


def test_what_cannot_chat_is_refused(folder: Path, tmp_path: Path) -> None:
    _, said = piped(folder, "--temperature", "-1", text="", code=USAGE)
    assert "--temperature -1.0 is not allowed" in said
    _, said = piped(folder, "--prefix-cache-mb", "-1", text="", code=USAGE)
    assert "--prefix-cache-mb -1.0 is not allowed" in said
    bare = save_folder(tmp_path / "bare", byte_tokenizer(chat_template=None))
    _, said = piped(bare, text="the cat\n", code=USAGE)
    assert "no chat template" in said


def test_help_loads_no_model_code() -> None:
    code = (
        "import sys; from foredraft.cli.main import app; from typer.testing import CliRunner\n"
        "done = CliRunner().invoke(app, ['chat', '--help']); assert done.exit_code == 0, done\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "readline"} & set(done.stdout.split())


PROGRAM = (
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "from foredraft.cli.main import main; main()"
)
"""The command in a terminal of its own, from which Ctrl-C comes."""


class Terminal:
    """The other side of a program's terminal."""

    def __init__(self, *words: str) -> None:
        pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
        self._fd, child = pty.openpty()
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self.seen, self._heard = "", 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Read until this stands behind what was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.seen[self._heard :]:
            assert time.monotonic() < end, self.seen
            if select.select([self._fd], [], [], 1)[0]:
                self.seen += self._read()
        self._heard = self.seen.index(text, self._heard) + len(text)

    def wait_for_more(self) -> None:
        """Read until anything stands there."""
        if len(self.seen) == self._heard:
            self.seen += self._read()

    def _read(self) -> str:
        try:
            return os.read(self._fd, 4096).decode(errors="replace")
        except OSError:  # the program has closed its side
            raise AssertionError(f"the program is gone: {self.seen}") from None

    def close(self) -> int:
        code = self.program.wait(60)
        os.close(self._fd)
        return code


def test_a_terminal(folder: Path) -> None:
    """A person asks, stops an answer, looks at the figures and leaves."""
    options = ("--method", "autoregressive", "--max-new-tokens", "1900", "--dtype", "float32")
    terminal = Terminal("chat", "--model", str(folder), *options)
    try:
        terminal.wait_for("/help lists the commands")
        terminal.wait_for("> ")
        terminal.type("the cat\n")
        terminal.wait_for("the cat\r\n")
        terminal.wait_for_more()  # the answer has begun
        terminal.type("\x03")
        terminal.wait_for("stopped by Ctrl-C")
        terminal.wait_for("\n> ")
        terminal.type("/stats\n")
        terminal.wait_for("of them cached")
        terminal.wait_for("\n> ")
        time.sleep(1)  # until the line is being read
        terminal.type("half a line\x03")
        terminal.wait_for(HOW_TO_LEAVE)
        terminal.wait_for("> ")  # only now are keys the program's, and not the terminal's own
        terminal.type("\x04")
        assert terminal.close() == 0
    finally:
        terminal.program.kill()
        terminal.program.wait()
