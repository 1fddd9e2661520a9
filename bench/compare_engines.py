"""The two engines of bench/compare.py, each in a process of its own that executes commands from a pipe.

    python bench/compare_engines.py satchel | llama.cpp

It reads one JSON command per line (load, prepare, run, bandwidth) and answers each with one line. Between
commands it blocks in a read; every answer reports the processor time used meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

BATCH = 512  # tokens of a prompt's step
PAD = 256  # contexts are rounded up to this many tokens
PROBE, PROBE_STEPS = 2048, 16  # limits of the trial that chooses a setting: prompt tokens, decoding steps


@dataclass(frozen=True, slots=True)
class Row:
    """One test."""

    name: str
    prompt: int = 0  # tokens of the prompt
    generate: int = 0  # tokens that are decoded after it
    depth: int = 0  # tokens in the cache before both
    sequences: int = 1  # the batch size; the other counts are per sequence
    busy: bool = False  # another process keeps core 0 busy meanwhile

    @property
    def tokens(self) -> int:
        """Prompt and decoded tokens of all sequences."""
        return (self.prompt + self.generate) * self.sequences

    @property
    def context(self) -> int:
        """The context size of each sequence, rounded up."""
        return -(-(self.depth + self.prompt + self.generate + 1) // PAD) * PAD


class Engine(Protocol):
    """Executes the commands. An exception becomes an error answer; a crash ends the process."""

    def load(self, path: str, threads: int, mode: str) -> dict[str, Any]:
        """Opens a file with so many threads; returns facts about the engine."""

    def prepare(self, row: Row) -> dict[str, Any]:
        """Sets a test up and warms it up, so that run() can repeat it; returns facts about it."""

    def run(self) -> float:
        """Seconds of one run of the prepared test."""

    def bandwidth(self) -> float:
        """The read bandwidth in bytes per second, over as many bytes as a step of the prepared test reads."""


class SatchelEngine:
    """Satchel through its library, with the step loop of `satchel bench`."""

    path: str
    threads: int
    model: Any
    runner: Any
    row: Row
    shape: tuple[int, int]  # (context, sequences) of the loaded engine

    def load(self, path: str, threads: int, mode: str) -> dict[str, Any]:
        from importlib.metadata import version

        self.path, self.threads, self.model, self.shape = path, threads, None, (0, 0)
        self.open(Row("", generate=1))
        info = self.model.device.info()
        return {"version": f"satchel {version('satchel')}", "system": f"{info.name} {info.variant}"}

    def open(self, row: Row) -> None:
        """Loads the model for this test's context and batch size, unless it is loaded so."""
        from satchel.runtime.api.model import Model
        from satchel.runtime.tasks.bench import Runner

        if self.shape == (row.context, row.sequences):
            return
        if self.model is not None:
            self.model.close()
        self.model = Model.load(
            self.path, context=row.context, slots=row.sequences, threads=self.threads, batch=BATCH
        )
        self.shape = row.context, row.sequences
        self.runner = Runner(self.model.engine, self.model.arch.vocab)

    def prepare(self, row: Row) -> dict[str, Any]:
        self.open(row)
        self.row = row
        self.runner.fresh(row.sequences, row.depth)
        # The first step of a size compiles its plan, so the second token runs at full speed.
        self.timed(Row("", row.prompt, min(2, row.generate), row.depth, row.sequences))
        return {"bytes_per_token": self.bytes_per_token()}

    def bytes_per_token(self) -> float:
        """Bytes read per decoded token: all sequences share a step's weights, each has its own cache."""
        from satchel.runtime.tasks.bench import Test, cost_of

        test = Test(0, self.row.generate, self.row.depth + self.row.prompt, self.row.sequences)
        return cost_of(self.model.engine, test).bytes / max(1, test.tokens)

    def timed(self, row: Row) -> float:
        from satchel.runtime.tasks.bench import decode, prefill

        engine = self.model.engine
        for slot in range(row.sequences):
            engine.rewind(slot, row.depth)
        prompts = [self.runner.random(row.prompt or 1) for _ in range(row.sequences)]
        started = time.perf_counter()
        tokens = prefill(engine, prompts) if row.prompt else [ids[0] for ids in prompts]
        decode(engine, tokens, row.generate)
        return time.perf_counter() - started

    def run(self) -> float:
        return self.timed(self.row)

    def bandwidth(self) -> float:
        from satchel.runtime.device.peaks import read_rate

        return read_rate({self.model.device: self.bytes_per_token() * self.row.sequences}) or 0.0


