"""Checkpoints of every architecture against transformers' logits, computed where it is installed, else
stored; a contradictory checkpoint is one line, and leaves no file.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import toy_checkpoint as toy
from accuracy import nmse

from satchel.errors import ModelError, RequestError
from satchel.formats.convert.shaping import Shaping
from satchel.formats.convert.write import write_source
from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS
from satchel.runtime.api.model import Model
from satchel.runtime.weights.sources import mappings, open_checkpoint, open_source

DATA = Path(__file__).parents[2] / "data" / "convert"
NMSE = 1e-4
IDS = [7, 200, 3, 99, 258, 41, 41, 8, 120, 263, 5, 66, 177, 230, 12, 1, 250, 33, 90, 64, 2, 19, 77, 140]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# The compared cases: an architecture, and changes of its configuration.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in toy.CLASSES},
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama rope llama3": ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama rope linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama rope yarn": ("llama", {"rope_scaling": YARN}),
    "qwen2 rope yarn mscale": (
        "qwen2",
        {"rope_scaling": YARN | {"attention_factor": 1.3, "beta_fast": 16.0}},
    ),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "mistral without window": ("mistral", {"sliding_window": None}),
}


def checkpoint(folder: Path, case: str) -> Path:
    arch, changes = CASES[case]
    values = toy.tensors(arch)
    if changes.get("tie_word_embeddings"):
        del values["lm_head.weight"]
    if changes.get("num_key_value_heads") == 1:
        for name in [n for n in values if "k_proj" in n or "v_proj" in n]:
            values[name] = values[name][:16]
    return toy.write(folder / "m", arch, values=toy.stored(values), **changes)


def converted(folder: Path, shaping: Shaping | None = None) -> Path:
    with open_checkpoint(folder, shaping) as source:
        return write_source(source, folder.with_suffix(".gguf"))[0]


def logits(path: Path) -> npt.NDArray[np.float32]:
    with Model.load(path, cache_type="f32", threads=1) as model:
        return np.asarray(model.logits(IDS))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (the `reference` extra)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = checkpoint(tmp_path, case)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        want = reference(torch.tensor([IDS])).logits[0].numpy()
    assert nmse(logits(converted(folder)), want) < NMSE


@pytest.mark.parametrize("arch", toy.CLASSES)
def test_what_transformers_saves_is_converted(arch: str, tmp_path: Path) -> None:
    """The file layout that transformers writes today, with shards and an index."""
    torch = pytest.importorskip("torch", reason="torch is not installed (the `reference` extra)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = checkpoint(tmp_path, arch)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    saved = tmp_path / "saved"
    reference.save_pretrained(saved, max_shard_size="200KB")
    assert (saved / "model.safetensors.index.json").is_file()
    toy.write_tokenizer(saved)
    with torch.no_grad():
        want = reference(torch.tensor([IDS])).logits[0].numpy()
    assert nmse(logits(converted(saved)), want) < NMSE


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_stored_ones(case: str, tmp_path: Path) -> None:
    """The same without torch: tests/data/convert/make_expected.py stored transformers' logits."""
    stored = np.load(DATA / "logits.npz")
    got = logits(converted(checkpoint(tmp_path, case)))
    assert nmse(got[[5, -1]], stored[case.replace(" ", "_")].astype(np.float32)) < NMSE


def test_every_architecture_states_a_mapping() -> None:
    from satchel.runtime.layers.arch import architectures

    assert len(mappings()) >= len(architectures())


def test_a_name_is_one_that_other_runtimes_know_where_there_is_one(tmp_path: Path) -> None:
    for window, want in ((16, "mistral"), (None, "llama")):
        folder = toy.write(tmp_path / str(window), "mistral", sliding_window=window)
        with open_checkpoint(folder) as source:
            assert source.metadata["general.architecture"] == want


def test_metadata_is_what_a_loader_needs(tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "A model", "qwen3", dtype="BF16", _name_or_path="org/Name-1B")
    (folder / "README.md").write_text(
        "---\nlicense: apache-2.0\nlicense_link: 'https://e.org/l'\ntags: [a]\n---\n"
    )
    with open_checkpoint(folder) as source:
        meta = dict(source.metadata)
    want = {
        "general.name": "Name-1B",
        "general.license": "apache-2.0",
        "general.license.link": "https://e.org/l",
        "general.type": "model",
        "general.file_type": 32,
        "qwen3.block_count": 2,
        "qwen3.context_length": 128,
        "qwen3.attention.key_length": 32,
        "qwen3.rope.dimension_count": 32,
        "qwen3.vocab_size": 288,
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.eos_token_id": 263,
        "tokenizer.ggml.add_bos_token": False,
    }
    assert {key: meta.get(key) for key in want} == want
    assert "<|im_start|>" in str(meta["tokenizer.chat_template"])


