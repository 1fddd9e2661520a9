"""verify, hash, split, merge, edit and inspect from the command line: output, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mini_file
import numpy as np
import pytest

from satchel.cli.main import main
from satchel.formats.gguf import TensorSource, open_gguf

Capture = pytest.CaptureFixture[str]
NAN = TensorSource("blk.0.ffn_down.weight", (32, 64), "f32", np.full((32, 64), np.nan, np.float32))


def run(capfd: Capture, *args: str | Path) -> tuple[int, str, str]:
    code = main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return mini_file.write_mini(tmp_path / "m.gguf")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return mini_file.write_mini(tmp_path / "b.gguf", {"llama.rope.freq_base": 0.0}, replace={NAN.name: NAN})


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has the model `mine`."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "HOME", "SATCHEL_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("SATCHEL_FOLDERS", str(tmp_path / "models"))
    return mini_file.write_mini(tmp_path / "models" / "mine.gguf", format="f32")


def test_commands_that_write_a_file_read_a_model_by_its_name(
    stored: Path, tmp_path: Path, capfd: Capture
) -> None:
    out, before = tmp_path / "out.gguf", stored.read_bytes()
    for args in (
        ("edit", "mine", out, "--set", "general.name=Mine"),
        ("merge", "mine", out),
        ("quantize", "mine", out, "Q8_0"),
        ("split", "mine", tmp_path / "part", "--max-tensors", "2"),
    ):
        assert run(capfd, *args)[0] == 0
    assert out.is_file() and list(tmp_path.glob("part-00001-of-*.gguf"))
    code, _, err = run(capfd, "edit", "mine", "--set", "general.name=Mine")
    assert code == 1 and "mine: a model of the store stays as it was pulled: name a file OUT" in err
    assert stored.read_bytes() == before


@pytest.mark.model
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("inspect", "--no-tensors"), "satchel-40m"),
        (("verify", "--no-values"), "nothing is wrong"),
        (("hash", "--no-tensors"), "satchel-40m"),
        (("tokenize", "Hello", "--ids"), "["),
    ],
)
def test_without_a_model_the_bundled_one_is_read(args: tuple[str, ...], said: str, capfd: Capture) -> None:
    code, out, err = run(capfd, *args)
    assert (code, err) == (0, "") and said in out


def test_verify_says_that_all_is_well(model: Path, capfd: Capture) -> None:
    code, out, err = run(capfd, "verify", model)
    assert (code, err) == (0, "") and out.startswith(f"{model}: nothing is wrong in container, meaning")


def test_verify_names_each_finding_and_its_repair(broken: Path, capfd: Capture) -> None:
    code, out, err = run(capfd, "verify", broken)
    assert (code, err) == (1, "")
    assert "error: meaning: llama.rope.freq_base at byte " in out and "    repair: satchel edit " in out
    assert "    found: NaN or infinity in 32 of 32 rows, first in row 0" in out
    assert out.strip().splitlines()[-1].startswith(f"{broken}: 2 errors in ")


def test_verify_as_json(broken: Path, tmp_path: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "verify", broken, "--json")
    found = json.loads(out)
    assert (code, found["errors"], found["warnings"], found["readable"]) == (1, 2, 0, True)
    first, second = found["findings"]
    keys = ["severity", "check", "file", "subject", "offset", "wanted", "found", "repair", "message"]
    assert list(first) == keys and first["subject"] == "llama.rope.freq_base" and second["check"] == "values"
    code, out, _ = run(capfd, "verify", tmp_path / "none.gguf", "--json")
    assert code == 2 and json.loads(out)["readable"] is False
    assert json.loads(run(capfd, "verify", broken, "--json", "--no-values")[1])["left_out"] == {
        "values": "not asked for"
    }


def test_verify_gives_a_truncated_file_one_error(model: Path, capfd: Capture) -> None:
    with open_gguf(model) as gguf:
        infos, size = list(gguf.tensors.values()), gguf.parts[0].size
    cut = infos[2].offset + 1
    model.write_bytes(model.read_bytes()[:cut])
    code, out, _ = run(capfd, "verify", model)
    assert code == 1 and out.count("error: container") == 1
    assert f"error: container: {infos[2].name} at byte {infos[2].offset:,}" in out
    assert f"wanted: data up to byte {size}" in out
    assert f"found: a file of {cut}, too short for {len(infos) - 2} of its {len(infos)} tensors" in out
    assert ": 1 error in " in out.splitlines()[-1]


def test_verify_shortens_what_repeats(tmp_path: Path, capfd: Capture) -> None:
    replace = {f"x.{i}": TensorSource(f"x.{i}", (32,), "q8_0", b"\x00\x7e" + bytes(32)) for i in range(30)}
    path = mini_file.write_mini(tmp_path / "m.gguf", {"general.type": "adapter"}, replace=replace)
    _, out, _ = run(capfd, "verify", path)
    assert out.count("error: values") == 8 and "... and 22 errors more in values: --all prints them" in out
    assert "not checked: meaning: general.type is 'adapter'" in out
    assert run(capfd, "verify", path, "--all")[1].count("error: values") == 30


def test_verify_strictly(tmp_path: Path, capfd: Capture) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", {"tokenizer.chat_template": None})
    assert run(capfd, "verify", path)[0] == 0 and run(capfd, "verify", path, "--strict")[0] == 1


def test_verify_shows_no_control_character(tmp_path: Path, capfd: Capture) -> None:
    changes = {
        "tokenizer.ggml.model": "\x1b[2J\nevil",
        "tokenizer.chat_template": "\x1b]0;x\x07{{ messages[0] }",
    }
    _, out, _ = run(capfd, "verify", mini_file.write_mini(tmp_path / "m.gguf", changes))
    assert out.replace("\n", "").isprintable()


def test_a_set_goes_apart_and_together_again(model: Path, tmp_path: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "split", model, tmp_path / "s", "--max-size", "4K")
    parts = sorted(tmp_path.glob("s-*.gguf"))
    assert code == 0 and len(parts) == out.count("\n") > 2
    assert parts[0].name == f"s-00001-of-{len(parts):05d}.gguf"
    assert run(capfd, "verify", parts[1])[0] == 0
    assert run(capfd, "hash", parts[0], "--check", model)[0] == 0
    code, out, _ = run(capfd, "merge", parts[-1], tmp_path / "whole.gguf")
    assert code == 0 and f"from {len(parts)} parts" in out
    assert (tmp_path / "whole.gguf").read_bytes() == model.read_bytes()


def test_the_gguf_package_reads_the_parts(model: Path, tmp_path: Path, capfd: Capture) -> None:
    gguf = pytest.importorskip("gguf")
    assert run(capfd, "split", model, tmp_path / "s.gguf", "--max-tensors", "4")[0] == 0
    parts = sorted(tmp_path.glob("s-*.gguf"))
    names: list[str] = []
    for number, part in enumerate(parts):
        read = gguf.GGUFReader(part)
        split = [read.fields[f"split.{key}"].contents() for key in ("no", "count", "tensors.count")]
        assert split == [number, 3, 11] and ("general.architecture" in read.fields) == (number == 0)
        names += [tensor.name for tensor in read.tensors]
    with open_gguf(model) as whole:
        assert names == list(whole.tensors)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-size", "2G"), "fits into one part"),
        ((), "fits into one part"),
        (("--max-size", "x"), "as in 2G"),
        (("--max-size", "0"), "as in 2G"),
        (("--max-size", "-1G"), "as in 2G"),
        (("--max-size", "1e99"), "as in 2G"),
        (("--max-size", "4K", "--max-tensors", "1"), "got both"),
    ],
)
def test_sizes_that_cannot_be(
    options: tuple[str, ...], said: str, model: Path, tmp_path: Path, capfd: Capture
) -> None:
    code, out, err = run(capfd, "split", model, tmp_path / "s", *options)
    assert (code, out) == (1, "") and said in err and list(tmp_path.iterdir()) == [model]


def test_a_dry_run_writes_nothing(model: Path, tmp_path: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "split", model, tmp_path / "s", "--max-tensors", "6", "--dry-run")
    assert code == 0 and out.count("\n") == 2 and list(tmp_path.iterdir()) == [model]
    whole = model.read_bytes()
    code, _, err = run(capfd, "edit", model, "--set", "general.name=x", "--dry-run")
    assert code == 0 and "general.name: new: 'x' (string)" in err and model.read_bytes() == whole


def test_a_set_is_not_split_or_merged_over_itself(model: Path, tmp_path: Path, capfd: Capture) -> None:
    run(capfd, "split", model, tmp_path / "s", "--max-tensors", "4")
    first = tmp_path / "s-00001-of-00003.gguf"
    whole = first.read_bytes()
    code, _, err = run(capfd, "split", first, tmp_path / "s", "--max-tensors", "5")
    assert code == 1 and "choose another name" in err
    code, _, err = run(capfd, "merge", first, first)
    assert code == 1 and "another file" in err and first.read_bytes() == whole


def test_edit_keeps_types_and_says_what_changed(model: Path, capfd: Capture) -> None:
    code, out, err = run(
        capfd, "edit", model, "--set", "llama.rope.freq_base=5e4", "--set", "general.name:string=7",
        "--rename", "llama.context_length=old.context", "--set", "llama.context_length=32",
    )  # fmt: skip
    assert (code, out) == (0, "") and "llama.rope.freq_base: 10000.0 (float32) -> 50000.0 (float32)" in err
    with open_gguf(model) as gguf:
        assert gguf.metadata["llama.rope.freq_base"] == 50000.0 and gguf.metadata["general.name"] == "7"
        assert gguf.metadata["old.context"] == 64 and gguf.metadata["llama.context_length"] == 32
    code, _, err = run(capfd, "edit", model, "--set", "llama.context_length=32")
    assert code == 0 and "nothing was written" in err


@pytest.mark.parametrize(
    "change",
    [
        ("--set", "llama.block_count=2"),
        ("--set", "llama.attention.head_count_kv=0"),
        ("--remove", "llama.embedding_length"),
        ("--set", "tokenizer.ggml.model=abacus"),
        ("--set", "tokenizer.chat_template={% if"),
        ("--remove", "tokenizer.ggml.tokens"),
        ("--rename", "general.architecture=general.arch"),
    ],
)
def test_edit_refuses_what_would_not_load(change: tuple[str, str], model: Path, capfd: Capture) -> None:
    whole = model.read_bytes()
    code, out, err = run(capfd, "edit", model, *change)
    assert (code, out) == (1, "") and "the file would not load" in err and "--force" in err
    assert model.read_bytes() == whole
    assert run(capfd, "edit", model, *change, "--force")[0] == 0
    assert run(capfd, "verify", model)[0] == 1


def test_edit_repairs_what_verify_found(tmp_path: Path, capfd: Capture) -> None:
    """A file with two faults is repaired one by one: only a new fault makes a change fail."""
    changes: dict[str, Any] = {"llama.rope.freq_base": 0.0, "llama.block_count": 9}
    path = mini_file.write_mini(tmp_path / "m.gguf", changes)
    found = json.loads(run(capfd, "verify", path, "--json")[1])["findings"]
    repair = next(f["repair"] for f in found if f["subject"] == "llama.block_count")
    assert run(capfd, *repair.split()[1:])[0] == 0
    assert run(capfd, "verify", path)[0] == 1
    assert run(capfd, "edit", path, "--remove", "llama.rope.freq_base")[0] == 0
    assert run(capfd, "verify", path)[0] == 0


def test_edit_writes_another_file(model: Path, tmp_path: Path, capfd: Capture) -> None:
    whole, other = model.read_bytes(), tmp_path / "other.gguf"
    assert run(capfd, "edit", model, other, "--set", "general.name=x")[0] == 0
    with open_gguf(other) as gguf:
        assert gguf.metadata["general.name"] == "x"
    assert model.read_bytes() == whole


def test_hash_prints_a_manifest_that_it_checks(model: Path, tmp_path: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "hash", model)
    assert code == 0 and out.count("\n") == 11 + 2
    manifest = tmp_path / "m.txt"
    manifest.write_text(out)
    code, said, _ = run(capfd, "hash", model, "--check", manifest)
    assert code == 0 and "11 tensors as in" in said
    other = mini_file.write_mini(tmp_path / "o.gguf", format="f16")
    code, said, _ = run(capfd, "hash", other, "--check", manifest)
    assert code == 1 and "tensor token_embd.weight: expected" in said
    code, said, _ = run(capfd, "hash", other, "--check", model)
    assert code == 1 and "expected q8_0 11x32 " in said
    assert json.loads(run(capfd, "hash", model, "--json")[1])["algorithm"] == "sha256"
    assert run(capfd, "hash", model, "-a", "crc32")[0] == 1


def test_inspect_shows_a_histogram_and_a_value(model: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "inspect", model, "--histogram", "token_embd.weight", "--bins", "8")
    assert code == 0 and out.count("\n") == 2 + 8 and "█" in out
    counts = [int(line.split()[-1].replace(",", "")) for line in out.splitlines()[2:]]
    assert sum(counts) == 11 * 32
    (found,) = json.loads(run(capfd, "inspect", model, "--histogram", "token_embd.weight", "--json")[1])
    assert sum(found["counts"]) == 11 * 32
    assert run(capfd, "inspect", model, "--key", "tokenizer.chat_template")[1] == mini_file.TEMPLATE + "\n"
    assert json.loads(run(capfd, "inspect", model, "--key", "tokenizer.ggml.tokens")[1])[1] == "</s>"
    for wrong in (
        ("--key", "none"),
        ("--histogram", "none"),
        ("--histogram", "token_embd.weight", "--bins", "0"),
    ):
        assert run(capfd, "inspect", model, *wrong)[0] == 1
