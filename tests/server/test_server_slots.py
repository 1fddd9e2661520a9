"""A13 of the hostile requests: saved conversations and cached blocks belong to the key that made them. Row 6:
a request has its key's share of the engine.
"""

from __future__ import annotations

import asyncio
import stat
from collections import abc
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_file import write_model

pytest.importorskip("fastapi")

from satchel.runtime.api.options import Options
from satchel.runtime.scheduler import Scheduler, Sequence
from satchel.server.app import create_app
from satchel.server.catalog import Catalog, Served
from satchel.server.models import Models
from satchel.server.native.slots import close_folder, own_folder
from satchel.server.settings import ServerSettings

FIRST, SECOND, ADMIN = "first-key", "second-key", "third-key"
KEYS = {"api_keys": (FIRST, SECOND), "admin_keys": (ADMIN,)}
IDS = list(range(3, 100))  # three blocks and one token


class Keys:
    """Sends requests with a given key; None: without one."""

    def __init__(self, wire: httpx.AsyncClient) -> None:
        self.wire = wire

    async def ask(self, key: str | None, path: str, **body: Any) -> httpx.Response:
        headers = {} if key is None else {"x-api-key": key}
        return await self.wire.post(path, json=body, headers=headers, timeout=60)

    async def slots(self, key: str | None) -> list[int]:
        """Tokens that each slot reports."""
        headers = {} if key is None else {"x-api-key": key}
        told = await self.wire.get("/slots", headers=headers)
        return [slot["n_prompt_tokens_cache"] for slot in told.json()]

    async def cached(self, key: str | None, **more: Any) -> int:
        """Tokens of the prompt found in the cache."""
        made = await self.ask(key, "/v1/completions", prompt=IDS, max_tokens=1, **more)
        return int(made.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def run(folder: Path, work: abc.Callable[[Keys], abc.Coroutine[Any, Any, None]], **more: Any) -> None:
    async def all_of_it() -> None:
        path = write_model(folder / "tiny.gguf")
        models = Models(Catalog({"tiny": Served("tiny", path, Options(slots=2, context=256))}, {}))
        app = create_app(models, ServerSettings(states=folder / "states", **more))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as wire:
            try:
                await work(Keys(wire))
            finally:
                await models.close()

    asyncio.run(all_of_it())


def test_a13_what_a_key_saved_no_other_restores(tmp_path: Path) -> None:
    async def work(keys: Keys) -> None:
        assert await keys.cached(FIRST, id_slot=1) == 0
        assert await keys.slots(FIRST) == [0, len(IDS) + 1]
        assert await keys.slots(SECOND) == await keys.slots(ADMIN) == [0, 0]
        for key in (SECOND, ADMIN):
            assert (await keys.ask(key, "/slots/1?action=save", filename="a")).status_code == 400
            assert (await keys.ask(key, "/slots/1?action=erase")).json()["n_erased"] == 0
        assert (await keys.ask(FIRST, "/slots/1?action=save", filename="a")).json()["n_saved"] == 96
        for key in (SECOND, ADMIN):
            for name in ("a", own_folder(Path(), "x").name):
                assert (await keys.ask(key, "/slots/0?action=restore", filename=name)).status_code == 404
            assert await keys.cached(key) == 0, "another's guess tells nothing"
        assert (await keys.ask(FIRST, "/slots/0?action=restore", filename="a")).json()["n_restored"] == 96
        assert (await keys.ask(SECOND, "/slots/0?action=save", filename="a")).status_code == 400
        assert await keys.cached(FIRST) == 96

    run(tmp_path, work, **KEYS)
    found = sorted((tmp_path / "states").rglob("*"))
    assert [p.name for p in found if p.is_file()] == ["a"]
    for path in (tmp_path / "states", *found):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.is_file() else 0o700), path


def test_a13_a_restored_conversation_is_another_keys_nowhere(tmp_path: Path) -> None:
    """A file that the operator copies into a key's folder is that key's alone."""

    async def work(keys: Keys) -> None:
        await keys.cached(FIRST, id_slot=0)
        await keys.ask(FIRST, "/slots/0?action=save", filename="a")
        (own,) = (p for p in (tmp_path / "states").iterdir() if p.is_dir())
        await keys.ask(SECOND, "/slots/0?action=restore", filename="a")
        (other,) = (p for p in (tmp_path / "states").iterdir() if p.is_dir() and p != own)
        (other / "b").write_bytes((own / "a").read_bytes())
        assert (await keys.ask(SECOND, "/slots/0?action=restore", filename="b")).status_code == 200
        assert await keys.cached(SECOND) == 96
        assert await keys.cached(ADMIN) == 0
        assert await keys.cached(ADMIN, cache_salt="a") == 0

    run(tmp_path, work, **KEYS)


def test_a13_a_key_fills_its_own_part_of_the_disk(tmp_path: Path) -> None:
    async def work(keys: Keys) -> None:
        for key in (FIRST, SECOND):
            await keys.cached(key, id_slot=0)
            assert (await keys.ask(key, "/slots/0?action=save", filename="a")).status_code == 200
            assert (await keys.ask(key, "/slots/0?action=save", filename="a")).status_code == 200
            answer = await keys.ask(key, "/slots/0?action=save", filename="b")
            assert answer.status_code == 409 and answer.json()["error"]["code"] == "states_full"

    run(tmp_path, work, **KEYS, states_bytes=1000)


def test_a13_without_keys_files_lie_in_the_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir(mode=0o755)

    async def work(keys: Keys) -> None:
        await keys.cached(None, id_slot=0)
        assert (await keys.ask(None, "/slots/0?action=save", filename="a")).status_code == 200

    run(tmp_path, work)
    assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "states" / "a").stat().st_mode) == 0o600


def test_a13_a_folder_that_many_share_stays_theirs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    close_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_a06_a_request_has_its_keys_share_and_no_more_urgency_than_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs: list[Sequence] = []
    add = Scheduler.add
    monkeypatch.setattr(Scheduler, "add", lambda self, seq: (seqs.append(seq), add(self, seq))[1])

    async def work(keys: Keys) -> None:
        answers = {-10: 200, -11: 400, -1000: 400, 1000: 200}
        for key, priority, status in [*((FIRST, p, s) for p, s in answers.items()), (ADMIN, -1000, 200)]:
            body = {"prompt": IDS, "max_tokens": 1, "priority": priority}
            answer = await keys.ask(key, "/v1/completions", **body)
            assert answer.status_code == status
            if status == 400:
                assert answer.json()["error"]["param"] == "priority"
        seqs.clear()
        for key, user in ((FIRST, "a"), (FIRST, "b"), (SECOND, "a")):
            await keys.ask(key, "/v1/completions", prompt=IDS, max_tokens=1, user=user, n=3)
        assert [len({s.client for s in seqs[i : i + 6]}) for i in (0, 6)] == [1, 1]
        assert len({s.client for s in seqs}) == 2 and len(seqs) == 9

    run(tmp_path, work, **KEYS)


def test_a06_without_keys_names_of_users_are_no_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs: list[Sequence] = []
    add = Scheduler.add
    monkeypatch.setattr(Scheduler, "add", lambda self, seq: (seqs.append(seq), add(self, seq))[1])

    async def work(keys: Keys) -> None:
        for user in ("a", "b", ""):
            await keys.ask(None, "/v1/completions", prompt=IDS, max_tokens=1, user=user)

    run(tmp_path, work)
    assert len({seq.client for seq in seqs}) == 1 and seqs[0].client
