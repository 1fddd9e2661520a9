"""Several models in one server: loaded on demand, unloaded for memory or after an idle time; aliases."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pydantic")

from tiny_file import write_model
from waiting import until_async

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.options import Options
from satchel.runtime.option import options_of
from satchel.runtime.sampling import GREEDY
from satchel.runtime.scheduler import SchedulerLimits
from satchel.runtime.speculation import Speculation
from satchel.server.alias import Alias
from satchel.server.catalog import AliasTable, Catalog, ModelTable, TableBase, catalog_of
from satchel.server.generation import Caller, GenerationRequest, Text
from satchel.server.models import FAILED, READY, UNLOADED, Models
from satchel.server.ollama.options import SOON
from satchel.server.problem import Problem
from satchel.server.shadow import begin_answer

SMALL = Options(context=128, slots=2)


@pytest.fixture
def files(bundled_model: Path, tmp_path: Path) -> dict[str, Path]:
    for name in "ab":
        (tmp_path / f"{name}.gguf").symlink_to(bundled_model)
    return {name: tmp_path / f"{name}.gguf" for name in "ab"}


def run(work: Callable[[Models], Awaitable[None]], catalog: Catalog, budget: int = 0) -> None:
    async def whole() -> None:
        models = Models(catalog, budget)
        try:
            await work(models)
        finally:
            await models.close()

    asyncio.run(whole())


async def answer(models: Models, name: str, user: str = "") -> str:
    wanted = GenerationRequest(name, Text("Once"), GenerateKwargs(sampling=GREEDY, max_tokens=3))
    made = await begin_answer(models, wanted, Caller(user))
    try:
        await made.read()
        return made.name
    finally:
        await made.close()


def states(models: Models) -> dict[str, str]:
    return {name: entry.state for name, entry in models.entries.items()}


@pytest.mark.model
def test_a_model_is_loaded_when_asked_for_and_unloaded_for_room(files: dict[str, Path]) -> None:
    async def work(models: Models) -> None:
        assert states(models) == {"a": UNLOADED, "b": UNLOADED}
        assert await answer(models, "b") == "b"
        assert states(models) == {"a": UNLOADED, "b": READY}
        assert await answer(models, "") == "a"
        assert states(models) == {"a": READY, "b": UNLOADED}
        async with models.use("a"):
            with pytest.raises(Problem, match="in use"):
                await answer(models, "b")
        assert states(models) == {"a": READY, "b": UNLOADED}

    run(work, catalog_of(files, {}, SMALL, 0, None), budget=files["a"].stat().st_size * 3 // 2)


@pytest.mark.model
def test_a_model_that_nobody_uses_is_unloaded(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is simulated: the model stays for 20 seconds after its last request."""
    now = 100.0
    monkeypatch.setattr("satchel.server.models.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("satchel.server.models.LOOK", 0.01)

    async def work(models: Models) -> None:
        nonlocal now
        async with models.use("a"):
            now += 1000
            await models.unload_idle()
            assert states(models)["a"] == READY
        now += 19
        await models.unload_idle()
        assert states(models)["a"] == READY
        now += 2
        tending = asyncio.create_task(models.tend())
        await until_async(lambda: states(models)["a"] == UNLOADED, "the model is unloaded")
        tending.cancel()

    run(work, catalog_of(files, {}, SMALL, 20, None))


def test_how_long_a_request_keeps_a_model_ends_with_that_load(tmp_path: Path) -> None:
    paths = {"a": write_model(tmp_path / "a.gguf"), "bad": tmp_path / "bad.gguf"}
    paths["bad"].write_bytes(b"GGUF")

    async def work(models: Models) -> None:
        for unload in (models.entries["a"].unload, partial(evict, models)):
            async with models.use("a") as lease:
                lease.entry.keep = SOON
            await unload()
            assert states(models)["a"] == UNLOADED and models.entries["a"].keep == 20
        models.entries["bad"].keep = SOON
        with pytest.raises(ModelError):
            await models.entries["bad"].loaded()
        assert models.entries["bad"].keep == 20

    async def evict(models: Models) -> None:
        models.budget = 100  # bytes
        await models._make_room(models.entries["bad"])

    run(work, catalog_of(paths, {}, Options(context=64, slots=1), 20, None))


@pytest.mark.model
def test_a_reload_keeps_what_did_not_change(files: dict[str, Path], tmp_path: Path) -> None:
    async def work(models: Models) -> None:
        await answer(models, "a")
        kept = models.entries["a"].model
        other = tmp_path / "c.gguf"
        shutil.copy(files["b"], other)
        told = models.change(catalog_of({"a": files["a"], "b": other}, {}, SMALL, 0, None))
        assert told == ["b: changed"]
        assert models.entries["a"].model is kept
        async with models.use("a") as lease:
            assert models.change(catalog_of({"b": other}, {}, SMALL, 0, None)) == ["a: removed"]
            assert lease.model.model.tokenize("still here")
        with pytest.raises(Problem, match="does not exist"):
            await answer(models, "a")

    run(work, catalog_of(files, {}, SMALL, 0, None))


@pytest.mark.model
def test_counters_go_on_when_a_reload_changes_the_model(files: dict[str, Path]) -> None:
    """Also while requests of the model as it was are under way."""

    async def generated(models: Models) -> int:
        found = await models.entries["a"].counters()
        return found.generated_tokens if found else 0

    async def work(models: Models) -> None:
        assert await models.entries["a"].counters() is None
        await answer(models, "a")
        other = catalog_of(files, {}, replace(SMALL, context=256), 0, None)
        async with models.use("a") as lease:
            assert models.change(other) == ["a: changed", "b: changed"]
            assert lease.entry is not models.entries["a"] and await generated(models) == 3
            await answer(models, "a")
            assert await generated(models) == 6
        await until_async(lambda: lease.entry.state == UNLOADED, "the model as it was is unloaded")
        assert await generated(models) == 6
        await answer(models, "a")
        await models.entries["a"].unload()
        assert await generated(models) == 9
        found = await models.entries["a"].counters()
        assert found and found.kv_blocks == 0

    run(work, catalog_of(files, {}, SMALL, 0, None))


def test_counters_of_a_model_that_tells_none_are_the_last_ones(tmp_path: Path) -> None:
    async def work(models: Models) -> None:
        async def lost() -> None:
            raise DeviceError("the worker process is lost")

        entry = models.entries["a"]
        model = await entry.loaded()
        await answer(models, "a")
        told = await entry.counters()
        assert told and told.steps > 0 and told.kv_blocks > 0
        model.stats = lost  # type: ignore[assignment, method-assign]
        assert await entry.counters() == told.ended()
        await entry.unload()
        assert await entry.counters() == told.ended()

    run(work, catalog_of({"a": write_model(tmp_path / "a.gguf")}, {}, Options(context=64, slots=1), 20, None))


@pytest.mark.parametrize(("versions", "default"), [({"b": 1}, "a"), ({"b": 3, "a": 1}, "chat")])
def test_a_request_without_a_model_means_the_first_or_its_alias(
    files: dict[str, Path], versions: dict[str, int], default: str
) -> None:
    table = {"aliases": {"chat": {"versions": versions}}}
    models = Models(catalog_of(files, table, SMALL, 0, None))
    assert models.default == default
    assert models.entry("").name == models.entry(default).name


def test_without_models_a_request_is_told_so() -> None:
    with pytest.raises(Problem, match="the model '' does not exist: there is none"):
        Models(Catalog({}, {})).entry("")


def test_versions_are_chosen_by_weight_and_a_user_keeps_his() -> None:
    alias = Alias("chat", AliasTable(versions={"a": 3, "b": 1, "c": 0}))
    by_user = Counter(alias.choose(f"user {i}") for i in range(2000))
    assert set(by_user) == {"a", "b"}
    assert 0.7 < by_user["a"] / 2000 < 0.8
    assert all(alias.choose("one") == alias.choose("one") for _ in range(10))
    assert {alias.choose() for _ in range(200)} == {"a", "b"}


def test_a_version_that_fails_is_taken_back_but_never_the_last() -> None:
    alias = Alias("chat", AliasTable(versions={"a": 1, "b": 1}, rollback_errors=0.3, window=10))
    for i in range(10):
        alias.record("b", i % 2 == 0, 0.1)
        alias.record("a", False, 0.1)
    assert set(alias.weights) == {"a"}
    for _ in range(10):
        alias.record("a", True, 0.1)
    assert set(alias.weights) == {"a"}
    told = {v["model"]: v for v in alias.as_json()["versions"]}
    assert told["b"]["rolled_back"]
    assert not told["a"]["rolled_back"]
    assert told["b"]["failed"] == 5


@pytest.mark.model
def test_a_version_that_cannot_be_loaded_is_rolled_back(files: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(files["a"].read_bytes()[:100_000])
    table = {"aliases": {"chat": {"versions": {"a": 1, "broken": 1}}}}

    async def work(models: Models) -> None:
        failed = 0
        for i in range(40):
            try:
                await answer(models, "chat", f"user {i}")
            except Exception:
                failed += 1
        assert failed == 5
        assert states(models)["broken"] == FAILED

    run(work, catalog_of({"a": files["a"], "broken": broken}, table, SMALL, 0, None))


@pytest.mark.model
def test_a_shadow_is_compared_and_never_answers(files: dict[str, Path]) -> None:
    table = {"aliases": {"chat": {"versions": {"a": 1}, "shadow": "b"}}}

    async def work(models: Models) -> None:
        # A request that names no model is one of the alias that the first model is a version of.
        assert [await answer(models, name) for name in ("chat", "", "chat")] == ["a"] * 3
        compared = models.aliases["chat"].records["b"]
        await until_async(lambda: compared.compared == 3, "three answers are compared")
        told = models.aliases["chat"].as_json()["versions"][1]
        assert (told["compared"], told["verdict"], told["requests"]) == (3, None, 0)
        assert told["divergence"][0] == 0 and told["agreement"][0] == 1, "it is a copy of the same file"
        assert 0 <= told["agreement"][1] < 1, "three requests show little"

    run(work, catalog_of(files, table, SMALL, 0, None))


def test_a_model_of_the_configuration_says_how_devices_share_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    asked = {"path": "m.gguf", "device": "remote,cpu", "tensor_split": "3,1"}
    read = catalog_of({}, {"models": {"x": asked}}, SMALL, 0, tmp_path / "c.toml").models["x"].options
    assert read.placement_options.split == (3.0, 1.0)
    with pytest.raises(RequestError, match="tensor_split has 3 numbers for 2 devices"):
        tables = {"models": {"x": {**asked, "tensor_split": "3,1,1"}}}
        catalog_of({}, tables, SMALL, 0, tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"models": {"x": {}}}, r"\[models.x\] path"),
        ({"models": {"x": {"path": "p", "contxt": 3}}}, r"\[models.x\] contxt"),
        ({"models": {"x": {"path": "p", "context": "3"}}}, r"\[models.x\] context: .* integer, got '3'"),
        (
            {"models": {"x": {"path": "m.gguf", "batch": -1}}},
            r"\[models.x\] batch is -1: expected 0 to 65536",
        ),
        ({"models": {"x": {"path": "m.gguf", "queue": 0}}}, r"\[models.x\] queue is 0: expected 1 or more"),
        ({"models": {"x": {"path": "m.gguf", "device": "a,a"}}}, r"\[models.x\] device 'a,a'"),
        ({"models": {"x": {"path": "m.gguf", "speculation": 1}}}, r"\[models.x\] speculation"),
        ({"models": {"m": {"path": "p"}}}, "the command line names a model so; rename the table"),
        ({"aliases": {"m": {"versions": {"m": 1}}}}, "expected another name, because a model has this one"),
        ({"aliases": {"x": {"versions": {"y": 1}}}}, "expected models of m, got y"),
        ({"aliases": {"x": {"versions": {"m": -1}}}}, "expected weights of 0 or more"),
        ({"aliases": {"x": {"versions": {}}}}, "versions"),
    ],
)
def test_a_wrong_catalog_is_said_with_its_place(tables: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(RequestError, match=said):
        catalog_of({"m": Path("m.gguf")}, tables, SMALL, 0, tmp_path / "c.toml")


def test_a_table_says_how_tokens_are_drafted(tmp_path: Path) -> None:
    for name in ("m.gguf", "small.gguf"):
        (tmp_path / name).touch()
    where, asked = tmp_path / "c.toml", {"path": "m.gguf"}

    def found(base: Options, **keys: Any) -> Speculation | None:
        tables = {"models": {"x": {**asked, **keys}}}
        return catalog_of({}, tables, base, 0, where).models["x"].options.speculation

    drafting = Options(speculation=Speculation(draft_model="other.gguf", lookup=True, draft_max=3))
    assert found(Options()) is None
    assert found(Options(), lookup=True, draft_max=8) == Speculation(lookup=True, draft_max=8)
    small = Speculation(draft_model=tmp_path / "small.gguf", draft_min=2)
    assert found(Options(), draft_model="small.gguf", draft_min=2) == small
    assert found(drafting) == Speculation(lookup=True, draft_max=3), "another model, another vocabulary"
    assert found(drafting, draft_max=5) == Speculation(lookup=True, draft_max=5)
    assert found(drafting, lookup=False) is None and found(drafting, draft_max=0) is None
    for wrong, said in (
        ({"draft_max": 8}, "draft_max: expected lookup or draft_model"),
        ({"draft_max": 99}, "0 to 64"),
    ):
        with pytest.raises(RequestError, match=said):
            found(Options(), **wrong)
    catalog = catalog_of({"m": tmp_path / "m.gguf"}, {}, drafting, 0, where, {"s": tmp_path / "small.gguf"})
    assert catalog.models["m"].options == drafting
    assert catalog.models["s"].options.speculation == Speculation(lookup=True, draft_max=3)


def test_a_table_takes_every_load_option_that_is_no_value_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    lacking = set(TableBase.model_fields) | {
        "profile",
        "speculation",
        "adapters",
        "control_vectors",
        "digests",
        "sharers",
        "cpus",
    }
    assert {*ModelTable.model_fields} | lacking == {*options_of(Options), *options_of(Speculation)} | lacking
    asked = {"path": "m.gguf", "dense_attention": True, "cache_type": "q8_0", "gpu_layers": 3, "ageing": 2}
    base = Options(limits=SchedulerLimits(queue=7))
    found = catalog_of({}, {"models": {"x": asked}}, base, 0, tmp_path / "c.toml").models["x"].options
    assert found == Options(
        dense_attention=True, cache_type="q8_0", gpu_layers=3, limits=SchedulerLimits(queue=7, ageing=2)
    )
