"""Cost of KV cache types and block sizes: KL divergence, memory, and decoding speed at a long context.

    python bench/cache.py -m MODEL [-e TEXT] [--windows 16] [--depth 8192] [--repeats 5]
                          [--kinds f16,q8_0,q8_0/q4_0] [--blocks 16,32,64,128] [--json FILE]

With a text, it prints the KL divergence of each type (keys/values) from the same model with a float32 cache.
Then it times decoding behind `--depth` tokens by type and by block size, all in turns; the cached values are
zeros, which cost as much as any others. For each block size it also times a prompt and prints the memory that
the half-empty last block of a sequence wastes on average.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from satchel.formats.logits import open_logits
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.api.model import Model
from satchel.runtime.engine.engine import Engine
from satchel.runtime.layers.arch import Cache
from satchel.runtime.placement.sizing import cache_bytes
from satchel.runtime.tasks.bench import Runner, Test
from satchel.runtime.tasks.perplexity import diverge, windows, write_base
from satchel.runtime.weights.resident import LoadedOnce
from satchel.store.resolve import default_model

CONTEXT = 512  # tokens of a window over which the divergence is measured
ANSWER, PROMPT = 16, 512


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one cache type and block size."""

    kind: str
    block: int
    bytes: int  # of one token, over all layers
    kld: float | None = None  # nats per token
    kld_error: float | None = None  # its standard error
    same_top: float | None = None  # share of positions, of 1
    decode: float | None = None  # tokens per second
    prompt: float | None = None  # tokens per second
    wasted: int | None = None  # unused bytes of a sequence's last block, on average


class Caches:
    """A loaded model, and engines over its weights with any cache."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._weights = LoadedOnce(model._resident())

    def engine(self, cache: Cache) -> Engine:
        """A new engine, which the caller releases."""
        arch = type(self.model.arch)(self.model.arch.hp, self.model.arch.weights, cache)
        return Engine(arch.build(), cache, [self.model.device], self._weights, batch=cache.batch)

    def bytes(self, cache: Cache) -> int:
        return cache_bytes(self.model.arch, replace(cache, context=cache.block, slots=1)) // cache.block


def cache_of(kind: str, context: int, block: int = Cache(1).block) -> Cache:
    keys, _, values = kind.partition("/")
    return Cache(context, 1, block, keys=keys, values=values or keys)


def divergences(caches: Caches, kinds: Sequence[str], text: Path, count: int) -> list[Row]:
    model, rows = caches.model, []
    cut = windows(model.tokenize(text.read_text(encoding="utf-8"), bos=False), CONTEXT, count)
    vocab, bos = model.arch.vocab, model.tokenizer.bos
    with tempfile.TemporaryDirectory() as folder:
        engine = caches.engine(cache_of("f32", CONTEXT))
        write_base(Path(folder) / "base", engine, cut, vocab, bos)
        engine.release()
        base = open_logits(Path(folder) / "base")
        for kind in kinds:
            cache = cache_of(kind, CONTEXT)
            engine = caches.engine(cache)
            found = diverge(engine, base, vocab, bos)[1]
            engine.release()
            size = caches.bytes(cache)
            rows.append(Row(kind, cache.block, size, found.kld_mean, found.kld_error, found.same_top))
            print(f"{kind:12} {size:8} bytes  KLD {found.kld_mean:.6f} +/- {found.kld_error:.6f}", flush=True)
    return rows


def speeds(caches: Caches, chosen: Mapping[str, Cache], depth: int, repeats: int) -> dict[str, float]:
    """Decoding speed behind `depth` tokens, in tokens per second."""
    runners, found = {}, {name: [] for name in chosen}  # type: dict[str, Runner], dict[str, list[float]]
    for name, cache in chosen.items():
        engine = caches.engine(cache)
        engine.pages.reserve(0, depth)
        engine.pages.advance(0, depth, depth + 1)
        engine._lengths[0] = depth
        runners[name] = Runner(engine, caches.model.arch.vocab)
        runners[name].timed(Test(0, 1))
    for _ in range(repeats):
        for name, runner in runners.items():
            runner.engine.rewind(0, depth)
            found[name].append(ANSWER / runner.timed(Test(0, ANSWER))[0])
    for runner in runners.values():
        runner.engine.release()
    return {name: statistics.median(rates) for name, rates in found.items()}


def prompts(caches: Caches, chosen: Mapping[str, Cache], repeats: int) -> dict[str, float]:
    """Prompt speed from an empty cache, in tokens per second."""
    runners = {name: Runner(caches.engine(cache), caches.model.arch.vocab) for name, cache in chosen.items()}
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(repeats + 1):
        for name, runner in runners.items():
            seconds = runner.once(Test(PROMPT, 0))[0]
            if turn:
                found[name].append(PROMPT / seconds)
    for runner in runners.values():
        runner.engine.release()
    return {name: statistics.median(rates) for name, rates in found.items()}


def by_kind(caches: Caches, kinds: Sequence[str], depth: int, repeats: int) -> list[Row]:
    chosen = {kind: cache_of(kind, depth + 2 * ANSWER) for kind in kinds}
    rates = speeds(caches, chosen, depth, repeats)
    for kind, rate in rates.items():
        print(f"{kind:12} {rate:8.2f} tokens/s behind {depth}", flush=True)
    return [Row(k, c.block, caches.bytes(c), decode=rates[k]) for k, c in chosen.items()]


def by_block(caches: Caches, blocks: Sequence[int], depth: int, repeats: int) -> list[Row]:
    chosen = {str(n): cache_of("f16", depth + 2 * ANSWER, n) for n in blocks}
    rates, fed = speeds(caches, chosen, depth, repeats), prompts(caches, chosen, repeats)
    rows = []
    for name, cache in chosen.items():
        size = caches.bytes(cache)
        rows.append(
            Row(
                "f16", cache.block, size, decode=rates[name], prompt=fed[name], wasted=size * cache.block // 2
            )
        )
        print(
            f"block {name:4} {rates[name]:8.2f} tokens/s behind {depth}, prompts {fed[name]:8.1f} tokens/s, "
            f"{rows[-1].wasted} bytes wasted",
            flush=True,
        )
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("-e", "--text", type=Path, default=None)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(CACHE_TYPES))
    parser.add_argument("--blocks", default="")
    parser.add_argument("--json", type=Path, default=None)
    o = parser.parse_args(words)
    kinds, rows = [k for k in o.kinds.split(",") if k], list[Row]()
    with Model.load(o.model or default_model(), context=CONTEXT) as model:
        caches = Caches(model)
        if o.text:
            rows += divergences(caches, kinds, o.text, o.windows)
        if o.depth and kinds:
            rows += by_kind(caches, kinds, o.depth, o.repeats)
        if o.blocks:
            rows += by_block(caches, [int(n) for n in o.blocks.split(",")], o.depth, o.repeats)
    if o.json:
        o.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
