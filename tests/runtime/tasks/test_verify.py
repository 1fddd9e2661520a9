"""`verify` reports everything that the loader refuses, with place and repair; a file that passes loads."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mini_file
import numpy as np
import pytest
import toy_vocab

from satchel.errors import ModelError
from satchel.formats.gguf import TensorSource, Typed, ValueType, open_gguf, typed
from satchel.formats.tokenizer import build_tokenizer
from satchel.formats.verify import FINDINGS_LIMIT, Log
from satchel.formats.verify_text import check_vocabulary
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.tasks.verify import VerifyReport, verify
from satchel.runtime.weights.weights import FileWeights


def load(path: Path) -> None:
    """The checks of a load, in order; they need no device."""
    with open_gguf(path) as gguf:
        name = gguf.metadata.get_str("general.architecture")
        find_arch(name, str(path))(HParams(gguf.metadata, name), FileWeights(gguf), Cache(64)).build()
        check_vocabulary(build_tokenizer(gguf.metadata, source=str(path)), gguf.tensors, path)


def subjects(report: VerifyReport, severity: str = "error") -> list[str]:
    return [finding.subject for finding in report.findings if finding.severity == severity]


def matrix(name: str, *shape: int, format: str = "f32") -> TensorSource:
    return TensorSource(name, shape, format, np.zeros(shape, np.float32))


@pytest.mark.parametrize("tokenizer", ["t5", "bert", "llama", "gpt2", "gemma4"])
@pytest.mark.parametrize("format", ["q8_0", "bf16"])
def test_a_sound_model_has_no_finding_and_loads(tokenizer: str, format: str, tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", tokenizer=tokenizer, format=format)
    report = verify(path)
    assert [f for f in report.findings if f.check != "tokenizer"] == [] and not report.errors
    assert report.checked == ("container", "meaning", "values", "tokenizer", "template")
    assert (report.exit_code(), report.tensors, report.size) == (0, 11, path.stat().st_size)
    load(path)


def test_the_bundled_model_has_no_finding(bundled_model: Path) -> None:
    assert verify(bundled_model).findings == ()


HEADS, KV = "llama.attention.head_count", "llama.attention.head_count_kv"
EPS, TOK = "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml."
Q, UP, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
HOLE, SEVENTH = "blk.0.wormhole.weight", "blk.7.attn_q.weight"
FACTORS, EMBEDDING = "rope_freqs.weight", "token_embd.weight"
Changes = Mapping[str, Any]
# id, metadata that is changed, tensors that are changed, the key or tensor that is named
MEANING: list[tuple[str, Changes, Changes, str]] = [
    ("M01-zero", {"llama.block_count": 0}, {}, "llama.block_count"),
    ("M01-513", {"llama.block_count": 513}, {}, "llama.block_count"),
    ("M01-2^31", {"llama.block_count": 1 << 31}, {}, "llama.block_count"),
    ("M01-string", {"llama.block_count": "1"}, {}, "llama.block_count"),
    ("M01-float", {"llama.block_count": 1.0}, {}, "llama.block_count"),
    ("M01-missing", {"llama.block_count": None}, {}, "llama.block_count"),
    ("M01-more-than-there-are", {"llama.block_count": 2}, {}, "llama.block_count"),
    ("M02-heads-0", {HEADS: 0}, {}, HEADS),
    ("M02-heads-missing", {HEADS: None}, {}, HEADS),
    ("M02-heads-more-than-width", {HEADS: 64}, {}, HEADS),
    ("M02-kv-0", {KV: 0}, {}, KV),
    ("M02-kv-more-than-heads", {KV: 4}, {}, KV),
    ("M02-kv-negative", {KV: -1}, {}, KV),
    ("M02-kv-array-too-long", {KV: [1, 1]}, {}, KV),
    ("M02-kv-array-empty", {KV: np.zeros(0, np.int32)}, {}, KV),
    ("M02-kv-array-of-strings", {KV: ["1"]}, {}, KV),
    ("M03-width-0", {"llama.embedding_length": 0}, {}, "llama.embedding_length"),
    ("M03-width-of-no-tensor", {"llama.embedding_length": 64}, {}, EMBEDDING),
    ("M03-width-as-minus-1", {"llama.embedding_length": (1 << 32) - 1}, {}, "llama.embedding_length"),
    ("M03-ffn-0", {"llama.feed_forward_length": 0}, {}, "llama.feed_forward_length"),
    ("M03-ffn-of-no-tensor", {"llama.feed_forward_length": 96}, {}, UP),
    ("M03-context-0", {"llama.context_length": 0}, {}, "llama.context_length"),
    ("M03-context-missing", {"llama.context_length": None}, {}, "llama.context_length"),
    ("M03-vocab-0", {"llama.vocab_size": 0}, {}, "llama.vocab_size"),
    ("M03-vocab-of-no-tensor", {"llama.vocab_size": 99}, {}, "llama.vocab_size"),
    ("M03-vocab-negative", {"llama.vocab_size": -5}, {}, "llama.vocab_size"),
    ("M04-rotary-odd", {"llama.rope.dimension_count": 7}, {}, "llama.rope.dimension_count"),
    ("M04-rotary-more-than-head", {"llama.rope.dimension_count": 18}, {}, "llama.rope.dimension_count"),
    ("M04-base-0", {"llama.rope.freq_base": 0.0}, {}, "llama.rope.freq_base"),
    ("M04-base-nan", {"llama.rope.freq_base": math.nan}, {}, "llama.rope.freq_base"),
    ("M04-base-inf", {"llama.rope.freq_base": math.inf}, {}, "llama.rope.freq_base"),
    ("M04-factor-0", {"llama.rope.scaling.factor": 0.0}, {}, "llama.rope.scaling.factor"),
    ("M04-kind", {"llama.rope.scaling.type": "spiral"}, {}, "llama.rope.scaling.type"),
    ("M04-factors-of-wrong-size", {}, {FACTORS: matrix(FACTORS, 5)}, FACTORS),
    ("M05-eps-0", {EPS: 0.0}, {}, EPS),
    ("M05-eps-nan", {EPS: math.nan}, {}, EPS),
    ("M05-scale-inf", {"llama.attention.scale": math.inf}, {}, "llama.attention.scale"),
    ("M07-add-flag-as-string", {"tokenizer.ggml.add_bos_token": "yes"}, {}, "tokenizer.ggml.add_bos_token"),
    ("M07-id-as-string", {"tokenizer.ggml.bos_token_id": "1"}, {}, "tokenizer.ggml.bos_token_id"),
    ("M08-tokens-as-numbers", {TOK + "tokens": np.arange(12, dtype=np.int32)}, {}, TOK + "tokens"),
    ("M08-tokens-missing", {TOK + "tokens": None}, {}, TOK + "tokens"),
    ("M08-scores-short", {TOK + "scores": np.zeros(5, np.float32)}, {}, TOK + "scores"),
    ("M08-scores-as-int8", {TOK + "scores": np.zeros(12, np.int8)}, {}, TOK + "scores"),
    ("M08-types-short", {TOK + "token_type": np.ones(3, np.int32)}, {}, TOK + "token_type"),
    ("M09-token-of-a-megabyte", {TOK + "tokens": ["x" * (1 << 20), *"abcdefghijk"]}, {}, TOK + "tokens"),
    ("M12-charsmap", {TOK + "precompiled_charsmap": np.ones(3, np.uint8)}, {}, TOK + "precompiled_charsmap"),
    ("M14-missing", {}, {Q: None}, Q),
    ("M14-norm-missing", {}, {"output_norm.weight": None}, "output_norm.weight"),
    ("M14-transposed", {}, {DOWN: matrix(DOWN, 64, 32)}, DOWN),
    ("M14-one-dimension-more", {}, {Q: matrix(Q, 1, 32, 32)}, Q),
    ("M14-scalar", {}, {Q: matrix(Q)}, Q),
    ("M14-unknown", {}, {HOLE: matrix(HOLE, 4, 4)}, HOLE),
    ("M14-layer-beyond", {}, {SEVENTH: matrix(SEVENTH, 32, 32)}, SEVENTH),
    ("M14-embedding-short", {}, {EMBEDDING: matrix(EMBEDDING, 10, 32)}, TOK + "tokens"),
    ("architecture", {"general.architecture": "martian"}, {}, ""),
    ("architecture-missing", {"general.architecture": None}, {}, "general.architecture"),
    ("architecture-as-number", {"general.architecture": 7}, {}, "general.architecture"),
    ("tokenizer-kind", {"tokenizer.ggml.model": "abacus"}, {}, "tokenizer.ggml.model"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "replace", "named"), [pytest.param(*case[1:], id=case[0]) for case in MEANING]
)
def test_what_the_loader_refuses_is_found(
    changes: Changes, replace: Changes, named: str, tmp_path: Path
) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", changes, replace=replace)
    report = verify(path)
    assert named in subjects(report) and report.exit_code() == 1
    with pytest.raises(ModelError) as refused:
        load(path)
    # One wrong number of layers stands for all of their tensors.
    if changes.get("llama.block_count") != 2:
        assert str(refused.value) in [finding.message for finding in report.findings]
    for finding in report.findings:
        assert finding.repair and finding.message.isprintable() and (finding.found or finding.wanted)


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    """Faults of every check, several of each."""
    changes = {
        "llama.rope.freq_base": 0.0,
        "llama.attention.layer_norm_rms_epsilon": math.nan,
        "llama.attention.scale": math.inf,
        "llama.context_length": 0,
        "tokenizer.ggml.scores": np.zeros(5, np.float32),
        "tokenizer.ggml.add_eos_token": "x",
        "tokenizer.chat_template": "{% if %}",
    }
    spoiled = np.ones((32, 64), np.float32)
    spoiled[7, 3] = np.nan
    replace = {
        Q: None,
        UP: matrix(UP, 32, 64),
        DOWN: TensorSource(DOWN, (32, 64), "f32", spoiled),
        HOLE: matrix(HOLE, 4),
    }
    path = mini_file.write_mini(tmp_path / "m.gguf", changes, replace=replace)
    report = verify(path)
    assert sorted(set(subjects(report))) == sorted({*changes, *replace})
    assert {finding.check for finding in report.findings} == {"meaning", "values", "tokenizer", "template"}


def test_a_wrong_width_is_one_finding_and_not_one_for_each_tensor(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", {"llama.embedding_length": 0, HEADS: 0})
    assert subjects(verify(path)) == ["llama.embedding_length", HEADS]


def test_a_wrong_number_of_layers_has_its_repair(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", {"llama.block_count": 40})
    (finding,) = verify(path).findings
    assert finding.repair == f"satchel edit {path} --set llama.block_count=1" and finding.found == "40"


def test_a_finding_has_its_place(tmp_path: Path) -> None:
    path = mini_file.write_mini(
        tmp_path / "m.gguf", {"llama.rope.freq_base": math.nan}, replace={DOWN: matrix(DOWN, 3, 3)}
    )
    found = {finding.subject: finding for finding in verify(path).findings}
    first, second = found["llama.rope.freq_base"], found[DOWN]
    raw = path.read_bytes()
    assert first.offset is not None and raw[first.offset + 8 :].startswith(b"llama.rope.freq_base")
    with open_gguf(path) as gguf:
        assert second.offset == gguf.tensors[DOWN].offset
    assert (second.wanted, second.found) == ("shape (32, 64)", "(3, 3)")


@pytest.mark.parametrize(
    ("changes", "subject", "text"),
    [
        ({TOK + "bos_token_id": 99}, TOK + "bos_token_id", "--remove tokenizer.ggml.bos_token_id"),
        ({"tokenizer.ggml.eot_token_id": 1 << 31}, "tokenizer.ggml.eot_token_id", "--remove"),
        ({"tokenizer.chat_template": None}, "tokenizer.chat_template", "@TEMPLATE.jinja"),
        ({"tokenizer.chat_template": "hello"}, "tokenizer.chat_template", "@TEMPLATE.jinja"),
        (
            {"tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"},
            "tokenizer.chat_template",
            "@TEMPLATE.jinja",
        ),
    ],
    ids=["M07-id", "M07-id-2^31", "no-template", "template-without-text", "template-of-another-vocabulary"],
)  # fmt: skip
def test_what_is_odd_is_a_warning(changes: Changes, subject: str, text: str, tmp_path: Path) -> None:
    report = verify(mini_file.write_mini(tmp_path / "m.gguf", changes))
    assert subject in subjects(report, "warning") and report.errors == 0
    assert any(text in finding.repair for finding in report.findings)
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, 1)
    load(tmp_path / "m.gguf")


def test_an_answer_that_never_ends_is_a_warning(tmp_path: Path) -> None:
    """The template ends an answer with a token that is not an end token: the usual cause of endless
    answers.
    """
    changes = {
        "tokenizer.chat_template": "{% for m in messages %}<tool>{{ m.content }}<s>{% endfor %}",
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = mini_file.write_mini(tmp_path / "m.gguf", changes, tokenizer="llama")
    found = [f for f in verify(path).findings if "ends an answer" in f.wanted]
    assert [f.repair for f in found] == [f"satchel edit {path} --set tokenizer.ggml.eot_token_id=1"]


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", "{{ 1 / 0 }}"]
)
def test_a_template_that_writes_nothing_is_an_error(template: str, tmp_path: Path) -> None:
    report = verify(mini_file.write_mini(tmp_path / "m.gguf", {"tokenizer.chat_template": template}))
    assert subjects(report) == ["tokenizer.chat_template"]


def test_a_vocabulary_that_loses_letters_is_a_warning(tmp_path: Path) -> None:
    tokens = toy_vocab.byte_level()["tokenizer.ggml.tokens"]
    tokens[tokens.index("x")] = "xyz"
    changes = {"tokenizer.ggml.tokens": tokens}
    report = verify(mini_file.write_mini(tmp_path / "m.gguf", changes, tokenizer="gpt2"))
    assert report.errors == 0 and set(subjects(report, "warning")) == {"tokenizer.ggml.tokens"}
    assert any("0x1F" in finding.wanted for finding in report.findings)


@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "bert-bge", "gpt-2"])
def test_real_vocabularies_lose_nothing(name: str, shared: Path) -> None:
    path = shared / "vocabs" / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        pytest.skip(f"no {path}")
    assert {finding.check for finding in verify(path).findings} <= {"meaning", "template"}


def test_a_vocabulary_alone_is_told_apart(tmp_path: Path) -> None:
    replace = dict.fromkeys(mini_file.tensors(12))
    report = verify(mini_file.write_mini(tmp_path / "m.gguf", replace=replace))
    assert [f.found for f in report.findings if f.severity == "error"] == ["none"]


def test_what_is_no_model_is_checked_as_what_it_is(tmp_path: Path) -> None:
    kind = Typed(ValueType.STRING, "adapter")
    report = verify(mini_file.write_mini(tmp_path / "m.gguf", {"general.type": kind, "llama.block_count": 0}))
    assert report.findings == () and set(report.left_out) == {"meaning", "tokenizer", "template"}


def rows() -> ModuleType:
    """tests/formats/gguf/test_gguf_rows.py, which builds the files of the G rows."""
    path = Path(__file__).parents[2] / "formats" / "gguf" / "test_gguf_rows.py"
    spec = importlib.util.spec_from_file_location("gguf_rows_of_verify", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


G = rows()


@pytest.mark.parametrize(("raw", "match"), [pytest.param(*case[1:], id=case[0]) for case in G.BAD])
def test_the_loaders_own_line_is_among_the_findings(raw: Any, match: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(G.made(raw))
    with pytest.raises(ModelError) as refused:
        open_gguf(path)
    report = verify(path)
    assert str(refused.value) in [finding.message for finding in report.findings]
    assert report.exit_code() == 1 and all(finding.repair for finding in report.findings)


def test_a_container_is_read_past_its_faults(tmp_path: Path) -> None:
    """Invalid keys and tensors hide none that come after them."""
    path = tmp_path / "m.gguf"
    keys = [
        G.kv(b"a\x00b"),
        G.kv("twice"),
        G.kv("twice"),
        G.kv("flag", G.BOOL, b"\x02"),
        G.kv("text", G.STR, G.text(b"\xff")),
        G.array(G.BOOL, 3, b"\x00\x01\xff"),
        G.align(13),
    ]
    tensors = [
        G.info("gap", [8], offset=32),
        G.info("type", [8], 99, 64),
        G.info("row", [7], G.T_Q4_0, 64),
        G.info("beyond", [1 << 20], G.T_F32, 64),
    ]
    path.write_bytes(G.file(keys, tensors, 64))
    report = verify(path)
    wanted = ["key", "key", "flag", "text", "a", "general.alignment", "gap", "type", "row", "beyond"]
    container = [finding.subject for finding in report.findings if finding.check == "container"]
    assert container == wanted
    offsets = [finding.offset for finding in report.findings if finding.check == "container"]
    assert None not in offsets[:5] and offsets[6:] == sorted(offsets[6:], key=lambda at: at or 0)


def test_a_file_of_nothing_but_faults_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(G.file([G.kv("twice")] * 5000))
    assert len(verify(path).findings) == 1001


def test_the_number_of_findings_is_bounded(tmp_path: Path) -> None:
    log = Log(tmp_path / "m.gguf")
    for i in range(FINDINGS_LIMIT + 50):
        log.error("values", f"t{i}: expected numbers, got NaN")
    assert len(log.findings) == FINDINGS_LIMIT + 1 and "more than 10,000" in log.findings[-1].message


def test_a_missing_part_and_a_wrong_one_are_both_found(tmp_path: Path) -> None:
    first = mini_file.write_mini(tmp_path / "m.gguf", max_size=4096)
    parts = sorted(tmp_path.iterdir())
    assert first == parts[0] and len(parts) > 3
    parts[1].unlink()
    parts[2].write_bytes(b"GGUF")
    report = verify(first)
    named = [finding.message.split(": ")[0] for finding in report.findings]
    assert {str(parts[1]), str(parts[2])} <= set(named) and report.exit_code() == 1


def test_a_set_is_checked_whole(tmp_path: Path) -> None:
    """A damaged weight in another part than the one that was given has that part's name and byte."""
    first = mini_file.write_mini(tmp_path / "m.gguf", max_size=4096)
    with open_gguf(first) as gguf:
        info = gguf.tensors[DOWN]
        part, row = gguf.parts[info.part].path, info.nbytes // info.shape[0]
    raw = bytearray(part.read_bytes())
    raw[info.offset + 5 * row : info.offset + 5 * row + 2] = b"\x00\x7e"
    part.write_bytes(raw)
    (finding,) = verify(first).findings
    assert (finding.file, finding.offset, finding.subject) == (str(part), info.offset + 5 * row, DOWN)
    assert "first in row 5" in finding.found


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "loop"])
def test_what_cannot_be_opened_has_its_own_code(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    report = verify(path)
    assert report.exit_code() == 2 and len(report.findings) == 1


def test_trailing_bytes_are_a_warning_with_the_command_that_drops_them(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + bytes(1000))
    (finding,) = verify(path).findings
    assert finding.severity == "warning" and finding.repair.startswith("satchel merge ")


def test_types_of_ours_that_are_not_named_are_a_warning(tmp_path: Path) -> None:
    path = mini_file.write_every_format(tmp_path / "m.gguf")
    (finding,) = verify(path, values=False).findings
    assert finding.subject == "satchel.extension_types" and finding.severity == "warning"
    listed = ["f8_e4m3", "f8_e5m2", "i8_g128"]
    assert finding.repair.endswith(f"--set 'satchel.extension_types:string[]={json.dumps(listed)}'")


def test_weights_are_left_out_on_demand(tmp_path: Path) -> None:
    path = mini_file.write_mini(
        tmp_path / "m.gguf",
        replace={DOWN: TensorSource(DOWN, (32, 64), "f32", np.full((32, 64), np.inf, np.float32))},
    )
    assert verify(path).errors == 1 and verify(path, values=False).errors == 0


def test_names_in_messages_cannot_lead_astray(tmp_path: Path) -> None:
    """A key may be named as a path, or as words of our own errors."""
    odd = {"expected 1, got 2; do this": 1, "llama.rope.freq_base": typed(math.nan), "x: y at byte 7": "z"}
    (finding,) = verify(mini_file.write_mini(tmp_path / "m.gguf", odd)).findings
    assert finding.subject == "llama.rope.freq_base"
