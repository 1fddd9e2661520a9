"""`satchel quantize`: its output and files, refusals, and quantizing to a target size."""

from __future__ import annotations

import json
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tiny_file
import toy_checkpoint
from devices import needs, skip_without

from satchel.cli.main import main
from satchel.cli.quantizing.options import parse_size
from satchel.formats.gguf import open_gguf, sources, write_gguf
from satchel.quant import FORMATS

needs_cpu = needs("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("quantize") / "tiny.gguf", format="f32")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("hello hello, the quick brown fox jumps over the lazy dog. " * 40)
    return path


def formats(path: Path) -> dict[str, str]:
    with open_gguf(path) as found:
        return {name: info.format for name, info in found.tensors.items()}


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["quantize", *args])
    found = capsys.readouterr()
    lines = [line for line in found.err.splitlines() if line.startswith("satchel: error")]
    assert found.out == "" and len(lines) == 1, found.err
    return code, lines[0]


def test_the_table_stands_on_stderr(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "x.gguf"
    more = ["--tensor-type", "ffn_down=f16", "--token-embedding-type", "q4_0"]
    assert main(["quantize", str(model), str(target), "Q8_0", "--dry-run", *more]) == 0
    dry = capsys.readouterr()
    assert not target.exists()
    assert main(["quantize", str(model), str(target), "Q8_0", *more]) == 0
    done = capsys.readouterr()
    assert dry.out == done.out == ""
    for word in ("attn_v", "q8_0", "bits/weight", "all"):
        assert word in dry.err and word in done.err
    assert f"{target.stat().st_size:,} bytes (not written)" in dry.err.replace("\n", "")
    assert f"{target.stat().st_size:,} bytes" in done.err.replace("\n", "")
    found = formats(target)
    assert found["blk.0.ffn_down.weight"] == "f16" and found["token_embd.weight"] == "q4_0"


def test_rules_from_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text("base = 'Q4_0'\n[types]\n'attn_v' = 'q8_0'\n'ffn' = 'q5_1'\n")
    (tmp_path / "types.txt").write_text("# by hand\n\nffn_down=q4_1\n")
    args = [str(model), str(tmp_path / "x.gguf"), str(tmp_path / "mix.toml")]
    assert main(["quantize", *args, "--tensor-type-file", str(tmp_path / "types.txt")]) == 0
    found = formats(tmp_path / "x.gguf")
    kinds = {found[f"blk.1.{name}.weight"] for name in ("ffn_up", "ffn_gate")}
    assert (found["blk.1.attn_v.weight"], found["blk.1.ffn_down.weight"], kinds) == ("q8_0", "q4_1", {"q5_1"})
    assert found["blk.1.attn_q.weight"] == "q4_0" and found["output_norm.weight"] == "f32"


def test_leave_output_keeps_the_head(model: Path, tmp_path: Path) -> None:
    for flag in ("--leave-output-tensor", "--leave-output"):
        assert main(["quantize", str(model), str(tmp_path / "x.gguf"), "Q8_0", flag]) == 0
        found = formats(tmp_path / "x.gguf")
        assert found["token_embd.weight"] == "f32" and found["blk.0.attn_q.weight"] == "q8_0"


def test_keep_split_writes_the_same_parts(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as whole:
        metadata = {key: whole.metadata.typed(key) for key in whole.metadata}
        parts = write_gguf(tmp_path / "in.gguf", metadata, sources(whole), max_size=1_000_000)
    assert len(parts) > 2
    assert main(["quantize", str(parts[1]), str(tmp_path / "out.gguf"), "Q8_0", "--keep-split"]) == 0
    written = [tmp_path / part.name.replace("in-", "out-") for part in parts]
    assert all(path.is_file() for path in written) and not (tmp_path / "out.gguf").exists()
    with open_gguf(parts[0]) as before, open_gguf(written[0]) as after:
        places = [[info.part for info in found.tensors.values()] for found in (before, after)]
        assert places[0] == places[1] and list(before.tensors) == list(after.tensors)


def test_what_a_killed_run_left_is_removed_and_what_another_writes_is_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fcntl = pytest.importorskip("fcntl")
    left, used, other = (
        tmp_path / f".{n}.gguf.{k}.tmp" for n, k in (("x", "0" * 8), ("x", "1" * 8), ("y", "2" * 8))
    )
    for path in (left, used, other):
        path.write_bytes(b"half")
    with used.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["quantize", str(model), str(tmp_path / "x.gguf"), "Q8_0"]) == 0
    assert not left.exists() and used.exists() and other.exists()
    assert f"{left.name}: left by a run that was killed" in capsys.readouterr().err


def test_importance_data_is_used_and_named(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    with open_gguf(model) as whole:
        rows = {n: i.shape[-1] for n, i in whole.tensors.items() if n.startswith("blk") and len(i.shape) == 2}
    data = {"general.type": "imatrix", "imatrix.datasets": ["talk.txt"]}
    data |= {"imatrix.chunk_count": 7, "imatrix.chunk_size": 512}
    from satchel.formats.gguf import TensorSource

    tensors = []
    for name, width in rows.items():
        squares = rng.random((1, width)).astype(np.float32) ** 4 * 100
        tensors.append(TensorSource(f"{name}.in_sum2", squares.shape, "f32", squares))
        tensors.append(TensorSource(f"{name}.counts", (1, 1), "f32", np.full((1, 1), 64, np.float32)))
    write_gguf(tmp_path / "data.gguf", data, tensors)
    for name, more in (("a", []), ("b", ["--imatrix", str(tmp_path / "data.gguf")])):
        assert main(["quantize", str(model), str(tmp_path / f"{name}.gguf"), "Q4_0", *more]) == 0
    with open_gguf(tmp_path / "a.gguf") as a, open_gguf(tmp_path / "b.gguf") as b:
        assert not np.array_equal(a.raw("blk.0.attn_q.weight"), b.raw("blk.0.attn_q.weight"))
        assert "quantize.imatrix.file" not in a.metadata
        found = {key: b.metadata[key] for key in b.metadata if key.startswith("quantize.imatrix.")}
    assert found == {
        "quantize.imatrix.file": "data.gguf",
        "quantize.imatrix.dataset": "talk.txt",
        "quantize.imatrix.entries_count": len(rows),
        "quantize.imatrix.chunks_count": 7,
    }


@pytest.mark.parametrize("name", ["f8_e4m3", "i8_g128"])
def test_formats_that_gguf_lacks_are_named_in_the_file(model: Path, tmp_path: Path, name: str) -> None:
    if name not in FORMATS:
        pytest.skip(f"no format {name}")
    assert (
        main(["quantize", str(model), str(tmp_path / "x.gguf"), "Q8_0", "--tensor-type", f"ffn_up={name}"])
        == 0
    )
    with open_gguf(tmp_path / "x.gguf") as found:
        assert list(found.metadata.get_array("satchel.extension_types", kind="str")) == [name]
        assert found.info("blk.0.ffn_up.weight").format == name


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["IN", "OUT"], 2, "--target-size"),
        (["IN", "OUT", "Q8_0", "--target-size", "1MB", "--text", "IN"], 2, "either a type or"),
        (["IN", "OUT", "--target-size", "1MB"], 2, "--text"),
        (["IN", "OUT", "--target-size", "big", "--text", "IN"], 2, "3.2GB"),
        (["IN", "OUT", "--target-size", "1MB", "--target-bpw", "4", "--text", "IN"], 2, "already"),
        (["IN", "OUT", "--target-bpw", "4", "--text", "TEXT", "--candidates", "q9"], 2, "q9 is not a format"),
        (["IN", "OUT", "Q8_0", "--report", "x.html"], 2, "--report: it belongs to a budget"),
        (["IN", "OUT", "Q9_Z"], 1, "type Q9_Z: expected one of F32"),
        (["IN", "OUT", "none.toml"], 1, "none.toml: can't be read"),
        (["IN", "OUT", "Q8_0", "--tensor-type", "ffn_down"], 1, "PATTERN=FORMAT"),
        (["IN", "OUT", "Q8_0", "--tensor-type", "=q8_0"], 1, "PATTERN=FORMAT"),
        (["IN", "OUT", "Q8_0", "--tensor-type-file", "IN"], 1, "not UTF-8"),
        (["IN", "OUT", "Q8_0", "--imatrix", "TEXT"], 1, "text.txt"),
        (["IN", "/no/such/folder/x.gguf", "Q8_0"], 1, "create /no/such/folder"),
        (["IN", "OUT", "--target-size", "40kB", "--text", "TEXT"], 1, "the least possible is"),
    ],
)
def test_what_cannot_be(
    args: list[str], code: int, says: str, model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = text.parent / "out.gguf"
    names = {"IN": str(model), "OUT": str(target), "TEXT": str(text)}
    if "least" in says:
        skip_without("cpu")
    found = refused([names.get(a, a) for a in args], capsys)
    assert found[0] == code and says in found[1]
    assert not target.exists()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("3.2GB", 3_200_000_000),
        ("900MiB", 900 << 20),
        ("26375936", 26375936),
        ("1.5k", 1500),
        (" 2 gib ", 2 << 30),
    ],
)
def test_sizes(said: str, wanted: int) -> None:
    assert parse_size(said) == wanted


