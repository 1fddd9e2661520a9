"""Satchel: carry a language model in one file.

    from satchel import Model

    with Model.load() as model:
        for piece in model.chat([{"role": "user", "content": "Hello!"}]):
            print(piece, end="")

This file becomes satchel/__init__.py. Names are imported when they are first asked for, so that
`import satchel` costs nothing.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and sys.path:
    # `python -m satchel` imports this package with the current folder first on the module path: a typing.py
    # there would run in the next line. Another program's `-m` keeps its path.
    _words = iter(sys.orig_argv[1:])
    for _word in _words:
        if _word[:1] == "-" and _word[1:2] not in ("-", "W", "X") and "m" in _word:
            if (_word.partition("m")[2] or next(_words, "")).partition(".")[0] == "satchel":
                del sys.path[0]
            break

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
    from satchel.runtime import kernels
    from satchel.runtime.api.async_model import AsyncChatReply, AsyncModel, AsyncReply
    from satchel.runtime.api.chat_reply import ChatReply
    from satchel.runtime.api.generate_options import GenerateOptions
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.options import Options
    from satchel.runtime.api.reply import Reply
    from satchel.runtime.grammar import (
        AnyJson,
        Choice,
        Gbnf,
        JsonSchema,
        Lark,
        Regex,
        ToolCallGrammar,
        ToolSchema,
    )
    from satchel.runtime.sampling import Sampling

    __version__: str

__all__ = [
    "AnyJson",
    "AsyncChatReply",
    "AsyncModel",
    "AsyncReply",
    "ChatReply",
    "Choice",
    "DeviceError",
    "Gbnf",
    "GenerateOptions",
    "JsonSchema",
    "Lark",
    "Model",
    "ModelError",
    "Options",
    "Regex",
    "Reply",
    "RequestError",
    "Sampling",
    "SatchelError",
    "ToolCallGrammar",
    "ToolSchema",
    "__version__",
    "kernels",
]

_HOME = {
    "AnyJson": "runtime.grammar",
    "AsyncChatReply": "runtime.api.async_model",
    "AsyncModel": "runtime.api.async_model",
    "AsyncReply": "runtime.api.async_model",
    "ChatReply": "runtime.api.chat_reply",
    "Choice": "runtime.grammar",
    "DeviceError": "errors",
    "Gbnf": "runtime.grammar",
    "GenerateOptions": "runtime.api.generate_options",
    "JsonSchema": "runtime.grammar",
    "Lark": "runtime.grammar",
    "Model": "runtime.api.model",
    "ModelError": "errors",
    "Options": "runtime.api.options",
    "Regex": "runtime.grammar",
    "Reply": "runtime.api.reply",
    "RequestError": "errors",
    "Sampling": "runtime.sampling",
    "SatchelError": "errors",
    "ToolCallGrammar": "runtime.grammar",
    "ToolSchema": "runtime.grammar",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("satchel")
    elif name == "kernels":
        value = importlib.import_module("satchel.runtime.kernels")
    elif name in _HOME:
        value = getattr(importlib.import_module(f"satchel.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'satchel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
