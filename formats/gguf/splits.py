"""Split sets, NAME-00001-of-0000N.gguf: the names of parts, and the checks that their headers agree.

A part's path is always derived from the path that the user gave; metadata never names a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from satchel.errors import ModelError
from satchel.formats.gguf.check import STRICT, Fault, Judge
from satchel.formats.gguf.header import Header, TensorInfo
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.values import Typed, pack

NUMBER_KEY, COUNT_KEY, TENSORS_KEY = "split.no", "split.count", "split.tensors.count"
SPLIT_KEYS = (NUMBER_KEY, COUNT_KEY, TENSORS_KEY)
AGAIN = "the parts are of different sets: download them again"
PARTS_LIMIT = 9_999  # far above any real set, within reach of the limit on open files
NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_path(base: Path, index: int, count: int) -> Path:
    """The path of part `index` (from 0) of the set. base: the set's path without the suffix."""
    return base.with_name(f"{base.name}-{index + 1:05d}-of-{count:05d}.gguf")


def list_parts(path: Path, metadata: Metadata) -> list[Path]:
    """The paths of all parts of the set that this file belongs to; only `path` where it belongs to none."""
    if COUNT_KEY not in metadata:
        return [path]
    count = metadata.get_uint(COUNT_KEY, low=1, high=PARTS_LIMIT)
    if count == 1:
        return [path]
    number = metadata.get_uint(NUMBER_KEY, low=0, high=count - 1)
    match = NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        wanted = f"one that ends in -{number + 1:05d}-of-{count:05d}.gguf (part {number + 1} of {count})"
        raise ModelError(
            f"{path}: name: expected {wanted}, got {path.name!a}; give the parts their old names back"
        )
    return [part_path(path.with_name(match["prefix"]), index, count) for index in range(count)]


def warn_of_name(path: Path, metadata: Metadata) -> list[str]:
    match = NAME.fullmatch(path.name)
    if match is None or COUNT_KEY in metadata or int(match["count"]) == 1:
        return []
    return [
        f"{path}: named as part {match['number']} of {match['count']}, but the file knows no set: read alone"
    ]


def merge_headers(
    paths: Sequence[Path], headers: Sequence[Header], judge: Judge = STRICT
) -> tuple[Metadata, dict[str, TensorInfo]]:
    """The metadata (of the first part) and the tensors of a set. The judge gets an error for each
    disagreement.
    """
    first = headers[0].metadata
    tensors: dict[str, TensorInfo] = {}
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        if len(paths) > 1:
            _check_part(header.metadata, first, index, len(paths), judge)
        twice = next((name for name in header.tensors if name in tensors), None)
        if twice is not None:
            other = paths[tensors[twice].part].name
            reason = f"expected in one part, got it in {other!a} too"
            judge.refuse(Fault(str(path), f"tensor {twice}", None, reason, AGAIN))
        tensors.update(header.tensors)
    if len(paths) > 1:
        wanted = first.get_uint(TENSORS_KEY, len(tensors))
        if wanted != len(tensors):
            judge.refuse(
                first.fault(TENSORS_KEY, f"{len(tensors)} (the tensors of all parts)", wanted, AGAIN)
            )
    return first, tensors


def _check_part(metadata: Metadata, first: Metadata, index: int, count: int, judge: Judge) -> None:
    for key, number in ((COUNT_KEY, count), (NUMBER_KEY, index)):
        try:
            metadata.get_uint(key, low=number, high=number)
        except ModelError as error:
            judge.refuse(error)
    for key in metadata:
        if key == NUMBER_KEY or index == 0:
            continue
        if key not in first:
            judge.refuse(metadata.fault(key, f"no key that {first.source} lacks", "one", AGAIN))
        elif not same_value(metadata.typed(key), first.typed(key)):
            judge.refuse(metadata.fault(key, f"the value of {first.source}", "another", AGAIN))


def same_value(a: Typed, b: Typed) -> bool:
    return pack(a) == pack(b)
