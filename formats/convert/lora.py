"""PEFT's LoRA adapters as a source of GGUF adapter tensors: `<name>.lora_a` (rank, in), `<name>.lora_b`
(out, rank), as llama.cpp reads them.

A runtime adds alpha / rank * B A to the weight, so alpha is written such that this equals PEFT's factor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.checkpoint import Shaped
from satchel.formats.convert.folder import open_folder
from satchel.formats.convert.jsonfile import read_json
from satchel.formats.convert.logical import CHUNK, Logical, pieces, plain, retyped, transposed
from satchel.formats.convert.mapping import ArchMapping, MappedTensor
from satchel.formats.convert.shaping import neighbours
from satchel.formats.convert.stacks import half_of_rows
from satchel.formats.convert.stored import Stored
from satchel.formats.gguf import Metadata
from satchel.formats.gguf.check import quote
from satchel.formats.gguf.types import DEFAULT_ALIGNMENT
from satchel.formats.resource import Resource

NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<base>.+)\.lora_(?P<embedding>embedding_)?(?P<part>[AB])(?:\.\w+)?(?:\.weight)?"
)
RANK_LIMIT = 1 << 14
AGAIN = "other adapters than plain LoRA are not supported"
# A fused gate_up weight becomes two: each gets its half of B's rows, and all of A.
HALVES = {"first_rows": partial(half_of_rows, which=0), "second_rows": partial(half_of_rows, which=1)}
# Keys of adapter_config.json that change the computation, and their values in plain LoRA.
GUARDS: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
    "trainable_token_indices": (None,),
}


@dataclass(frozen=True, slots=True)
class Base:
    """The base model of an adapter. heads: numbers of heads by GGUF's key."""

    arch: str
    mapping: ArchMapping
    heads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Pair:
    """The factors A and B of one module."""

    place: MappedTensor
    a: Stored
    b: Stored
    embedding: bool


class LoraCheckpoint(Resource):
    """An open adapter folder; a satchel.formats.source.Source."""

    alignment = DEFAULT_ALIGNMENT

    def __init__(self, path: Path, base: Base, outtype: str = "auto") -> None:
        self.path, self.base = path, base
        self.config = read_json(path / "adapter_config.json")
        self.notes: tuple[str, ...] = ()
        self._check()
        self._container = open_folder(path)
        try:
            self._rows = dict(self._logicals(outtype))
        except BaseException:
            self.close()
            raise
        self.tensors = {
            name: Shaped(name, t.shape, t.format, t.rows * t.row_bytes, t.tensors, t.note)
            for name, t in self._rows.items()
        }
        values: dict[str, Any] = {
            "general.architecture": base.arch,
            "general.type": "adapter",
            "general.name": path.resolve().name,
            "adapter.type": "lora",
            "adapter.lora.alpha": self._alpha(),
        }
        self.metadata = Metadata.of(values, str(path))

    def _fault(self, key: str, expected: str, got: object) -> ModelError:
        where = self.path / "adapter_config.json"
        return ModelError(f"{where}: {key}: expected {expected}, got {got!a:.60}; {AGAIN}")

    def _check(self) -> None:
        if self.config.get("peft_type", "LORA") != "LORA":
            raise self._fault("peft_type", "LORA", self.config["peft_type"])
        for key, allowed in GUARDS.items():
            if self.config.get(key) not in allowed:
                raise self._fault(key, repr(allowed[0]), self.config[key])
        if self.config.get("alpha_pattern"):
            raise self._fault("alpha_pattern", "one alpha for all modules", self.config["alpha_pattern"])

    def _alpha(self) -> float:
        """The alpha for which alpha / rank is PEFT's factor: lora_alpha / r, or lora_alpha / sqrt(r) with
        rsLoRA.
        """
        alpha, rank = self.config.get("lora_alpha"), self.config.get("r")
        number = isinstance(alpha, int | float) and not isinstance(alpha, bool) and math.isfinite(alpha)
        if not number or not isinstance(alpha, int | float) or alpha <= 0:
            raise self._fault("lora_alpha", "a positive number", alpha)
        if not self.config.get("use_rslora"):
            return float(alpha)
        if type(rank) is not int or not 0 < rank <= RANK_LIMIT or self.config.get("rank_pattern"):
            raise self._fault("r", "one rank for all modules with use_rslora", rank)
        return float(alpha) * math.sqrt(rank)

    def _logicals(self, outtype: str) -> Iterator[tuple[str, Logical]]:
        for name, pair in sorted(self._pairs().items()):
            a, b = (plain(t) for t in (pair.a, pair.b))
            if pair.embedding:
                a = plain(transposed(pair.a))
            elif pair.place.rule.made:
                b = HALVES[pair.place.rule.made](b)
            elif pair.place.rule.heads:
                b = neighbours(b, self.base.heads[pair.place.rule.heads])
            for part, tensor in (("lora_a", a), ("lora_b", b)):
                target = tensor.format if outtype == "auto" else outtype
                yield f"{name}.{part}", replace(retyped(tensor, target), name=f"{name}.{part}")

    def _pairs(self) -> dict[str, Pair]:
        halves: dict[str, dict[str, Stored]] = {}
        embeddings: set[str] = set()
        for name, stored in self._container.tensors.items():
            match = NAME.fullmatch(name)
            if match is None:
                raise ModelError(
                    f"{stored.where}: tensor {quote(name, 100)}: expected names with lora_A or lora_B;"
                    f" {AGAIN}"
                )
            halves.setdefault(match["base"], {})[match["part"]] = stored
            if match["embedding"]:
                embeddings.add(match["base"])
        if not halves:
            raise ModelError(f"{self.path}: expected tensors, got none; the adapter is incomplete")
        return {
            place.name: pair
            for base, half in halves.items()
            for place, pair in self._places(base, half, base in embeddings)
        }

    def _places(
        self, base: str, half: Mapping[str, Stored], embedding: bool
    ) -> Iterator[tuple[MappedTensor, Pair]]:
        """A module's factors for each GGUF tensor that is made of its weight."""
        any_half = next(iter(half.values()))
        places = list(self.base.mapping.places(f"{base}.weight"))
        changed = [p for p in places if p.expert is None and p.rule.made in ("", *HALVES)]
        if not places or changed != places or any("_exps." in p.name for p in places):
            raise ModelError(
                f"{any_half.where}: {quote(base, 100)}: expected a module of"
                f" {self.base.mapping.classes[0]} that"
                " an adapter may change; is --base the model that it was trained on?"
            )
        if len(half) != 2:
            raise ModelError(
                f"{any_half.where}: {quote(base, 100)}: expected lora_A and lora_B, got one of them"
            )
        a, b = half["A"], half["B"]
        fits = len(a.shape) == len(b.shape) == 2 and a.shape[0] == b.shape[1] and 0 < a.shape[0] <= RANK_LIMIT
        if not fits:
            raise ModelError(
                f"{a.where}: {quote(base, 100)}: expected [rank, in] and [out, rank], got {list(a.shape)} and"
                f" {list(b.shape)}; the adapter is damaged"
            )
        yield from ((place, Pair(place, a, b, embedding)) for place in places)

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[memoryview]:
        """See Source. ModelError where a value is NaN or infinite."""
        yield from pieces(self._rows[name], size)

    def close(self) -> None:
        self._container.closer.__exit__(None, None, None)
