"""ChatTemplate, the interface of this package. Jinja is not imported until a template is compiled.

Invariant: `render` returns the whole prompt or raises. No message is left out because a template does not
support its role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from satchel.errors import ModelError, RequestError
from satchel.formats.template.limits import LimitReached, TemplateLimits
from satchel.formats.template.messages import (
    Escape,
    Plain,
    escaped,
    read_documents,
    read_messages,
    read_tools,
    read_variables,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from satchel.formats.template.probes import Probes

KEY = "tokenizer.chat_template"
NAMED = Path(__file__).parent / "named"  # templates by llama.cpp's names, a file each
CHATML_WARNING = (
    f"the file has no {KEY}: messages are written as ChatML, which this model may not know; "
    "a file with its own template answers better"
)
_DEFAULT = "default"


class ChatTemplate:
    """A model's chat template with its named variants. It is compiled at first use and thread-safe.

    name: the metadata key, for error messages.
    bos_token, eos_token, tokens: texts of control tokens that the template may write, by variable name.
    variants: named templates beside the default: `tool_use` is used with tools, `rag` with documents.
    now: the clock of `strftime_now`.
    warning: a warning for the user, or "".
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = KEY,
        bos_token: str = "",
        eos_token: str = "",
        tokens: Mapping[str, str] | None = None,
        variants: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        limits: TemplateLimits | None = None,
        warning: str = "",
    ) -> None:
        self.source = source
        self.name = name
        self.warning = warning
        self._sources = {_DEFAULT: source, **(variants or {})}
        self._tokens = {**(tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        self._limits = limits or TemplateLimits()
        self._probes: dict[str, Probes] = {}

    @classmethod
    def chatml(cls, *, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
        """The fallback for a file without a template: ChatML, with a `warning`."""
        source = named("chatml")
        return cls(source, name="chatml", bos_token=bos_token, eos_token=eos_token, warning=CHATML_WARNING)

    def check(self) -> None:
        """Compiles every variant now. ModelError with the line number for an invalid one."""
        for variant in self._sources:
            self._compiled(variant)

    def compiled(self) -> dict[str, Probes]:
        """Every variant by its name, the default as "default", compiled with what it supports."""
        return {variant: self._compiled(variant) for variant in self._sources}

    @property
    def tokens(self) -> dict[str, str]:
        """Texts of control tokens that the template may write, by variable name."""
        return dict(self._tokens)

    def reads(self, variable: str) -> bool:
        """Whether the default template reads a variable, such as `enable_thinking`."""
        return variable in self._compiled(_DEFAULT).program.names

    @property
    def supports_tools(self) -> bool:
        """Whether the template renders tools; otherwise `render` writes them into the system message."""
        try:
            return self._compiled(self._variant([{}], None)).tools_place() != ""
        except LimitReached as error:
            message = str(error)
        raise RequestError(message)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, object] | None = None,
        escape: Escape | None = None,
    ) -> str:
        """The prompt of a conversation in OpenAI's format (roles system, developer, user, assistant, tool).

        Content is a text, a list of {"type": "text", "text": ...} parts, or None beside tool calls. Without a
        system role in the template, the system message is put before the first user message; `adapt.fit`
        lists all adaptations.

        variables: the template's switches, such as enable_thinking.
        escape: applied to every text of the caller before rendering, so that it contains no control token.
        The caller undoes it after splitting the result at control tokens.

        RequestError: invalid messages, a reserved variable, or a refusal by the template, with its line
        number.
        ModelError: the template itself is malformed.
        """
        plain = Plain()
        chat = read_messages(messages, plain)
        functions, texts = read_tools(tools, plain), read_documents(documents, plain)
        more = read_variables(variables, self._tokens, plain)
        more = {"documents": texts, "add_generation_prompt": bool(add_generation_prompt), **more}
        probes = self._compiled(self._variant(functions, texts))
        from satchel.formats.template.adapt import fit

        try:
            chat, functions, placed = fit(chat, functions, probes)
            more |= placed
            if escape is not None:
                chat, functions, more = (escaped(value, escape) for value in (chat, functions, more))
            return probes.run(chat, functions, more, plain.nodes, plain.characters, escape)
        except LimitReached as error:
            message = str(error)
        raise RequestError(message)

    def _variant(self, tools: Sequence[Any] | None, documents: Sequence[Any] | None) -> str:
        if tools and "tool_use" in self._sources:
            return "tool_use"
        return "rag" if documents and "rag" in self._sources else _DEFAULT

    def _compiled(self, variant: str) -> Probes:
        if variant not in self._probes:
            from satchel.formats.template.probes import Probes
            from satchel.formats.template.sandbox import compile_source

            name = self.name if variant == _DEFAULT else f"{KEY}.{variant}"
            program = compile_source(self._sources[variant], name, self._limits)
            self._probes[variant] = Probes(program, self._tokens, self._now)
        return self._probes[variant]


def names() -> list[str]:
    """The names that named() takes."""
    return sorted(path.stem for path in NAMED.glob("*.jinja"))


def named(name: str) -> str:
    """The source of a template by its name in llama.cpp, such as llama3. RequestError for another name."""
    known = names()
    if name not in known:
        raise RequestError(f"{name!r:.60} is no name of a chat template: expected one of {', '.join(known)}")
    return (NAMED / f"{name}.jinja").read_text(encoding="utf-8")


def from_metadata(metadata: Mapping[str, Any], bos: str, eos: str) -> ChatTemplate | None:
    """The template of a GGUF file's metadata; None where it is missing or empty (see `ChatTemplate.chatml`).

    bos, eos: the texts of these tokens. ModelError where a template, or the list `tokenizer.chat_templates`
    of further templates, has the wrong type.
    """
    default = metadata.get(KEY)
    if default is not None and not isinstance(default, str):
        raise ModelError(f"{KEY}: expected a string, got {type(default).__name__}")
    variants = _variants(metadata)
    if default is None or not default.strip():
        default = variants.pop(_DEFAULT, None)
    if not default and not variants:
        return None
    if not default:
        default = next(iter(variants.values()))
    return ChatTemplate(default, bos_token=bos, eos_token=eos, variants=variants)


def _variants(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = f"{KEY}."
    found = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    for name, source in found.items():
        if not isinstance(source, str):
            raise ModelError(f"{prefix}{name}: expected a string, got {type(source).__name__}")
    listed = metadata.get("tokenizer.chat_templates")
    for name in [] if listed is None else _names(listed):
        if name not in found and not (name == _DEFAULT and KEY in metadata):
            raise ModelError(f"tokenizer.chat_templates names {name!r}, but {prefix}{name} is missing")
    return found


def _names(listed: Any) -> list[str]:
    if isinstance(listed, (str, bytes, Mapping)) or not hasattr(listed, "__iter__"):
        raise ModelError(f"tokenizer.chat_templates: expected a list of names, got {type(listed).__name__}")
    names = list(listed)
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise ModelError(f"tokenizer.chat_templates[{i}]: expected a name, got {type(name).__name__}")
    return names
