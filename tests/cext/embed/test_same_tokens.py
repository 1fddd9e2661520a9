"""The C library gives the tokens of `Engine`, bit for bit: families, samplers, contexts, slots, cut prompts,
kernel sets.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import pytest
from built_families import DECODERS, FAMILIES, answer, built, family, ids_of, wanted
from embed_cases import SAMPLINGS
from embedded import Driver
from once import made_once
from tiny_file import write_model

from satchel import Model
from satchel.errors import DeviceError
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build
from satchel.runtime.device.libraries import find_backend, kernel_sets
from satchel.runtime.sampling import Sampling

OTHERS = [name for name in DECODERS if name not in FAMILIES]
LETTERS = {"t": "temperature", "m": "min_p", "p": "top_p", "k": "top_k"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.driver_program(tmp_path_factory)


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    with Driver(program) as made:
        yield made


def skip_without_kernels() -> None:
    """Skips where the kernel set that SATCHEL_CPU names does not run."""
    try:
        find_backend("cpu").open().close()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family(tmp_path_factory, "qwen3")


def sampling_of(options: dict[str, Any], seed: int) -> Sampling:
    named = {k: [LETTERS[c] for c in v] if k == "samplers" else v for k, v in options.items()}
    return Sampling(**named, seed=seed)


@pytest.mark.parametrize("arch", FAMILIES)
def test_families(arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = family(tmp_path_factory, arch)
    for context, slots in ((96, 1), (70, 3)):
        driver.open(path, context, slots)
        with Model.load(path, context=context, slots=slots, device="cpu", threads=1) as model:
            for count, cuts in ((1, ()), (40, (7, 33)), (55, ())):
                ids = ids_of(count, count)
                found = answer(driver, ids, 12, {}, seed=count)
                assert found == wanted(model.engine, ids, 12, Sampling(seed=count), cuts), (
                    context,
                    slots,
                    count,
                )
        driver.close()


@pytest.mark.nightly
@pytest.mark.parametrize("arch", OTHERS)
def test_every_other_family(arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two slots, a prompt in pieces, and a sampler with the prompt's tokens in it."""
    path, ids = family(tmp_path_factory, arch), ids_of(40)
    options = SAMPLINGS["penalties"]
    driver.open(path, 96, 2)
    with Model.load(path, context=96, slots=2, device="cpu", threads=1, deterministic=True) as model:
        assert answer(driver, ids, 12, {}, 1) == wanted(model.engine, ids, 12, Sampling(seed=1), (7, 33))
        assert answer(driver, ids, 12, options, 2) == wanted(
            model.engine, ids, 12, sampling_of(options, 2), slot=1
        )


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samplers(name: str, driver: Driver, plain: Path) -> None:
    driver.open(plain, 96, 1)
    with Model.load(plain, context=96, slots=1, device="cpu", threads=1) as model:
        ids, options = ids_of(20), SAMPLINGS[name]
        assert answer(driver, ids, 40, options, 7) == wanted(model.engine, ids, 40, sampling_of(options, 7))


