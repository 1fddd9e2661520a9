"""Measures the contents of tests/data/reference: llama.cpp's (llama-cpp-python's) results on identical
weights.

    python bench/make_reference.py MODEL-BF16.gguf EVAL.txt [--only q8_0] [--file bundled=models/x.gguf]

Needs `pip install .[bench]`. The tests read the stored numbers; they do not run the peer.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp as peer
import numpy as np
import numpy.typing as npt
from reference_file import KINDS, digest_of, make

F32 = npt.NDArray[np.float32]
HERE = Path(__file__).parent.parent / "tests" / "data" / "reference"
CONTEXT, ANSWER, TEXT, CHUNKS = 512, 40, 256, 16
LATTICE = 64  # at position p of the text, the logits of ids p % 64 + 64 * j are stored


class Peer:
    """A model in llama.cpp on two threads: context 512, float16 KV cache, flash attention off, one batch of
    512.

    Repacked weights (use_extra_bufts) are off: the plain kernels are the same on every machine.
    """

    def __init__(self, path: Path) -> None:
        options = peer.llama_model_default_params()
        options.n_gpu_layers, options.use_extra_bufts = 0, False
        self.model = peer.llama_model_load_from_file(str(path).encode(), options)
        settings = peer.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = CONTEXT
        settings.n_threads = settings.n_threads_batch = 2
        settings.flash_attn_type = peer.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = peer.llama_init_from_model(self.model, settings)
        self.vocab = peer.llama_model_get_vocab(self.model)
        self.size = peer.llama_vocab_n_tokens(self.vocab)
        self.batch = peer.llama_batch_init(CONTEXT, 0, 1)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        peer.llama_batch_free(self.batch)
        peer.llama_free(self.context)
        peer.llama_model_free(self.model)

    def feed(self, ids: Sequence[int], start: int = 0) -> F32:
        """Logits (len(ids), vocabulary) of these tokens at positions from `start`; 0 begins a new text."""
        if start == 0:
            peer.llama_memory_clear(peer.llama_get_memory(self.context), True)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i] = token, start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, 1
        self.batch.n_tokens = len(ids)
        if peer.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode failed on {len(ids)} tokens at {start}")
        rows = np.ctypeslib.as_array(peer.llama_get_logits(self.context), (len(ids), self.size))
        return np.array(rows, np.float32)

    def tokens(self, text: str, special: bool) -> list[int]:
        raw = text.encode()
        out = (peer.llama_token * (len(raw) + 8))()
        n = peer.llama_tokenize(self.vocab, raw, len(raw), out, len(out), True, special)
        return list(out[:n])

    def text(self, ids: Sequence[int]) -> str:
        buffer, parts = ctypes.create_string_buffer(256), []
        for token in ids:
            n = peer.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            parts.append(buffer.raw[:n])
        return b"".join(parts).decode("utf-8", "replace")

    def ends(self, token: int) -> bool:
        return bool(peer.llama_vocab_is_eog(self.vocab, token))


def chatml(messages: list[dict[str, str]]) -> str:
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


def top(logits: F32) -> tuple[npt.NDArray[np.int32], F32]:
    """The best id of each row, and its margin in logits over the second best."""
    best = logits.argmax(-1).astype(np.int32)
    two = np.partition(logits, -2, axis=-1)[:, -2:]
    return best, two[:, 1] - two[:, 0]


def answers(model: Peer, prompts: dict[str, Any]) -> list[dict[str, Any]]:
    """Each prompt's ids and 40 greedy tokens (end tokens do not stop them; `text` stops before the first)."""
    out = []
    for source in [*map(chatml, prompts["chat"]), *prompts["plain"]]:
        ids = model.tokens(source, special=True)
        logits, answer, margins = model.feed(ids)[-1:], [], []
        for i in range(ANSWER):
            best, margin = top(logits)
            answer.append(int(best[0]))
            margins.append(round(float(margin[0]), 4))
            logits = model.feed(answer[-1:], len(ids) + i)
        end = next((i for i, token in enumerate(answer) if model.ends(token)), ANSWER)
        row = {"source": source, "prompt": ids, "answer": answer, "margin": margins, "end": end}
        out.append({**row, "text": model.text(answer[:end])})
    return out


