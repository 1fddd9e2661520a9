"""The asyncio interface: the same answers, a loop that is never blocked, and detected ends: closed,
cancelled, dropped.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tiny_file import write_model
from waiting import happened, until

from satchel import AsyncModel, Model
from satchel.errors import RequestError
from satchel.runtime.api.async_model import AsyncReply
from satchel.runtime.api.reply import Reply
from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.runtime.engine.program import Program
from satchel.runtime.engine.service import Service
from satchel.runtime.sampling import GREEDY
from satchel.runtime.scheduler.fair import Fair

PROMPTS = [[10 + i, 20 + i, 30 + i] for i in range(8)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("async") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=4, threads=1) as made:
        yield made


def idle(model: Model) -> None:
    """Returns when the engine has nothing to do."""
    service = model.service
    assert isinstance(service, Service)
    under_way = (service.scheduler.running, service.scheduler.waiting, service._handles)
    until(lambda: not any(under_way), "the engine has nothing to do")


@contextmanager
def held(model: Model, steps: int) -> Iterator[None]:
    """The engine starts so many steps and no more while the block runs, so no answer ends by itself."""
    fill, made, go = model.engine.fill, itertools.count(), threading.Event()

    def waits(*args: Any, **options: Any) -> Program:
        if next(made) >= steps:
            happened(go, "leave to go on")
        return fill(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.engine, "fill", waits)
        try:
            yield
        finally:
            go.set()


def test_tasks_get_what_each_would_get_alone(model: Model) -> None:
    alone = [r.text for r in model.generate_many(PROMPTS, max_tokens=12, sampling=GREEDY, ignore_eos=True)]

    async def one(prompt: list[int]) -> str:
        pieces = [
            piece
            async for piece in await AsyncModel(model).generate(
                prompt, max_tokens=12, sampling=GREEDY, ignore_eos=True
            )
        ]
        return "".join(pieces)

    async def run() -> list[str]:
        return await asyncio.gather(*(one(p) for p in PROMPTS * 3))

    assert asyncio.run(run()) == alone * 3


def test_every_verb_is_there(path: Path) -> None:
    async def run() -> None:
        seen: list[tuple[int, int]] = []
        async with await AsyncModel.load(path, slots=2, progress=lambda *at: seen.append(at)) as model:
            assert seen and seen[-1][0] == seen[-1][1]
            ids = await model.tokenize("hello")
            assert model.detokenize(ids) == "hello" and await model.tokenize_many(["hello", "a"]) == [
                ids,
                await model.tokenize("a"),
            ]
            assert (await model.logits(ids)).shape[0] == len(ids)
            told: list[tuple[int, int]] = []
            reply = await model.chat(
                [{"role": "user", "content": "hi"}],
                max_tokens=5,
                ignore_eos=True,
                progress=lambda *at: told.append(at),
            )
            text = await reply.read()
            assert text == reply.text and reply.stats.generated == 5 == len(reply.ids)
            assert told[-1][0] == told[-1][1] and reply.report.generated_tokens == 5 and reply.notes == ()
            many = await model.generate_many(["a", "b", "c"], max_tokens=3, ignore_eos=True)
            assert [r.stats.generated for r in many] == [3] * 3
            assert sum((await model.stats()).requests.values()) == 4
        with pytest.raises(RequestError, match="closed"):
            await model.generate("x")

    asyncio.run(run())


@pytest.mark.parametrize("way", ["aclose", "with", "task", "timeout", "del"])
def test_an_answer_that_nobody_wants_ends(model: Model, way: str) -> None:
    async def run() -> None:
        reply = await AsyncModel(model).generate(PROMPTS[0], ignore_eos=True, sampling=GREEDY)
        await anext(reply)
        if way == "aclose":
            await reply.aclose()
        elif way == "with":
            async with reply:
                pass
        elif way == "task":
            task = asyncio.create_task(reply.read())
            await asyncio.sleep(0)  # it begins
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "timeout":
            loop = asyncio.get_running_loop()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    loop.call_soon(patience.reschedule, loop.time())  # times out once read() waits
                    await reply.read()
        kept = reply.reply if way != "del" else None
        del reply
        assert kept is None or (kept.over and kept.stats.finish == "cancelled")

    gc.disable()  # letting go is enough: no cycle keeps an answer alive
    try:
        with held(model, steps=8):
            asyncio.run(run())
        idle(model)
    finally:
        gc.enable()


def test_a_cancelled_load_is_given_up(path: Path) -> None:
    async def run() -> None:
        reached = asyncio.Event()

        def progress(done: int, total: int) -> None:
            reached.set()

        task = asyncio.create_task(AsyncModel.load(path, progress=progress))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RequestError, match="stopped at"):
            await AsyncModel.load(path, progress=lambda done, total: False)
        with pytest.raises(TimeoutError, match="mine"):
            await AsyncModel.load(path, progress=fail)

    def fail(done: int, total: int) -> None:
        raise TimeoutError("mine")

    asyncio.run(run())


def test_a_loop_that_is_gone_does_not_harm_the_engine(model: Model) -> None:
    """The loop ends while a token is on its way to an answer."""

    async def run() -> None:
        reply = await AsyncModel(model).generate(PROMPTS[1], ignore_eos=True)
        await anext(reply)
        kept.append(reply)

    kept: list[object] = []
    for _ in range(5):
        asyncio.run(run())
    kept.clear()
    idle(model)
    assert model.generate(PROMPTS[0], max_tokens=2, ignore_eos=True).read() is not None


def test_a01_a_whole_answer_is_judged_in_another_thread() -> None:
    """Requests whose grammar must be compiled start in another thread too."""

    class Judged:
        starts_slowly, unjudged, over, handle = True, False, False, None

        def __init__(self) -> None:
            self.threads: list[int] = []

        def start(self) -> None:
            if self.starts_slowly:
                self.starts_slowly = False
                self.threads.append(threading.get_ident())

        def feed(self, token: int | None) -> str:
            self.over = self.unjudged = True
            return "all"

        def conclude(self) -> None:
            self.unjudged = False
            self.threads.append(threading.get_ident())

    reply = Judged()
    assert asyncio.run(AsyncReply(cast(Reply, reply)).burst()) == "all"
    assert len(reply.threads) == 2 and threading.get_ident() not in reply.threads
    assert not reply.unjudged


def test_a_call_uses_the_share_of_the_task_s_client(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the engine's thread too, a piece at a time."""
    charged, charge = list[tuple[str, float]](), Fair.charge

    def noted(self: Fair, user: str, cost: float, weight: float) -> None:
        charged.append((user, weight))
        charge(self, user, cost, weight)

    async def embeds() -> None:
        with CancelScope(client="key", weight=3.0).entered():
            await AsyncModel(model).embed("a b c")

    monkeypatch.setattr(Fair, "charge", noted)
    asyncio.run(embeds())
    assert charged and set(charged) == {("key", 3.0)}


@pytest.mark.parametrize("name", ["embed", "score", "rerank", "save_state", "restore_state"])
def test_awaited_methods_take_the_same_arguments(name: str) -> None:
    awaited, plain = (inspect.signature(getattr(kind, name)) for kind in (AsyncModel, Model))
    written = [(p.name, p.kind, p.default) for p in awaited.parameters.values()]
    assert written == [(p.name, p.kind, p.default) for p in plain.parameters.values()]
