"""Small inputs of the targets that read tensors: adapters of GGUF and of PEFT, and an ONNX graph."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import extra_files
import numpy as np
import toy_checkpoint
from fuzz_adapters import LENGTH

RANK = 2


def made() -> dict[str, dict[str, bytes]]:
    """By target, the inputs by name."""
    return {"lora": {"two": lora()}, "peft": {"query": peft()}, "onnx": {"products": graph()}}


def lora() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        factors = extra_files.factors(0, RANK, ("attn_q",))
        path = extra_files.write_adapter(Path(folder) / "a.gguf", factors, format="f16")
        return path.read_bytes()


def peft() -> bytes:
    rng, tensors = np.random.default_rng(0), {}
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    for part, shape in (("A", (RANK, 64)), ("B", (64, RANK))):
        tensors[f"{module}.lora_{part}.weight"] = rng.standard_normal(shape).astype(np.float32)
    config = json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"}).encode()
    return LENGTH.pack(len(config)) + config + toy_checkpoint.safetensors(toy_checkpoint.stored(tensors))


def graph() -> bytes:
    """Two initializers, a product under a layer's name, one behind a Transpose, and a branch."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((3, 2)).astype(np.float32), "onnx::MatMul_7"),
        numpy_helper.from_array(rng.standard_normal((2, 3)).astype(np.float16), "model.b.weight"),
        numpy_helper.from_array(np.ones(3, np.float32), "model.norm.weight"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["y"], "/model/layers.0/mlp/up_proj/MatMul"),
        helper.make_node("Transpose", ["model.b.weight"], ["t"], "turn"),
        helper.make_node("MatMul", ["x", "t"], ["z"], "/model/layers.0/mlp/down_proj/MatMul"),
    ]
    branch = helper.make_graph(nodes[:1], "branch", [], [])
    nodes.append(helper.make_node("If", ["c"], ["w"], "either", then_branch=branch, else_branch=branch))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])
    return bytes(helper.make_model(helper.make_graph(nodes, "g", [value], [], weights)).SerializeToString())
