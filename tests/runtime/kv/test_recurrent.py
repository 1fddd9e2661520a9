"""Recurrent layers: state checkpoints at the ends of prompts and where texts diverge are found by the next
turn of a chat, by forks, after preemption and from files, with the same bits as without checkpoints.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tiny

from satchel.errors import ModelError
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.resume import restore, save, shape_of
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.kv import Pages
from satchel.runtime.kv.group import GONE
from satchel.runtime.layers.arch import PAGES, RECURRENT, Cache, HParams, find_arch
from satchel.runtime.placement.sizing import cache_bytes

CONTEXT, BLOCK, BATCH = 96, 8, 24
BACKENDS = [f.name for f in libraries() if f.name == "cpu" and not f.reason]
ARCHS = ("mamba2", "qwen35")
IDS = [int(i) for i in np.random.default_rng(11).integers(0, tiny.VOCAB, 2 * CONTEXT)]

compiled = pytest.mark.skipif(not BACKENDS, reason="needs the cpu backend")


@contextmanager
def opened(arch: str, **more: object) -> Iterator[Engine]:
    cache = Cache(**{"context": CONTEXT, "slots": 2, "block": BLOCK, "batch": BATCH, **more})  # type: ignore[arg-type]
    device = find_backend("cpu").open(threads=2)
    engine = tiny.engine(arch, tiny.weights(arch), cache, device, batch=BATCH)
    try:
        yield engine
    finally:
        engine.close()


def fed(engine: Engine, slot: int, ids: list[int]) -> Array:
    """Logits after those of `ids` that the slot has not processed yet."""
    found = []
    while (at := engine.length(slot)) < len(ids):
        found.append(engine.logits([BatchEntry(slot, ids[at : at + BATCH])]))
    return np.concatenate(found)


def answered(service: Service, ids: list[int], most: int = 4, salt: str = "") -> tuple[list[int], int]:
    """Tokens of an answer, and how many of the prompt's were in the cache."""
    handle = service.submit(GenerateRequest(ids, most, salt=salt))
    return list(handle), handle.seq.cached


# --- pages


def test_a_prompt_leaves_checkpoints_at_its_end_and_where_texts_part() -> None:
    pages = Pages(Cache(context=CONTEXT, slots=2, block=BLOCK), (0, RECURRENT))
    first, second = IDS[:61], [*IDS[:20], *IDS[100:141]]
    for slot, (ids, places) in enumerate(((first, {6, 7}), (second, {1, 6, 7}))):
        pages.adopt(slot, ids)
        pages.reserve(slot, len(ids))
        pages.advance(slot, 0, len(ids))
        table = pages.tables["table.recurrent"][slot, :8]
        assert {i for i, page in enumerate(table) if page != GONE} == places
        pages.publish(slot, ids)
        pages.check()
        pages.release(slot)
    assert pages.tree.match([*IDS[:20], *IDS[150:160]])[0].length == 2, "where the two parted"
    assert pages.tree.match(first + IDS[:9])[0].length == 7
    pages.check()


