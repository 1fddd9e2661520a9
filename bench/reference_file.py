"""Writes the model files on which the reference data is measured from the BF16 file, the same bytes each
time.

The encoders here are simple and never change (those of quant/ may improve), so the reference stays valid: a
test writes the file again and compares its digest with the one stored beside the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Type of the matrices; the two mixes follow llama.cpp's K_M rule for token_embd, attn_v and ffn_down.
KINDS: dict[str, Type] = {
    "bf16": Type.BF16,
    "f16": Type.F16,
    "q8_0": Type.Q8_0,
    "q4_0": Type.Q4_0,
    "q4_1": Type.Q4_1,
    "q5_0": Type.Q5_0,
    "q5_1": Type.Q5_1,
    "q4_k_m": Type.Q4_K,
    "q5_k_m": Type.Q5_K,
    "q6_k": Type.Q6_K,
}
FILE_TYPES = dict(zip(KINDS, (32, 1, 7, 2, 3, 8, 9, 15, 17, 18), strict=True))


def tensor_type(kind: str, name: str, layers: int) -> Type:
    """The type of a matrix in a file of this kind."""
    if kind.endswith("_m"):
        if name == "token_embd.weight":
            return Type.Q6_K
        if name.endswith(("attn_v.weight", "ffn_down.weight")):
            i = int(name.split(".")[1])
            if i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2:
                return Type.Q6_K
    return KINDS[kind]


def _f16_bytes(x: F32) -> Bytes:
    return x.astype("<f2")[..., None].view(np.uint8)


def _rounded(x: F32) -> F32:
    nearest: F32 = np.floor(x + np.float32(0.5))
    return nearest


def _inverse(d: F32) -> F32:
    """1 / d; 0 where d is 0."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _affine(x: F32, bits: int) -> tuple[F32, F32, Bytes, Bytes]:
    """Super-blocks (n, 256) as d and dmin (n, 1), twelve bytes of 6-bit scales and mins, and codes (n, 8,
    32).
    """
    sub = x.reshape(-1, 8, 32)
    low = np.minimum(sub.min(-1), 0)
    span = (sub.max(-1) - low) / np.float32(2**bits - 1)
    d, dmin = (v.max(-1, keepdims=True) / np.float32(63) for v in (span, -low))
    d, dmin = (v.astype("<f2").astype(np.float32) for v in (d, dmin))
    scale, offset = (np.minimum(_rounded(v * _inverse(w)), 63) for v, w in ((span, d), (-low, dmin)))
    step = (d * scale)[..., None]
    codes = np.clip(_rounded((sub + (dmin * offset)[..., None]) * _inverse(step)), 0, 2**bits - 1)
    s, m = scale.astype(np.uint8), offset.astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | m[:, 4:] << 4], axis=1
    )
    return d, dmin, packed.astype(np.uint8), codes.astype(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    """Packs the low four bits of codes (n, 8, 32): two sub-blocks in 32 bytes."""
    low = codes & 15
    return np.asarray(low[:, 0::2] | low[:, 1::2] << 4, np.uint8).reshape(len(codes), 128)


def encode_q4_k(x: F32) -> Bytes:
    d, dmin, scales, codes = _affine(x, 4)
    return np.concatenate([_f16_bytes(d)[:, 0], _f16_bytes(dmin)[:, 0], scales, _nibbles(codes)], axis=1)


def encode_q5_k(x: F32) -> Bytes:
    d, dmin, scales, codes = _affine(x, 5)
    high = np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    heads = _f16_bytes(d)[:, 0], _f16_bytes(dmin)[:, 0]
    return np.concatenate([*heads, scales, high, _nibbles(codes)], axis=1)


def encode_q6_k(x: F32) -> Bytes:
    sub = x.reshape(-1, 16, 16)
    peak = np.take_along_axis(sub, np.abs(sub).argmax(-1)[..., None], -1)[..., 0] / np.float32(-32)
    largest = np.take_along_axis(peak, np.abs(peak).argmax(-1)[:, None], -1)
    d = (largest / np.float32(-128)).astype("<f2").astype(np.float32)
    scale = np.clip(_rounded(peak * _inverse(d)), -128, 127)
    codes = np.clip(_rounded(sub * _inverse((d * scale)[..., None])), -32, 31).astype(np.int8) + 32
    half = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([half[:, :, 0:2] & 15 | half[:, :, 2:4] << 4], axis=2).reshape(-1, 128)
    high = np.bitwise_or.reduce((half >> 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None], axis=2)
    scales = scale.astype(np.int8).view(np.uint8)
    return np.concatenate([low, high.reshape(-1, 64), scales, _f16_bytes(d)[:, 0]], axis=1)


ENCODERS: dict[Type, Callable[[F32], Bytes]] = {
    Type.Q4_K: encode_q4_k,
    Type.Q5_K: encode_q5_k,
    Type.Q6_K: encode_q6_k,
}


def encode(x: F32, kind: Type) -> Bytes:
    """A matrix (N, K) as the bytes of its rows (N, bytes)."""
    if kind in ENCODERS:
        return ENCODERS[kind](np.ascontiguousarray(x).reshape(-1, 256)).reshape(len(x), -1)
    return gguf.quants.quantize(x, kind).view(np.uint8).reshape(len(x), -1)


def _copied(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        first, *rest = field.types
        writer.add_key_value(name, field.contents(), first, rest[-1] if rest else None)


def make(source: Path, kind: str, target: Path) -> str:
    """Writes the file of this kind and returns the digest of its tensors. "bf16" is the source itself:
    nothing is written.
    """
    reader = gguf.GGUFReader(source)
    layers = 1 + max(int(t.name.split(".")[1]) for t in reader.tensors if t.name.startswith("blk."))
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    _copied(reader, writer)
    writer.add_file_type(FILE_TYPES[kind])
    known = hashlib.sha256()
    for tensor in reader.tensors:
        data: Any = tensor.data
        wanted = tensor_type(kind, tensor.name, layers) if len(tensor.shape) > 1 else tensor.tensor_type
        if wanted != tensor.tensor_type:
            data = encode(gguf.quants.dequantize(tensor.data, tensor.tensor_type), wanted)
        known.update(tensor.name.encode() + np.ascontiguousarray(data).tobytes())
        if kind != "bf16":
            writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=wanted)
    if kind != "bf16":
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return known.hexdigest()


def digest_of(path: Path) -> str:
    """The same digest of an existing file."""
    known = hashlib.sha256()
    for tensor in gguf.GGUFReader(path).tensors:
        known.update(tensor.name.encode() + np.ascontiguousarray(tensor.data).tobytes())
    return known.hexdigest()
