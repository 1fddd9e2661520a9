"""Options of the commands that apply LoRA adapters and control vectors: names and meaning are llama.cpp's."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong

if TYPE_CHECKING:
    from satchel.runtime.adapter_file import AdapterFile


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """LoRA adapters and control vectors, applied to all requests."""

    lora: Annotated[
        list[str] | None,
        option("--lora", env="LORA", metavar="FILE,...", help="LoRA adapter (GGUF); may be repeated."),
    ] = None
    lora_scaled: Annotated[
        list[str] | None,
        option("--lora-scaled", metavar="FILE:SCALE,...", help="The same at a scale of its own."),
    ] = None
    vector: Annotated[
        list[str] | None,
        option("--control-vector", metavar="FILE,...", help="Control vector (GGUF); may be repeated."),
    ] = None
    vector_scaled: Annotated[
        list[str] | None,
        option("--control-vector-scaled", metavar="FILE:SCALE,...", help="The same at a scale of its own."),
    ] = None
    vector_layers: Annotated[
        tuple[int, int] | None,
        option(
            "--control-vector-layer-range",
            metavar="START END",
            help="Layers that control vectors steer, both included; default: all.",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, texts in (
            ("--lora-scaled", self.lora_scaled),
            ("--control-vector-scaled", self.vector_scaled),
        ):
            for text in _parts(texts):
                _scaled(name, text)
        if self.vector_layers is not None and not 1 <= self.vector_layers[0] <= self.vector_layers[1]:
            raise wrong("--control-vector-layer-range", "expected a first and a last layer from 1 on")

    def lora_files(self) -> list[AdapterFile]:
        return _files(self.lora, "--lora-scaled", self.lora_scaled, None)

    def control_vector_files(self) -> list[AdapterFile]:
        return _files(self.vector, "--control-vector-scaled", self.vector_scaled, self.vector_layers)


def _parts(texts: list[str] | None) -> list[str]:
    return [part for text in texts or () for part in text.split(",") if part]


def _scaled(name: str, text: str) -> tuple[Path, float]:
    path, _, scale = text.rpartition(":")
    try:
        number = float(scale) if path else nan
    except ValueError:
        number = nan
    if not isfinite(number):
        raise wrong(name, f"{text}: expected FILE:SCALE, such as style.gguf:0.5")
    return Path(path), number


def _files(
    plain: list[str] | None, name: str, scaled: list[str] | None, layers: tuple[int, int] | None
) -> list[AdapterFile]:
    """The adapters by name, in the order of the options; equal names get a number."""
    from satchel.runtime.adapter_file import AdapterFile

    found = [(Path(part), 1.0) for part in _parts(plain)] + [_scaled(name, part) for part in _parts(scaled)]
    stems = [path.stem for path, _ in found]
    return [
        AdapterFile(path, scale, path.stem if stems.count(path.stem) == 1 else f"{path.stem}-{i}", layers)
        for i, (path, scale) in enumerate(found)
    ]
