"""A14 of the hostile requests: /readyz is right about a worker that is stopped, one that has continued, and a
server that is stopping; /metrics does not wait for a stopped worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_file import write_model
from waiting import until

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from serving_process import children  # noqa: E402

from satchel.runtime.api.async_model import AsyncModel  # noqa: E402
from satchel.runtime.api.options import Options  # noqa: E402
from satchel.runtime.worker import service as worker_service  # noqa: E402
from satchel.server.app import create_app  # noqa: E402
from satchel.server.catalog import catalog_of  # noqa: E402
from satchel.server.models import READY, UNLOADED, Models  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the process in /proc")
def test_a14_a_stopped_worker_is_not_ready_until_it_goes_on(
    tmp_path: Path, serving_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_service, "BEAT", 0.05)
    path, before = write_model(tmp_path / "tiny.gguf"), set(children(os.getpid()))
    options = Options(worker="process", threads=1, worker_timeout=0)
    with serving_of([path], options, ServerSettings(port=0)) as url:
        ask = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=ask, timeout=60).status_code == 200
        (engine,) = set(children(os.getpid())) - before
        until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "ready")
        os.kill(engine, signal.SIGSTOP)
        try:
            until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 503, "not ready")
            told = httpx.get(f"{url}/readyz", timeout=60)
            assert "tiny" in told.text and "no sign of life" in told.text and str(tmp_path) not in told.text
            assert httpx.get(f"{url}/metrics", timeout=60).status_code == 200
            assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200, "the server itself lives"
        finally:
            os.kill(engine, signal.SIGCONT)
        until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "ready again")
        assert httpx.post(f"{url}/v1/completions", json=ask, timeout=60).status_code == 200


def test_a14_a_server_that_stops_is_not_ready() -> None:
    models = Models(catalog_of({}, {}, Options(), 0, None))
    app = create_app(models, ServerSettings(port=0))

    async def ask() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return int((await client.get("/readyz")).status_code)

    assert asyncio.run(ask()) == 200
    models.draining = True
    assert asyncio.run(ask()) == 503


def test_a_server_is_not_ready_until_the_model_named_at_the_start_can_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: write_model(tmp_path / f"{name}.gguf") for name in ("first", "further")}
    seen: list[Any] = []

    @contextmanager
    def shown(name: str) -> Iterator[Callable[[int, int], None]]:
        seen.append(name)
        yield lambda done, total: seen.append((done, total))
        seen.append("end")

    models = Models(catalog_of(files, {}, Options(threads=1), 0, None), show_load=shown)
    app, load = create_app(models, ServerSettings(port=0)), AsyncModel.load

    async def work() -> None:
        go = asyncio.Event()

        async def held(*args: Any, **kwargs: Any) -> AsyncModel:
            await go.wait()
            return await load(*args, **kwargs)

        monkeypatch.setattr(AsyncModel, "load", held)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            loading = asyncio.create_task(models.preload())
            for path in ("/health", "/v1/health", "/readyz"):
                told = await client.get(path)
                assert told.status_code == 503 and told.json()["error"]["code"] == "loading", told.text
            go.set()
            await loading
            for path in ("/health", "/v1/health", "/readyz"):
                assert (await client.get(path)).status_code == 200
        assert [entry.state for entry in models.entries.values()] == [READY, UNLOADED]
        await models.close()

    asyncio.run(work())
    done, total = seen[-2]
    assert seen[0] == "first" and seen[-1] == "end" and done == total > 0


def test_a_model_that_cannot_be_loaded_is_told_without_the_servers_folders(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    models = Models(catalog_of({"bad": path}, {}, Options(), 0, None))
    app = create_app(models, ServerSettings(port=0))

    async def ask() -> httpx.Response:
        await models.preload()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/readyz")

    told = asyncio.run(ask())
    assert told.status_code == 500 and "bad.gguf" in told.text and str(tmp_path) not in told.text


@pytest.mark.parametrize("stream", [False, True])
def test_a18_a_damaged_model_is_an_error_without_the_servers_folders(
    tmp_path: Path, serving_of: Callable[..., Any], stream: bool
) -> None:
    def damage(weights: Any) -> None:
        weights.changeable("output_norm.weight")[3] = np.nan

    path = write_model(tmp_path / "bad.gguf", change=damage)
    with serving_of([path], Options(threads=1), ServerSettings(port=0)) as url:
        ask = {"prompt": [1, 2, 3], "max_tokens": 2, "stream": stream}
        told = httpx.post(f"{url}/v1/completions", json=ask, timeout=60)
        assert told.status_code == 500
        assert "satchel verify bad.gguf" in told.text and str(tmp_path) not in told.text