@pytest.mark.nightly
@pytest.mark.parametrize("arch", [arch for arch in FAMILIES if arch != "qwen3"])
def test_samplers_of_other_families(
    arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every chain after each kind of layer; answers of one slot follow each other."""
    path = family(tmp_path_factory, arch)
    driver.open(path, 96, 1)
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        for seed, (name, options) in enumerate(SAMPLINGS.items()):
            ids = ids_of(20, seed)
            found = answer(driver, ids, 40, options, seed)
            assert found == wanted(model.engine, ids, 40, sampling_of(options, seed)), name


@pytest.mark.parametrize("arch", ["gemma2", "qwen3next"])
def test_replies_beside_each_other(
    arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Prompts and tokens of four replies share steps, in any order of reading; a fifth has no slot."""
    path, prompts = family(tmp_path_factory, arch), [ids_of(n, n) for n in (5, 31, 64, 12)]
    driver.open(path, 90, 4, 2)
    found: list[list[int]] = [[] for _ in prompts]
    for i in (0, 1):
        driver.begin(i, prompts[i], {"seed": i, "flags": 1})
    for i, count in ((0, 3), (1, 1), (0, 1)):
        found[i] += driver.next(i, count)[0]
    for i in (2, 3):
        driver.begin(i, prompts[i], {"seed": i, "flags": 1})
    with pytest.raises(embedded.DriverError, match="all 4 slots"):
        driver.begin(4, [1], {})
    for i, count in ((3, 2), (0, 5), (2, 6), (1, 9), (3, 11), (2, 1)):
        found[i] += driver.next(i, count)[0]
    with Model.load(path, context=90, slots=4, device="cpu", threads=1) as model:
        for i, prompt in enumerate(prompts):
            assert found[i] == wanted(model.engine, prompt, len(found[i]), Sampling(seed=i), slot=i)


@pytest.mark.parametrize(
    ("arch", "again", "same"),
    [("qwen3", 48, 57), ("gemma2", 0, 57), ("mamba2", 0, 0), ("qwen3next", 0, 0)],
)
def test_a_common_begin_is_not_computed_again(
    arch: str, again: int, same: int, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Attention goes back to where a prompt differs, if its window is still there; a recurrent state only
    goes on from its end.
    """
    path = family(tmp_path_factory, arch)
    driver.open(path, 96, 1)
    first = ids_of(60)
    other, further = [*first[:48], *ids_of(10, 1)], [*first, *ids_of(9, 2)]
    driver.begin(0, first, {"seed": 1, "max_tokens": 1, "flags": 1})
    driver.next(0, 1)
    driver.end(0)
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        for ids, cached in ((further, 60), (other, again), (other, same)):
            driver.begin(0, ids, {"seed": 3, "max_tokens": 5, "flags": 1})
            found = driver.next(0, 5)[0]
            assert driver.report(0) == [2, len(ids), cached, 5, -1]
            driver.end(0)
            assert found == wanted(model.engine, ids, 5, Sampling(seed=3))


def test_stop_strings_end_the_answer_where_the_engines_does(driver: Driver, plain: Path) -> None:
    """Text, tokens and reason of answers of which some hold a stop string; the report names it."""
    driver.open(plain, 96, 1)
    stops = ["e", "{", "zz"]
    with Model.load(plain, context=96, slots=1, device="cpu", threads=1) as model:
        ids, reasons = model.tokenize("hello"), set()
        for seed in range(8):
            reply = model.generate("hello", seed=seed, max_tokens=20, stop=stops)
            words = " ".join(f"stop={text.encode().hex()}" for text in stops)
            driver.say(f"begin 0 seed={seed} max_tokens=20 {words} : {' '.join(map(str, ids))}")
            found, said, over = driver.next(0, 40)
            assert (said.decode(), over) == (reply.read(), True)
            assert found == [i for i in reply.ids if i not in model.tokenizer.eog]
            reason, *_, stop = driver.report(0)
            named = stops[stop] if stop >= 0 else None
            assert (named, reason == 3) == (reply.stop_found, reply.stop_found is not None)
            reasons.add(reason)
            driver.end(0)
    assert len(reasons) > 1


def test_pieces_say_what_is_thinking(driver: Driver, plain: Path) -> None:
    """A prompt that leaves off within thinking: all is thinking up to the closing text, which is left out."""
    driver.open(plain, 96, 1)
    ids = ids_of(20)
    driver.begin(0, ids, {"seed": 3, "max_tokens": 40, "flags": 1})
    whole = driver.next(0, 60)[1].decode()
    driver.end(0)
    close = next(c for c in whole[8:] if c.isalnum())
    before, _, after = whole.partition(close)
    markers = {"thinking_open": b"<t>".hex(), "thinking_close": close.encode().hex(), "thinking_begin": 1}
    driver.begin(0, ids, {"seed": 3, "max_tokens": 40, "flags": 1, **markers})
    _, pieces, over = driver.pieces(0, 60)
    kinds = [b"".join(text for kind, text in pieces if kind == k).decode() for k in (1, 2)]
    blank = " \t\r\n"
    assert (kinds, over) == ([after.lstrip(blank), before.strip(blank)], True)


def test_an_answer_ends_where_the_context_does(driver: Driver, plain: Path) -> None:
    driver.open(plain, 64, 1)
    driver.begin(0, ids_of(60), {"seed": 1, "flags": 1})
    ids, _, over = driver.next(0, 100)
    assert over
    assert driver.report(0)[:1] == [2]
    with Model.load(plain, context=64, slots=1, device="cpu", threads=1) as model:
        assert ids == wanted(model.engine, ids_of(60), len(ids), Sampling(seed=1))
    assert len(ids) == 5  # four go into the context, and one is sampled after them
    driver.end(0)
    with pytest.raises(embedded.DriverError, match="expected at most 64 tokens"):
        driver.begin(0, ids_of(65), {})


@pytest.mark.model
@pytest.mark.parametrize("kernels", kernel_sets(Path(find_backend("cpu").path)))
def test_the_bundled_model(
    kernels: str,
    program: Path,
    bundled_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = made_once(tmp_path_factory, "embed-bundled", lambda at: _build_bundled(bundled_model, at))
    path, text = folder / "app.gguf", "Once upon a time, in a village by the sea,"
    monkeypatch.setenv("SATCHEL_CPU", kernels)
    skip_without_kernels()
    with Driver(program, kernels) as driver:
        assert driver.open(path, 512, 2, 2)[3] == kernels
        with Model.load(path, context=512, slots=2, device="cpu", threads=2) as model:
            ids = model.tokenize(text)
            assert driver.tokenize(text) == ids
            assert answer(driver, ids, 24, {}, 42) == wanted(model.engine, ids, 24, Sampling(seed=42))
            long = (ids * 20)[:150]
            assert answer(driver, long, 8, {}, 1) == wanted(
                model.engine, long, 8, Sampling(seed=1), (100, 133)
            )
            reply = model.generate(text, seed=5, max_tokens=60)
            driver.begin(0, ids, {"seed": 5, "max_tokens": 60})
            found, said, over = driver.next(0, 100)
            assert (said.decode(), over) == (reply.read(), True)
            assert found == [i for i in reply.ids if i not in model.tokenizer.eog]


def _build_bundled(model: Path, folder: Path) -> None:
    with open_gguf(model) as gguf:
        build(gguf, folder / "app.gguf")


def test_threads_get_the_tokens_that_each_gets_alone(
    plain: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = Path(__file__).with_name("threads.c")
    program = embedded.compile_program(tmp_path_factory, tmp_path / "threads", [source], *embedded.SANITIZED)
    done = subprocess.run([program, plain], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "equal\n", "")


@pytest.mark.parametrize("kernels", kernel_sets(Path(find_backend("cpu").path)))
def test_weights_whose_plans_differ_by_kernel_set(
    kernels: str, program: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BF16 weights meet other activations where the processor multiplies bfloat16: the library takes the plan
    that its kernels take.
    """

    def make(folder: Path) -> None:
        built(write_model(folder / "m.gguf", "qwen3", "bf16"))

    path = made_once(tmp_path_factory, "embed-bf16", make) / "m.app.gguf"
    monkeypatch.setenv("SATCHEL_CPU", kernels)
    skip_without_kernels()
    with Driver(program, kernels) as driver:
        assert driver.open(path, 96, 1)[3] == kernels
        with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
            ids = ids_of(30)
            assert answer(driver, ids, 20, {}, 4) == wanted(model.engine, ids, 20, Sampling(seed=4))
