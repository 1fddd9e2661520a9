"""`satchel convert`: its files and output, and that an error leaves no file."""

from pathlib import Path

import pytest
import toy_checkpoint as toy

from satchel.cli.main import main
from satchel.formats.gguf import open_gguf


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["convert", *args])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_checkpoint_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = toy.write(tmp_path / "m", "qwen3", dtype="BF16")
    target = tmp_path / "out.gguf"
    code, out, err = run(capsys, str(folder), str(target))
    assert (code, out) == (0, "")
    assert f"{target}: {target.stat().st_size:,} bytes" in err and "bf16 x 16, f32 x 9" in err
    with open_gguf(target) as gguf:
        assert gguf.metadata["general.architecture"] == "qwen3"


def test_the_file_is_named_as_the_folder_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.write(tmp_path / "My-Model", "llama")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "My-Model", "--outtype", "Q8_0")[0] == 0
    with open_gguf(tmp_path / "My-Model.gguf") as gguf:
        assert gguf.tensors["token_embd.weight"].format == "q8_0"


def test_parts_and_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = toy.write(tmp_path / "m", "llama")
    target = tmp_path / "x.gguf"
    code, _, err = run(capsys, str(folder), "--outfile", str(target), "--dry-run")
    assert code == 0 and "22 tensors" not in err and "21 tensors" in err
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert run(capsys, str(folder), str(target), "--split-max-size", "200K")[0] == 0
    parts = sorted(tmp_path.glob("x-*.gguf"))
    assert len(parts) > 1
    with open_gguf(parts[0]) as gguf:
        assert len(gguf.tensors) == 21


def test_an_adapter_is_known_by_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import numpy as np

    base = toy.write(tmp_path / "base", "llama")
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    factors = {
        f"{name}A.weight": np.ones((2, 64), np.float32),
        f"{name}B.weight": np.ones((96, 2), np.float32),
    }
    (folder / "adapter_model.safetensors").write_bytes(toy.safetensors(toy.stored(factors)))
    target = tmp_path / "lora.gguf"
    code, _, err = run(capsys, str(folder), str(target))
    assert code == 1 and "--base" in err
    assert run(capsys, str(folder), str(target), "--base", str(base), "--outtype", "f16")[0] == 0
    with open_gguf(target) as gguf:
        assert gguf.metadata["general.type"] == "adapter"
        assert gguf.tensors["blk.0.ffn_up.weight.lora_a"].format == "f16"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["no-such"], 1, "expected the folder of a checkpoint"),
        (["m/config.json"], 1, "got a file"),
        (["m", "--outtype", "q4_k_m"], 2, "--outtype: expected one of auto, f32"),
        (["m", "a.gguf", "--outfile", "b.gguf"], 2, "--outfile"),
        (["m", "--base", "m"], 2, "--base"),
        (["m", "--split-max-size", "2X"], 2, "--split-max-size"),
        (["m", "m"], 1, "a file to write"),
        (["m", "no/such/folder/x.gguf"], 1, "can't be written"),
        ([], 2, "DIR"),
    ],
)
def test_wrong_use_is_one_line(
    args: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy.write(tmp_path / "m", "llama")
    monkeypatch.chdir(tmp_path)
    got, out, err = run(capsys, *args)
    lines = [line for line in err.splitlines() if line.startswith("satchel: error")]
    assert (got, out, len(lines)) == (code, "", 1) and said in lines[0], err
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_went_wrong_with_a_number_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = toy.tensors("llama")
    values["model.layers.1.mlp.down_proj.weight"][3, 3] = float("nan")
    folder = toy.write(tmp_path / "m", "llama", values=toy.stored(values))
    code, _, err = run(capsys, str(folder), str(tmp_path / "x.gguf"))
    assert code == 1 and "model.layers.1.mlp.down_proj.weight" in err and "NaN" in err
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
