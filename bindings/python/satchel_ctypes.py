"""Runs a model file that `satchel build` made, by the C library libsatchel and ctypes: no other package.

A model ends its replies before it closes. Tokens are computed without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

# SATCHEL_ENGINE_: this library, a worker process, or that for files without a plan.
LIBRARY, WORKER, EITHER = 0, 1, 2


class ModelOptions(ctypes.Structure):
    """satchel_model_options."""

    _fields_ = (
        ("size", c_uint32),
        ("context", c_int32),
        ("slots", c_int32),
        ("threads", c_int32),
        ("threads_decode", c_int32),
        ("engine", c_int32),
        ("worker", c_char_p),
    )


class GenerateOptions(ctypes.Structure):
    """satchel_generate_options."""

    _fields_ = (
        ("size", c_uint32),
        ("flags", c_uint32),
        ("seed", c_int64),
        ("max_tokens", c_int64),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("typical_p", c_float),
        ("top_n_sigma", c_float),
        ("xtc_probability", c_float),
        ("xtc_threshold", c_float),
        ("dynatemp_range", c_float),
        ("dynatemp_exponent", c_float),
        ("repeat_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("repeat_last_n", c_int32),
        ("mirostat", c_int32),
        ("mirostat_tau", c_float),
        ("samplers", c_char_p),
    )


class Piece(ctypes.Structure):
    """satchel_piece."""

    _fields_ = (("size", c_uint32), ("token", c_int32), ("text", POINTER(c_char)), ("length", c_int64))


class SatchelError(Exception):
    """A call that failed: a code SATCHEL_E_... of satchel.h, and the library's words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _load() -> ctypes.CDLL:
    """The library that SATCHEL_LIBRARY names, or the system's."""
    name = os.environ.get("SATCHEL_LIBRARY") or ctypes.util.find_library("satchel") or "libsatchel.so.1"
    library = ctypes.CDLL(name)
    handle = POINTER(c_void_p)
    library.satchel_error.restype = c_char_p
    library.satchel_model_options_init.argtypes = (POINTER(ModelOptions), c_uint32)
    library.satchel_open.argtypes = (c_char_p, POINTER(ModelOptions), handle)
    library.satchel_close.argtypes = (c_void_p,)
    library.satchel_generate_options_init.argtypes = (POINTER(GenerateOptions), c_uint32)
    library.satchel_generate_text.argtypes = (
        c_void_p,
        c_char_p,
        c_int64,
        c_uint32,
        POINTER(GenerateOptions),
        handle,
    )
    library.satchel_chat_render.argtypes = (c_void_p, c_char_p, c_int64, handle)
    library.satchel_chat_prompt_ids.argtypes = (c_void_p, POINTER(c_int64))
    library.satchel_chat_prompt_ids.restype = c_void_p
    library.satchel_chat_prompt_free.argtypes = (c_void_p,)
    library.satchel_generate.argtypes = (c_void_p, c_void_p, c_int64, POINTER(GenerateOptions), handle)
    library.satchel_reply_next.argtypes = (c_void_p, POINTER(Piece))
    library.satchel_reply_free.argtypes = (c_void_p,)
    for name in ("satchel_model_options_init", "satchel_generate_options_init", "satchel_close"):
        getattr(library, name).restype = None
    library.satchel_reply_free.restype = library.satchel_chat_prompt_free.restype = None
    return library


_library = _load()


def _checked(code: int) -> int:
    if code < 0:
        raise SatchelError(code, _library.satchel_error().decode())
    return code


def _options(options: dict[str, Any]) -> GenerateOptions:
    given = GenerateOptions()
    _library.satchel_generate_options_init(byref(given), ctypes.sizeof(given))
    for name, value in options.items():
        setattr(given, name, value)
    return given


class Model:
    """An open model; `with` closes it. Options are the fields of ModelOptions."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._handle, self._replies = c_void_p(), set[Reply]()
        given = ModelOptions()
        _library.satchel_model_options_init(byref(given), ctypes.sizeof(given))
        for name, value in options.items():
            setattr(given, name, os.fsencode(value) if name == "worker" and value is not None else value)
        _checked(_library.satchel_open(os.fsencode(path), byref(given), byref(self._handle)))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the replies and frees the model."""
        for reply in list(self._replies):
            reply.close()
        _library.satchel_close(self._handle)
        self._handle = c_void_p()

    def generate(self, text: str, **options: Any) -> Reply:
        """Begins an answer. Options are the fields of GenerateOptions."""
        given, handle, raw = _options(options), c_void_p(), text.encode()
        _checked(_library.satchel_generate_text(self._handle, raw, len(raw), 0, byref(given), byref(handle)))
        return Reply(handle, self._replies)

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Reply:
        """Begins the answer to a conversation, whose messages are as in OpenAI's API."""
        raw = json.dumps({"messages": list(messages)}).encode()
        given, prompt, handle, count = _options(options), c_void_p(), c_void_p(), c_int64()
        _checked(_library.satchel_chat_render(self._handle, raw, len(raw), byref(prompt)))
        try:
            ids = _library.satchel_chat_prompt_ids(prompt, byref(count))
            _checked(_library.satchel_generate(self._handle, ids, count, byref(given), byref(handle)))
        finally:
            _library.satchel_chat_prompt_free(prompt)
        return Reply(handle, self._replies)


class Reply:
    """An answer under way: an iterator over texts of whole characters, which frees its slot at its end."""

    def __init__(self, handle: c_void_p, among: set[Reply]) -> None:
        self._handle, self._among = handle, among
        among.add(self)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = Piece(size=ctypes.sizeof(Piece))
        if not self._handle or not _checked(_library.satchel_reply_next(self._handle, byref(piece))):
            self.close()
            raise StopIteration
        return ctypes.string_at(piece.text, piece.length).decode()

    def close(self) -> None:
        """Ends the answer and frees its slot."""
        _library.satchel_reply_free(self._handle)
        self._handle = c_void_p()
        self._among.discard(self)