def likelihood(logits: F32) -> F32:
    """Log-softmax of each row."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: F32 = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def scored(model: Peer, ids: list[int], chunk: int) -> tuple[F32, F32]:
    """Log-likelihoods (255, V) of one chunk's second half, and the log-likelihoods of the next tokens
    (255).
    """
    part = ids[chunk * CONTEXT : (chunk + 1) * CONTEXT]
    rows = likelihood(model.feed(part)[CONTEXT // 2 : -1])
    return rows, rows[np.arange(len(rows)), part[CONTEXT // 2 + 1 :]]


def quality(model: Peer, ids: list[int], base: list[F32]) -> dict[str, float]:
    """Perplexity on the first 16 chunks and, against the rows of `base`, mean KLD and share of equal top
    tokens.

    An empty base is filled: later files are compared with the first one.
    """
    right, divergence, same, first = [], [], [], not base
    for chunk in range(CHUNKS):
        rows, own = scored(model, ids, chunk)
        right.append(own)
        if first:
            base.append(rows)
        divergence.append((np.exp(base[chunk]) * (base[chunk] - rows)).sum(-1))
        same.append(base[chunk].argmax(-1) == rows.argmax(-1))
    ppl = float(np.exp(-np.mean(right, dtype=np.float64)))
    return {"ppl": ppl, "kld_mean": float(np.mean(divergence)), "same_top": float(np.mean(same))}


def spread(model: Peer, rows: list[list[int]]) -> dict[str, float]:
    """How far the peer differs from itself: each row in one batch, and again token by token.

    Rounding activations to 8 bits turns the last bit of a sum into a step of 1/127, so two orders of
    summation give logits that differ as much as the rounding error. Another program can hardly be nearer than
    that.
    """
    worst, differ, wrong, energy = 0.0, 0, 0.0, 0.0
    for ids in rows:
        batch = model.feed(ids)
        single = np.concatenate([model.feed([token], at) for at, token in enumerate(ids)])
        best, margin = top(batch)
        other = best != single.argmax(-1)
        differ, worst = differ + int(other.sum()), max(worst, float(margin[other].max(initial=0)))
        wrong, energy = wrong + float(np.square(batch - single).sum()), energy + float(np.square(batch).sum())
    return {"own_nmse": wrong / energy, "own_differ": differ, "own_worst_margin": worst}


def measure(path: Path, name: str, known: dict[str, Any], evaluation: str, base: list[F32]) -> dict[str, Any]:
    """Writes NAME.npz for one file and returns its quality. known: the BF16 answers, which every file gets as
    input.
    """
    with Peer(path) as model:
        rows = [[*row["prompt"], *row["answer"]] for row in known["prompts"]]
        tops = [top(model.feed(ids)) for ids in rows]
        logits = model.feed(known["text"])
        lattice = np.stack([row[p % LATTICE :: LATTICE] for p, row in enumerate(logits)]).astype(np.float16)
        best, margin = top(logits)
        np.savez_compressed(
            HERE / f"{name}.npz",
            top=np.concatenate([t for t, _ in tops]).astype(np.uint16),
            margin=np.concatenate([m for _, m in tops]).astype(np.float16),
            text_logits=lattice,
            text_top=best.astype(np.uint16),
            text_margin=margin.astype(np.float16),
        )
        ids = model.tokens(evaluation, special=False)
        return {**quality(model, ids, base), **spread(model, rows)}


def prompts(source: Path) -> dict[str, Any]:
    """The BF16 answers to the prompts, and the ids of the text."""
    asked = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
    with Peer(source) as model:
        return {"prompts": answers(model, asked), "text": model.tokens(asked["text"], special=False)[:TEXT]}


def settings(evaluation: str) -> dict[str, Any]:
    return {
        "peer": f"llama-cpp-python {peer.__version__}",
        "system": peer.llama_print_system_info().decode().strip(" |"),
        "n_threads": 2,
        "n_ctx": CONTEXT,
        "n_batch": CONTEXT,
        "flash_attn": False,
        "use_extra_bufts": False,
        "kv": "f16",
        "lattice": LATTICE,
        "quality_chunks": CHUNKS,
        "quality_text_sha256": hashlib.sha256(evaluation.encode()).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure llama.cpp's numbers for tests/data/reference.")
    parser.add_argument("source", type=Path, help="the BF16 file")
    parser.add_argument("evaluation", type=Path, help="text whose beginning gives the perplexity")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="these alone (bf16 always)")
    parser.add_argument("--file", action="append", default=[], help="NAME=PATH: measure this file too")
    options = parser.parse_args()
    evaluation = options.evaluation.read_bytes()[:400_000].decode("utf-8", "ignore")
    summary = HERE / "reference.json"
    known = prompts(options.source)
    before = json.loads(summary.read_text(encoding="utf-8")).get("files", {}) if summary.exists() else {}
    report = {"settings": settings(evaluation), "files": before, **known}
    base: list[F32] = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = [k for k in KINDS if k == "bf16" or not options.only or k in options.only]
        for name, path in [(k, None) for k in kinds] + [tuple(f.split("=", 1)) for f in options.file]:
            target = Path(path) if path else Path(folder) / f"{name}.gguf"
            digest = digest_of(target) if path else make(options.source, name, target)
            found = measure(options.source if name == "bf16" else target, name, known, evaluation, base)
            report["files"][name] = {"sha256": digest, **found}
            print(name, report["files"][name], flush=True)
    summary.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