Setting = Mapping[str, Any]  # fields of llama_context_params
FLASH = (("on", 1), ("off", 0))  # llama.cpp's default "auto" resolves to one of these
# Formats for which llama.cpp has repacked kernels on every machine where it repacks.
REPACKED = ("q4_0", "q4_k", "iq4_nl")


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the CPU alone, with its fastest settings.

    Modes of load: "default" repacks weights as llama.cpp chooses; "repack" repacks without its AMX path;
    "plain" uses the file's layout, which the other two try as well.
    """

    lib: Any
    threads: int
    row: Row
    models: dict[str, Any]  # by mode
    layout: tuple[int, int]  # (tokens, sequences) of the current batch layout

    def load(self, path: str, threads: int, mode: str) -> dict[str, Any]:
        import llama_cpp

        self.lib, self.threads, self.log = llama_cpp, threads, deque([""], 50)
        self.context: Any = None
        self.heard = llama_cpp.llama_log_callback(lambda level, text, data: self.log.append(text.decode()))
        llama_cpp.llama_log_set(self.heard, None)
        llama_cpp.llama_backend_init()
        repacked = matrices(path) if mode == "repack" else []
        modes = ["plain"] if mode == "repack" and not repacked else dict.fromkeys((mode, "plain"))
        if not fits_twice(path):
            modes = list(modes)[:1]
        self.models = {mode: self.load_model(path, mode, repacked) for mode in modes}
        (model, *_) = self.models.values()
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.make_batch()
        system = llama_cpp.llama_print_system_info().decode().strip(" |")
        return {"version": f"llama-cpp-python {llama_cpp.__version__}", "system": system}

    def load_model(self, path: str, mode: str, repacked: Sequence[str]) -> Any:
        options = self.lib.llama_model_default_params()
        options.n_gpu_layers, options.use_extra_bufts = 0, mode == "default"
        if mode == "repack":
            options.tensor_buft_overrides, *self.kept = overrides(repacked)
        model = self.lib.llama_model_load_from_file(path.encode(), options)
        if not model:
            raise RuntimeError(f"{path} was not loaded: {self.said()}")
        return model

    def said(self) -> str:
        return next((line.strip() for line in reversed(self.log) if line.strip()), "it said nothing")

    def open(self, row: Row, mode: str, setting: Setting) -> None:
        """A context for this test, of the model that was loaded in this mode."""
        if self.context:
            self.lib.llama_free(self.context)
        options = self.lib.llama_context_default_params()
        options.n_ctx, options.n_seq_max = row.context * row.sequences, row.sequences
        options.n_batch = options.n_ubatch = BATCH
        options.n_threads = options.n_threads_batch = self.threads
        options.offload_kqv = options.op_offload = False
        for name, value in setting.items():
            setattr(options, name, value)
        self.context = self.lib.llama_init_from_model(self.models[mode], options)
        if not self.context:
            raise RuntimeError(f"no context of {options.n_ctx} tokens: {self.said()}")
        self.memory = self.lib.llama_get_memory(self.context)

    def make_batch(self) -> None:
        """llama.cpp's batch as arrays over its memory, so that filling it costs no measured time."""
        from numpy.ctypeslib import as_array

        self.batch, self.layout = self.lib.llama_batch_init(BATCH, 0, 1), (0, 0)
        self.tokens, self.positions = (as_array(p, (BATCH,)) for p in (self.batch.token, self.batch.pos))
        self.wanted = as_array(self.batch.logits, (BATCH,))
        as_array(self.batch.n_seq_id, (BATCH,))[:] = 1

    def lay_out(self, tokens: int, sequences: int) -> None:
        """Fills the batch's layout: so many tokens of each sequence, one sequence after another."""
        import numpy as np

        n = tokens * sequences
        for i in range(n):
            self.batch.seq_id[i][0] = i // tokens
        self.offsets = np.tile(np.arange(tokens), sequences)
        self.ids = np.random.default_rng(n).integers(0, self.vocab, n)
        self.lasts = self.offsets == tokens - 1
        self.batch.n_tokens, self.layout = n, (tokens, sequences)

    def decode(self, tokens: int, start: int, sequences: int, last: bool) -> None:
        """One step of so many tokens of each sequence. last: computes the logits of each last token, for a
        sampler.
        """
        if self.layout != (tokens, sequences):
            self.lay_out(tokens, sequences)
        n = tokens * sequences
        self.tokens[:n], self.positions[:n] = (self.ids + start) % self.vocab, self.offsets + start
        self.wanted[:n] = self.lasts if last else 0
        if self.lib.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode failed on {n} tokens at {start}: {self.said()}")

    def feed(self, tokens: int, start: int, last: bool) -> None:
        """Processes a prompt of the first sequence."""
        for at in range(0, tokens, BATCH):
            n = min(BATCH, tokens - at)
            self.decode(n, start + at, 1, last and at + n == tokens)

    def timed(self, row: Row) -> float:
        for i in range(row.sequences):
            self.lib.llama_memory_seq_rm(self.memory, i, row.depth, -1)
        started = time.perf_counter()
        self.feed(row.prompt, row.depth, last=True)
        for i in range(row.generate):
            self.decode(1, row.depth + row.prompt + i, row.sequences, last=True)
        return time.perf_counter() - started

    def settle(self, row: Row, mode: str, setting: Setting) -> None:
        """A warmed-up context with this setting, filled to the test's depth."""
        self.open(row, mode, setting)
        self.feed(row.depth, 0, last=False)
        self.timed(Row("", min(row.prompt, BATCH), min(row.generate, 2), row.depth, row.sequences))

    def prepare(self, row: Row) -> dict[str, Any]:
        """Tries the settings, on a shorter test where this one is long, and keeps the fastest."""
        self.row, found = row, []
        lengths = min(row.prompt, PROBE), min(row.generate, PROBE_STEPS), min(row.depth, PROBE)
        probe = Row("", *lengths, row.sequences)
        for mode in self.models:
            for name, setting in settings(row):
                self.settle(probe, mode, setting)
                found.append((min(self.timed(probe) for _ in range(2)), mode, name, setting))
        _, mode, name, setting = min(found, key=lambda f: f[0])
        self.settle(row, mode, setting)
        return {"setting": f"{WEIGHTS[mode]}, {name}"}

    def run(self) -> float:
        return self.timed(self.row)

    def bandwidth(self) -> float:
        raise NotImplementedError("llama.cpp measures no bandwidth")


