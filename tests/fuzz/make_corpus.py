"""Writes the corpus: a few small inputs for each target that reach its parts."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import mini_file
import numpy as np
import state_file
import toy_vocab

from satchel.formats.imatrix import Origin, Sums, write_dat, write_importance

sys.path.insert(0, str(Path(__file__).parent))
import corpus_tensors
import corpus_texts

CORPUS = Path(__file__).parent / "corpus"
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "macro": "{% macro f(x, y=1) %}{{ x * y }}{% endmacro %}{{ f('a', 3) }}{% set ns = namespace(n=0) %}"
    "{% for m in messages if m.role == 'user' %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}",
    "tools": "{%- if tools is defined and tools %}{{ tools | tojson(indent=2) }}{%- endif %}"
    "{{ messages[-1]['content'].split(' ')[0] | upper }}{{ messages | length }}{{ range(3) | join(',') }}",
    "refuses": "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}{{ bos_token }}",
    "filters": "{{ messages | map(attribute='role') | list | tojson }}{{ 'a' ~ 1 // 1 }}{{ 2 ** 8 % 7 }}"
    "{{ '%s-%d' | format('x', 3) }}{{ messages | selectattr('role', 'equalto', 'user') | list | count }}",
    "dates": "{{ strftime_now('%d %b %Y') }}{% generation %}{{ 'x' is string }}{% endgeneration %}",
}
EDITS = (
    "a.b=7\na.c=some text\na.d=[3, 4]\na.e=1e-5\na.f=false\nnew=0x10\nn:uint8=255\nn2:float64[]=[1.5]\nn3=@@x"
)


def put(target: str, name: str, data: bytes | str) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def ggufs() -> None:
    folder = CORPUS / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    mini_file.write_mini(folder / "unigram")
    mini_file.write_mini(folder / "wordpiece", tokenizer="bert", format="f16")
    mini_file.write_mini(folder / "sentencepiece", tokenizer="llama", format="q4_0")
    mini_file.write_mini(folder / "byte-level", tokenizer="gpt2", format="q8_0")
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}
    mini_file.write_mini(folder / "scaled", {**scaling, "general.alignment": 64, "general.type": "model"})
    mini_file.write_every_format(folder / "formats")


def tokenizers() -> None:
    for kind, make in toy_vocab.KINDS.items():
        values = {key.removeprefix("tokenizer.ggml."): value for key, value in make().items()}
        tokens, types = values.pop("tokens"), values.pop("token_type")
        merges, pre, model = values.pop("merges", []), values.pop("pre", ""), values.pop("model")
        values.pop("scores", None)
        flags = " ".join(f"{key}={str(value).lower()}" for key, value in values.items())
        rows = [f"{t} {text}" for t, text in zip(types, tokens, strict=True) if "\n" not in text]
        put("tokenizer", kind, "\n".join([model, pre, flags, ",".join(merges), *rows]))


def importance() -> None:
    """Both formats, with products of columns and without."""
    folder = CORPUS / "imatrix"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 8)).astype(np.float32)
    squares, rows = np.square(x, dtype=np.float64).sum(axis=0)[None], np.array([40.0])
    found = [
        Sums(("blk.0.attn_q.weight", "blk.0.attn_k.weight"), squares, rows, x.T @ x),
        Sums(("blk.0.ffn_up_exps.weight",), np.vstack([squares, squares]), np.array([40.0, 0.0])),
    ]
    origin = Origin(("text.txt",), 2, 20)
    write_importance(folder / "gguf", found, origin)
    write_dat(folder / "dat", found[:1], origin)


def checkpoints() -> None:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    entries["a"] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    entries["b.weight"] = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}
    entries["empty"] = {"dtype": "I8", "shape": [0, 7], "data_offsets": [32, 32]}
    entries["scalar"] = {"dtype": "F64", "shape": [], "data_offsets": [32, 40]}
    header = json.dumps(entries).encode()
    put("safetensors", "small", struct.pack("<Q", len(header)) + header + bytes(range(40)))


def others() -> None:
    for name, source in TEMPLATES.items():
        put("template", name, source)
    put("editing", "each", EDITS)
    put("manifest", "lines", f"sha256  {'ab' * 32}  m.gguf:t.weight\nsha256-model  {'0' * 64}  m.gguf\n")
    put("manifest", "sums", f"# comment\n{'cd' * 32} *m.gguf\n")
    record = struct.pack("<2f4H", 0.001, -3.0, 1, 2, 3, 4)
    (CORPUS / "state").mkdir(parents=True, exist_ok=True)
    state_file.write_state(CORPUS / "state" / "two-groups")
    put("logits", "small", struct.pack("<8s3i4i", b"_logits_", 4, 4, 1, 0, 1, 2, 3) + record)


if __name__ == "__main__":
    ggufs()
    tokenizers()
    importance()
    checkpoints()
    others()
    for target, inputs in (*corpus_texts.made().items(), *corpus_tensors.made().items()):
        for name, data in inputs.items():
            put(target, name, data)