@pytest.mark.parametrize("windows", [(RECURRENT,), (0, RECURRENT), (0, 12, RECURRENT)])
def test_pages_never_run_out_nor_get_lost(windows: tuple[int, ...]) -> None:
    """Random prompts, answers, forks, and ends, with few pages for many slots."""
    rng, slots = np.random.default_rng(5), 3
    pages = Pages(Cache(context=CONTEXT, slots=slots, block=BLOCK, batch=BATCH), windows)
    held: dict[int, list[int]] = {}
    length = dict.fromkeys(range(slots), 0)
    for _ in range(400):
        slot = int(rng.integers(slots))
        if slot not in held:
            others = [s for s in held if length[s]]
            if others and rng.random() < 0.3:
                source = others[0]
                held[slot], length[slot] = list(held[source]), length[source]
                pages.fork(source, slot, length[slot])
            else:
                start = int(rng.integers(0, 3)) * 7
                ids = [*IDS[:start], *(int(i) for i in rng.integers(0, 3, int(rng.integers(1, 60))))]
                held[slot] = ids
                length[slot] = pages.adopt(slot, ids)[0]
        elif length[slot] < len(held[slot]) and len(held[slot]) < CONTEXT:
            end = min(len(held[slot]), length[slot] + int(rng.integers(1, BATCH)))
            pages.reserve(slot, end)
            pages.advance(slot, length[slot], end)
            length[slot] = end
            pages.publish(slot, held[slot][:end])
            if rng.random() < 0.4 and end + 20 < CONTEXT:  # draft tokens, and back to before them
                pages.keep(slot)
                speculated = end + int(rng.integers(1, 20))
                pages.reserve(slot, speculated)
                pages.advance(slot, end, speculated)
                assert pages.reach(slot, speculated - 1) >= end
                pages.release(slot, end)
                assert pages.reach(slot, end) == end
            if end == len(held[slot]) and rng.random() < 0.8:
                held[slot].append(int(rng.integers(3)))
        else:
            pages.release(slot)
            del held[slot]
        pages.check()
        group = pages.groups[-1]
        for s in held:
            assert not length[s] or group.table[s, (length[s] - 1) // BLOCK] != GONE
            assert sum(group.table[s, : group.end[s]] != GONE) <= PAGES


# --- engines


@compiled
@pytest.mark.parametrize("arch", ARCHS)
def test_the_second_turn_of_a_chat_does_not_prefill_again(arch: str) -> None:
    """Also one that continues where two others diverged; answers equal those of a fresh cache."""
    prompt = IDS[:43]
    with opened(arch) as engine, opened(arch) as fresh:
        service, alone = Service(engine), Service(fresh)
        answer, cached = answered(service, prompt, 9)
        assert cached == 0
        turns = (prompt + answer + IDS[60:75], prompt + IDS[80:95], [*IDS[:30], *IDS[100:110]])
        for turn, least in zip(turns, (48, 40, 0), strict=True):
            again, cached = answered(service, turn)
            assert cached >= least and (again, 0) == answered(alone, turn, salt=f"apart {least}")
        assert answered(service, [*IDS[:30], *IDS[110:120]])[1] == 24, "kept where the one before turned off"
        service.close()
        alone.close()
        engine.pages.check()


@compiled
@pytest.mark.parametrize("arch", ARCHS)
def test_forks_go_on_with_the_same_bits(arch: str) -> None:
    for length in (1, 8, 21):
        with opened(arch, slots=3) as engine:
            ids = IDS[:length]
            fed(engine, 0, ids)
            engine.fork(0, 1, ids)
            a, b = IDS[50:60], IDS[70:80]
            both = engine.logits([BatchEntry(0, a), BatchEntry(1, b)])
            for part, more in ((both[:10], a), (both[10:], b)):
                engine.rewind(2, 0)
                np.testing.assert_array_equal(fed(engine, 2, ids + more)[length:], part)
            engine.pages.check()


@compiled
@pytest.mark.parametrize("arch", ARCHS)
def test_going_back_ends_at_a_checkpoint_or_at_nothing(arch: str) -> None:
    with opened(arch) as engine:
        whole = fed(engine, 0, IDS[:29])
        assert engine.rewind(0, 29) == 29
        np.testing.assert_array_equal(fed(engine, 0, IDS[:33])[0], fed(engine, 1, IDS[:33])[29])
        assert engine.rewind(0, 27) == 24
        np.testing.assert_array_equal(fed(engine, 0, IDS[:29]), whole[24:])
        for i in range(29, 41):
            engine.logits([BatchEntry(0, [IDS[i]])])
        assert engine.rewind(0, 40) == 40
        np.testing.assert_array_equal(fed(engine, 0, IDS[:50]), fed(engine, 1, IDS[:50])[-10:])


@compiled
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("length", [1, 7, 8, 15, 16])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_rejected_drafts_are_taken_back_to_where_they_began(arch: str, length: int, count: int) -> None:
    """Drafts that cross no block border, one, and two; processed at once and one by one."""
    with opened(arch, slots=2) as engine:
        wanted = fed(engine, 1, IDS[: length + 4])
        for step in (count, 1):
            fed(engine, 0, IDS[:length])
            for at in range(0, count, step):
                engine.logits([BatchEntry(0, IDS[100 + at : 100 + at + step], speculated=at == 0)])
            assert engine.rewind(0, length) == length
            np.testing.assert_array_equal(fed(engine, 0, IDS[: length + 4]), wanted[length:])
            engine.pages.check()
            engine.rewind(0, 0)
        engine.rewind(1, 0)
        engine.pages.tree.clear()
        assert [g.pool.free for g in engine.pages.groups] == [g.pool.size for g in engine.pages.groups]


@compiled
def test_many_callers_with_few_blocks_get_what_each_gets_alone() -> None:
    """Preempted sequences find their blocks again or recompute them."""
    prompts = [IDS[i : i + 20 + 7 * i] for i in range(5)]
    with opened("qwen35", slots=4, blocks=18) as engine, opened("qwen35") as fresh:
        service, alone = Service(engine), Service(fresh)
        handles = [service.submit(GenerateRequest(p, 30)) for p in prompts]
        answers = [list(t) for t in handles]
        assert sum(t.seq.preempted for t in handles) > 0
        assert answers == [answered(alone, p, 30, salt=str(i))[0] for i, p in enumerate(prompts)]
        service.close()
        alone.close()
        engine.pages.check()


@compiled
@pytest.mark.parametrize("arch", ARCHS)
def test_a_saved_conversation_carries_its_state(arch: str, tmp_path: Path) -> None:
    ids, path = IDS[:50], tmp_path / "state"
    with opened(arch) as engine:
        service = Service(engine)
        answered(service, ids)
        shape = shape_of(engine, "model", "numbers")
        assert save(service, shape, path, ids) == 48
        service.close()
    with opened(arch) as engine:
        service = Service(engine)
        assert restore(service, shape, path).tokens == 48
        again, cached = answered(service, ids)
        fresh, _ = answered(service, ids, salt="apart")
        assert cached == 48 and again == fresh
        service.close()
        engine.pages.check()


@compiled
def test_states_do_not_grow_with_the_context() -> None:
    for arch in ARCHS:
        made = find_arch(arch)(HParams(tiny.metadata(arch), arch), tiny.weights(arch), Cache(context=CONTEXT))
        short, long = (cache_bytes(made, Cache(context=n)) for n in (1 << 12, 1 << 16))
        assert (short == long) == (arch == "mamba2")


@pytest.mark.parametrize(
    ("arch", "changes", "said"),
    [
        ("mamba2", {"ssm__time_step_rank": 7}, "time_step_rank"),
        ("mamba2", {"ssm__group_count": 3}, "group_count"),
        ("mamba2", {"ssm__conv_kernel": 1}, "conv_kernel"),
        ("qwen35", {"ssm__state_size": 32}, "state_size"),
        ("qwen35", {"ssm__time_step_rank": 6}, "time_step_rank"),
        ("qwen35", {"nextn_predict_layers": 3}, "nextn_predict_layers"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(arch: str, changes: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        tiny.build(arch, tiny.weights(arch), Cache(context=CONTEXT), **changes)


def test_layers_that_predict_further_are_left_out_and_said() -> None:
    w = tiny.weights("qwen35")
    for name in tuple(w.tensors):
        if name.startswith("blk.1."):
            w.put(name.replace("blk.1.", "blk.3."), w.array(name))
    w.put("blk.3.nextn.eh_proj.weight", np.zeros((4, 4), np.float32))
    more = {"block_count": 4, "nextn_predict_layers": 1}
    made = find_arch("qwen35")(HParams(tiny.metadata("qwen35", **more), "qwen35"), w, Cache(context=CONTEXT))
    assert made.build().logits.width == tiny.VOCAB and made.layers == 3
    assert made.notes == ("1 of the file's layers are for multi-token prediction: they are not run",)