@pytest.mark.parametrize(
    ("outtype", "matrix"),
    [("auto", "bf16"), ("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0")],
)
def test_formats_are_those_asked_for(outtype: str, matrix: str, tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "m", "qwen3moe", dtype="BF16")
    with open_gguf(converted(folder, Shaping(outtype))) as gguf:
        assert gguf.tensors["token_embd.weight"].format == matrix
        assert gguf.tensors["blk.0.ffn_gate_exps.weight"].format == matrix
        # 48 columns are not a multiple of the block.
        assert gguf.tensors["blk.0.ffn_down_exps.weight"].format == ("f16" if outtype == "q8_0" else matrix)
        for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.1.attn_q_norm.weight"):
            assert gguf.tensors[name].format == "f32"
        want = toy.stored(toy.tensors("qwen3moe"), "BF16")["model.layers.0.mlp.experts.2.up_proj.weight"][1]
        got = FORMATS[matrix].decode(gguf.array("blk.0.ffn_up_exps.weight"))[2]
        assert nmse(got, FORMATS["bf16"].decode(want)) < (1e-4 if matrix == "q8_0" else 1e-30)


def test_weights_on_a_grid_keep_their_codes(tmp_path: Path) -> None:
    fmt, plain = FORMATS["q4_0"], toy.tensors("llama")
    assert fmt.encode is not None
    name = "model.layers.1.self_attn.o_proj.weight"
    codes = fmt.encode(plain[name], None)
    plain[name] = fmt.decode(codes)
    folder = toy.write(tmp_path / "m", "llama", values=toy.stored(plain, "BF16"))
    with open_gguf(converted(folder)) as gguf:
        assert gguf.tensors["blk.1.attn_output.weight"].format == "q4_0"
        assert gguf.tensors["blk.0.attn_output.weight"].format == "bf16"
        kept = gguf.array("blk.1.attn_output.weight")
        # A block whose codes lie within -7 .. 7 may return with all signs flipped.
        same = np.abs((kept["qs"] & 15).astype(int) - 8) == np.abs((codes["qs"] & 15).astype(int) - 8)
        assert same.all()
        decode = FORMATS["bf16"].decode
        rounded = toy.stored({"x": fmt.decode(kept)}, "BF16")["x"][1]
        assert np.array_equal(decode(rounded), decode(toy.stored(plain, "BF16")[name][1]))
    with open_checkpoint(folder, Shaping(grids=False)) as source:
        assert source.tensors["blk.1.attn_output.weight"].format == "bf16"


@pytest.mark.parametrize("size", [1, 3, 256, 1000, 1 << 20])
def test_chunks_are_the_same_bytes_in_any_size(size: int, tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "m", "qwen3moe", dtype="BF16")
    with open_source(folder) as source:
        for name in ("blk.0.ffn_down_exps.weight", "blk.1.attn_q.weight", "output_norm.weight"):
            tensor = source.tensors[name]
            parts = [bytes(piece) for piece in source.chunks(name, size)]
            assert max(map(len, parts)) <= size and sum(map(len, parts)) == tensor.nbytes
            assert b"".join(parts) == b"".join(bytes(piece) for piece in source.chunks(name))


def test_a_gguf_file_is_a_source_too(tmp_path: Path) -> None:
    path = converted(toy.write(tmp_path / "m", "llama"))
    with open_source(path) as source:
        copy = write_source(source, tmp_path / "copy.gguf")[0]
    assert copy.read_bytes() == path.read_bytes()


Change = Any


def drop(*names: str) -> Change:
    def change(folder: Path, values: toy.Tensors) -> None:
        for name in names:
            del values[name]

    return change


def put(name: str, *shape: int, dtype: str = "F32", value: float = 0.0) -> Change:
    def change(folder: Path, values: toy.Tensors) -> None:
        values[name] = (dtype, np.full(shape, value, toy.NAMES[dtype]))

    return change


def settings(**changes: Any) -> Change:
    def change(folder: Path, values: toy.Tensors) -> None:
        (folder / "config.json").write_text(json.dumps(toy.config("llama", **changes)))

    return change


def write(name: str, text: str) -> Change:
    return lambda folder, values: (folder / name).write_text(text)


