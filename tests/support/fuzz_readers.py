"""Fuzz targets for texts from clients, registries and other processes: grammars, registry responses, lock
files, download journals, configuration files, messages of a worker process. As in fuzz_targets.py, each run
ends in one of the three errors or in none.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import toy_vocab

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.grammar import compile_grammar
from satchel.runtime.grammar.spec import Gbnf, JsonSchema, Lark, Regex, Spec
from satchel.runtime.worker.wire import LENGTHS, decode, decode_error, read_message

# Complete answers that are checked against every grammar.
ANSWERS = ("", "{}", '{"a": 1, "b": [true, null, "x"]}', "[[], 1e3]", '"a"', "-1", "yes", "a" * 40)
TOKENS = 24  # the longest answer that is drawn from a grammar
LARGEST = 1 << 50  # bytes: the largest file size that the store accepts


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@cache
def folder() -> Path:
    """A folder of this process, which is removed at its end."""
    made = Path(tempfile.mkdtemp(prefix="satchel-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


# --- grammars


@cache
def vocabulary() -> Tokenizer:
    """A small byte-level vocabulary with all 256 bytes."""
    return build_tokenizer(toy_vocab.byte_level())


def walk(spec: Spec, seed: int) -> None:
    """Compiles a grammar, draws an answer by its token bitmasks, and checks it. An answer that the masks
    allow must pass the check, and the matcher must accept what it allowed.
    """
    made = compile_grammar(vocabulary(), spec)
    for answer in ANSWERS:
        made.check(answer)
    rng, constraint = np.random.default_rng(seed), made.constraint()
    bitmask = np.zeros((vocabulary().vocab_size + 31) // 32, np.uint32)
    ids: list[int] = []
    while len(ids) < TOKENS and not constraint.finished:
        constraint.fill(bitmask)
        allowed = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        constraint.accept(token)
        if int(made.vocabulary.ends[token >> 5]) >> (token & 31) & 1:
            break
        ids.append(token)
    if constraint.complete and ids:
        text = vocabulary().decode(ids)
        wrong = made.check(text)
        # A mask allows exponents with more digits than a number may have.
        if "\ufffd" not in text and wrong and "out of range" not in wrong:
            raise AssertionError(f"the masks led to {text!r}, of which the check says: {wrong}")


def schema(data: bytes) -> None:
    walk(JsonSchema(text_of(data)), len(data))


def gbnf(data: bytes) -> None:
    walk(Gbnf(text_of(data)), len(data))


def lark(data: bytes) -> None:
    walk(Lark(text_of(data)), len(data))


def regex(data: bytes) -> None:
    walk(Regex(text_of(data)), len(data))


# --- responses of registries


def registry(data: bytes) -> None:
    """A model name, then responses, each after a line `---`: status, header lines, an empty line, the body.
    Every path must stay in the store's folder, and every address must be one that was requested.
    """
    from satchel.store import hub
    from satchel.store import registry as ollama
    from satchel.store.names import HubName, OllamaName, parse
    from satchel.store.remote import from_web
    from satchel.store.web import Interrupted

    first, *answers = data.split(b"\n---\n")
    name = parse(text_of(first))
    web = replayed(answers)
    try:
        if isinstance(name, HubName):
            wanted = hub.resolve(name, web, {})
        elif isinstance(name, OllamaName):
            wanted = ollama.resolve(name, web, {})
        elif hasattr(name, "url"):
            wanted = from_web(name)
        else:
            return
    except Interrupted:
        return
    finally:
        web.close()
    for remote in wanted.files:
        path = PurePosixPath(remote.file)
        if path.is_absolute() or ".." in path.parts or "\0" in remote.file or "\\" in remote.file:
            raise AssertionError(f"a file outside of the store: {remote.file!r}")
        if remote.size is not None and not 0 < remote.size <= LARGEST:
            raise AssertionError(f"a size of {remote.size}")
    if not (wanted.licence + wanted.name).isprintable():
        raise AssertionError("a name or licence that writes to the terminal")


def replayed(answers: list[bytes]) -> Any:
    """The store's HTTP client with connections that replay these responses; it opens no socket."""
    from satchel.store.web import HttpResponse, Interrupted, Web

    class Replayed(Web):
        @contextmanager
        def _stream(
            self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
        ) -> Iterator[HttpResponse]:
            if not answers:
                raise Interrupted("no more answers")
            head, _, rest = answers.pop(0).partition(b"\n\n")
            status, *lines = head.decode("latin-1").split("\n")
            pairs = (line.partition(":") for line in lines)
            found = {key.lower(): value.strip() for key, _, value in pairs}
            number = int(status) if status.isascii() and status.isdecimal() and len(status) == 3 else 200
            yield HttpResponse(number, found, url, iter([rest]))

    return Replayed()


