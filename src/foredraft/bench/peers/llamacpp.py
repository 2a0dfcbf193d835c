"""llama.cpp through llama-cpp-python: the same prompts by a runtime of its own, on a GGUF file.

It runs with the library's own defaults, on the target's device and with as many threads as torch. They were
checked to be good ones: flash attention, off by default, took 25 ms a token instead of 22 on a CPU.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from foredraft import zoo
from foredraft.backends.hf_probe import first_line
from foredraft.bench.contenders import Contender
from foredraft.bench.peers import common
from foredraft.bench.peers.common import Shared
from foredraft.bench.peers.rounds import Emission, answer_of
from foredraft.bench.records import Answer
from foredraft.config import GenerationOptions
from foredraft.engine.stopping import end_tokens, room_for
from foredraft.errors import ModelError

HONOURED = frozenset(
    {"max_new_tokens", "temperature", "top_k", "top_p", "seed", "eos_token_ids", "ignore_eos"}
)
SEEDS = 2**32 - 1
"""The highest number of its 32-bit seeds means a random one."""
CONTEXT = 1024
"""Tokens that the cache has room for at first; it is made anew, twice as large, for longer answers."""
WARM_UP = tuple(range(1, 33))
"""Token ids that every file has, as many as one pass of the kernels for many rows takes."""
SURVIVAL_S = 300
"""Seconds that a process may take to load the file and read these tokens."""
ONE_DEVICE = 0
"""`LLAMA_SPLIT_MODE_NONE`: all layers on the main GPU."""

PROBE = """
import json, sys, llama_cpp
file, settings, tokens = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llama = llama_cpp.Llama(file, n_ctx=64, verbose=False, **settings)
next(llama.generate(tokens, temp=0.0, min_p=0.0))
"""
"""Reads a prompt of several tokens: the kernels that crash are those for many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """llama.cpp on a GGUF file of the model."""

    module: ClassVar[str] = "llama_cpp"
    package: ClassVar[str] = "llama-cpp-python"
    tested: ClassVar[str] = "0.3.36"
    needs_draft_model: ClassVar[bool] = False

    gguf: str | None = None
    """The file; None takes the model itself where it is one, or the embedded model's."""
    threads: int | None = None
    """None takes as many as torch uses."""

    def __post_init__(self) -> None:
        common.at_least(1, threads=self.threads)

    def build(self, name: str, shared: Shared) -> Contender:
        """See `Settings.build`."""
        file = gguf_file(self.gguf, shared)
        return LlamaCppContender(name, shared, file, self.threads or torch.get_num_threads())


def gguf_file(chosen: str | None, shared: Shared) -> Path:
    """The GGUF file to use: the chosen one, the model itself, or that of the embedded model.

    Raises:
        ModelError: there is none.
    """
    source = shared.model_source
    if chosen is None and zoo.is_embedded(source):
        return zoo.gguf_file(source, report=shared.report)
    name = source if chosen is None else chosen
    file = Path(name).expanduser()
    if chosen is None and file.suffix.lower() != ".gguf":
        raise ModelError(
            f"no GGUF file of this model: {source!r} is none; give llama.cpp:gguf=PATH"
        )
    if not file.is_file():
        raise ModelError(f"no GGUF file of this model: there is no file {name!r}")
    return file


def placement(device: torch.device) -> dict[str, int]:
    """Where llama.cpp keeps and computes everything: on the target's own device, and on no other."""
    if device.type == "cpu":
        return {"n_gpu_layers": 0, "offload_kqv": 0, "op_offload": 0}
    return {"n_gpu_layers": -1, "split_mode": ONE_DEVICE, "main_gpu": device.index or 0}


def demand_survival(program: str, *arguments: str, timeout_s: float = SURVIVAL_S) -> None:
    """Run a Python program in a process of its own: a crash there ends nothing else.

    Raises:
        ModelError: a signal killed it, or it did not end in time. Other failures are left for this
            process to meet and tell.
    """
    command = [sys.executable, "-c", program, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"llama-cpp-python has not loaded the file and read {len(WARM_UP)} tokens in {timeout_s:g} s; "
            "give a smaller file, or more threads"
        ) from None
    if done.returncode < 0:
        raise ModelError(
            f"llama-cpp-python crashes on this machine (signal {-done.returncode}); where the CPU has AMX, "
            'build it anew with CFLAGS and CXXFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"'
        )


