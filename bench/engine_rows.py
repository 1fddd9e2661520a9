"""The rows of bench/engine.py. Each measures one property that callers of the engine rely on, through the
library's public API.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from compare_seats import Child
from speculation import LEAST, measure

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation

PEER = Path(__file__).with_name("engine_peer.py")
CLIENTS, PROMPT, ANSWER = 8, 32, 128
QUESTIONS = ("Why is the sky blue?", "Name three rivers.", "What is a verb?", "How do bees make honey?")


@dataclass(frozen=True, slots=True)
class Files:
    """The model files."""

    small: Path  # a chat model
    large: Path  # a model of the 1.2B shape


@dataclass(frozen=True, slots=True)
class Finding:
    """A row's result."""

    row: str
    measured: str
    wanted: str
    met: bool | None  # whether the row meets its target; None: it has none

    @property
    def word(self) -> str:
        return {True: "yes", False: "no", None: "-"}[self.met]


Row = Callable[[Files], list[Finding]]
ROWS: dict[str, Row] = {}


def row(function: Row) -> Row:
    ROWS[function.__name__] = function
    return function


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Random prompts without common prefixes."""
    rng = np.random.default_rng(0)
    return [rng.integers(1000, min(vocab, 100_000), length).tolist() for _ in range(count)]


def answer(model: Model, ids: Sequence[int], length: int) -> float:
    """Seconds for so many tokens; the end token is ignored."""
    started = time.perf_counter()
    model.generate(ids, max_tokens=length, sampling=GREEDY, ignore_eos=True).read()
    return time.perf_counter() - started


@row
def same(files: Files) -> list[Finding]:
    """32 threads and 32 tasks of 20 calls each give the texts of sequential calls."""
    cases = [(f"{QUESTIONS[i % 4]} ({i % 20})", 8 + i % 24) for i in range(640)]
    with Model.load(files.small, slots=32, context=512) as model:

        def one(case: tuple[str, int]) -> str:
            ids = model.prompt_ids([{"role": "user", "content": case[0]}])
            return model.generate(ids, max_tokens=case[1], sampling=GREEDY).read()

        async def task(case: tuple[str, int]) -> list[int]:
            ids = model.prompt_ids([{"role": "user", "content": case[0]}])
            ends = frozenset(model.tokenizer.eog)
            return [
                t
                async for t in model.service.submit(GenerateRequest(ids, case[1], GREEDY, ends))
                if t not in ends
            ]

        async def tasks() -> list[list[int]]:
            gate = asyncio.Semaphore(32)

            async def gated(case: tuple[str, int]) -> list[int]:
                async with gate:
                    return await task(case)

            return await asyncio.gather(*map(gated, cases))

        alone = {case: one(case) for case in dict.fromkeys(cases)}
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(one, cases))
        streamed = [model.detokenize(ids) for ids in asyncio.run(tasks())]
    differing = [
        sum(a != alone[c] for c, a in zip(cases, found, strict=True)) for found in (together, streamed)
    ]
    measured = f"{differing[0]} of 640 differ by threads, {differing[1]} by tasks"
    return [Finding("same text for 32 threads or tasks x 20 calls", measured, "0", not any(differing))]


@row
def memory(files: Files) -> list[Finding]:
    """Growth of resident memory over 50 loads and closes."""
    sizes = []
    for _ in range(50):
        with Model.load(files.small, context=512) as model:
            model.generate("Hello", max_tokens=4).read()
        gc.collect()
        sizes.append(resident())
    first, last = (statistics.median(part) for part in (sizes[5:15], sizes[-10:]))
    growth = last / first - 1
    measured = f"{first / 1e6:.1f} MB after 10, {last / 1e6:.1f} MB after 50: {growth:+.1%}"
    return [Finding("memory over 50 load/close cycles", measured, "within 2 %", abs(growth) <= 0.02)]


def resident() -> int:
    """Resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@row
def clients(files: Files) -> list[Finding]:
    """Tokens per second of eight clients together, relative to one client's and to the peer's, in turns."""
    if not files.large.is_file():
        raise RequestError(f"{files.large} is missing: python bench/compare.py --only llama-3.2-1b makes it")
    rates: dict[str, list[float]] = {"one": [], "all": [], "peer": []}
    with Model.load(files.large, slots=CLIENTS, context=256) as model, peer(files.large) as child:
        texts = prompts(CLIENTS + 1, PROMPT, model.arch.vocab)
        for turn in range(4):
            fresh = [[*ids[:-1], turn + 10] for ids in texts]  # so that no turn hits the prefix cache
            one = ANSWER / answer(model, fresh[0], ANSWER)
            together = rate_of(lambda ids: answer(model, ids, ANSWER), fresh[1:])
            theirs = ask(child, do="clients", prompts=fresh[1:], length=ANSWER) if child else 0.0
            if turn:  # the first turn compiles plans
                rates["one"].append(one)
                rates["all"].append(together)
                rates["peer"].append(theirs)
    one, together, theirs = (statistics.median(rates[k]) for k in ("one", "all", "peer"))
    own = f"{together:.1f} t/s of {one:.1f}: {together / one:.2f}x"
    findings = [Finding("8 clients beside one, 1.2B Q4_K_M", own, ">= 4.5x", together >= 4.5 * one)]
    if theirs:
        measured = f"{together:.1f} t/s of {theirs:.1f}: {together / theirs:.2f}x"
        findings.append(
            Finding("8 clients beside llama-cpp-python's", measured, ">= 5x", together >= 5 * theirs)
        )
    return findings


