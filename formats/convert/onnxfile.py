"""Reads the weights of decoder models exported to ONNX, and recovers the checkpoint's names.

Exporters keep the names of embeddings, norms and biases. They often rename and transpose the weight of a
MatMul, but the name of its node still gives the layer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.convert.logical import transposed
from satchel.formats.convert.stored import DTYPES, Array, Container, Stored
from satchel.formats.gguf.check import quote

# Data types by TensorProto's number.
TYPES = {1: "F32", 7: "I64", 10: "F16", 11: "F64", 16: "BF16", 17: "F8_E4M3", 19: "F8_E5M2"}
# The repeated field with the values of a tensor without raw_data.
FIELDS = {
    "F32": "float_data",
    "I64": "int64_data",
    "F64": "double_data",
    **dict.fromkeys(("F16", "BF16", "F8_E4M3", "F8_E5M2"), "int32_data"),
}
FLOATS = ("F32", "F16", "F64", "BF16")
PREFERRED = ("model.onnx", "decoder_model_merged.onnx", "decoder_model.onnx")
# Exporters' names, and the checkpoint's.
ALIASES = (
    (re.compile(r"\.(MatMul|Gemm|Add)(?=\.(weight|bias)$)"), ""),
    (re.compile(r"^(model\.)+"), "model."),
    (re.compile(r"^model\.lm_head\."), "lm_head."),
    (re.compile(r"(?<=\d)\.attn\."), ".self_attn."),
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\."), "model.norm."),
)


def open_onnx(paths: list[Path]) -> Container:
    """The weights of the one graph among `paths` that holds a whole decoder."""
    try:
        import onnx
    except ImportError:
        raise RequestError(
            f"{paths[0]}: ONNX files need the onnx package: pip install 'satchel[convert]', or give the"
            " checkpoint as safetensors"
        ) from None
    named = {path.name: path for path in paths}
    chosen = next((named[name] for name in PREFERRED if name in named), paths[0])
    if len(paths) > 1 and chosen.name not in PREFERRED:
        raise ModelError(
            f"{chosen.parent}: expected one .onnx file or one of {', '.join(PREFERRED)}, got"
            f" {', '.join(sorted(named)[:5])}; keep the one to convert"
        )
    try:
        model = onnx.load(str(chosen), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{chosen}: the onnx package refuses it: {quote(str(error), 120)}") from None
    _check_texts(model, chosen)
    return Container(_Graph(chosen, model.graph, onnx).weights(), nullcontext())


class _Graph:
    """The initializers of a graph, named and transposed by the nodes that use them."""

    def __init__(self, path: Path, graph: Any, onnx: Any) -> None:
        self.path, self.graph, self.onnx = path, graph, onnx
        self.stored = {t.name: s for t in graph.initializer if (s := self._store(t)) is not None}

    def weights(self) -> dict[str, Stored]:
        found = {
            _canonical(name): stored
            for name, stored in self.stored.items()
            if name.endswith((".weight", ".bias")) and not self._is_product(name)
        }
        for node in _nodes(self.graph):
            if node.op_type.endswith("NBits") or node.op_type in ("QLinearMatMul", "DequantizeLinear"):
                raise ModelError(
                    f"{self.path}: node {quote(node.name)}: expected float products, got {node.op_type};"
                    " export the model without quantization"
                )
            if node.op_type in ("MatMul", "Gemm") and len(node.input) > 1:
                self._add_product(node, found)
        return {name: replace(stored, name=name) for name, stored in found.items()}

    def _add_product(self, node: Any, found: dict[str, Stored]) -> None:
        """Adds the second factor of a product, if it is a weight, as (N, K) under the checkpoint's name."""
        source, flipped = self._origin(node.input[1])
        stored = self.stored.get(source)
        if stored is None or len(stored.shape) != 2 or stored.dtype not in FLOATS:
            return
        if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
            flipped = not flipped
        name = _of_node(node)
        if name is None:
            if not source.endswith(".weight"):
                raise ModelError(
                    f"{self.path}: initializer {quote(source)}: expected a product whose name tells its"
                    f" layer, got {quote(node.name)}; export with optimum, which keeps the names, or give"
                    " safetensors"
                )
            name = _canonical(source)
        # A tied output head multiplies by the embeddings, which are already found.
        if name not in found:
            found[name] = stored if flipped else transposed(stored)

    def _origin(self, name: str) -> tuple[str, bool]:
        """The initializer behind a value, through Identity, Cast and Transpose; whether it is transposed."""
        producers = self._producers()
        flipped = False
        for _ in range(8):
            node = producers.get(name)
            if node is None or node.op_type not in ("Identity", "Cast", "Transpose"):
                break
            flipped ^= node.op_type == "Transpose"
            name = node.input[0]
        return name, flipped

    def _producers(self) -> dict[str, Any]:
        if not hasattr(self, "_made_by"):
            self._made_by = {output: node for node in _nodes(self.graph) for output in node.output}
        return self._made_by

    def _is_product(self, name: str) -> bool:
        """Whether a product uses the named initializer directly; it is (K, N) there, so it is transposed."""
        if not hasattr(self, "_direct"):
            products = (n for n in _nodes(self.graph) if n.op_type in ("MatMul", "Gemm") and len(n.input) > 1)
            self._direct = {n.input[1] for n in products}
        return name in self._direct

    def _store(self, tensor: Any) -> Stored | None:
        dtype = TYPES.get(tensor.data_type)
        if dtype is None:
            return None
        shape = tuple(tensor.dims)
        if any(n < 0 for n in shape):
            raise ModelError(f"{self.path}: initializer {quote(tensor.name)}: expected a shape, got {shape}")
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            read = self._external(tensor, shape, dtype)
        else:
            read = self._inline(tensor, shape, dtype)
        return Stored(tensor.name, shape, dtype, str(self.path), read)

    def _inline(self, tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Reads rows of a tensor stored in the graph. ModelError where its length does not fit its shape."""
        field = "raw_data" if tensor.HasField("raw_data") else FIELDS[dtype]
        wanted = prod(shape) * (DTYPES[dtype].itemsize if field == "raw_data" else 1)
        got = len(getattr(tensor, field))
        if got != wanted:
            unit = "bytes" if field == "raw_data" else "numbers"
            what = f"{self.path}: initializer {quote(tensor.name)}"
            raise ModelError(f"{what}: expected {wanted} {unit}, got {got}; export it again")
        return partial(_from_graph, self.onnx, tensor, shape, dtype, str(self.path))

    def _external(self, tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Reads rows of a tensor stored in a file of the same folder. ModelError where the file is elsewhere
        or too short.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        path = self.path.parent / location
        size = prod(shape) * DTYPES[dtype].itemsize
        what = f"{self.path}: initializer {quote(tensor.name)}"
        if not location or path.resolve().parent != self.path.parent.resolve() or not path.is_file():
            raise ModelError(
                f"{what}: expected data in a file beside, got {quote(location)}; download it too"
            )
        offset, length = (
            entries.get(key, default) for key, default in (("offset", "0"), ("length", str(size)))
        )
        if not (offset.isdecimal() and length.isdecimal()) or int(length) != size:
            raise ModelError(
                f"{what}: expected {size} bytes, got offset {offset:.20} and length {length:.20}"
            )
        if int(offset) + size > path.stat().st_size:
            raise ModelError(
                f"{path}: file: expected {int(offset) + size} bytes, got {path.stat().st_size}; download"
                " it again"
            )
        return partial(_from_file, path, int(offset), shape, dtype)


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes, those in the branches of an If included: merged decoders have one."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _of_node(node: Any) -> str | None:
    """The name of a product's weight: `/model/layers.0/mlp/up_proj/MatMul` gives
    model.layers.0.mlp.up_proj.weight. Newer exporters write the module's name into the node's metadata
    instead. None where there is neither.
    """
    parts = node.name.strip("/").split("/")
    if len(parts) > 1 and parts[-1].startswith(("MatMul", "Gemm")):
        return _canonical(".".join(parts[:-1]) + ".weight")
    scopes = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
    modules: list[str] = re.findall(r"'([^']*)'", scopes)
    return _canonical(f"{modules[-2]}.weight") if len(modules) > 2 and modules[-2] else None


def _canonical(name: str) -> str:
    for pattern, text in ALIASES:
        name = pattern.sub(text, name)
    return name


def _check_texts(message: Any, path: Path) -> None:
    """ModelError where a text field is not UTF-8: the parser returns such a field as bytes."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_MESSAGE, field.TYPE_STRING):
            continue
        for one in value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else (value,):
            if isinstance(one, bytes):
                raise ModelError(f"{path}: {field.name}: expected UTF-8, got {one[:40]!a}; download it again")
            if field.type == field.TYPE_MESSAGE:
                _check_texts(one, path)


def _from_graph(
    onnx: Any, tensor: Any, shape: tuple[int, ...], dtype: str, where: str, first: int, last: int
) -> Array:
    try:
        values = np.ascontiguousarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as error:
        what = f"{where}: initializer {quote(tensor.name)}"
        raise ModelError(f"{what}: the onnx package refuses it: {quote(str(error), 120)}") from None
    return values.reshape(shape or (1,)).view(DTYPES[dtype])[first:last]


def _from_file(path: Path, offset: int, shape: tuple[int, ...], dtype: str, first: int, last: int) -> Array:
    row = prod(shape[1:]) * DTYPES[dtype].itemsize
    with path.open("rb") as file:
        file.seek(offset + first * row, os.SEEK_SET)
        raw = file.read((last - first) * row)
    if len(raw) != (last - first) * row:
        raise ModelError(f"{path}: file: it became shorter while it was read; don't write to it")
    return np.frombuffer(raw, DTYPES[dtype]).reshape(last - first, *shape[1:])
