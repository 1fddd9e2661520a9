"""Options of the commands that load a model and draw text: names, defaults and meaning are llama.cpp's.

What cannot hold is wrong use (exit code 2), said before a file is opened.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from satchel.cli.groups import option, wrong
from satchel.cli.main import UsageError
from satchel.quant.cache import CACHE_TYPES
from satchel.quant.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.gguf import GGUF
    from satchel.runtime.model import Model
    from satchel.runtime.sampling import Sampling

M = TypeVar("M", bound="Model")

BATCH, MICRO_BATCH = 2048, 512
PRECISIONS = ("exact", "fast")
TYPES = ", ".join(CACHE_TYPES)
ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: Annotated[
        Path | None,
        option("-m", "--model", env="MODEL", metavar="FILE", help="GGUF file; default: the bundled model."),
    ] = None
    context: Annotated[
        int, option("-c", "--ctx-size", env="CTX_SIZE", min=0, help="Tokens of context; 0: the model's own.")
    ] = 0
    threads: Annotated[
        int, option("-t", "--threads", env="THREADS", help="CPU threads of an answer; -1 or 0: all cores.")
    ] = -1
    threads_batch: Annotated[
        int,
        option("-tb", "--threads-batch", env="THREADS_BATCH", help="CPU threads of a prompt; default: -t."),
    ] = 0
    precision: Annotated[
        str, option("--precision", env="PRECISION", help="exact, or fast: products may round to 8 bits.")
    ] = "exact"
    activations: Annotated[
        int,
        option(
            "--activations",
            env="ACTIVATIONS",
            help="Bits of the numbers that quantized weights are multiplied with: 8 or 16.",
        ),
    ] = 8
    repack: Annotated[
        bool,
        option(
            "--repack/--no-repack",
            " /-nr",
            env="REPACK",
            help="Keep weights in the CPU's own order, or in the file, which processes share.",
        ),
    ] = True
    batch: Annotated[
        int,
        option("-b", "--batch-size", env="BATCH", min=1, help="Most prompt tokens that are fed in one go."),
    ] = BATCH
    micro_batch: Annotated[
        int, option("-ub", "--ubatch-size", env="UBATCH", min=1, help="Most tokens of one step.")
    ] = MICRO_BATCH
    cache_k: Annotated[
        str, option("-ctk", "--cache-type-k", env="CACHE_TYPE_K", help=f"Format of the KV cache: {TYPES}.")
    ] = "f16"
    cache_v: Annotated[
        str, option("-ctv", "--cache-type-v", env="CACHE_TYPE_V", help="The same as -ctk.")
    ] = "f16"
    gpu_layers: Annotated[
        str,
        option(
            "-ngl",
            "--gpu-layers",
            "--n-gpu-layers",
            env="N_GPU_LAYERS",
            help="auto or 0: no GPU in this version.",
        ),
    ] = "auto"
    device: Annotated[
        str,
        option("-dev", "--device", env="DEVICE", help="Backend that runs the model; auto or none: the CPU."),
    ] = "auto"
    check_tensors: Annotated[
        bool, option("--check-tensors", help="Read every weight first and refuse NaN and infinity.")
    ] = False

    def __post_init__(self) -> None:
        if self.threads < -1:
            raise wrong("-t", f"{self.threads} threads; -1 or 0 takes all cores")
        if self.threads_batch < -1:
            raise wrong("-tb", f"{self.threads_batch} threads; -1 or 0 takes as many as -t")
        if self.precision not in PRECISIONS:
            raise wrong("--precision", f"{self.precision} is none: there is {' and '.join(PRECISIONS)}")
        if self.activations not in (8, 16):
            raise wrong("--activations", f"{self.activations} bits: there are 8 and 16")
        if self.gpu_layers not in ("auto", "-1", "0"):
            reason = "this version runs on the CPU alone; leave -ngl out or give 0"
            raise wrong("-ngl", f"{self.gpu_layers} layers cannot go to a GPU: {reason}")
        for name, value in (("-ctk", self.cache_k), ("-ctv", self.cache_v)):
            if value not in CACHE_TYPES:
                raise wrong(name, f"{value} is no cache type: there are {TYPES}")
        if self.cache_k != self.cache_v:
            raise wrong(
                "-ctv", f"keys are {self.cache_k}, values {self.cache_v}: this version wants one type"
            )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn."""

    seed: Annotated[
        int, option("-s", "--seed", env="SEED", help="Seed of the draws; -1: another one each time.")
    ] = -1
    temperature: Annotated[
        float, option("--temp", "--temperature", env="TEMPERATURE", help="0: always the likeliest token.")
    ] = 0.8
    top_k: Annotated[int, option("--top-k", env="TOP_K", help="Keep the k likeliest tokens; 0: all.")] = 40
    top_p: Annotated[
        float, option("--top-p", env="TOP_P", help="Keep tokens up to this probability; 1: all.")
    ] = 0.95
    min_p: Annotated[
        float, option("--min-p", env="MIN_P", help="Drop tokens below this share of the likeliest; 0: none.")
    ] = 0.05
    repeat_last_n: Annotated[
        int,
        option(
            "--repeat-last-n", env="REPEAT_LAST_N", help="Tokens that penalties look at; -1: the context."
        ),
    ] = 64
    repeat_penalty: Annotated[
        float,
        option(
            "--repeat-penalty", env="REPEAT_PENALTY", help="Divides the logits of repeated tokens; 1: off."
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        option("--presence-penalty", env="PRESENCE_PENALTY", help="Taken off a token that occurred; 0: off."),
    ] = 0.0
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", env="FREQUENCY_PENALTY", help="The same for each time; 0: off.")
    ] = 0.0

    def sampling(self) -> Sampling:
        """These options as the library has them."""
        from satchel.runtime.sampling import NAMES, Sampling

        values = {name: getattr(self, name) for name in NAMES}
        try:
            return Sampling(**{**values, "seed": None if self.seed == -1 else self.seed})
        except RequestError as error:
            raise UsageError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What is asked, and where the answer ends."""

    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None
    file: Annotated[Path | None, option("-f", "--file", metavar="FILE", help="A file with the prompt.")] = (
        None
    )
    system: Annotated[
        str | None,
        option("-sys", "--system-prompt", env="SYSTEM_PROMPT", metavar="TEXT", help="System prompt."),
    ] = None
    system_file: Annotated[
        Path | None,
        option("-sysf", "--system-prompt-file", metavar="FILE", help="A file with the system prompt."),
    ] = None
    escape: Annotated[
        bool | None,
        option("-e", "--escape/--no-escape", help=r"Read \n, \t, \\ and the like; default: in -p, -sys, -r."),
    ] = None
    predict: Annotated[
        int,
        option(
            "-n",
            "--predict",
            "--n-predict",
            env="N_PREDICT",
            min=-2,
            help="Most tokens of an answer; -1: no limit.",
        ),
    ] = -1
    reverse: Annotated[
        list[str] | None,
        option(
            "-r", "--reverse-prompt", metavar="TEXT", help="An answer ends before this text; may be repeated."
        ),
    ] = None
    ignore_eos: Annotated[bool, option("--ignore-eos", help="Go on after the end token.")] = False
    jinja: Annotated[bool, typer.Option("--jinja", hidden=True)] = True
    verbose: Annotated[bool, option("-v", "--verbose", help="Print the timings.")] = False

    def __post_init__(self) -> None:
        if self.prompt is not None and self.file is not None:
            raise wrong("-f", "the prompt is given by -p already")
        if self.system is not None and self.system_file is not None:
            raise wrong("-sysf", "the system prompt is given by -sys already")
        if any(not text for text in self.reverse or ()):
            raise wrong("-r", "an empty text would end every answer at once")

    @property
    def max_tokens(self) -> int:
        return max(-1, self.predict)  # -2, until the context is full, is what -1 means here

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self._read(text, "-r") for text in self.reverse or ())

    def system_text(self) -> str:
        """The system prompt, "" for none."""
        if self.system_file is not None:
            return read_text(self.system_file)
        return self._read(self.system or "", "-sys")

    def prompt_text(self, argument: str | None = None) -> str | None:
        """The prompt of -p, -f or the argument; None where none of them is given."""
        if self.prompt is not None and argument is not None:
            raise wrong("prompt", "the prompt is given by -p already")
        if self.file is not None and argument is not None:
            raise wrong("prompt", "the prompt is given by -f already")
        if self.prompt is not None:
            return self._read(self.prompt, "-p")
        text = read_text(self.file) if self.file is not None else argument
        return typed(text, "prompt", bool(self.escape)) if text else text

    def _read(self, text: str, name: str) -> str:
        return typed(text, name, self.escape is not False)


def typed(text: str, name: str, escapes: bool) -> str:
    r"""Text of the command line; `escapes`: \n, \r, \t, \', \", \\ and bytes \xHH are read, others stay."""
    data = text.encode("utf-8", "surrogateescape")
    if escapes:
        data = ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else ESCAPES[m[2]], data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong(
            name, f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}"
        ) from None