def rate_of(ask: Callable[[list[int]], float], texts: Sequence[list[int]]) -> float:
    """Tokens per second of all texts together, each in a thread of its own."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(ask, texts))
    return len(texts) * ANSWER / (time.perf_counter() - started)


def ask(child: Child, **fields: object) -> float:
    """The answer to a command with these fields."""
    found: float = child.ask(json.dumps(fields) + "\n")
    return found


class Absent:
    """Stands in for a peer that is not installed."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def peer(path: Path) -> Child | Absent:
    """A process of llama-cpp-python with the file loaded, where it is installed."""
    if find_spec("llama_cpp") is None:
        return Absent()
    child = Child((sys.executable, str(PEER)))
    ask(child, do="load", path=str(path))
    return child


@row
def second(files: Files) -> list[Finding]:
    """Time to the first token of a conversation's second turn, relative to the first turn's."""
    first, again, cached = [], [], 0
    with Model.load(files.small, context=4096) as model:
        for turn in range(5):
            ids = prompts(1, 1800, model.arch.vocab)[0]
            ids[0] = turn + 10
            reply = model.generate(ids, max_tokens=16, sampling=GREEDY, ignore_eos=True)
            reply.read()
            follow = model.generate([*ids, *reply.ids, *range(40, 60)], max_tokens=2, ignore_eos=True)
            follow.read()
            first.append(reply.stats.prefill_seconds)
            again.append(follow.stats.prefill_seconds)
            cached = follow.stats.cached
    share = statistics.median(again[1:]) / statistics.median(first[1:])
    measured = f"{share:.1%} ({1e3 * statistics.median(again[1:]):.0f} ms, {cached} tokens kept)"
    return [Finding("second turn's first token, 1,800 tokens", measured, "< 10 %", share < 0.1)]


@row
def shared(files: Files) -> list[Finding]:
    """Two clients with the same system prompt of 1,000 tokens, one after another and at once."""
    findings = []
    for name, at_once in (("one after the other", False), ("at the same time", True)):
        with Model.load(files.small, context=2048, slots=2) as model:
            system = prompts(1, 1000, model.arch.vocab)[0]
            replies = [
                model.generate([*system, *range(n, n + 8)], max_tokens=4, ignore_eos=True) for n in (20, 40)
            ]
            if at_once:
                threads = [threading.Thread(target=r.read) for r in replies]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
            else:
                for r in replies:
                    r.read()
            computed = sum(r.stats.prompt - r.stats.cached for r in replies)
        measured = f"{computed} tokens of 2016 computed"
        findings.append(Finding(f"a shared system prompt, {name}", measured, "<= 1100", computed <= 1100))
    return findings


@row
def lookup(files: Files) -> list[Finding]:
    """Speed with prompt lookup drafts, relative to that without; the answers are compared too."""
    speculation = Speculation(lookup=True)
    findings = []
    with Model.load(files.small) as plain, Model.load(files.small, speculation=speculation) as speculating:
        for task in ("edit", "summarise", "chat"):
            found = measure(plain, speculating, task, "greedy", rounds=6, tokens=160)
            share = found.accepted / found.drafted if found.drafted else 0.0
            measured = f"{found.ratio:.2f}x, {share:.0%} of {found.drafted} draft tokens accepted"
            findings.append(Finding(f"lookup: {task}", measured, ">= 0.98x", found.ratio >= LEAST))
    return findings


@row
def overhead(files: Files) -> list[Finding]:
    """Python's own time per step, on the null backend."""
    findings = []
    for batch, wanted in ((1, 100), (16, 300)):
        best = min(python_seconds(files.small, batch) for _ in range(3))
        measured = f"{1e6 * best:.0f} us"
        findings.append(
            Finding(f"Python per step, batch {batch}", measured, f"< {wanted} us", best < wanted * 1e-6)
        )
    return findings


def python_seconds(path: Path, batch: int, length: int = 4000) -> float:
    """Seconds per step outside of the backend, while nobody reads the tokens."""
    with Model.load(path, device="null", slots=batch, context=length + 200) as model:
        service, timing = model.service, model.engine.timing
        handles = [
            service.submit(GenerateRequest([1, 2, n + 3], length, Sampling(seed=n))) for n in range(batch)
        ]
        while any(t.seq.generated < 100 for t in handles):
            time.sleep(0.001)
        started, steps, inside = time.perf_counter(), timing.steps, timing.inside
        while not any(t.seq.generated > length - 100 for t in handles):
            time.sleep(0.005)
        seconds, steps, inside = time.perf_counter() - started, timing.steps - steps, timing.inside - inside
    return (seconds - inside) / steps
