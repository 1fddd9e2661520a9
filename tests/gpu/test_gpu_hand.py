"""Products whose activations the step before hands over converted (`gpu_kernel.takes` of cext/gpu/kernel.h):
which steps do (on the device "dry", which has CUDA's host code and tables), and by `pytest -m gpu` the steps
of a layer as one plan, each compared with its definition.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fused_cases
import numpy as np
import pytest
from attention_cases import Tokens
from devices import passing_for, skip_without
from gpu_calls import attention, product
from kernel_cases import check
from one_step import STEP, Case, define, generator, pack_inputs, plan_of, read_rows, write_all

from satchel import cext
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.plan import BufferSpec, Segment

BOUND = 3e-4  # nmse: activations are rounded to 8 bits at each step
PAD = 64  # bytes behind each row
RESIDUAL, HIDDEN = 2048, 1536  # columns: whole chunks of 256
PLACES: Tokens = [(0, 300), (1, 2), (2, 900), *[(3, p) for p in range(3, 16)], *[(4, p) for p in range(50)]]
FORMATS = ("q4_k", "q6_k", "q8_0", "mxfp4", "bf16")


class Chain:
    """A plan of steps, of which each reads the result of the one before."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffers: list[Buffer] = [device.alloc(32, STEP)]
        self.specs = [BufferSpec("step", STEP, 32)]
        self.parts: list[Segment] = []
        self.cases: list[Case] = []

    def add(self, op: str, one: Case, packed: tuple[int, ...] = ()) -> None:
        """A step, whose first input is the result of the one before, if there is one. packed: inputs that the
        device packs.
        """
        segment, data = plan_of(op, one, PAD)
        segment = pack_inputs(self.device, one, segment, packed)
        views, steps = segment.view_table.copy(), segment.step_table.copy()
        views["buffer"] += len(self.buffers) - 1
        if self.parts:
            views[1] = self.parts[-1].view_table[0]
        steps["op"], steps["view"] = len(self.parts), sum(len(s.view_table) for s in self.parts)
        steps["arg"] = sum(len(s.args) for s in self.parts)
        own = [self.device.alloc(spec.size, spec.usage) for spec in segment.buffers[1:]]
        write_all([self.buffers[0], *own], data, one, packed)
        self.buffers += own
        self.specs += [replace(spec, name=f"{len(self.parts)} {spec.name}") for spec in segment.buffers[1:]]
        args = segment.args + bytes(-len(segment.args) % 8)
        self.parts.append(replace(segment, view_table=views, step_table=steps, args=args))
        self.cases.append(one)

    def run(self) -> list[Array]:
        """Every step's result, of the second of two runs, which begins with what the first one left."""
        whole = replace(
            self.parts[0],
            view_table=np.concatenate([s.view_table for s in self.parts]),
            step_table=np.concatenate([s.step_table for s in self.parts]),
            op_table=np.concatenate([s.op_table for s in self.parts]),
            args=b"".join(s.args for s in self.parts),
            buffers=tuple(self.specs),
        )
        program = self.device.compile(whole, self.buffers)
        block = cext.ffi.new("uint8_t[]", 32)
        for _ in range(2):
            program.run(block, 32)
            program.wait()
        found = []
        for part, one in zip(self.parts, self.cases, strict=True):
            view = part.view_table[0]
            rows = read_rows(self.buffers[int(view["buffer"])], int(view["stride"]), one, None, one.format)
            found.append(rows)
        program.close()
        for buffer in self.buffers:
            buffer.close()
        return found


def layer(format: str, heads: tuple[int, int, int], places: Tokens) -> list[tuple[str, Case]]:
    """Attention, its output projection, the feed forward of SwiGLU, and the products after the next norm."""
    tokens = len(places)
    rng, width = generator(f"{format} {tokens} {heads}"), heads[0] * heads[2]
    gates = fused_cases.normed(rng, (format, format), tokens, RESIDUAL, HIDDEN)
    return [
        ("attention", attention("f16", heads, places)),
        ("linear_add", product("linear_add", format, tokens, width, RESIDUAL)),
        ("norm_linear_swiglu", replace(gates, shape=(tokens, HIDDEN))),
        ("linear_add", product("linear_add", format, tokens, HIDDEN, RESIDUAL)),
        ("norm_linear", fused_cases.normed(rng, (format, format), tokens, RESIDUAL, 130)),
    ]