class LlamaCppContender:
    """llama.cpp with a cache that is emptied before every prompt.

    Raises:
        ModelError: the library or the file cannot be loaded, or the file is of another model.
    """

    def __init__(self, name: str, shared: Shared, file: Path, threads: int) -> None:
        self.name = name
        self._target, self._file = shared.target, file
        self._settings = {
            "n_threads": threads,
            "n_threads_batch": threads,
            **placement(shared.target.device),
        }
        demand_survival(PROBE, str(file), json.dumps(self._settings), json.dumps(WARM_UP))
        self._llama = self._load(CONTEXT)
        self._demand_vocabulary()
        self.comparable: str | None = (
            f"it computes with the weights in {file.name} ({_description(self._llama)}), whatever the "
            "dtype of the run, and in its own way"
        )

    def _demand_vocabulary(self) -> None:
        found, wanted = self._llama.n_vocab(), self._target.vocab_size
        if found < wanted:
            self.close()
            raise ModelError(
                f"{self._file.name} is of another model: it has {found} tokens, and the target {wanted}"
            )

    def refuse(self, options: GenerationOptions) -> str | None:
        """Names the options that the library lacks, or reads in another way."""
        if options.top_p < 1 and options.temperature not in (0, 1):
            return (
                f"it applies top_p={options.top_p} before temperature={options.temperature}, which is "
                "another law; leave one of them out"
            )
        return common.not_honoured(options, HONOURED)

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """The whole answer, a round a token."""
        room = room_for(prompt_ids, options, self._target)
        ends = frozenset(end_tokens(options, self._target))
        self._reserve(len(prompt_ids) + room)
        self._llama.reset()  # nothing of an earlier prompt is used again
        self._llama.set_seed(common.seed_of(options, SEEDS))
        self._target.synchronize()
        started = time.perf_counter()
        token_ids, emissions = [], []
        for token_id in self._tokens(prompt_ids, options):
            token_ids.append(token_id)
            emissions.append(Emission(1, time.perf_counter()))
            if token_id in ends or len(token_ids) == room:
                break
        return answer_of(
            token_ids, emissions, num_prompt=len(prompt_ids), started=started, stages=()
        )

    def close(self) -> None:
        """Free the model."""
        self._llama.close()

    def _tokens(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Iterator[int]:
        tokens: Iterator[int] = self._llama.generate(
            list(prompt_ids),
            temp=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=0.0,
        )
        return tokens

    def _reserve(self, capacity: int) -> None:
        """Make room for a longer sequence; loading maps the file, so it takes no time that is counted."""
        size: int = self._llama.n_ctx()
        if capacity <= size:
            return
        while size < capacity:
            size *= 2
        larger = self._load(size)  # where this fails, what there is goes on answering
        self.close()
        self._llama = larger

    def _load(self, size: int) -> Any:
        """The model with a cache of `size` tokens, warmed up."""
        library = _library()
        if self._settings["n_gpu_layers"] and not library.llama_supports_gpu_offload():
            raise ModelError("llama-cpp-python was built for the CPU alone, unlike the target")
        try:
            llama = library.Llama(str(self._file), n_ctx=size, verbose=False, **self._settings)
            llama.eval(WARM_UP)
        except (OSError, RuntimeError, ValueError) as error:
            reason = first_line(error).replace(str(self._file), self._file.name)
            raise ModelError(
                f"llama-cpp-python cannot load {self._file.name} with room for {size} tokens ({reason})"
            ) from error
        return llama


def _library() -> Any:
    try:
        import llama_cpp
    except (OSError, RuntimeError) as error:  # its shared library is missing or does not fit
        raise ModelError(
            f"llama-cpp-python is installed and cannot be loaded ({first_line(error)}); install it anew"
        ) from error
    return llama_cpp


def _description(llama: Any) -> str:
    """What llama.cpp says of a model: family, size and quantisation."""
    text = ctypes.create_string_buffer(128)
    _library().llama_model_desc(llama.model, text, len(text))
    return text.value.decode()
