"""Validates a caller's messages, tools, documents and variables, and copies them to plain data.

Invariant: results consist of str, int, float, bool, None, list and dict only, share nothing with the input,
have bounded depth, and are valid UTF-8. RequestError names the place of anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from satchel.errors import RequestError

Escape = Callable[[str], str]
Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # and MiniCPM's templates read "thought"
_MAX_DEPTH = 64
_MAX_BITS = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")

# Names that a caller's variables can't have: the template's inputs, its helper functions and Jinja's names.
RESERVED = frozenset((
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "chat_template",
    "tokenize", "continue_final_message", "raise_exception", "strftime_now", "namespace", "range", "dict",
    "cycler", "joiner", "lipsum", "loop", "self", "super", "caller", "varargs", "kwargs", "context",
    "environment", "true", "false", "none", "True", "False", "None",
))  # fmt: skip


class Plain:
    """Copies values to plain data, and counts them: `nodes` values and `characters` of text so far."""

    def __init__(self) -> None:
        self.nodes = 0
        self.characters = 0

    def copy(self, value: Any, where: str, depth: int = 0) -> Any:
        """A plain deep copy of `value`. RequestError, naming `where`, for a value that JSON does not have."""
        self.nodes += 1
        if depth > _MAX_DEPTH:
            raise RequestError(f"{where}: nests deeper than {_MAX_DEPTH} (or contains itself)")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, where)
        if isinstance(value, int):
            return _integer(value, where)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return {self._key(k, where): self.copy(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        raise RequestError(f"{where}: {type(value).__name__} is no JSON value")

    def _key(self, key: Any, where: str) -> str:
        if not isinstance(key, str):
            raise RequestError(f"{where}: the key {key!r} is no string")
        return self._text(key, where)

    def _text(self, text: str, where: str) -> str:
        self.characters += len(text)
        bad = None if text.isascii() else _SURROGATE.search(text)
        if bad:
            code = f"U+{ord(bad[0]):04X}"
            raise RequestError(
                f"{where}: character {bad.start()} is {code}, half of a surrogate pair and no text"
            )
        return str(text)


def _integer(value: int, where: str) -> int:
    if value.bit_length() > _MAX_BITS:
        raise RequestError(f"{where}: an integer of {value.bit_length()} bits, at most {_MAX_BITS} are read")
    return int(value)


def read_messages(messages: Sequence[Mapping[str, Any]], plain: Plain) -> list[Message]:
    """The validated messages of a conversation. RequestError names the first invalid one."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        example = '[{"role": "user", "content": "Hello!"}]'
        raise RequestError(
            f"messages: expected a list of messages, got {type(messages).__name__}; write {example}"
        )
    if not messages:
        raise RequestError("messages: the list is empty, at least one message is needed")
    return [_message(message, f"messages[{i}]", plain) for i, message in enumerate(messages)]


def _message(given: Any, where: str, plain: Plain) -> Message:
    if not isinstance(given, Mapping):
        raise RequestError(f"{where}: expected an object with role and content, got {type(given).__name__}")
    message: Message = plain.copy(given, where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role: expected one of {', '.join(ROLES)}, got {role!r}")
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = _calls(calls, role, where)
    else:
        message.pop("tool_calls", None)
    _content(message, where)
    return _reasoning(message, where)


def _content(message: Message, where: str) -> None:
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _part(part, f"{where}.content[{i}]")
    elif content is None:
        if message["role"] != "assistant":
            raise RequestError(f"{where}.content: missing; a {message['role']} message needs text")
        message["content"] = None
    elif not isinstance(content, str):
        kind = type(content).__name__
        raise RequestError(f"{where}.content: expected text or a list of text parts, got {kind}")


def _part(part: Any, where: str) -> None:
    if not isinstance(part, dict):
        raise RequestError(f"{where}: expected an object with type and text, got {type(part).__name__}")
    if part.get("type") != "text":
        raise RequestError(f"{where}.type: only 'text' can be given to this model, got {part.get('type')!r}")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.text: expected a string, got {type(part.get('text')).__name__}")


def _calls(calls: Any, role: str, where: str) -> list[Message]:
    if role != "assistant":
        raise RequestError(f"{where}.tool_calls: only an assistant message calls tools, this one is {role!r}")
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: expected a list, got {type(calls).__name__}")
    for i, call in enumerate(calls):
        _call(call, f"{where}.tool_calls[{i}]")
    return [{**call, "type": call.get("type", "function")} for call in calls]


def _call(call: Any, where: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: expected an object with a function that has a name")
    arguments = function.setdefault("arguments", {})
    if not isinstance(arguments, (str, dict)):
        kind = type(arguments).__name__
        raise RequestError(f"{where}.function.arguments: expected an object or its JSON text, got {kind}")


def _reasoning(message: Message, where: str) -> Message:
    """Copies the reasoning, whatever its name in the request, to every name that templates read."""
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if reasoning is None:
        return message
    if not isinstance(reasoning, str):
        raise RequestError(f"{where}.reasoning_content: expected text, got {type(reasoning).__name__}")
    names = dict.fromkeys(("thinking", "reasoning", "thought"), reasoning)
    return {**names, **message, "reasoning_content": reasoning}


def read_tools(tools: Sequence[Mapping[str, Any]] | None, plain: Plain) -> list[Message] | None:
    """The validated tools; None without any. RequestError for a tool without a name."""
    if not tools:
        return None
    if not isinstance(tools, (list, tuple)):
        raise RequestError(f"tools: expected a list of functions, got {type(tools).__name__}")
    read: list[Message] = plain.copy(tools, "tools")
    for i, tool in enumerate(read):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"tools[{i}]: expected an object with a function that has a name")
    return read


def read_documents(documents: Sequence[Mapping[str, Any]] | None, plain: Plain) -> list[Message] | None:
    """The validated documents for RAG templates. RequestError for anything but a list of objects."""
    if documents is None:
        return None
    if not isinstance(documents, (list, tuple)) or not all(isinstance(d, Mapping) for d in documents):
        raise RequestError("documents: expected a list of objects (such as title and text)")
    read: list[Message] = plain.copy(documents, "documents")
    return read


def read_variables(
    variables: Mapping[str, object] | None, taken: Iterable[str], plain: Plain
) -> dict[str, Any]:
    """The validated template variables of a caller. RequestError for an invalid or reserved name."""
    read: dict[str, Any] = {}
    for name, value in (variables or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise RequestError(f"variables: {name!r} is no name that a template can read")
        if name in RESERVED or name in taken:
            raise RequestError(f"variables: {name!r} is set by the program and can't be given")
        read[name] = plain.copy(value, f"variables.{name}")
    return read


def escaped(value: Any, escape: Escape) -> Any:
    """Plain data with every text and key escaped.

    Adjacent text parts are merged first where their concatenation contains a control token.
    """
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(key): escaped(item, escape) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item, escape) for item in _together(value, escape)]
    return value


def _together(items: list[Any], escape: Escape) -> list[Any]:
    texts = [item.get("text") if isinstance(item, dict) else None for item in items]
    if len(items) < 2 or not all(isinstance(text, str) for text in texts):
        return items
    whole = "".join(text for text in texts if text)
    if escape(whole) == "".join(escape(text) for text in texts if text):
        return items
    return [{**items[0], "text": whole}]
