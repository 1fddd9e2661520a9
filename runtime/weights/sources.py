"""Opens the source of a model: a GGUF file, or a checkpoint folder through its architecture's mapping."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import Metadata, open_gguf
from satchel.formats.source import Source
from satchel.quant import FORMATS
from satchel.runtime.graph import Array, Type
from satchel.runtime.layers.arch import Cache, HParams, architectures, find_arch

if TYPE_CHECKING:
    from satchel.formats.convert.checkpoint import Checkpoint
    from satchel.formats.convert.lora import Base, LoraCheckpoint
    from satchel.formats.convert.mapping import ArchMapping
    from satchel.formats.convert.shaping import Shaping


def mappings() -> list[ArchMapping]:
    """All checkpoint mappings in runtime/models: MAPPING, or MAPPINGS for several."""
    modules = (importlib.import_module(f"satchel.runtime.models.{name}") for name in architectures())
    found = (vars(module).get("MAPPINGS") or (vars(module).get("MAPPING"),) for module in modules)
    return [mapping for several in found for mapping in several if mapping is not None]


def open_source(path: str | Path) -> Source:
    """A GGUF file, or a folder with config.json and weights, as tensors with GGUF's names and formats. Raises
    ModelError for anything else, and for malformed sources and unknown architectures.
    """
    path = Path(path)
    return open_checkpoint(path) if path.is_dir() else open_gguf(path)


def open_checkpoint(path: str | Path, shaping: Shaping | None = None) -> Checkpoint:
    """A checkpoint folder, validated as strictly as a file: every tensor that the architecture reads is
    present with its shape, and there is no other.
    """
    from satchel.formats.convert.checkpoint import Checkpoint
    from satchel.formats.convert.shaping import Shaping

    if not Path(path).is_dir():
        got = "a file" if Path(path).exists() else "nothing there"
        raise RequestError(
            f"{path}: expected the folder of a checkpoint, with config.json and the weights, got {got}"
        )
    checkpoint = Checkpoint(Path(path), mappings(), shaping or Shaping())
    try:
        check(checkpoint)
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def check(checkpoint: Checkpoint) -> None:
    """Builds the architecture's graph on the checkpoint's tensors. ModelError as from the loader, with the
    checkpoint's name of the tensor."""
    arch = checkpoint.metadata.get_str("general.architecture")
    hp = HParams(
        Metadata({k: checkpoint.metadata.typed(k) for k in checkpoint.metadata}, str(checkpoint.path)), arch
    )
    try:
        find_arch(arch, str(checkpoint.path))(hp, _CheckpointWeights(checkpoint), Cache(context=32)).build()
    except ModelError as error:
        name = str(error).split(":")[0]
        tensor = checkpoint.tensors.get(name)
        origin = f" (made of {tensor.origin[0]})" if tensor is not None and tensor.origin else ""
        text = str(error) if str(error).startswith(str(checkpoint.path)) else f"{checkpoint.path}: {error}"
        raise ModelError(f"{text}{origin}") from None


class _CheckpointWeights:
    """A checkpoint's tensors as an architecture sees them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.checkpoint.tensors)

    def type(self, name: str) -> Type | None:
        tensor = self.checkpoint.tensors.get(name)
        return None if tensor is None else Type(tensor.shape, tensor.format)

    def array(self, name: str) -> Array:
        """Float32 values."""
        tensor = self.checkpoint.tensors[name]
        fmt = FORMATS[tensor.format]
        raw = b"".join(bytes(piece) for piece in self.checkpoint.chunks(name))
        return fmt.decode(np.frombuffer(raw, fmt.dtype)).reshape(tensor.shape)


def open_adapter(path: str | Path, base: str | Path | None = None, outtype: str = "auto") -> LoraCheckpoint:
    """A PEFT adapter folder. base: the model that it changes, a GGUF file or a folder with config.json;
    default: the one that the adapter names, if that is a local folder.
    """
    from satchel.formats.convert.jsonfile import read_json
    from satchel.formats.convert.lora import LoraCheckpoint

    path = Path(path)
    if base is None:
        stated = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        if not isinstance(stated, str) or not (Path(stated) / "config.json").is_file():
            raise RequestError(
                f"{path}: the adapter's model {stated!a:.80} is not a local folder; give it with --base"
            )
        base = stated
    return LoraCheckpoint(path, _base(Path(base)), outtype)


def _base(path: Path) -> Base:
    """Architecture and head counts of a model, from its config or its GGUF file."""
    from satchel.formats.convert.config import read_config
    from satchel.formats.convert.lora import Base

    keys = ("attention.head_count", "attention.head_count_kv")
    if path.is_dir():
        model = read_config(path / "config.json", mappings())
        return Base(model.arch, model.mapping, {key: model.uint(key) for key in keys})
    with open_gguf(path) as gguf:
        arch = gguf.metadata.get_str("general.architecture")
        hp = HParams(gguf.metadata, arch)
        config = {"num_local_experts": hp.uint("expert_count", 0, low=0)}  # some mappings depend on it
        known = (m for m in mappings() if arch in (m.arch_of(config), m.model_type))
        mapping = next((m for m in known if m.only(config)), None)
        if mapping is None:
            raise ModelError(f"{path}: general.architecture: no mapping for adapters of {arch!r}")
        layers, usual = hp.uint("block_count", high=1 << 16), None
        heads = {}
        for key in keys:
            heads[key] = usual = max(hp.each_layer(key, layers, usual, low=0))
        return Base(arch, mapping, heads)