class Page(HTMLParser):
    """Parses the report: open tags, and references to anything outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.outside += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@needs_cpu
@pytest.mark.parametrize("flag", ["--target-size", "--target-bpw"])
def test_a_size_is_met_and_reported(
    model: Path, text: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = text.parent
    names = [folder / n for n in ("x.gguf", "report.html", "mix.toml", "again.gguf")]
    limit = {"--target-size": "1200kB", "--target-bpw": "5.5"}[flag]
    args = [
        str(model),
        str(names[0]),
        flag,
        limit,
        "--text",
        str(text),
        "--chunks",
        "2",
        "--search-time",
        "2",
    ]
    more = ["--candidates", "q4_0,q5_0,q8_0", "--tensor-type", "attn_v=q8_0"]
    assert main(["quantize", *args, *more, "--report", str(names[1]), "--save-rules", str(names[2])]) == 0
    said = capsys.readouterr().err
    assert "divergence predicted" in said and "measured" in said
    with open_gguf(names[0]) as found:
        elements = sum(int(np.prod(i.shape)) for i in found.tensors.values())
        used = sum(i.nbytes for i in found.tensors.values())
    if flag == "--target-size":
        assert 1_100_000 < names[0].stat().st_size <= 1_200_000
    else:
        assert 5 < 8 * used / elements <= 5.5
    kinds = formats(names[0])
    assert kinds["blk.1.attn_v.weight"] == "q8_0"
    assert len({f for n, f in kinds.items() if n.startswith("blk")} & {"q4_0", "q5_0", "q8_0"}) > 1
    page = Page()
    page.feed(names[1].read_text())
    assert page.open == [] and page.outside == [] and {"svg", "table", "style"} <= page.seen
    assert "blk.2.ffn_up.weight" in names[1].read_text()
    assert tomllib.loads(names[2].read_text())["types"]
    assert main(["quantize", str(model), str(names[3]), str(names[2])]) == 0
    assert formats(names[3]) == kinds


@needs_cpu
def test_a_dry_run_of_a_size_writes_nothing(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = text.parent / "x.gguf"
    args = [str(model), str(target), "--target-size", "1200kB", "--text", str(text), "--dry-run"]
    assert main(["quantize", *args, "--search-time", "1", "--candidates", "q4_0,q8_0", "--chunks", "1"]) == 0
    assert "not written" in capsys.readouterr().err and not target.exists()


def test_json_rules(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text(json.dumps({"base": "q8_0", "pure": True, "types": {"attn_k": "f16"}}))
    assert main(["quantize", str(model), str(tmp_path / "x.gguf"), str(tmp_path / "mix.json")]) == 0
    found = formats(tmp_path / "x.gguf")
    assert found["blk.0.attn_k.weight"] == "f16" and found["token_embd.weight"] == "q8_0"


def test_a_checkpoint_s_folder_is_read_as_if_it_were_converted(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = toy_checkpoint.write(tmp_path / "model", "qwen3", dtype="BF16")
    converted, direct, through = (tmp_path / f"{n}.gguf" for n in ("converted", "direct", "through"))
    assert main(["quantize", str(folder), str(direct), "Q4_0"]) == 0
    assert main(["convert", str(folder), str(converted)]) == 0
    assert main(["quantize", str(converted), str(through), "Q4_0"]) == 0
    assert formats(direct)["blk.0.attn_q.weight"] == "q4_0"
    with open_gguf(direct) as a, open_gguf(through) as b:
        assert {n: i.format for n, i in a.tensors.items()} == {n: i.format for n, i in b.tensors.items()}
        assert all(np.array_equal(a.raw(name), b.raw(name)) for name in a.tensors)
    capsys.readouterr()
    args = [str(folder), str(tmp_path / "x.gguf"), "--target-bpw", "5", "--text", str(text)]
    code, said = refused(args, capsys)
    assert code == 1 and "satchel convert" in said
