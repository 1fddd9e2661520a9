"""Digests of a model's files, of each tensor, and of the model independent of tensor order and alignment.

The bytes are read by read calls, not through the mapping: a file that shrinks meanwhile gives ModelError.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from satchel.errors import ModelError, RequestError
from satchel.errors.threads import SafeThreadPool
from satchel.formats.gguf.reader import CHUNK, GGUF, Part

ALGORITHMS = ("sha256", "sha1", "sha512", "blake2b", "md5")
THREADS = 2
MODEL = "-model"  # suffix of the algorithm's name in the manifest line of the model's digest
LINE = re.compile(r"(?:(?P<algorithm>[a-z0-9-]+)\s+)?(?P<digest>[0-9a-fA-F]{8,128})[ \t]+\*?(?P<name>\S.*)")
MANIFEST_LIMIT = 1 << 28  # bytes


@dataclass(frozen=True, slots=True)
class Digests:
    """Hexadecimal digests of one model."""

    algorithm: str
    files: Mapping[str, str]  # of each part's bytes, by file name
    tensors: Mapping[str, str]  # of each tensor's bytes, by name in file order
    model: str  # of all tensors, see `model_digest`

    def lines(self, tensors: bool = True) -> list[str]:
        """Manifest lines: algorithm, digest, and a name (FILE, FILE:TENSOR, or the first FILE
        for the model).
        """
        first = next(iter(self.files))
        rows = [(self.algorithm, d, f"{first}:{name}") for name, d in self.tensors.items() if tensors]
        rows += [(self.algorithm, digest, name) for name, digest in self.files.items()]
        return [f"{a}  {d}  {name}" for a, d, name in (*rows, (self.algorithm + MODEL, self.model, first))]


def digest(
    gguf: GGUF, algorithm: str = "sha256", progress: Callable[[int, int], None] | None = None
) -> Digests:
    """Digests of an open file or set. It is read twice: by tensor and by file.

    progress: called with (bytes done, bytes in all) from any thread, one call at a time.
    """
    if algorithm not in ALGORITHMS:
        raise RequestError(f"algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    total = sum(i.nbytes for i in gguf.tensors.values()) + sum(p.size for p in gguf.parts)
    advance = _counter(total, progress)
    with SafeThreadPool(THREADS, "satchel-hash") as pool:
        whole = {p.path.name: pool.submit(_part, p, algorithm, advance) for p in gguf.parts}
        found = pool.map(partial(_tensor, gguf, algorithm, advance), gguf.tensors)
        tensors = dict(zip(gguf.tensors, found, strict=True))
        named = {name: future.result() for name, future in whole.items()}
    return Digests(algorithm, named, tensors, model_digest(gguf, tensors, algorithm))


def check_digests(
    gguf: GGUF, expected: Sequence[Expected], progress: Callable[[int, int], None] | None = None
) -> None:
    """Raises ModelError where the open file does not have the expected digests.

    Where some lines name this file, lines about other files are ignored. The bytes are read from the open
    descriptors, so they are the ones that are used later.
    """
    own = {part.path.name for part in gguf.parts}
    named = [e for e in expected if {Path(e.name).name, Path(e.name.rpartition(":")[0]).name} & own]
    chosen = named or list(expected)
    for algorithm in dict.fromkeys(e.algorithm.removesuffix(MODEL) for e in chosen):
        lines = [e for e in chosen if e.algorithm.removesuffix(MODEL) == algorithm]
        wrong = compare(gguf, digest(gguf, algorithm, progress), lines)
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ModelError(
                f"{gguf.path}: {wrong[0]}{more}: the file is damaged, or another one than the digests are of:"
                " download it again"
            )


def model_digest(gguf: GGUF, tensors: Mapping[str, str], algorithm: str) -> str:
    """One digest of all tensors, independent of their order, parts and alignment.

    It is the digest of the lines "NAME TYPE DIMENSIONS DIGEST\\n" in UTF-8, sorted by name. DIMENSIONS are
    outermost first, joined by "x".
    """
    found = hashlib.new(algorithm)
    for name in sorted(tensors):
        info = gguf.tensors[name]
        shape = "x".join(map(str, info.shape))
        found.update(f"{name} {info.format} {shape} {tensors[name]}\n".encode())
    return found.hexdigest()


def data_digest(gguf: GGUF, algorithm: str) -> str:
    """Digest of all tensors' bytes in file order, without padding: what llama.cpp's gguf-hash prints for the
    file."""
    found = hashlib.new(algorithm)
    for name in gguf.tensors:
        for chunk in gguf.chunks(name):
            found.update(chunk)
    return found.hexdigest()


def _counter(total: int, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    done, lock = [0], Lock()

    def advance(count: int) -> None:
        with lock:
            done[0] += count
            if progress:
                progress(done[0], total)

    return advance


def _tensor(gguf: GGUF, algorithm: str, advance: Callable[[int], None], name: str) -> str:
    found = hashlib.new(algorithm)
    for chunk in gguf.chunks(name):
        found.update(chunk)
        advance(len(chunk))
    return found.hexdigest()


def _part(part: Part, algorithm: str, advance: Callable[[int], None]) -> str:
    found = hashlib.new(algorithm)
    buffer = memoryview(bytearray(min(CHUNK, part.size)))
    for start in range(0, part.size, CHUNK):
        piece = buffer[: min(CHUNK, part.size - start)]
        part.read_into(start, piece)
        found.update(piece)
        advance(len(piece))
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Expected:
    """A line of a manifest: the digest that a file, or a tensor of it, should have."""

    algorithm: str
    digest: str
    name: str


def read_manifest(path: Path, usual: str) -> list[Expected]:
    """The lines of a manifest written by `satchel hash`, gguf-hash, or sha256sum and the like. `usual` is the
    algorithm of lines that name none."""
    try:
        if path.stat().st_size > MANIFEST_LIMIT:
            raise RequestError(f"{path}: expected a manifest below {MANIFEST_LIMIT} bytes, got a larger file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RequestError(f"{path}: expected lines of digests, got no text; give a manifest") from None
    except OSError as error:
        raise RequestError(f"{path}: can't be read: {error.strerror or error}; check the path") from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [(line, LINE.fullmatch(line.strip())) for line in lines]
    wrong = next((line for line, match in found if match is None), None)
    if wrong is not None or not found:
        got = "an empty file" if wrong is None else ascii(wrong[:60])
        raise RequestError(
            f"{path}: expected lines of algorithm, digest and name, got {got}; give a manifest"
        )
    return [Expected(m["algorithm"] or usual, m["digest"].lower(), m["name"]) for _, m in found if m]


def compare(gguf: GGUF, found: Digests, manifest: Iterable[Expected]) -> list[str]:
    """A line for each difference from the manifest: another digest, a missing or an unlisted tensor."""
    wrong: list[str] = []
    listed: set[str] = set()
    for line in manifest:
        file, _, tensor = line.name.rpartition(":")
        if line.algorithm == found.algorithm + MODEL:
            name, got = "the model", found.model
        elif file:
            name, got = f"tensor {tensor}", found.tensors.get(tensor, "")
            listed.add(tensor)
        else:
            only = next(iter(found.files.values())) if len(found.files) == 1 else ""
            name, got = f"file {line.name}", found.files.get(Path(line.name).name, only)
            if got != line.digest and line.digest == data_digest(gguf, found.algorithm):
                got = line.digest
        if got != line.digest:
            wrong.append(f"{name}: expected {line.digest}, got {got or 'none of that name'}")
    if listed:
        wrong += [f"tensor {name}: not in the manifest" for name in found.tensors if name not in listed]
    return wrong