def read_text(path: Path) -> str:
    """A text file without its last line end. RequestError where it is no UTF-8 text."""
    return decoded(path.read_bytes(), str(path))


def decoded(data: bytes, source: str) -> str:
    """Bytes from outside as text, the last line end taken off."""
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at {error.start}"
        raise RequestError(f"{source}: expected UTF-8 text, got {byte}") from None


def default_model() -> Path:
    """The bundled model's file."""
    from importlib.resources import files

    names = re.compile(r"satchel-40m-.*\.gguf")
    found = sorted(str(f) for f in files("satchel.models").iterdir() if names.fullmatch(f.name))
    if not found:
        raise RequestError("no model is bundled with this install: give one with -m FILE")
    return Path(found[0])


def open_model(options: ModelOptions, slots: int = 1, *, profile: bool = False) -> Model:
    """Loads the model with room for so many sequences, with a bar where that takes long. profile: the device
    counts the time of each step.
    """
    from satchel.runtime.model import Model

    return open_as(Model, options, slots, profile=profile)


def open_as(kind: type[M], options: ModelOptions, slots: int = 1, *, profile: bool = False) -> M:
    """The same for a class that is made from Model."""
    from satchel.cli.chat.bar import late_bar

    path = options.model or default_model()
    with late_bar(f"loading {path.name}", sys.stderr, in_bytes=True) as progress:
        model = kind.load(
            path,
            context=options.context,
            slots=slots,
            threads=max(0, options.threads),
            device="cpu" if options.device == "none" else options.device,
            cache_type=options.cache_k,
            batch=min(options.batch, options.micro_batch),
            threads_batch=max(0, options.threads_batch),
            repack=options.repack,
            precision=options.precision,
            profile=profile,
            activations=options.activations,
            progress=progress,
        )
    try:
        check_weights(options, model.gguf)
    except BaseException:
        model.close()
        raise
    return model


def check_weights(options: ModelOptions, gguf: GGUF) -> None:
    """With --check-tensors, ModelError where a weight is no number."""
    if not options.check_tensors:
        return
    from satchel.cli.chat.bar import late_bar
    from satchel.runtime.weights import check_tensors

    with late_bar("checking the weights", sys.stderr, in_bytes=True) as progress:
        check_tensors(gguf, progress)
