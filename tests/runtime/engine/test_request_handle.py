"""A request's handle: tokens relayed without a task, and one wake of a loop for all tokens of a step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.notifier import Notifier
from satchel.runtime.engine.request_handle import End, RequestHandle, put_all

NOBODY: Any = None


def handle() -> RequestHandle:
    return RequestHandle(NOBODY, NOBODY)


def from_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_tokens_of_a_step_wake_the_loop_once_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes, wake = list[int](), Notifier._wake

    def counted(self: Notifier) -> None:
        wakes.append(len(self._due))
        wake(self)

    monkeypatch.setattr(Notifier, "_wake", counted)

    async def run() -> list[list[list[int]]]:
        handles, came = [handle() for _ in range(5)], [list[list[int]]() for _ in range(5)]

        def taker(at: int) -> Any:
            return lambda tokens: came[at].append(tokens) or True

        tasks = [asyncio.create_task(h.relay(taker(at))) for at, h in enumerate(handles)]
        await asyncio.sleep(0)
        for step in range(3):
            from_a_thread(lambda step=step: put_all((h, [step, step + 10]) for h in handles))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        from_a_thread(lambda: put_all((h, [End("stop")]) for h in handles))
        await asyncio.gather(*tasks)
        assert [await h.wait() for h in handles] == [None] * 5
        return came

    assert asyncio.run(run()) == [[[0, 10], [1, 11], [2, 12]]] * 5
    assert wakes == [5] * 4


def test_a_relay_ends_before_what_is_no_plain_token_and_loses_nothing() -> None:
    async def run() -> None:
        one, came = handle(), list[int]()
        for item in (1, 2, Sampled(3, None, 0.0), 4, End("length")):
            one.put(item)
        await one.relay(lambda tokens: came.extend(tokens) or True)
        assert came == [1, 2] and one.ready
        assert await one.wait() == 3
        await one.relay(lambda tokens: came.extend(tokens) or True)
        assert came == [1, 2, 4] and one.get() is None and one.finish == "length"
        await one.relay(lambda tokens: came.extend(tokens) or True)
        assert came == [1, 2, 4]

    asyncio.run(run())


def test_a_relay_ends_where_its_taker_says_so_or_fails() -> None:
    async def run() -> None:
        one, came = handle(), list[int]()
        one.put(1)
        await one.relay(lambda tokens: bool(came.extend(tokens)))
        assert came == [1]
        task = asyncio.create_task(one.relay(lambda tokens: 1 // 0))
        await asyncio.sleep(0)
        from_a_thread(lambda: one.put(2))
        with pytest.raises(ZeroDivisionError):
            await task
        task = asyncio.create_task(one.relay(lambda tokens: True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        one.put(3)
        assert await one.wait() == 3

    asyncio.run(run())