def settings(row: Row) -> list[tuple[str, Setting]]:
    """The settings to try, by name: flash attention on or off, one or several key-value streams."""
    found: list[tuple[str, Setting]] = []
    for name, flash in FLASH:
        one = {"flash_attn_type": flash}
        if row.sequences == 1:
            found.append((f"flash attention {name}", one))
        else:
            found.append((f"flash attention {name}, a cache each", {**one, "kv_unified": False}))
            found.append((f"flash attention {name}, one cache", {**one, "kv_unified": True}))
    return found


WEIGHTS: Mapping[str, str] = {"default": "its own weights", "repack": "repacked", "plain": "plain"}
MODES: Mapping[str, str] = {
    "default": "weights as it loads them",
    "repack": "weights repacked without its AMX path, or plain ones where these are faster",
    "plain": "plain weights",
}


def fits_twice(path: str) -> bool:
    """Whether memory holds the file and a repacked copy. Otherwise only one of the two is measured, or both
    would be read from disk repeatedly.
    """
    if not hasattr(os, "sysconf"):
        return True
    return 2 * Path(path).stat().st_size < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def matrices(path: str) -> list[str]:
    """The layers' tensors that llama.cpp can repack."""
    from satchel.formats.gguf import open_gguf

    with open_gguf(path) as gguf:
        return [n for n, t in gguf.tensors.items() if n.startswith("blk.") and t.format in REPACKED]


def overrides(names: Sequence[str]) -> tuple[Any, ...]:
    """llama.cpp's override list that puts these matrices into its repacking buffers, and objects that must
    outlive it. An error where the library has no such buffers.
    """
    import ctypes
    import re
    from pathlib import Path

    class Override(ctypes.Structure):
        _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))

    # The loaded library itself: another copy would have its own buffer types.
    found = re.search(r"/.*libggml-cpu.*", Path("/proc/self/maps").read_text(encoding="utf-8"))
    if not found:
        raise RuntimeError("no libggml-cpu is loaded")
    repack = ctypes.CDLL(found[0])._Z35ggml_backend_cpu_repack_buffer_typev
    repack.restype = ctypes.c_void_p
    pattern = f"^({'|'.join(map(re.escape, names))})$".encode()
    table = (Override * 2)((pattern, repack()), (None, None))
    return ctypes.cast(table, ctypes.c_void_p), table, pattern


Known = Mapping[str, Callable[[Mapping[str, Any]], Any]]


def commands_of(engine: Engine) -> Known:
    """An engine's methods by command name."""
    return {
        "load": lambda c: engine.load(c["path"], c["threads"], c["mode"]),
        "prepare": lambda c: engine.prepare(Row(**c["row"])),
        "run": lambda c: engine.run(),
        "bandwidth": lambda c: engine.bandwidth(),
    }


class Commands:
    """The receiving end of the pipe: functions of a command's fields, by name."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def answer(self, line: str) -> dict[str, Any]:
        """The result of a command, or its error in one line."""
        try:
            command = json.loads(line)
            return {"value": self.known[command["do"]](command)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def serve(known: Known, commands: IO[str], answers: IO[str]) -> None:
    """Executes commands until the pipe ends."""
    obeyed, at, used = Commands(known), time.perf_counter(), time.process_time()
    while line := commands.readline():
        waited = {"waited": time.perf_counter() - at, "used": time.process_time() - used}
        print(json.dumps({**obeyed.answer(line), **waited}), file=answers, flush=True)
        at, used = time.perf_counter(), time.process_time()


def command(do: str, row: Row | None = None, path: str = "", threads: int = 0, mode: str = "") -> str:
    """A command as a line of JSON."""
    said: dict[str, Any] = {"do": do}
    if do == "load":
        said |= {"path": path, "threads": threads, "mode": mode}
    if row is not None:
        said["row"] = asdict(row)
    return json.dumps(said) + "\n"


ENGINES: Mapping[str, Callable[[], Engine]] = {"satchel": SatchelEngine, "llama.cpp": LlamaCpp}


def main(known: Known) -> None:
    """Answers go to the original stdout; everything else that is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(known, sys.stdin, answers)


if __name__ == "__main__":
    main(commands_of(ENGINES[sys.argv[1]]()))