def layer_of_heads(format: str, heads: tuple[int, int, int], places: Tokens) -> list[tuple[str, Case]]:
    """The same with RoPE and the writes of keys and values in the launch of attention."""
    one = fused_cases.qkv(generator(f"{len(places)} {heads}"), "f16", len(places), heads, places=places)
    args = {**one.args, "scale": heads[2] ** -0.5, "window": 0}
    first = replace(one, shape=(len(places), heads[0] * heads[2]), args=args)
    return [("rope_qkv_attention", first), *layer(format, heads, places)[1:]]


def normed_attention(format: str, heads: tuple[int, int, int], places: Tokens) -> list[tuple[str, Case]]:
    """Attention and the products after a norm of its result, which BitNet has."""
    tokens, width = len(places), heads[0] * heads[2]
    rng = generator(f"{format} {tokens} {heads} norm")
    return [
        ("attention", attention("f16", heads, places)),
        ("norm_linear", fused_cases.normed(rng, (format, format), tokens, width, 256)),
    ]


def add_all(chain: Chain, steps: list[tuple[str, Case]], format: str) -> None:
    for op, one in steps:
        weights = () if format == "bf16" else (i for i, (_, f) in enumerate(one.inputs) if f == format)
        chain.add(op, one, tuple(weights))


def kernels_of(chain: Chain, log: Path) -> list[str]:
    """The names of the kernels of the chain's two runs, on the device "dry" whose log this is."""
    log.unlink(missing_ok=True)
    chain.run()
    return log.read_text().split()


@pytest.mark.parametrize("card", ["", "8.0", "8.6"])
def test_few_tokens_are_converted_by_the_step_before(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of up to 16 tokens converts for its output projection, with its heads in one launch as many
    as that takes; products convert for the next one. Of more, and on Hopper of more than 64, a launch
    converts for each product.
    """
    skip_without("dry")
    log = tmp_path / "log"
    monkeypatch.setenv("SATCHEL_DRY_LOG", str(log))
    more = ((17, 4), (50, 4)) if card else ((17, 1), (50, 1), (65, 4))
    for tokens, converted in ((5, 0), (16, 0), *more):
        for steps in (layer, layer_of_heads):
            with passing_for(card), find_backend("dry").open() as device:
                chain = Chain(device)
                add_all(chain, steps("q4_k", (8, 4, 128), PLACES[:tokens]), "q4_k")
                started = kernels_of(chain, log)
            ours = 0 if converted == 1 and steps is layer_of_heads else converted
            assert sum(name == "columns_convert" for name in started) == 2 * ours  # of two runs
            assert sum(name.startswith("columns_") for name in started) == 2 * (ours + 4)


def test_attention_does_not_convert_for_a_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups have parts of a row, and would leave neither the norm's weights nor the squares."""
    skip_without("dry")
    log = tmp_path / "log"
    monkeypatch.setenv("SATCHEL_DRY_LOG", str(log))
    with find_backend("dry").open() as device:
        chain = Chain(device)
        add_all(chain, normed_attention("q4_k", (8, 4, 128), PLACES[:5]), "q4_k")
        started = kernels_of(chain, log)
    assert started.count("columns_convert") == 2  # of two runs


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [5, 8, 13, 16, 17, 32, 50])
@pytest.mark.parametrize("format", FORMATS)
def test_a_layer_equals_its_definition_where_steps_hand_over(card: Device, format: str, tokens: int) -> None:
    if card.info().variant == "cuda 7.5":
        pytest.skip("it hands nothing over")
    for heads in ((8, 2, 64), (8, 4, 128)):
        for steps in (layer, normed_attention, layer_of_heads):
            chain = Chain(card)
            add_all(chain, steps(format, heads, PLACES[:tokens]), format)
            wanted: list[Array] = []
            for op, one in steps(format, heads, PLACES[:tokens]):
                if wanted:
                    before = wanted[-1].reshape(tokens, -1).astype(np.float32)
                    one = replace(one, inputs=((before, "f32"), *one.inputs[1:]))
                wanted.append(define(op, one))
            for one, found, want in zip(chain.cases, chain.run(), wanted, strict=True):
                check(replace(one, bound=BOUND), found, want)