# --- files that the program writes itself


def lock(data: bytes) -> None:
    """models.lock: every named file lies in the store or has an absolute path, and a lock is written as it
    was read.
    """
    from satchel.store.lock import LockFile

    file = LockFile(folder())
    file.path.write_bytes(data)
    models = file.read()
    for model in models.values():
        for pinned in model.files:
            if pinned.own and not file.location(pinned).resolve().is_relative_to(folder().resolve()):
                raise AssertionError(f"a file outside of the store: {pinned.path!r}")
    if models:
        file._write(models)
        if file.read() != models:
            raise AssertionError("what was written is not what was read")
        for model in models.values():
            try:
                file.check(model)
            except RequestError:
                continue


def journal(data: bytes) -> None:
    """The journal of a download: spans lie in the file, and the present and missing spans together make the
    file.
    """
    from satchel.store.journal import Journal, read_journal

    path = folder() / "journal"
    path.write_bytes(data)
    known = read_journal(path)
    if known is None:
        return
    identity, spans = known
    if not 0 <= spans.total <= identity.size:
        raise AssertionError(f"{spans.total} bytes are there of {identity.size}")
    piece = max(1, identity.size // 50)
    missing = sum(end - start for start, end in spans.gaps(identity.size, piece))
    if missing + spans.total != identity.size:
        raise AssertionError("what is there and what is missing are not the file")
    log = Journal(path, identity)
    log.add(0, 1)
    log.close()
    again = read_journal(path)
    if identity.lasting and (again is None or again[0] != identity or again[1].front < 1):
        raise AssertionError("a line that was added is not read")


def config(data: bytes) -> None:
    """The configuration file: options of `serve`, models and aliases, as the server reads them."""
    from satchel.cli import config as file
    from satchel.cli.usage import UsageError
    from satchel.runtime.api.options import Options
    from satchel.server.catalog import catalog_of

    path = folder() / "config.toml"
    path.write_bytes(data)
    tables = file.read(path)
    try:
        file.check_tables(path, tables, ("serve", "chat"))
    except UsageError:
        return
    for table in tables.get("models", {}).values():
        if isinstance(table, dict) and isinstance(table.get("path"), str):
            table["path"] = str(path)  # the fuzzer must not look for files of the machine
    catalog = catalog_of({"first": path}, tables, Options(), 0.0, path)
    for alias in catalog.aliases.values():
        if not set(alias.versions) <= set(catalog.models):
            raise AssertionError("an alias of a model that is not there")


# --- the worker process


def wire(data: bytes) -> None:
    """Consecutive messages, read as either end of the worker's pipe reads them."""
    pipe = io.BytesIO(data)
    while (got := read_message(pipe)) is not None:
        message, rest = got
        raw = np.frombuffer(rest, np.uint8)
        for name, value in message.items():
            if name == "error":
                decode_error(value)
            else:
                decode(value, raw)


def message_of(head: bytes, rest: bytes = b"") -> bytes:
    """A message as bytes in the pipe."""
    return LENGTHS.pack(len(head), len(rest)) + head + rest
