"""Writes a GGUF file with random weights in the shape of a known model; any GGUF runtime loads it.

    python bench/make_shape.py SHAPE TYPE OUT.gguf [--narrow FORMAT] [--seed N]

Speed depends on shapes and formats, not on the weights' values, so such a file stands in for the real one in
comparisons of speed. Quantized blocks are random bytes under scales that give a standard deviation of about
0.02. The tokenizer is the bundled model's, padded with unused tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError, SatchelError
from satchel.formats.gguf import TensorSource, open_gguf, write_gguf
from satchel.quant import FORMATS
from satchel.quant.recipes import RECIPES, choose_formats
from satchel.store.resolve import default_model

Blocks = npt.NDArray[Any]
DEVIATION = 0.02
PIECE = 1 << 22  # elements that are drawn at once
UNUSED = 5  # token type
# By block format: the scale with which uniform codes have the standard deviation DEVIATION.
SCALES: Mapping[str, Mapping[str, float]] = {
    "q4_k": {"d": DEVIATION / 200, "dmin": DEVIATION / 30},
    "q5_k": {"d": DEVIATION / 400, "dmin": DEVIATION / 30},
    "q6_k": {"d": DEVIATION / 1200},
    "q8_0": {"d": DEVIATION / 74},
    "q4_0": {"d": DEVIATION / 4.6},
    "q5_0": {"d": DEVIATION / 9.2},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model with tied embeddings."""

    arch: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    epsilon: float
    biased: bool = False  # Q, K and V have biases
    window: int = 0  # of attention; 0: none


SHAPES: Mapping[str, Shape] = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 5e5, 1e-5),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936, 1e6, 1e-6, biased=True),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 1e6, 1e-6),
    "gemma-3-1b": Shape("gemma3", 26, 1152, 4, 1, 256, 6912, 262144, 1e6, 1e-6, window=512),
    # For tests: every kind of tensor in a megabyte.
    "tiny": Shape("llama", 2, 256, 4, 2, 64, 512, 16640, 1e4, 1e-5),
}


def tensor_shapes(s: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor by name, outermost dimension first."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (s.vocab, s.width)}
    found["output_norm.weight"] = (s.width,)
    sizes = {"q": s.heads * s.head_dim, "k": s.kv_heads * s.head_dim, "v": s.kv_heads * s.head_dim}
    for i in range(s.layers):
        at = f"blk.{i}."
        found |= {f"{at}attn_norm.weight": (s.width,), f"{at}ffn_norm.weight": (s.width,)}
        found |= {f"{at}attn_{name}.weight": (size, s.width) for name, size in sizes.items()}
        if s.biased:
            found |= {f"{at}attn_{name}.bias": (size,) for name, size in sizes.items()}
        if s.arch == "gemma3":
            found |= {f"{at}post_{name}_norm.weight": (s.width,) for name in ("attention", "ffw")}
        if s.arch in ("qwen3", "gemma3"):
            found |= {f"{at}attn_{name}_norm.weight": (s.head_dim,) for name in "qk"}
        found[f"{at}attn_output.weight"] = (s.width, sizes["q"])
        found |= {f"{at}ffn_{name}.weight": (s.ffn, s.width) for name in ("gate", "up")}
        found[f"{at}ffn_down.weight"] = (s.width, s.ffn)
    return found


def tensor_formats(s: Shape, recipe: str, narrow: str = "") -> dict[str, str]:
    """Each tensor's format by a recipe of `satchel quantize`. narrow: the format of rows that are not a
    multiple of 256; "": the recipe's choice. RequestError for an unknown name.
    """
    if recipe.upper() not in RECIPES:
        raise RequestError(f"type {recipe}: expected one of {', '.join(RECIPES)}")
    if narrow and narrow not in SCALES:
        raise RequestError(f"format {narrow}: expected one of {', '.join(SCALES)}")
    shapes = tensor_shapes(s)
    chosen = choose_formats(RECIPES[recipe.upper()], shapes)
    wanted = {name: chosen.get(name, "f32") for name in shapes}
    if narrow and FORMATS[RECIPES[recipe.upper()].base].block == 256:
        wanted |= {name: narrow for name in chosen if shapes[name][-1] % 256}
    unknown = set(wanted.values()) - set(SCALES) - {"f32", "f16", "bf16"}
    if unknown:
        raise RequestError(f"type {recipe}: no random blocks are known for {', '.join(sorted(unknown))}")
    return wanted


def random_blocks(rng: np.random.Generator, format: str, elements: int) -> Blocks:
    """Blocks of so many random elements: finite, with a standard deviation of about DEVIATION."""
    known = FORMATS[format]
    if known.block == 1:
        x = rng.standard_normal(elements, dtype=np.float32) * np.float32(DEVIATION)
        return x.astype(np.float16) if format == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16)
    count = elements // known.block
    blocks = np.frombuffer(rng.bytes(count * known.block_bytes), known.dtype).copy()
    for name, value in SCALES[format].items():
        blocks[name] = value
    return blocks


