"""Writes a GGUF file with random weights in the shape of a known model; any GGUF runtime loads it.

    python bench/make_shape.py SHAPE TYPE OUT.gguf [--layers N] [--vocab N] [--narrow FORMAT] [--seed N]

Speed depends on shapes and formats, not on the weights' values, so such a file stands in for the real one in
comparisons of speed. Quantized blocks are random bytes under scales that give a standard deviation of about
0.02. Some 64 MB of each format are drawn, and every tensor is a stretch of these from an offset of its own:
weights repeat, which is enough for speed, and writing is as fast as the disk. The tokenizer is the bundled
model's, padded with words that no prompt is cut into but answers have. shapes.py has the models' sizes.

--layers writes the first N layers. llama.cpp tells DeepSeek-V2-Lite by its 27 layers: cut, it does not load
there. --vocab writes N tokens, at least the bundled tokenizer's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from one_line import errors_in_one_line
from shapes import SHAPES, DeltaNet, Latent, Mixture, Shape

from satchel.errors import RequestError
from satchel.formats.gguf import TensorSource, open_gguf
from satchel.formats.gguf.writer import FileLayout, lay_out
from satchel.quant import FORMATS
from satchel.quant.recipes import RECIPES, choose_formats
from satchel.store.resolve import default_model

Blocks = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]
DEVIATION = 0.02
RING = 64 << 20  # bytes that are drawn of each format
PIECE = 16 << 20  # bytes of one write
WRITERS = 8  # threads that write
NORMAL = 1  # token type
# By block format: the scale with which uniform codes have the standard deviation DEVIATION, and the mean 0.
# With another mean all tokens have a direction in common, and a mixture sends most to the same few experts.
SCALES: Mapping[str, Mapping[str, float]] = {
    "q4_k": {"d": DEVIATION / 259, "dmin": 7.5 * DEVIATION / 259},
    "q5_k": {"d": DEVIATION / 527, "dmin": 15.5 * DEVIATION / 527},
    "q6_k": {"d": DEVIATION / 1200},
    "q8_0": {"d": DEVIATION / 74},
    "q4_0": {"d": DEVIATION / 4.6},
    "q5_0": {"d": DEVIATION / 9.2},
    "mxfp4": {"e": 120},
}
# Vectors by the end of their name: the value that keeps a layer's numbers in range. Biases are 0, norms 1 but
# for those before attention and scans: random weights attend to all tokens alike, so what they add is nearly
# the same for each token. It stays small beside what tells the tokens apart, or a router would see one token.
CONSTANTS = {
    ".bias": 0.0,
    "attn_sinks.weight": 0.0,
    "ssm_a": -1.0,
    "attn_norm.weight": 1 / 64,
    "attn_kv_a_norm.weight": 1 / 64,
    "ssm_norm.weight": 1 / 64,
}


def tensor_shapes(s: Shape) -> Shapes:
    """The shape of every tensor by name, outermost dimension first."""
    found: Shapes = {"token_embd.weight": (s.vocab, s.width), "output_norm.weight": (s.width,)}
    if not s.tied:
        found["output.weight"] = (s.vocab, s.width)
    if s.rope.frequencies:
        found["rope_freqs.weight"] = (s.head_dim // 2,)
    for i in range(s.layers):
        layer = {f"{norm}.weight": (s.width,) for norm in s.norms}
        layer |= mixing(s, i)
        layer |= dense(s) if s.mixture is None or i < s.mixture.dense else experts(s, s.mixture)
        found |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return found


def mixing(s: Shape, i: int) -> Shapes:
    """What layer i mixes positions with."""
    if s.delta is not None and not s.attends(i):
        return delta_net(s, s.delta)
    return attention(s) if s.latent is None else latent_attention(s, s.latent)


def attention(s: Shape) -> Shapes:
    wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
    rows = {"q": wide * (2 if s.gated else 1), "k": narrow, "v": narrow, "output": s.width}
    found: Shapes = {
        f"attn_{name}.weight": (size, wide if name == "output" else s.width) for name, size in rows.items()
    }
    found |= {f"attn_{name}.bias": (size,) for name, size in rows.items() if name[0] in s.biased}
    if s.head_norms:
        found |= {f"attn_{name}_norm.weight": (s.head_dim,) for name in "qk"}
    if s.sinks:
        found["attn_sinks.weight"] = (s.heads,)
    return found


def latent_attention(s: Shape, m: Latent) -> Shapes:
    rows = s.heads * (m.nope + m.rope)
    found: Shapes = {"attn_q.weight": (rows, s.width)}
    if m.queries:
        found = {
            "attn_q_a.weight": (m.queries, s.width),
            "attn_q_a_norm.weight": (m.queries,),
            "attn_q_b.weight": (rows, m.queries),
        }
    return found | {
        "attn_kv_a_mqa.weight": (m.rank + m.rope, s.width),
        "attn_kv_a_norm.weight": (m.rank,),
        "attn_k_b.weight": (s.heads, m.rank, m.nope),
        "attn_v_b.weight": (s.heads, m.value, m.rank),
        "attn_output.weight": (s.width, s.heads * m.value),
    }


def delta_net(s: Shape, d: DeltaNet) -> Shapes:
    channels = 2 * d.keys + d.inner
    return {
        "attn_qkv.weight": (channels, s.width),
        "attn_gate.weight": (d.inner, s.width),
        "ssm_conv1d.weight": (channels, d.kernel),
        "ssm_dt.bias": (d.value_heads,),
        "ssm_a": (d.value_heads,),
        "ssm_ba.weight": (2 * d.value_heads, s.width),
        "ssm_norm.weight": (d.head_dim,),
        "ssm_out.weight": (s.width, d.inner),
    }


def dense(s: Shape) -> Shapes:
    up: Shapes = {f"ffn_{name}.weight": (s.ffn, s.width) for name in ("gate", "up")}
    return up | {"ffn_down.weight": (s.width, s.ffn)}


def experts(s: Shape, m: Mixture) -> Shapes:
    sizes = {"gate": (m.ffn, s.width), "up": (m.ffn, s.width), "down": (s.width, m.ffn)}
    found: Shapes = {"ffn_gate_inp.weight": (m.experts, s.width)}
    found |= {f"ffn_{name}_exps.weight": (m.experts, *size) for name, size in sizes.items()}
    if m.biases:
        found["ffn_gate_inp.bias"] = (m.experts,)
        found |= {f"ffn_{name}_exps.bias": (m.experts, size[0]) for name, size in sizes.items()}
    if m.score_bias:
        found["exp_probs_b.bias"] = (m.experts,)
    if m.shared:
        found |= {f"ffn_{name}_shexp.weight": (m.shared, s.width) for name in ("gate", "up")}
        found["ffn_down_shexp.weight"] = (s.width, m.shared)
    if m.gated:
        found["ffn_gate_inp_shexp.weight"] = (s.width,)
    return found


def tensor_formats(s: Shape, recipe: str, narrow: str = "") -> dict[str, str]:
    """Each tensor's format by a recipe of `satchel quantize`. narrow: the format of rows that are not a
    multiple of 256; "": the recipe's choice. RequestError for an unknown name.
    """
    if recipe.upper() not in RECIPES:
        raise RequestError(f"type {recipe}: expected one of {', '.join(RECIPES)}")
    if narrow and narrow not in SCALES:
        raise RequestError(f"format {narrow}: expected one of {', '.join(SCALES)}")
    shapes, count = tensor_shapes(s), s.mixture.experts if s.mixture else 0
    chosen = choose_formats(RECIPES[recipe.upper()], shapes, count, sharing=s.heads // s.kv_heads)
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
        if format == "f32":
            return x
        return x.astype(np.float16) if format == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16)
    count = elements // known.block
    blocks = np.frombuffer(rng.bytes(count * known.block_bytes), known.dtype).copy()
    for name, value in SCALES[format].items():
        blocks[name] = value
    return blocks


def constant(name: str, shape: Sequence[int]) -> float | None:
    """The value of all elements of a tensor; None: they are random."""
    known = next((value for end, value in CONSTANTS.items() if name.endswith(end)), None)
    scale = known is None and len(shape) == 1 and "ffn_gate_inp" not in name
    return 1.0 if scale else known


class Rings:
    """Random bytes of each format, of which every tensor takes a stretch that begins at a random block."""

    def __init__(self, rng: np.random.Generator, largest: Mapping[str, int]) -> None:
        """largest: elements of the largest tensor of each format."""
        self.rng, self.data, self.blocks = rng, dict[str, memoryview](), dict[str, int]()
        for format, elements in sorted(largest.items()):
            known = FORMATS[format]
            self.blocks[format] = min(RING // known.block_bytes, elements // known.block)
            made = random_blocks(rng, format, self.blocks[format] * known.block)
            self.data[format] = memoryview(made.view(np.uint8).reshape(-1)).toreadonly()

    def stretch(self, format: str, nbytes: int) -> Iterator[memoryview]:
        """The bytes of the next tensor, in pieces."""
        ring = self.data[format]
        at = int(self.rng.integers(self.blocks[format])) * (len(ring) // self.blocks[format])
        while nbytes:
            piece = ring[at : at + min(PIECE, nbytes)]
            yield piece
            at, nbytes = (at + len(piece)) % len(ring), nbytes - len(piece)


def metadata(name: str, s: Shape, recipe: str) -> dict[str, Any]:
    """The keys that a loader needs, with the bundled tokenizer padded to the vocabulary. RequestError for a
    vocabulary that is smaller than the tokenizer's.
    """
    part = f", {s.layers} of {s.whole} layers" if s.whole > s.layers else ""
    found: dict[str, Any] = {
        "general.architecture": s.arch,
        "general.name": f"{name}{part}, random weights",
        "general.file_type": RECIPES[recipe.upper()].file_type,
    }
    found |= {f"{s.arch}.{key}": value for key, value in hyper_parameters(s).items()}
    with open_gguf(default_model()) as gguf:
        given = gguf.metadata
        found |= {key: given.typed(key) for key in given if key.startswith("tokenizer.ggml.")}
        tokens = list(given.get_array("tokenizer.ggml.tokens", kind="str"))
        kinds = given.get_array("tokenizer.ggml.token_type", kind="int").tolist()
    more = s.vocab - len(tokens)
    if more < 0:
        raise RequestError(f"--vocab: expected {len(tokens)} tokens or more, got {s.vocab}")
    found["tokenizer.ggml.tokens"] = tokens + [f"Ġmore{i}" for i in range(more)]
    found["tokenizer.ggml.token_type"] = kinds + [NORMAL] * more
    return found


def hyper_parameters(s: Shape) -> dict[str, Any]:
    """The keys <arch>.*."""
    value = s.head_dim if s.latent is None else s.latent.rank
    found: dict[str, Any] = {
        "block_count": s.layers,
        "context_length": s.context,
        "embedding_length": s.width,
        "feed_forward_length": s.ffn,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": value,
        "attention.layer_norm_rms_epsilon": s.epsilon,
        "vocab_size": s.vocab,
        **rope_keys(s),
    }
    if s.window:
        found["attention.sliding_window"] = s.window
    if s.latent is not None:
        found |= latent_keys(s.latent)
    if s.delta is not None:
        found |= delta_keys(s.delta)
    return found | (mixture_keys(s.mixture) if s.mixture is not None else {})


def rope_keys(s: Shape) -> dict[str, Any]:
    found: dict[str, Any] = {"rope.freq_base": s.rope.base, "rope.dimension_count": s.rope.dims or s.head_dim}
    if s.rope.scaling:
        found |= {"rope.scaling.type": s.rope.scaling, "rope.scaling.factor": s.rope.factor}
    if s.rope.original:
        found["rope.scaling.original_context_length"] = s.rope.original
    if s.rope.log_multiplier:
        found["rope.scaling.yarn_log_multiplier"] = s.rope.log_multiplier
    return found


def latent_keys(m: Latent) -> dict[str, Any]:
    return {
        "attention.kv_lora_rank": m.rank,
        "attention.key_length_mla": m.nope + m.rope,
        "attention.value_length_mla": m.value,
        **({"attention.q_lora_rank": m.queries} if m.queries else {}),
    }


def delta_keys(d: DeltaNet) -> dict[str, Any]:
    return {
        "full_attention_interval": d.interval,
        "ssm.conv_kernel": d.kernel,
        "ssm.state_size": d.head_dim,
        "ssm.group_count": d.key_heads,
        "ssm.time_step_rank": d.value_heads,
        "ssm.inner_size": d.inner,
    }


def mixture_keys(m: Mixture) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "expert_shared_feed_forward_length": m.shared if m.gated else 0,
        "expert_shared_count": m.shared_count,
        "leading_dense_block_count": m.dense,
        "expert_group_count": m.groups,
        "expert_group_used_count": m.groups_used,
        "expert_gating_func": m.gating,
        "expert_weights_scale": m.scale,
        "interleave_moe_layer_step": m.step,
    }
    found: dict[str, Any] = {key: value for key, value in stated.items() if value}
    if m.norm is not None:
        found["expert_weights_norm"] = m.norm
    sizes = {
        "expert_count": m.experts,
        "expert_used_count": m.used,
        "expert_feed_forward_length": m.ffn,
    }
    return sizes | found


def make(
    name: str,
    recipe: str,
    target: Path,
    narrow: str = "",
    seed: int = 0,
    layers: int = 0,
    vocab: int = 0,
) -> Path:
    """Writes the file; the same arguments give the same bytes. layers, vocab: 0 for the shape's. RequestError
    for an unknown shape or type, and where the file cannot be written.
    """
    if name not in SHAPES:
        raise RequestError(f"shape {name}: expected one of {', '.join(SHAPES)}")
    s = SHAPES[name]
    s = replace(s, layers=layers or s.layers, vocab=vocab or s.vocab)
    most = max(s.whole, SHAPES[name].layers)
    if not 0 < s.layers <= most:
        raise RequestError(f"--layers: expected 1 to {most} for {name}, got {layers}")
    return write(name, s, recipe, target, narrow, seed)


def write(name: str, s: Shape, recipe: str, target: Path, narrow: str = "", seed: int = 0) -> Path:
    """Writes a file of this shape; it has its name once it is whole. RequestError where that fails."""
    formats, shapes, largest = tensor_formats(s, recipe, narrow), tensor_shapes(s), dict[str, int]()
    for tensor, shape in shapes.items():
        if constant(tensor, shape) is None:
            largest[formats[tensor]] = max(largest.get(formats[tensor], 0), prod(shape))
    rings = Rings(np.random.default_rng(seed), largest)
    sources = [
        TensorSource(tensor, shape, formats[tensor], partial(pieces, rings, tensor, shape, formats[tensor]))
        for tensor, shape in shapes.items()
    ]
    (layout,) = lay_out(target, metadata(name, s, recipe), sources)
    spare = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fill(layout, spare)
        spare.replace(target)
    except OSError as error:
        raise RequestError(f"{target}: can't be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            spare.unlink()
    return target


def pieces(rings: Rings, name: str, shape: Sequence[int], format: str) -> Iterator[memoryview]:
    """A tensor's bytes in order."""
    value, known = constant(name, shape), FORMATS[format]
    if value is None:
        yield from rings.stretch(format, prod(shape) // known.block * known.block_bytes)
    else:
        yield memoryview(np.full(prod(shape), value, np.float32).view(np.uint8))


def fill(layout: FileLayout, path: Path) -> None:
    """Writes the file in several threads. Its pieces are slices of the rings, so it needs no more memory."""
    with path.open("wb") as file, ThreadPoolExecutor(WRITERS) as threads:
        file.truncate(layout.size)
        for _ in threads.map(partial(write_at, file.fileno()), placed(layout)):
            pass


def placed(layout: FileLayout) -> Iterator[tuple[int, bytes | memoryview]]:
    """What to write, each piece with its offset in the file. Padding is left out: a new file has zeros."""
    yield 0, layout.header
    at = len(layout.header)
    for tensor, nbytes in layout.tensors:
        start = at
        for piece in tensor.pieces():
            yield at, piece
            at += len(piece)
        at = start + nbytes + -nbytes % layout.alignment


def write_at(descriptor: int, placed: tuple[int, bytes | memoryview]) -> None:
    at, piece = placed[0], memoryview(placed[1])
    while piece:
        written = os.pwrite(descriptor, piece, at)
        at, piece = at + written, piece[written:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", help="Q4_K_M, Q8_0, F16, BF16, ...; MXFP4_MOE for gpt-oss")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=0, help="layers to write; 0: the shape's")
    parser.add_argument("--vocab", type=int, default=0, help="tokens; 0: the shape's")
    parser.add_argument("--narrow", default="", help="format of rows that are no multiple of 256")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    print(make(o.shape, o.type, o.out, o.narrow, o.seed, o.layers, o.vocab))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
