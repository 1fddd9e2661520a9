"""The release step that needs the network: published models, compared with llama.cpp.

    python packaging/published_models.py [--only NAME ...] [--text FILE] [--json FILE] [--write]

Each model is pulled into the store, checked by its digest, and both engines answer on the processor: the same
conversations through the file's template, greedy text of the same prompts, and the perplexity of a text.
--write puts the results into the table of docs/models.md, whose rows say `not run yet` until then. The exit
code is 1 where a model differs. Needs `pip install 'satchel[bench]'`; one model at a time is in memory, and
--remove deletes each file after its row.

Two right engines round differently, so greedy texts part where two tokens are almost equally likely. That is
no difference: what the other engine took must be within NEAR nats of the best token. Templates must give the
same token ids, perplexities the same within SAME.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from satchel.errors import SatchelError
from satchel.runtime.api.model import Model
from satchel.runtime.sampling import GREEDY
from satchel.store import Store

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END, NOT_RUN = "<!-- published -->", "<!-- end of published -->", "not run yet"
HEAD = "| model | templates | greedy text | perplexity, llama.cpp's | result |\n|---|---|---|---|---|\n"
TOKENS = 64  # of a greedy answer
WINDOW, WINDOWS = 512, 20  # tokens of the perplexity's windows, whose second halves count; and their number
NEAR = 0.25  # nats between the best token and the other engine's, where greedy texts part
SAME = 0.005  # share by which perplexities may differ
Array = npt.NDArray[np.float32]
Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class Published:
    """A model that people use: its name in the store, and the family that it stands for."""

    name: str
    family: str


# Names of the Hub. One that is not there, or needs an account, becomes a row that says so.
MODELS = (
    Published("hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "Llama 3.1"),
    Published("hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0", "Llama 3.2"),
    Published("hf:Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "Qwen 2.5"),
    Published("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen 3"),
    Published("hf:unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M", "Qwen 3, mixture of experts"),
    Published("hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M", "Qwen 3.5"),
    Published("hf:bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M", "DeepSeek R1, distilled"),
    Published("hf:ggml-org/gpt-oss-20b-GGUF", "gpt-oss"),
    Published("hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "Gemma 3"),
    Published("hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M", "Mistral"),
    Published("hf:bartowski/microsoft_Phi-4-mini-instruct-GGUF:Q4_K_M", "Phi 4 mini"),
    Published("hf:ibm-granite/granite-4.0-h-tiny-GGUF:Q4_K_M", "Granite 4, hybrid"),
    Published("hf:ggml-org/SmolLM3-3B-GGUF:Q4_K_M", "SmolLM3"),
)
CHATS: tuple[Chat, ...] = (
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "You answer in one line."}, {"role": "user", "content": "Name a prime."}],
    [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Elbe."},
        {"role": "user", "content": "And where does it end?\n\nIn *which* sea?"},
    ],
    [{"role": "user", "content": "Übersetze „Haus“ 家 🏠 ins Englische."}],
)
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "In the year 1900, most people")


class Engine(Protocol):
    """What is asked of both engines."""

    def chat_ids(self, chat: Chat) -> list[int]: ...
    def ids(self, text: str) -> list[int]: ...
    def greedy(self, ids: Sequence[int], count: int) -> list[int]: ...
    def logits(self, ids: Sequence[int]) -> Array: ...
    def close(self) -> None: ...


class Satchel:
    """This engine, on the processor."""

    def __init__(self, path: Path) -> None:
        self.model = Model.load(path, context=2048, device="cpu")

    def chat_ids(self, chat: Chat) -> list[int]:
        return self.model.prompt_ids(chat)

    def ids(self, text: str) -> list[int]:
        return self.model.tokenize(text)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        with self.model.generate(ids, max_tokens=count, sampling=GREEDY) as reply:
            for _ in reply:
                pass
            return list(reply.ids)

    def logits(self, ids: Sequence[int]) -> Array:
        return np.asarray(self.model.logits(ids), np.float32)

    def close(self) -> None:
        self.model.close()


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the processor. The binding's Jinja renders its templates."""

    def __init__(self, path: Path) -> None:
        import llama_cpp
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        how = {"n_ctx": 2048, "n_batch": 512, "n_gpu_layers": 0, "logits_all": True, "verbose": False}
        self.model: Any = llama_cpp.Llama(str(path), **how)
        vocab = llama_cpp.llama_model_get_vocab(self.model._model.model)
        self.ends: Callable[[int], bool] = lambda token: llama_cpp.llama_vocab_is_eog(vocab, token)
        bos, eos = (
            self.model._model.token_get_text(t) for t in (self.model.token_bos(), self.model.token_eos())
        )
        template = self.model.metadata.get("tokenizer.chat_template", "")
        self.render = (
            Jinja2ChatFormatter(template=template, bos_token=bos, eos_token=eos) if template else None
        )

    def chat_ids(self, chat: Chat) -> list[int]:
        if self.render is None:
            return []
        text = self.render(messages=chat).prompt
        return list(self.model.tokenize(text.encode(), add_bos=False, special=True))

    def ids(self, text: str) -> list[int]:
        return list(self.model.tokenize(text.encode(), add_bos=True, special=False))

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        self.model.reset()
        made = takewhile(lambda token: not self.ends(token), self.model.generate(list(ids), temp=0.0))
        return [int(token) for token in islice(made, count)]

    def logits(self, ids: Sequence[int]) -> Array:
        self.model.reset()
        self.model.eval(list(ids))
        return np.array(self.model.scores[: len(ids)], np.float32)

    def close(self) -> None:
        self.model.close()


