"""Saved states: they restore exactly, whatever the model is loaded with; and M21: invalid files give one
error before anything changes.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import state_file
import tiny
from devices import needs
from state_file import IDS, SHAPE
from tiny_file import write_model

from satchel import Model
from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.gguf import TensorSource, open_gguf, write_gguf
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.kv.saved import open_saved, write_saved
from satchel.runtime.sampling import GREEDY

compiled = needs("cpu")
PROMPT = [int(i) for i in np.random.default_rng(5).integers(3, tiny.VOCAB, 150)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", qwen3__context_length=512)


def answer(model: Model, ids: Sequence[int], salt: str = "") -> tuple[list[int], int]:
    """The tokens of an answer, and the number of cached prompt tokens."""
    reply = model.generate(ids, max_tokens=8, sampling=GREEDY, ignore_eos=True, salt=salt)
    reply.read()
    return reply.ids, reply.stats.cached


@pytest.fixture(scope="module")
def saved(path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A state of PROMPT, and the answer to it."""
    file = tmp_path_factory.mktemp("state") / "state.kv"
    with Model.load(path, slots=2) as model:
        ids, _ = answer(model, PROMPT)
        assert model.save_state(file, PROMPT) == 128
    return file, ids


CHANGES: list[dict[str, Any]] = [
    {}, {"context": 300, "slots": 3}, {"threads": 1}, {"batch": 32}, {"repack": False}, {"worker": "process"},
]  # fmt: skip


@compiled
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_restart_goes_on_without_what_was_computed(
    path: Path, saved: tuple[Path, list[int]], changes: dict[str, Any]
) -> None:
    with Model.load(path, **changes) as model:
        restored = model.restore_state(saved[0])
        assert (restored.tokens, restored.saved, restored.note) == (128, 128, "")
        assert list(restored.ids) == PROMPT[:128]
        assert answer(model, PROMPT) == (saved[1], 128)
        if isinstance(model.service, Service):
            model.service.call(model.engine.pages.check)


@compiled
def test_a_state_that_is_restored_twice_takes_no_more_blocks(
    path: Path, saved: tuple[Path, list[int]]
) -> None:
    with Model.load(path) as model:
        first = model.restore_state(saved[0])
        kept = model.stats().kv_kept
        assert model.restore_state(saved[0]) == first and model.stats().kv_kept == kept == 4


@compiled
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_the_file_of_a_restored_state_is_the_same_to_the_byte(
    path: Path, saved: tuple[Path, list[int]], tmp_path: Path, worker: str
) -> None:
    with Model.load(path, worker=worker) as model:
        model.restore_state(saved[0])
        model.save_state(tmp_path / "again.kv", PROMPT)
    assert (tmp_path / "again.kv").read_bytes() == saved[0].read_bytes()


@compiled
def test_a_smaller_context_takes_a_part_and_says_so(path: Path, saved: tuple[Path, list[int]]) -> None:
    with Model.load(path, context=96) as model:
        restored = model.restore_state(saved[0])
        assert restored.tokens == 96 and "96 of 128" in restored.note
        assert answer(model, PROMPT[:90])[1] == 64


@compiled
def test_a_restored_state_is_under_its_salt_alone(path: Path, saved: tuple[Path, list[int]]) -> None:
    with Model.load(path) as model:
        model.restore_state(saved[0], salt="a")
        assert answer(model, PROMPT)[1] == 0
        assert answer(model, PROMPT, "a")[1] == 128
        with pytest.raises(RequestError, match="nothing to save"):
            model.save_state(saved[0].with_name("none.kv"), PROMPT, salt="b")
        assert not saved[0].with_name("none.kv").exists()


@compiled
@pytest.mark.parametrize("kinds", [("q8_0", "q4_0"), ("fp8", "f32"), ("bf16", "fp8")])
def test_every_type_of_the_cache_can_be_saved(path: Path, kinds: tuple[str, str], tmp_path: Path) -> None:
    keys, values = kinds
    with Model.load(path, cache_type_k=keys, cache_type_v=values) as model:
        wanted, _ = answer(model, PROMPT)
        model.save_state(tmp_path / "state.kv", PROMPT)
    with Model.load(path, cache_type_k=keys, cache_type_v=values) as model:
        model.restore_state(tmp_path / "state.kv")
        assert answer(model, PROMPT) == (wanted, 128)


@compiled
def test_another_cache_and_another_model_are_refused(
    path: Path, saved: tuple[Path, list[int]], tmp_path: Path
) -> None:
    for changes, expected in (
        ({"cache_type_k": "q8_0"}, "state.keys"),
        ({"cache_type_v": "bf16"}, "state.values"),
        ({"activations": 16}, "state.numbers"),
    ):
        with Model.load(path, **changes) as model, pytest.raises(RequestError, match=expected):  # type: ignore[arg-type]
            model.restore_state(saved[0])
    other = write_model(tmp_path / "other.gguf", seed=1, qwen3__context_length=512)
    with Model.load(other) as model, pytest.raises(ModelError, match="another model's state"):
        model.restore_state(saved[0])


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Array]], object]) -> None:
    """The same file with other metadata and tensors; digests as `change` leaves them."""
    with open_gguf(path) as old:
        metadata: dict[str, Any] = {k: old.metadata.typed(k) for k in old.metadata}
        tensors = {name: old.raw(name).copy() for name in old.tensors}
    change(metadata, tensors)
    write_gguf(path, metadata, [TensorSource(n, t.shape, "i8", t) for n, t in tensors.items()])


