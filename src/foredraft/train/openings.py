"""How users may begin, so that a small model's own prompts are not all of one kind.

Left alone, a model writes the prompts that it saw most of; a few first words lead it to code, sums,
questions of fact and texts to work on as well. The rest of each prompt is the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foredraft.errors import DataError
from foredraft.train.scripts import DocumentTask

BUILTIN, NONE = "builtin", "none"
LEFT_ALONE = 0.4
"""Share of conversations, and of later questions, that begin with nothing but the model's own words."""

OPENINGS = (
    "Write a Python function",
    "Complete the following Python code:\n\ndef ",
    "def ",
    "from typing import List\n\n\ndef ",
    "What does this code do?\n\n```python\n",
    "Write a SQL query",
    "Explain how to",
    "Explain the difference between",
    "What is",
    "Who was",
    "When did",
    "Where is",
    "Why do",
    "How many",
    "How does",
    "Which",
    "what is the name of",
    "who wrote",
    "when was",
    "Is it true that",
    "Summarize the following article.\n\n",
    "Summarize this text in three sentences:\n\n",
    "Here is a news story. Give its main points.\n\n",
    "Read the passage and answer the question.\n\nPassage:",
    "Rewrite this sentence",
    "Correct the grammar of",
    "Translate",
    "Give three examples of",
    "List",
    "Name",
    "Suggest",
    "Describe",
    "Compare",
    "Classify",
    "Create",
    "Generate",
    "Design",
    "Edit the following paragraph",
    "Write a short story about",
    "Write a poem",
    "Write an email",
    "Write a blog post about",
    "Imagine you are",
    "Pretend to be",
    "Solve",
    "A shop sells",
    "Tom has",
    "If a train",
    "A farmer has 24",
    "Find the value of",
    "Given the",
    "Identify",
    "Provide",
    "Discuss",
    "Should",
    "Could you",
)

FOLLOW_UPS = (
    "Summarize that",
    "Summarize your answer in one sentence",
    "Give the main points of that",
    "Make it shorter",
    "Rewrite that",
    "Write it again",
    "Now explain",
    "Can you explain",
    "Why",
    "How",
    "What if",
    "What about",
    "What is",
    "Which of these",
    "Give an example of",
    "Give me more details about",
    "Is there",
    "Can you write",
    "Now write",
    "Add",
    "Change",
    "Translate",
    "Turn it into",
    "Thanks",
    "I don't understand",
    "Are you sure",
)
"""How they may go on, in whole or in part about what was said before."""

DOCUMENT_TASKS = (
    ("Summarize the following article.\n\n", "", False),
    ("Summarize: ", "", False),
    ("Write a short summary of this text:\n\n", "", False),
    ("Here is a news story. Give its main points.\n\n", "", False),
    ("", "\n\nSummarize the text above.", False),
    ("Article: ", "\n\nSummary:", False),
    ("", "\n\nWhat is this about?", False),
    ("Rewrite the following text in simpler words.\n\n", "", False),
    ("Edit the following text:\n\n", "", False),
    ("Read the passage and answer the question.\n\nPassage: ", "\n\nQuestion:", True),
    ("Context: ", "\n\nUsing the context,", True),
)
"""What users may ask about a text: before it, after it, and whether the rest is the model's."""


def read_openings(name: str, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Token ids of openings, the empty one as often as `LEFT_ALONE` asks.

    Args:
        name: "builtin", "none", or a text file with one opening a line.

    Raises:
        DataError: there is no such file, or it holds nothing.
    """
    if name == NONE:
        return ((),)
    return _mixed(OPENINGS if name == BUILTIN else _lines(Path(name)), tokenizer)


def read_follow_ups(name: str, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Token ids of how users may go on: built-in ones beside the built-in openings, else none."""
    return _mixed(FOLLOW_UPS, tokenizer) if name == BUILTIN else ((),)


def read_tasks(name: str, tokenizer: Any) -> tuple[DocumentTask, ...]:
    """What users may ask about documents: built-in tasks beside the built-in openings, else none."""
    if name != BUILTIN:
        return ()
    return tuple(
        DocumentTask(_ids(before, tokenizer), _ids(after, tokenizer), asks)
        for before, after, asks in DOCUMENT_TASKS
    )


def _ids(text: str, tokenizer: Any) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()


def _mixed(texts: Sequence[str], tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Their token ids, and nothing as often as `LEFT_ALONE` asks."""
    written = [_ids(text, tokenizer) for text in texts]
    alone = round(len(written) * LEFT_ALONE / (1 - LEFT_ALONE))
    return (*[()] * alone, *written)


def _lines(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); give a text file of openings") from error
    if not lines:
        raise DataError(f"{file} holds no opening; write one a line, or give 'none'")
    return lines