@dataclass(frozen=True)
class Answers:
    """What an engine says of a file. nll: the sum of -log p over the text's windows, in nats."""

    chats: list[list[int]]
    prompts: list[list[int]]
    greedy: list[list[int]]
    nll: float
    counted: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.counted) if self.counted else math.nan


@dataclass(frozen=True)
class Row:
    """The comparison of one model."""

    name: str
    templates: str  # "4 of 4"
    greedy: str  # "192 of 192 tokens"
    perplexity: float
    peer_perplexity: float
    differs: tuple[str, ...]  # what is wrong; empty: nothing


def answers(engine: Engine, text: str, windows: int = WINDOWS, tokens: int = TOKENS) -> Answers:
    prompts = [engine.ids(prompt) for prompt in PROMPTS]
    nll, counted = 0.0, 0
    for window in cut(engine.ids(text), windows):
        one, many = log_loss(engine.logits(window), window)
        nll, counted = nll + one, counted + many
    chats, greedy = [engine.chat_ids(chat) for chat in CHATS], [engine.greedy(ids, tokens) for ids in prompts]
    return Answers(chats, prompts, greedy, nll, counted)


def cut(ids: Sequence[int], windows: int) -> Iterator[list[int]]:
    """Whole windows of a text, one after the other."""
    for start in range(0, min(len(ids) // WINDOW, windows) * WINDOW, WINDOW):
        yield list(ids[start : start + WINDOW])


def log_loss(logits: Array, ids: Sequence[int]) -> tuple[float, int]:
    """-log p of a window's second half in nats, summed, and the number of its tokens."""
    half = len(ids) // 2
    lost = [-log_softmax(logits[i])[ids[i + 1]] for i in range(half, len(ids) - 1)]
    return float(sum(lost)), len(lost)


def log_softmax(row: Array) -> npt.NDArray[np.float64]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - math.log(np.exp(wide).sum()))


def compare(name: str, mine: Answers, peer: Answers, gap: Callable[[Sequence[int], int], float]) -> Row:
    """A model's row. gap: by how many nats a token is behind the best one, after these ids."""
    pairs = zip(mine.prompts, peer.prompts, strict=True)
    wrong = [f"prompt {i} has other tokens" for i, (a, b) in enumerate(pairs, 1) if a != b]
    same = [a == b for a, b in zip(mine.chats, peer.chats, strict=True)]
    wrong += [f"conversation {i} is rendered otherwise" for i, equal in enumerate(same, 1) if not equal]
    equal_tokens = 0
    for at, (own, other) in enumerate(zip(mine.greedy, peer.greedy, strict=True)):
        shorter = min(len(own), len(other))
        parted = next((i for i in range(shorter) if own[i] != other[i]), shorter)
        equal_tokens += parted
        if parted < shorter:
            behind = gap([*mine.prompts[at], *own[:parted]], other[parted])
            if behind > NEAR:
                wrong.append(f"answer {at + 1} parts after {parted} tokens, {behind:.2f} nats apart")
    if mine.counted and not abs(mine.perplexity / peer.perplexity - 1) <= SAME:
        wrong.append(f"perplexity {mine.perplexity:.4f}, llama.cpp has {peer.perplexity:.4f}")
    return Row(
        name,
        f"{sum(same)} of {len(same)}",
        f"{equal_tokens} of {sum(map(len, mine.greedy))} tokens",
        mine.perplexity,
        peer.perplexity,
        tuple(wrong),
    )


def judged(name: str, path: Path, text: str, peer: Callable[[Path], Engine] = LlamaCpp, **size: int) -> Row:
    """Compares the engines on a file; one after the other, so that one model is in memory at a time."""
    other = peer(path)
    try:
        theirs = answers(other, text, **size)
    finally:
        other.close()
    own = Satchel(path)
    try:

        def gap(ids: Sequence[int], token: int) -> float:
            row = log_softmax(own.logits(ids)[-1])
            return float(row.max() - row[token])

        return compare(name, answers(own, text, **size), theirs, gap)
    finally:
        own.close()


# --- the table


def line(name: str, row: Row | None, reason: str = NOT_RUN) -> str:
    """A line of the table."""
    if row is None:
        return f"| `{name}` | – | – | – | {reason} |\n"
    result = "; ".join(row.differs) or "the same"
    perplexity = f"{row.perplexity:.3f}, {row.peer_perplexity:.3f}"
    return f"| `{name}` | {row.templates} | {row.greedy} | {perplexity} | {result} |\n"


def lines(page: str) -> dict[str, str]:
    """The table's lines on a page, by model."""
    inside = page.partition(BEGIN)[2].partition(END)[0]
    rows = [row for row in inside.splitlines(keepends=True) if row.startswith("| `")]
    return {row.split("`")[1]: row for row in rows}


def with_table(page: str, changed: Mapping[str, str]) -> str:
    """The page with these lines; others stay, and a model without one is not run yet."""
    known = {**lines(page), **changed}
    table = HEAD + "".join(known.get(one.name, line(one.name, None)) for one in MODELS)
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"expected {BEGIN} and {END} in the page")
    return f"{before}{BEGIN}\n{table}{END}{after}"


def main(words: list[str], peer: Callable[[Path], Engine] = LlamaCpp) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="models by a part of their names"
    )
    parser.add_argument("--name", nargs="*", default=[], metavar="NAME", help="other models of the store")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "engine.md", help="for the perplexity")
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--remove", action="store_true", help="delete each file after its row")
    parser.add_argument("--write", action="store_true", help="write the results into docs/models.md")
    given = parser.parse_args(words)
    names = given.name or [
        m.name for m in MODELS if not given.only or any(part in m.name for part in given.only)
    ]
    text, store = given.text.read_text(encoding="utf-8"), Store()
    results: dict[str, Any] = {}
    changed: dict[str, str] = {}
    for name in names:
        try:
            path = store.pull(name)
            row = judged(name, path, text, peer, windows=given.windows, tokens=given.tokens)
            results[name], changed[name] = asdict(row), line(name, row)
            if given.remove:
                store.remove(name)
        except (SatchelError, OSError) as error:
            results[name], changed[name] = (
                {"error": str(error)},
                line(name, None, f"could not be run: {error}"),
            )
        print(changed[name], end="", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), changed), encoding="utf-8")
    return int(any("error" in found or found["differs"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
