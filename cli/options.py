"""Options of the commands that load a model and generate text: names, defaults and meaning are llama.cpp's.

Invalid options are wrong use (exit code 2), reported before a file is opened.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, Unpack, cast

import typer

from satchel.cli.groups import option, wrong
from satchel.cli.model_argument import model_file
from satchel.cli.rope import RopeOptions
from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.option import options_of
from satchel.runtime.placement.options import experts_rule
from satchel.store.digests import digests_of
from satchel.store.meant import pasted

if TYPE_CHECKING:
    from satchel.cli.adapters import AdapterOptions
    from satchel.formats.gguf import GGUF
    from satchel.runtime.api.model import Model

M = TypeVar("M", bound="Model")

ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, and how it is loaded."""

    model: Annotated[
        Path | None,
        option(
            "-m",
            "--model",
            env="MODEL",
            metavar="MODEL",
            parser=model_file,
            help="GGUF file, or a name of `satchel list`; default: the bundled model.",
        ),
    ] = None
    load: Options = field(default_factory=Options)
    micro_batch: Annotated[
        int,
        option(
            "-ub",
            "--ubatch-size",
            env="UBATCH",
            min=0,
            help="Most tokens per step; 0: as -b, else 512, or 4096 where all layers are on a GPU.",
        ),
    ] = 0
    cpu_moe: Annotated[
        bool, option("-cmoe", "--cpu-moe", env="CPU_MOE", help="Keep all experts of a mixture on the CPU.")
    ] = False
    n_cpu_moe: Annotated[
        int,
        option(
            "-ncmoe",
            "--n-cpu-moe",
            env="N_CPU_MOE",
            min=0,
            metavar="N",
            help="Keep the experts of the first N layers on the CPU.",
        ),
    ] = 0
    check_tensors: Annotated[
        bool, option("--check-tensors", help="Read every weight after the load, and refuse NaN and infinity.")
    ] = False
    verify_weights: Annotated[
        str,
        option(
            "--verify-weights",
            metavar="FILE",
            help="Compare digests first: with a manifest of `satchel hash`; `store`: with those of the pull.",
        ),
    ] = ""
    offline: Annotated[
        bool, option("--offline", env="OFFLINE", help="Open no connection: -hf finds stored models alone.")
    ] = False
    hub: Annotated[
        str | None,
        option(
            "-hf",
            "-hfr",
            "--hf-repo",
            env="HF_REPO",
            metavar="USER/REPO[:QUANT]",
            help="Model of the Hugging Face Hub, pulled into the store unless it is there.",
        ),
    ] = None
    hub_file: Annotated[
        str | None,
        option("-hff", "--hf-file", env="HF_FILE", metavar="FILE", help="The file of the repository of -hf."),
    ] = None
    url: Annotated[
        str | None,
        option("-mu", "--model-url", env="MODEL_URL", metavar="URL", help="Model at an address, likewise."),
    ] = None
    template_file: Annotated[
        Path | None,
        option(
            "--chat-template-file",
            env="CHAT_TEMPLATE_FILE",
            metavar="FILE",
            help="A file with the Jinja text of --chat-template.",
        ),
    ] = None
    rope: RopeOptions = field(default_factory=RopeOptions)

    def __post_init__(self) -> None:
        given = [
            flag
            for flag, value in (("-m", self.model), ("-hf", self.hub), ("-mu", self.url))
            if value is not None
        ]
        if len(given) > 1:
            raise wrong(given[1], f"{given[0]} names the model already")
        if self.hub_file is not None and self.hub is None:
            raise wrong("-hff", "expected -hf USER/REPO beside it")
        if self.template_file is not None and self.load.chat_template:
            raise wrong("--chat-template-file", "--chat-template is given already")

    def at(self, path: Path) -> ModelOptions:
        """These options for the model in a file."""
        return replace(self, model=path, hub=None, hub_file=None, url=None)

    @property
    def wanted(self) -> Path | None:
        """The file of the model that the user names, pulled where it has to be; None where none is named."""
        if self.hub is not None:
            name = hub_name(self.hub)
            return pulled(f"{name}/{self.hub_file}" if self.hub_file else name, self.offline)
        return self.model if self.url is None else pulled(self.url, self.offline)

    @property
    def path(self) -> Path:
        """The model's file; the bundled model's where the user names none."""
        from satchel.store.resolve import default_model

        return self.wanted or default_model()

    def with_load(self, **changes: Unpack[LoadKwargs]) -> ModelOptions:
        """These options with other load options."""
        return replace(self, load=replace(self.load, **changes))


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The prompt, and where the answer ends."""

    options: GenerateOptions = field(default_factory=GenerateOptions)
    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None
    file: Annotated[
        list[Path] | None,
        option("-f", "--file", metavar="FILE", help="A file that is put before the prompt; may be repeated."),
    ] = None
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
        option(
            "-e", "--escape/--no-escape", help=r"Replace \n, \t, \\ and the like; default: in -p, -sys, -r."
        ),
    ] = None
    reverse: Annotated[
        list[str] | None,
        option(
            "-r",
            "--reverse-prompt",
            metavar="TEXT",
            help="Stop text: an answer ends before it; may be repeated.",
        ),
    ] = None
    jinja: Annotated[bool, typer.Option("--jinja", hidden=True)] = True
    verbose: Annotated[bool, option("-v", "--verbose", "--log-verbose", help="Print the timings.")] = False

    def __post_init__(self) -> None:
        if self.system is not None and self.system_file is not None:
            raise wrong("-sysf", "the system prompt is given by -sys already")
        if any(not text for text in self.reverse or ()):
            raise wrong("-r", "an empty text would end every answer at once")

    def generate_kwargs(self) -> GenerateKwargs:
        """The options that have a flag, and the stop texts, as keyword arguments."""
        flagged = (name for name, one in options_of(GenerateOptions).items() if one.flags)
        kwargs = cast(GenerateKwargs, {name: getattr(self.options, name) for name in flagged})
        return {**kwargs, "stop": tuple(self._read(text, "-r") for text in self.reverse or ())}

    def system_text(self) -> str:
        """The system prompt; "" for none."""
        if self.system_file is not None:
            return read_text(self.system_file)
        return self._read(self.system or "", "-sys")

    @property
    def has_prompt(self) -> bool:
        """Whether -p or -f gives a prompt."""
        return self.prompt is not None or bool(self.file)

    def prompt_text(self, argument: str | None = None) -> str | None:
        """The files of -f and then -p or the argument, joined by newlines; None where none is given."""
        if self.prompt is not None and argument is not None:
            raise wrong("prompt", "the prompt is given by -p already")
        last = self._read(self.prompt, "-p") if self.prompt is not None else argument
        if last and self.prompt is None:
            last = typed(last, "prompt", bool(self.escape))
        parts = [*map(self._from_file, self.file or ()), *([last] if last is not None else [])]
        return "\n".join(part for part in parts if part) if parts else None

    def _from_file(self, path: Path) -> str:
        text = read_text(path)
        return typed(text, str(path), True) if self.escape else text

    def _read(self, text: str, name: str) -> str:
        return typed(text, name, self.escape is not False)


def typed(text: str, name: str, escapes: bool) -> str:
    r"""A text of the command line. escapes: \n, \r, \t, \', \", \\ and bytes \xHH are replaced; other
    backslashes stay.
    """
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
    """The text of a file without its last line end. RequestError where it is not UTF-8."""
    return decoded(path.read_bytes(), str(path))


def decoded(data: bytes, source: str) -> str:
    """Bytes of a file or of stdin as text, without the last line end. RequestError where they are not
    UTF-8.
    """
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at {error.start}"
        raise RequestError(f"{source}: expected UTF-8 text, got {byte}") from None


def hub_name(text: str) -> str:
    """The store's name of a repository as -hf takes it: USER/REPO[:QUANT], with hf: before it or without, or
    its address.
    """
    return f"hf:{pasted(text).removeprefix('hf:')}"


def pulled(name: str, offline: bool = False) -> Path:
    """The file of a model by its name of the Hub or its address. It is pulled unless the store has it."""
    from satchel.cli.commands.pull import shown
    from satchel.store import Store

    with suppress(RequestError):
        return Store(offline=True).pull(name)
    with shown() as watch:
        return Store(offline=offline or None).pull(name, watch)


def loading(options: ModelOptions, files: AdapterOptions | None = None) -> Options:
    """The load options, into which those that only the command line has are translated."""
    load = options.load
    experts = experts_rule(None if options.cpu_moe else options.n_cpu_moe)
    return replace(
        load,
        batch=min(filter(None, (load.batch, options.micro_batch)), default=0),
        # The first rule that matches a tensor wins, so the rule of the experts stands last.
        override_tensor=(*load.override_tensor, *([experts] if experts else [])),
        override_kv=(*options.rope.overrides(), *load.override_kv),
        chat_template=read_text(options.template_file) if options.template_file else load.chat_template,
        adapters=files.lora_files() if files else load.adapters,
        control_vectors=files.control_vector_files() if files else load.control_vectors,
    )


def open_model(
    options: ModelOptions, files: AdapterOptions | None = None, **changes: Unpack[LoadKwargs]
) -> Model:
    """Loads the model, with a progress bar if that takes long. `changes` replace load options of the command
    line.
    """
    from satchel.runtime.api.model import Model

    return open_as(Model, options, files, **changes)


def open_as(
    kind: type[M], options: ModelOptions, files: AdapterOptions | None = None, **changes: Unpack[LoadKwargs]
) -> M:
    """`open_model` for a subclass of Model."""
    from satchel.cli.chat.bar import late_bar

    path = options.path
    chosen = replace(loading(options, files), **changes)
    if options.verify_weights:
        chosen = replace(chosen, digests=digests_of(path, options.verify_weights))
    with late_bar(f"loading {path.name}", sys.stderr, in_bytes=True) as progress:
        model = kind.load(path, chosen, progress=progress)
    try:
        check_weights(options, model.gguf)
    except BaseException:
        model.close()
        raise
    return model


def check_weights(options: ModelOptions, gguf: GGUF) -> None:
    """Raises ModelError for a weight that is NaN or infinite, if --check-tensors asks for it."""
    if not options.check_tensors:
        return
    from satchel.cli.chat.bar import late_bar
    from satchel.runtime.weights.weights import check_tensors

    with late_bar("checking the weights", sys.stderr, in_bytes=True) as progress:
        check_tensors(gguf, progress)