def pieces(rng: np.random.Generator, name: str, format: str, elements: int) -> Iterator[Blocks]:
    """A tensor's data in order. Norms are ones and biases zeros, so values stay in range through all
    layers.
    """
    if format == "f32":
        yield np.full(elements, 0 if name.endswith(".bias") else 1, np.float32)
        return
    for at in range(0, elements, PIECE):
        yield random_blocks(rng, format, min(PIECE, elements - at))


def metadata(name: str, s: Shape, recipe: str) -> dict[str, Any]:
    """The keys that a loader needs, with the bundled tokenizer padded to the vocabulary."""
    own = {
        "block_count": s.layers,
        "context_length": 32768,
        "embedding_length": s.width,
        "feed_forward_length": s.ffn,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": s.epsilon,
        "rope.freq_base": s.rope_base,
        "rope.dimension_count": s.head_dim,
        "vocab_size": s.vocab,
        **({"attention.sliding_window": s.window} if s.window else {}),
    }
    found: dict[str, Any] = {"general.architecture": s.arch, "general.name": f"{name}, random weights"}
    found["general.file_type"] = RECIPES[recipe.upper()].file_type
    found |= {f"{s.arch}.{key}": value for key, value in own.items()}
    with open_gguf(default_model()) as gguf:
        given = gguf.metadata
        found |= {key: given.typed(key) for key in given if key.startswith("tokenizer.ggml.")}
        tokens = list(given.get_array("tokenizer.ggml.tokens", kind="str"))
        kinds = given.get_array("tokenizer.ggml.token_type", kind="int").tolist()
    more = s.vocab - len(tokens)
    found["tokenizer.ggml.tokens"] = tokens + [f"[unused {i}]" for i in range(more)]
    found["tokenizer.ggml.token_type"] = kinds + [UNUSED] * more
    return found


def make(name: str, recipe: str, target: Path, narrow: str = "", seed: int = 0) -> Path:
    """Writes the file; the same seed gives the same bytes. RequestError for an unknown shape or type."""
    if name not in SHAPES:
        raise RequestError(f"shape {name}: expected one of {', '.join(SHAPES)}")
    s, rng = SHAPES[name], np.random.default_rng(seed)
    formats = tensor_formats(s, recipe, narrow)
    tensors = [
        TensorSource(
            tensor, shape, formats[tensor], partial(pieces, rng, tensor, formats[tensor], prod(shape))
        )
        for tensor, shape in tensor_shapes(s).items()
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(target, metadata(name, s, recipe), tensors)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", help="Q4_K_M, Q8_0, F16, BF16, ...")
    parser.add_argument("out", type=Path)
    parser.add_argument("--narrow", default="", help="format of rows that are no multiple of 256")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    try:
        print(make(o.shape, o.type, o.out, o.narrow, o.seed))
    except SatchelError as error:
        sys.exit(f"make_shape: {error}")


if __name__ == "__main__":
    main()
