"""PyTorch and ONNX files give the same tensors as the checkpoint's safetensors; content that could run code
or leave the folder is refused.
"""

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_checkpoint as toy

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import Metadata
from satchel.runtime.weights.sources import open_checkpoint

ARCHS = ("llama", "qwen2", "qwen3moe")


def contents(folder: Path) -> dict[str, bytes]:
    with open_checkpoint(folder) as source:
        return {name: b"".join(bytes(c) for c in source.chunks(name)) for name in source.tensors}


def without_weights(folder: Path, arch: str, **changes: Any) -> Path:
    toy.write(folder, arch, **changes)
    (folder / "model.safetensors").unlink()
    return folder


def missing(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Hides the package."""
    real = builtins.__import__

    def fake(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", fake)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("legacy", [False, True])
def test_a_pytorch_file_holds_the_same(arch: str, legacy: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    folder = without_weights(tmp_path / "m", arch)
    state = {name: torch.from_numpy(value) for name, value in toy.tensors(arch).items()}
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    assert contents(folder) == contents(toy.write(tmp_path / "want", arch))


def test_pytorch_types_and_shards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    state = {name: torch.from_numpy(value).bfloat16() for name, value in toy.tensors("llama").items()}
    names = list(state)
    index = {}
    for i, part in enumerate((names[:5], names[5:])):
        torch.save({"state_dict": {n: state[n] for n in part}}, folder / f"pytorch_model-{i}.bin")
        index |= dict.fromkeys(part, f"pytorch_model-{i}.bin")
    (folder / "pytorch_model.bin.index.json").write_text(__import__("json").dumps({"weight_map": index}))
    assert contents(folder) == contents(toy.write(tmp_path / "want", "llama", dtype="BF16"))


class Evil:
    """Runs a command when a pickle is loaded unsafely."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("wrapped", [False, True])
def test_code_in_a_pytorch_file_is_never_run(wrapped: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    evil = Evil(tmp_path / "ran")
    torch.save({"state_dict": evil} if wrapped else evil, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="weights alone refuses") as error:
        contents(folder)
    assert "\n" not in str(error.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("what", ["garbage", "empty", "list", "number"])
def test_a_pytorch_file_of_something_else_is_one_line(what: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    path = folder / "pytorch_model.bin"
    if what in ("garbage", "empty"):
        path.write_bytes(b"\x80\x02garbage" if what == "garbage" else b"")
    else:
        torch.save([1] if what == "list" else {"a": 3}, path)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin") as error:
        contents(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("package", "name"), [("torch", "pytorch_model.bin"), ("onnx", "model.onnx")])
def test_without_the_package_it_is_named(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_weights(tmp_path / "m", "llama")
    (folder / name).write_bytes(b"x")
    missing(monkeypatch, package)
    with pytest.raises(RequestError, match=r"pip install 'satchel\[.*safetensors"):
        contents(folder)


def graph(onnx: Any, arch: str, style: str) -> Any:
    """A graph as exporters write it; only the weights of products and their names matter here."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    initializers, nodes = [], []
    for number, (name, value) in enumerate(toy.tensors(arch).items()):
        module = name.removesuffix(".weight")
        product = value.ndim == 2 and "embed" not in name
        if not product:
            initializers.append(numpy_helper.from_array(value, name))
            continue
        path = "/" + module.replace(".", "/").replace("layers/", "layers.").replace("experts/", "experts.")
        if style == "gemm":
            initializers.append(numpy_helper.from_array(value, f"w{number}"))
            nodes.append(
                helper.make_node("Gemm", ["x", f"w{number}"], [f"y{number}"], name=f"{path}/Gemm", transB=1)
            )
        elif style == "transpose":
            initializers.append(numpy_helper.from_array(value, name))
            nodes.append(
                helper.make_node("Transpose", [name], [f"t{number}"], name=f"t{number}", perm=[1, 0])
            )
            nodes.append(
                helper.make_node("MatMul", ["x", f"t{number}"], [f"y{number}"], name=f"{path}/MatMul")
            )
        else:
            turned = np.ascontiguousarray(value.T)
            initializers.append(numpy_helper.from_array(turned, f"onnx::MatMul_{number}"))
            node = helper.make_node(
                "MatMul", ["x", f"onnx::MatMul_{number}"], [f"y{number}"], name=f"{path}/MatMul"
            )
            if style == "scopes":
                node.name = f"node_linear_{number}"
                scopes = ["", module.split(".")[0], module, "linear"]
                node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
            nodes.append(node)
    initializers.append(numpy_helper.from_array(np.arange(4), "shape_constant"))
    initializers.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "mask_constant"))
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)], [out]
    )
    made.initializer.extend(initializers)
    return helper.make_model(made)


@pytest.mark.parametrize("style", ["matmul", "scopes", "transpose", "gemm"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_an_onnx_export_holds_the_same(arch: str, style: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", arch)
    model = graph(onnx, arch, style)
    if style == "matmul":
        onnx.save(
            model,
            str(folder / "model.onnx"),
            save_as_external_data=True,
            location="model.onnx_data",
            size_threshold=64,
        )
        assert (folder / "model.onnx_data").stat().st_size > 100_000
    else:
        onnx.save(model, str(folder / "model.onnx"))
    assert contents(folder) == contents(toy.write(tmp_path / "want", arch))


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", "nothing.data", "m/../../secret"])
def test_external_data_elsewhere_is_refused(location: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    (tmp_path / "secret").write_bytes(bytes(1 << 20))
    model = graph(onnx, "llama", "matmul")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="a file beside"):
        contents(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "x"), ("length", "5"), ("offset", "9999999999"), ("offset", "-1")]
)
def test_external_data_of_wrong_size_is_refused(key: str, value: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    onnx.save(
        graph(onnx, "llama", "matmul"),
        str(folder / "model.onnx"),
        save_as_external_data=True,
        location="d",
        size_threshold=64,
    )
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    entries = model.graph.initializer[0].external_data
    kept = [(e.key, e.value) for e in entries if e.key != key]
    del entries[:]
    for k, v in [*kept, (key, value)]:
        entries.add(key=k, value=v)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"expected .* bytes") as error:
        contents(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g, h: [setattr(n, "name", "MatMul_5") for n in g.node], "whose name tells its layer"),
        (
            lambda g, h: g.node.append(h.make_node("MatMulNBits", ["x"], ["z"], name="q")),
            "without quantization",
        ),
        (lambda g, h: g.node.pop(), "expected by config.json"),
    ],
)
def test_a_graph_that_lost_its_weights_says_what_to_do(change: Any, said: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    model = graph(onnx, "llama", "matmul")
    change(model.graph, onnx.helper)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=said):
        contents(folder)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 50, b"garbage"])
def test_what_is_no_onnx_is_one_line(raw: bytes, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    (folder / "model.onnx").write_bytes(raw)
    with pytest.raises(ModelError) as error:
        contents(folder)
    assert "\n" not in str(error.value)


def test_sources_have_plain_metadata(tmp_path: Path) -> None:
    with open_checkpoint(toy.write(tmp_path / "m", "llama")) as source:
        assert isinstance(source.metadata, Metadata) and source.metadata.source == str(tmp_path / "m")


def test_a_text_of_an_onnx_file_that_is_no_utf8_is_one_line(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    raw = graph(onnx, "llama", "matmul").SerializeToString()
    (folder / "model.onnx").write_bytes(raw.replace(b"up_proj/MatMul", b"up_proj/Mat\xff\xffl", 1))
    with pytest.raises(ModelError, match="expected UTF-8") as error:
        contents(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["cut", "longer shape"])
def test_an_initializer_of_another_size_than_its_shape_is_refused(change: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    folder = without_weights(tmp_path / "m", "llama")
    model = graph(onnx, "llama", "matmul")
    tensor = model.graph.initializer[0]
    if change == "cut":
        tensor.raw_data = tensor.raw_data[:-3]
    else:
        tensor.dims[0] += 1
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"expected \d+ bytes, got \d+"):
        contents(folder)
