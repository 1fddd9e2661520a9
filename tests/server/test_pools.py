"""Thread pools by kind of work, divided fairly among keys (row A07)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from waiting import until_async

pytest.importorskip("fastapi")

from satchel.server.pools import Pools, Size, TaskPool
from satchel.server.problem import Problem

SECONDS = 60


class Stalled:
    """Work that blocks until it is released. begun: by user, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()

    def work(self, user: str) -> Callable[[], str]:
        def stand() -> str:
            self.begun.append(user)
            assert self.go.wait(SECONDS)
            return user

        return stand


async def begun(stalled: Stalled, count: int) -> None:
    await until_async(lambda: len(stalled.begun) >= count, "so much has begun")


def test_a07_a_stalled_kind_delays_no_other() -> None:
    async def run() -> None:
        pools, stalled = Pools({"pull": Size(2), "prompt": Size(1)}), Stalled()
        tasks = [asyncio.create_task(pools.run("pull", stalled.work("a"))) for _ in range(6)]
        await begun(stalled, 2)
        assert await asyncio.wait_for(pools.run("prompt", lambda: 5), SECONDS) == 5
        stalled.go.set()
        assert await asyncio.gather(*tasks) == ["a"] * 6
        pools.close()

    asyncio.run(run())


def test_a07_a_key_holds_half_of_the_threads_and_keys_take_turns() -> None:
    async def run() -> None:
        pool, stalled = TaskPool("embed", Size(4)), Stalled()
        tasks = [asyncio.create_task(pool.run(stalled.work("a"), "a")) for _ in range(8)]
        await begun(stalled, 2)
        tasks += [asyncio.create_task(pool.run(stalled.work("b"), "b")) for _ in range(2)]
        await begun(stalled, 4)
        assert stalled.begun == ["a", "a", "b", "b"], "eight of one key leave room for another"
        stalled.go.set()
        assert sorted(await asyncio.gather(*tasks)) == ["a"] * 8 + ["b"] * 2
        assert not pool._running and not pool._waiting
        pool.close()

    asyncio.run(run())


def test_a07_without_keys_all_threads_are_one_users() -> None:
    async def run() -> None:
        pool, stalled = TaskPool("embed", Size(3)), Stalled()
        tasks = [asyncio.create_task(pool.run(stalled.work(""))) for _ in range(3)]
        await begun(stalled, 3)
        stalled.go.set()
        await asyncio.gather(*tasks)
        pool.close()

    asyncio.run(run())


def test_a07_what_waits_is_bounded_and_may_leave() -> None:
    async def run() -> None:
        pool, stalled = TaskPool("pull", Size(1, 4)), Stalled()
        tasks = [asyncio.create_task(pool.run(stalled.work("a"), "a")) for _ in range(3)]
        await begun(stalled, 1)
        with pytest.raises(Problem) as refused:
            await pool.run(stalled.work("a"), "a")
        assert refused.value.status == 503 and refused.value.retry_after == 1
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        tasks.append(asyncio.create_task(pool.run(stalled.work("b"), "b")))
        stalled.go.set()
        assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == ["a", "a", "b"]
        assert not pool._running and not pool._waiting
        pool.close()

    asyncio.run(run())


def test_a_thread_is_held_until_its_work_ends_and_given_back_after_an_error() -> None:
    async def run() -> None:
        pool, stalled = TaskPool("file", Size(1)), Stalled()
        task = asyncio.create_task(pool.run(stalled.work("a")))
        await begun(stalled, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pool._running.total() == 1, "its client is gone, its thread is not free"
        stalled.go.set()
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        assert await pool.run(lambda: 7) == 7
        pool.close()

    asyncio.run(run())
