"""Fuzz targets: functions of bytes that end in one of the three errors or in none.

Each also checks a property: a file without findings must load, encoded data must decode.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import fuzz_adapters
import fuzz_readers
import fuzz_requests
from state_file import SHAPE

from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.convert.safetensors import SafetensorsFile
from satchel.formats.gguf import Metadata, describe, open_gguf
from satchel.formats.gguf.digest import read_manifest
from satchel.formats.gguf.edit import change, parse_assignment
from satchel.formats.imatrix import open_importance
from satchel.formats.logits import open_logits
from satchel.formats.template import ChatTemplate
from satchel.formats.tokenizer import build_tokenizer
from satchel.runtime.kv.saved import open_saved
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.tasks.verify import verify
from satchel.runtime.weights.weights import FileWeights

logging.getLogger("satchel").addHandler(logging.NullHandler())  # hides warnings about hostile files
Target = Callable[[bytes], None]
TEXTS = ("hello <|im_end|> </s>\n\n  x", "é€ \U0001f600 ▁ ##x")
CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi {{ 7 }} <|im_end|>"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
)


@cache
def scratch() -> Path:
    """A scratch file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        return Path(f"/proc/self/fd/{os.memfd_create('fuzz')}")
    handle, name = tempfile.mkstemp(suffix=".gguf")
    os.close(handle)
    return Path(name)


def put(data: bytes) -> Path:
    path = scratch()
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)
    return path


def gguf(data: bytes) -> None:
    """Container, metadata, weights, tokenizer, template: `verify`; its verdict about loading must hold."""
    path = put(data)
    report = verify(path)
    if not report.errors and not report.left_out:
        with open_gguf(path) as model:
            name = model.metadata.get_str("general.architecture")
            find_arch(name)(HParams(model.metadata, name), FileWeights(model), Cache(64)).build()
            build_tokenizer(model.metadata)
        return
    try:
        with open_gguf(path) as model:
            describe(model)
            for tensor in model.tensors:
                model.raw(tensor).sum()
            for key in model.metadata:
                value = model.metadata[key]
                if hasattr(value, "tolist"):
                    value.tolist()
    except ModelError:
        if not report.errors:
            raise AssertionError("the loader refuses what verify does not") from None
        raise


def tokenizer(data: bytes) -> None:
    """Lines: kind; pre-tokenizer; NAME=ID ...; merges, separated by commas; then "TYPE TEXT" of each
    token.
    """
    lines = data.decode("utf-8", "replace").split("\n")
    lines += [""] * (5 - len(lines))
    kind, pre, ids, merges, *rows = lines
    metadata: dict[str, object] = {f"tokenizer.ggml.{n}": v for n, v in (("model", kind), ("pre", pre))}
    for assignment in ids.split():
        name, _, number = assignment.partition("=")
        key = f"tokenizer.ggml.{name}"
        if number.lstrip("-").isdecimal() and number.isascii() and len(number) < 20:
            metadata[key] = int(number)
        else:
            metadata[key] = number == "true"
    pairs = [row.partition(" ") for row in rows]
    metadata["tokenizer.ggml.tokens"] = [text for _, _, text in pairs]
    metadata["tokenizer.ggml.token_type"] = [
        int(t) if t.isascii() and t.isdecimal() and len(t) < 9 else 1 for t, _, _ in pairs
    ]
    metadata["tokenizer.ggml.scores"] = [-float(i) for i in range(len(pairs))]
    if merges:
        metadata["tokenizer.ggml.merges"] = merges.split(",")
    made = build_tokenizer(metadata)
    for text in (*TEXTS, rows[-1]):
        for special in (False, True):
            tokens = made.encode(text, special=special)
            if not all(0 <= token < made.vocab_size for token in tokens):
                raise AssertionError("an id out of the vocabulary")
            made.decode(tokens, special=True)
        if made.unescape(made.escape(text)) != text:
            raise AssertionError("escaping lost something")


def template(data: bytes) -> None:
    made = ChatTemplate(data.decode("utf-8", "replace"), bos_token="<s>", eos_token="</s>")
    made.check()
    for turns in (CHAT[1:2], CHAT):
        try:
            made.render(turns)
        except RequestError:
            continue


def logits(data: bytes) -> None:
    found = open_logits(put(data))
    found.log_probs(0, 0, 1)


def imatrix(data: bytes) -> None:
    """Importance data in either format."""
    with open_importance(put(data)) as found:
        for name in found.weights:
            found.diagonal(name)
            found.hessian(name)


def safetensors(data: bytes) -> None:
    file = SafetensorsFile(put(data))
    try:
        for tensor in file.tensors.values():
            if tensor.all().nbytes != tensor.nbytes:
                raise AssertionError(f"{tensor.name}: other bytes than its shape says")
    finally:
        file.close()


def editing(data: bytes) -> None:
    """Metadata assignments, one a line; each is applied over the one before."""
    metadata = Metadata.of({"a.b": 1, "a.c": "x", "a.d": [1, 2], "a.e": 0.5, "a.f": True})
    for line in data.decode("utf-8", "replace").split("\n"):
        value = line.partition("=")[2]
        if value.startswith("@") and not value.startswith("@@"):
            continue  # the fuzzer must not read files of the machine
        try:
            metadata = change(metadata, sets=[parse_assignment(line, metadata)])
        except RequestError:
            continue


def manifest(data: bytes) -> None:
    read_manifest(put(data), "sha256")


def state(data: bytes) -> None:
    """A saved state: when it opens and passes its check, every block can be read."""
    with open_saved(put(data), SHAPE) as found:
        found.check()
        if not 0 <= int(found.ids.min()) <= int(found.ids.max()) < SHAPE.vocabulary:
            raise AssertionError("an id out of the vocabulary")


HERE: tuple[Target, ...] = (
    gguf, tokenizer, template, logits, imatrix, safetensors, editing, manifest, state,
)  # fmt: skip
BESIDE: tuple[Target, ...] = (
    fuzz_requests.requests,
    fuzz_readers.schema,
    fuzz_readers.gbnf,
    fuzz_readers.lark,
    fuzz_readers.regex,
    fuzz_readers.registry,
    fuzz_readers.lock,
    fuzz_readers.journal,
    fuzz_readers.config,
    fuzz_readers.wire,
    fuzz_adapters.lora,
    fuzz_adapters.peft,
    fuzz_adapters.onnx,
)
TARGETS: dict[str, Target] = {f.__name__: f for f in (*HERE, *BESIDE)}
# The packages that a target needs: extras of pyproject.toml.
NEEDS = {"requests": ("fastapi", "uvicorn"), "config": ("fastapi",), "onnx": ("onnx",)}


def missing(name: str) -> str:
    """Why a target can't run here; "" where it can."""
    absent = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def run(name: str, data: bytes) -> SatchelError | None:
    """Runs one input; returns the SatchelError in which it ended, or None. Any other exception is a bug."""
    try:
        TARGETS[name](data)
    except SatchelError as error:
        return error
    return None
