"""Generates the table of docs/models.md: every architecture with the NMSE of its logits against transformers
and llama.cpp, on small random checkpoints converted by `satchel convert`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import families
import mixed_families as mixed
import numpy as np
import numpy.typing as npt
from accuracy import nmse
from doc_tables import replaced

from satchel.formats.convert.write import write_source
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.layers.arch import architectures
from satchel.runtime.weights.sources import open_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
HEAD = (
    "| architecture | families | checkpoints compared | transformers | llama.cpp |\n|---|---|---|---|---|\n"
)
CONTEXT = {"phi3_long": 64}
Logits = npt.NDArray[np.float32]


@dataclass
class Row:
    """A row of the table: one architecture."""

    cases: list[str] = field(default_factory=list)  # names of its checkpoints
    transformers: float = 0.0  # the largest NMSE of their logits
    peer: list[float] = field(default_factory=list)


def plain_cases() -> Iterator[tuple[str, Path, Logits]]:
    """The checkpoints of test_checkpoint.py: Llama, Mistral, Qwen."""
    sys.path[:0] = [str(ROOT / "tests/formats/convert")]
    import test_checkpoint

    with np.load(families.DATA / "logits.npz") as stored, TemporaryDirectory() as folder:
        for case in test_checkpoint.CASES:
            found = test_checkpoint.checkpoint(Path(folder) / case.replace(" ", "_"), case)
            yield case, found, stored[case.replace(" ", "_")]


def family_cases(module: object, names: Iterable[str], shapes: Path) -> Iterator[tuple[str, Path, Logits]]:
    known = json.loads(shapes.read_text())
    with np.load(shapes.with_suffix(".npz")) as stored, TemporaryDirectory() as folder:
        for case in names:
            settings = module.config(case)  # type: ignore[attr-defined]
            values = families.tensors(case, known[case])
            yield case, families.write(Path(folder) / "toy" / case[:3], settings, values), stored[case]


def cases() -> Iterator[tuple[str, Path, Logits]]:
    """Name, folder and transformers' logits at two positions of every checkpoint that is compared."""
    yield from plain_cases()
    yield from family_cases(families, families.CASES, families.DATA / "families.json")
    yield from family_cases(mixed, (*mixed.CASES, *mixed.ENCODERS), mixed.STEM.with_suffix(".json"))


def logits_of(path: Path, case: str = "") -> Logits:
    """The logits at two positions; hidden states for an encoder."""
    with Model.load(path, cache_type="f32", threads=1, context=CONTEXT.get(case, 128)) as model:
        if case in mixed.ENCODERS:
            return np.asarray(model.embed_tokens([families.IDS], normalize=False)[0])
        return np.asarray(model.logits(families.IDS))


def convert(folder: Path, name: str) -> Path:
    with open_checkpoint(folder) as source:
        return write_source(source, folder.with_name(name))[0]


def peer_nmse(folder: Path, path: Path, case: str) -> list[float]:
    """NMSE against llama.cpp, where it is installed, reads the file, and computes the same function.
    families.PEER holds the changes that make it comparable.
    """
    import pytest
    from peer import peer_logits, peer_rows

    if case in mixed.UNKNOWN_TO_PEER:
        return []
    if case in families.PEER:
        settings = json.loads((folder / "config.json").read_text()) | families.PEER[case]
        (folder / "config.json").write_text(json.dumps(settings))
        path = convert(folder, f"{case} peer.gguf")
    try:
        read = peer_rows if case in mixed.ENCODERS else peer_logits
        return [nmse(logits_of(path, case), read(path, families.IDS))]
    except (pytest.skip.Exception, AssertionError):
        return []


def measure() -> dict[str, Row]:
    rows = {arch: Row() for arch in architectures()}
    for case, folder, want in cases():
        path = convert(folder, f"{case}.gguf")
        with open_gguf(path) as file:
            row = rows[file.metadata.get_str("general.architecture").replace("-", "_")]
        row.cases.append(case)
        row.transformers = max(row.transformers, nmse(logits_of(path, case)[list(families.KEPT)], want))
        row.peer += peer_nmse(folder, path, case)
    return rows


def family(arch: str) -> str:
    """The family that the architecture's docstring names before its colon."""
    said = importlib.import_module(f"satchel.runtime.models.{arch}").__doc__ or ""
    return " ".join(said.partition(":")[0].split())


def table(rows: dict[str, Row]) -> str:
    lines = []
    for arch, row in rows.items():
        peer = f"{max(row.peer):.0e}" if row.peer else "–"
        names = ", ".join(row.cases) or "–"
        lines.append(f"| `{arch}` | {family(arch)} | {names} | {row.transformers:.0e} | {peer} |\n")
    return HEAD + "".join(lines)


def write() -> None:
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, table(measure()), END))


if __name__ == "__main__":
    write()
