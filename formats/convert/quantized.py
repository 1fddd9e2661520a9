"""Groups the stored tensors of a checkpoint into logical ones: plain tensors, and quantized ones by the
scheme in config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.fp8 import KINDS as FP8
from satchel.formats.convert.fp8 import fp8
from satchel.formats.convert.jsonfile import read_optional
from satchel.formats.convert.logical import Logical, plain
from satchel.formats.convert.mxfp4 import mxfp4
from satchel.formats.convert.packed import awq, compressed, gptq
from satchel.formats.convert.stored import Stored

# Scales of activations and of the KV cache, which are not weights.
SIDE = re.compile(r".*\.(input_scale|output_scale|input_zero_point|k_scale|v_scale|q_scale|activation_scale)")
METHODS = ("gptq", "awq", "fp8", "compressed-tensors", "mxfp4")


def quantization(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The checkpoint's quantization config; empty where it is not quantized."""
    found = config.get("quantization_config") or config.get("compression_config")
    if found is None:
        found = read_optional(folder / "quantize_config.json")
        if found and "quant_method" not in found:
            found = {"quant_method": "gptq"} | dict(found)
    return found if isinstance(found, dict) else {}


def logicals(
    tensors: Mapping[str, Stored], config: Mapping[str, Any], where: Path, *, extensions: bool
) -> Iterator[Logical]:
    """The logical tensors of the checkpoint.

    config: as quantization() gives it. extensions: keep FP8 and grouped INT8 in Satchel's own types.
    ModelError for a scheme that is not known, and for what belongs to no tensor.
    """
    used: set[str] = set()
    for tensor in _scheme(tensors, config, where, extensions):
        used.update(tensor.tensors)
        yield tensor
    for name, stored in tensors.items():
        if name not in used and not SIDE.fullmatch(name):
            yield plain(stored)


def _scheme(
    tensors: Mapping[str, Stored], config: Mapping[str, Any], where: Path, extensions: bool
) -> Iterator[Logical]:
    method = config.get("quant_method", config.get("quant_algo"))
    if method is None or method == "fp8":
        if any(stored.dtype in FP8 for stored in tensors.values()):
            yield from fp8(tensors, config, extensions)
    elif method == "gptq":
        yield from gptq(tensors, config, extensions)
    elif method == "awq":
        if config.get("version", "gemm") not in ("gemm", "GEMM"):
            raise ModelError(
                f"{where}: quantization_config: version: expected gemm, got {config['version']!a:.40};"
                " convert the checkpoint that it was made from"
            )
        yield from awq(tensors, extensions)
    elif method == "mxfp4":
        yield from mxfp4(tensors)
    elif method == "compressed-tensors":
        yield from fp8(tensors, config, extensions)
        yield from compressed(tensors, extensions)
    else:
        raise ModelError(
            f"{where}: quantization_config: quant_method: expected one of {', '.join(METHODS)}, got"
            f" {method!a:.60}; convert the checkpoint that it was made from"
        )