P = "model.layers.1."
BAD: list[tuple[str, Change, str]] = [
    ("C1 missing tensor", drop(f"{P}mlp.up_proj.weight"), f"{P}mlp.up_proj.weight: expected by config.json"),
    ("C2 missing head", drop("lm_head.weight"), "lm_head.weight: expected by config.json"),
    ("C3 extra tensor", put(f"{P}mlp.other.weight", 4), "has no use for it"),
    ("C4 extra layer", put("model.layers.2.mlp.up_proj.weight", 96, 64), "expected layers up to 1"),
    ("C5 wrong shape", put(f"{P}mlp.up_proj.weight", 96, 32), f"made of {P}mlp.up_proj.weight"),
    ("C6 wrong rank", put(f"{P}mlp.up_proj.weight", 96), f"made of {P}mlp.up_proj.weight"),
    ("C7 transposed", put(f"{P}self_attn.k_proj.weight", 64, 32), f"made of {P}self_attn.k_proj.weight"),
    ("C8 heads do not divide rows", put(f"{P}self_attn.q_proj.weight", 60, 64), "expected 4 heads"),
    ("C9 NaN", put(f"{P}mlp.up_proj.weight", 96, 64, value=np.nan), "expected finite numbers"),
    ("C10 infinity in a norm", put("model.norm.weight", 64, value=np.inf), "expected finite numbers"),
    ("C11 integers", put(f"{P}mlp.up_proj.weight", 96, 64, dtype="I32"), "got I32 without scales"),
    ("C12 unknown architecture", settings(architectures=["GPT5ForCausalLM"]), "Qwen3ForCausalLM"),
    ("C13 no architecture", settings(architectures=..., model_type="nope"), "got 'nope'"),
    ("C14 config no JSON", write("config.json", "{"), "expected JSON"),
    ("C15 config no object", write("config.json", "[]"), "expected a JSON object"),
    ("C16 layers missing", settings(num_hidden_layers=...), "num_hidden_layers: expected a number, got"),
    ("C17 layers no number", settings(num_hidden_layers="2"), "num_hidden_layers: expected a positive whole"),
    ("C18 a million layers", settings(num_hidden_layers=10**6), "at most 512"),
    ("C19 no heads", settings(num_attention_heads=0), "num_attention_heads"),
    ("C20 heads that do not divide", settings(num_attention_heads=5), "a divisor of hidden_size"),
    ("C21 another activation", settings(hidden_act="gelu"), "hidden_act: expected 'silu'"),
    ("C22 unknown rope", settings(rope_scaling={"type": "spiral"}), "rope_type: expected one of"),
    ("C23 rope without factor", settings(rope_scaling={"type": "yarn"}), "rope factor"),
    ("C24 rope NaN", settings(rope_scaling={"type": "linear", "factor": float("nan")}), "rope factor"),
    ("C25 rope that is a list", settings(rope_scaling=[1]), "expected an object"),
    ("C26 epsilon 0", settings(rms_norm_eps=0), "rms_norm_eps"),
    ("C27 partial rotation", settings(partial_rotary_factor=0.5), "partial_rotary_factor"),
    ("C28 fewer rows than tokens", put("model.embed_tokens.weight", 200, 64), "belongs to another model"),
    ("C29 widths disagree", settings(hidden_size=128), "made of model.embed_tokens.weight"),
    ("C30 window in layers", settings(use_sliding_window=True), "use_sliding_window"),
]


@pytest.mark.parametrize(("change", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_contradicts_itself_is_one_line_and_no_file(change: Change, said: str, tmp_path: Path) -> None:
    values = toy.stored(toy.tensors("llama"))
    folder = toy.write(tmp_path / "m", "llama")
    change(folder, values)
    (folder / "model.safetensors").write_bytes(toy.safetensors(values))
    with pytest.raises(ModelError) as error:
        converted(folder)
    text = str(error.value)
    assert said in text and str(folder) in text and "\n" not in text and len(text) < 2000, text
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def sharded(folder: Path) -> dict[str, Any]:
    """The toy checkpoint in two shards; returns the index."""
    toy.write(folder, "llama")
    (folder / "model.safetensors").unlink()
    values = toy.stored(toy.tensors("llama"))
    names, index = list(values), {}
    for i, part in enumerate((names[:9], names[9:]), 1):
        name = f"model-0000{i}-of-00002.safetensors"
        (folder / name).write_bytes(toy.safetensors({n: values[n] for n in part}))
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return index


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path / "a")
    toy.write(tmp_path / "b", "llama")
    a, b = (open_gguf(converted(tmp_path / name)) for name in "ab")
    assert all(np.array_equal(a.raw(name), b.raw(name)) for name in b.tensors)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f, i: (f / "model-00002-of-00002.safetensors").unlink(), "expected this shard"),
        (lambda f, i: (f / "model.safetensors.index.json").unlink(), "download the index"),
        (lambda f, i: i.update({"x.weight": "model-00001-of-00002.safetensors"}), "expected by the index"),
        (lambda f, i: i.update({"lm_head.weight": "../../secret"}), "files beside it"),
        (lambda f, i: i.update({"lm_head.weight": 3}), "expected file names"),
        (lambda f, i: i.clear(), "got none"),
        (
            lambda f, i: (f / "model-00002-of-00002.safetensors").write_bytes(
                (f / "model-00001-of-00002.safetensors").read_bytes()
            ),
            "expected by the index",
        ),
    ],
)
def test_a_broken_set_of_shards_is_one_line(change: Any, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    index = sharded(folder)
    before = dict(index)
    change(folder, index)
    if index != before:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ModelError, match=re.escape(said)) as error:
        converted(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "tf_model.h5",
        "saved_model.pb",
        "flax_model.msgpack",
        "model.ckpt",
        "model.ckpt.index",
        "w.pth",
        "w.npz",
    ],
)
def test_other_formats_are_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "m", "llama")
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match=r"expected safetensors, got .*save_pretrained"):
        converted(folder)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "m", "llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="found none"):
        converted(folder)
    with pytest.raises(ModelError, match=r"config\.json: can't be read"):
        converted(tmp_path)


def test_the_folder_itself_is_no_target(tmp_path: Path) -> None:
    folder = toy.write(tmp_path / "m", "llama")
    with open_checkpoint(folder) as source, pytest.raises(RequestError, match="a file to write"):
        write_source(source, folder)