def key(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Array]], object]:
    return lambda metadata, tensors: metadata.update({f"satchel.state.{name}": value})


def put(name: str, data: Callable[[Array], Array]) -> Callable[[dict[str, Any], dict[str, Array]], object]:
    return lambda metadata, tensors: tensors.update({name: data(tensors[name])})


def flipped(data: Array) -> Array:
    data[1, 3] ^= 1
    return data


TOKENS = np.asarray(IDS, np.int32)
WRONG = {
    "no-state": (lambda m, t: m.pop("general.type"), "general.type"),
    "a-model": (lambda m, t: m.update({"general.type": "model"}), "general.type"),
    "version": (key("version", 2), "version"),
    "no-model": (lambda m, t: m.pop("satchel.state.model"), "state.model"),
    "other-model": (key("model", "cd" * 32), "another model's state"),
    "keys": (key("keys", "q4_0"), "state.keys"),
    "kind-of-keys": (key("keys", 7), "state.keys"),
    "block": (key("block", 8), "state.block"),
    "windows": (key("windows", np.array([0], np.uint32)), "windows"),
    "no-tokens": (key("tokens", np.array([], np.int32)), "tokens"),
    "odd-tokens": (key("tokens", TOKENS[:-1]), "full blocks"),
    "fewer-tokens": (key("tokens", TOKENS[:-4]), "expected i8"),
    "many-tokens": (key("tokens", np.zeros(100_000, np.int32)), "expected i8"),
    "out-of-vocabulary": (key("tokens", np.r_[TOKENS[:-1], np.int32(100)]), "vocabulary"),
    "negative-token": (key("tokens", np.r_[np.int32(-1), TOKENS[1:]]), "vocabulary"),
    "other-tokens": (key("tokens", TOKENS[::-1].copy()), "digest"),
    "layers-differ": (put("group.0", lambda t: t[:, :64].copy()), "group.0"),
    "fewer-blocks": (put("group.1", lambda t: t[:-1].copy()), "group.1"),
    "a-group-less": (lambda m, t: t.pop("group.1"), "group.1"),
    "a-group-more": (lambda m, t: t.update({"group.2": t["group.1"]}), "group.2"),
    "no-digests": (lambda m, t: t.pop("sha256"), "sha256"),
    "few-digests": (put("sha256", lambda t: t[:2].copy()), "sha256"),
    "damaged": (put("group.0", flipped), "wrong digest"),
    "damaged-window": (put("group.1", flipped), "wrong digest"),
}


@pytest.mark.parametrize("name", WRONG)
def test_m21_a_wrong_file_is_one_error(name: str, tmp_path: Path) -> None:
    path = state_file.write_state(tmp_path / "state.kv")
    change, expected = WRONG[name]
    with open_saved(path, SHAPE) as sound:
        sound.check()
    rewrite(path, change)
    with pytest.raises((ModelError, RequestError), match=expected), open_saved(path, SHAPE) as found:
        found.check()


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_m21_numbers_that_are_not_finite_are_refused_however_their_digest_fits(
    part: int, number: float, tmp_path: Path
) -> None:
    """part 0: a key; 1: the scale of a block of values."""

    def blocks(group: int, place: int, count: int) -> Array:
        found = state_file.blocks(group, place, count)
        at = part * SHAPE.parts[group][0][1]
        found[-1, at : at + 2] = np.array([number], np.float16).view(np.uint8)
        return found

    path = tmp_path / "state.kv"
    with pytest.raises(RequestError, match="not finite"):
        write_saved(path, SHAPE, IDS, blocks)
    assert not path.exists()
    write_unchecked(path, blocks)
    with open_saved(path, SHAPE) as found, pytest.raises(ModelError, match="finite"):
        found.check()


def write_unchecked(path: Path, blocks: Callable[[int, int, int], Array]) -> None:
    """Writes a file as an attacker would, with matching digests."""
    import hashlib

    first = [SHAPE.first(g, state_file.LENGTH) for g in range(2)]
    data = [blocks(g, first[g], state_file.LENGTH - first[g]) for g in range(2)]
    state_file.write_state(path)

    def change(metadata: dict[str, Any], tensors: dict[str, Array]) -> None:
        rows = [hashlib.sha256(row.tobytes()).digest() for group in data for row in group]
        tensors["sha256"][1:] = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32)
        tensors.update({f"group.{g}": d for g, d in enumerate(data)})

    rewrite(path, change)


def test_m21_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = state_file.write_state(tmp_path / "state.kv").read_bytes()
    cut = tmp_path / "cut.kv"
    for end in (*range(0, len(whole) - 32, 61), len(whole) - 32):
        cut.write_bytes(whole[:end])
        with pytest.raises(SatchelError), open_saved(cut, SHAPE) as found:
            found.check()


@compiled
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_m21_a_wrong_file_leaves_the_engine_as_it_was(
    path: Path, saved: tuple[Path, list[int]], tmp_path: Path, worker: str
) -> None:
    bad = tmp_path / "bad.kv"
    shutil.copy(saved[0], bad)
    rewrite(bad, put("group.0", lambda t: np.r_[t[:-1], t[-1:] ^ np.uint8(1)]))
    with Model.load(path, worker=worker) as model:
        answer(model, PROMPT[:40])
        before = model.stats().kv_kept, model.stats().kv_free
        with pytest.raises(ModelError, match="wrong digest"):
            model.restore_state(bad)
        assert (model.stats().kv_kept, model.stats().kv_free) == before
        assert answer(model, PROMPT)[0] == saved[1]
