"""Predicted step times from the measurements of each device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tiny_file
import tiny_grown

from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.placement import speeds
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import KEPT, Speed, predict
from satchel.runtime.placement.sizes import Sizes, sizes_of

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
FAST = Speed((1e-4, 1e-2), (1e-4, 1e-4), 1e10, 1e-5)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-5)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sizes]:
    path = tiny_file.write_model(tmp_path_factory.mktemp("foretold") / "m.gguf", "llama", "q8_0")
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(path) as gguf:
        run = dry_run(gguf, [cpu], measure=lambda d: FAST)
        yield sizes_of(run.arch.build(), run.arch.layers, [remote, cpu])


@pytest.mark.parametrize("layer", [1e-5, 1e-3, 0.03])
@pytest.mark.parametrize("start", [0.0, 1e-4, 5e-3])
def test_a_layer_is_told_from_the_start_of_a_turn(layer: float, start: float) -> None:
    large, small = (
        speeds.Run(n, start + n * layer, start + n * layer + 2e-4, 1e-5, start + 50 * n * layer)
        for n in (9, 3)
    )
    found = speeds.speed_of_runs(large, small, 1e10, 1e-5)
    if start <= 9 * layer:  # below half of its share a layer is not believed
        assert found.layer == pytest.approx((layer, 50 * layer)) and found.start == pytest.approx(start)
    alone = speeds.speed_of_runs(small, small, 1e10, 1e-5)
    assert alone.layer[0] == pytest.approx(layer + start / 3) and alone.start == pytest.approx(0.0, abs=1e-12)
    assert found.head[0] == pytest.approx(2e-4)


def test_every_turn_of_a_device_has_its_start(sizes: Sizes) -> None:
    """A step begins where the last token is known: with the head far and a layer here there are three."""
    slow = replace(SLOW, start=1.0, host=0.25)
    fast = replace(FAST, start=0.5, host=0.125)
    far = {f"blk.{i}": "remote" for i in range(1, sizes.layers)} | {"output": "remote"}
    placement = Placement("cpu", far)
    plain = predict(placement, sizes, {"remote": FAST, "cpu": SLOW})
    found = predict(placement, sizes, {"remote": fast, "cpu": slow})
    assert found.decode - plain.decode == pytest.approx(0.5 + 1.0 + 0.5 + 0.125)
    assert found.prompt - plain.prompt == pytest.approx(0.5 + 1.0 + 0.5 + 0.125)


def test_a_processor_finds_some_of_a_tokens_weights_in_its_caches(sizes: Sizes) -> None:
    placement = Placement("cpu", {})
    read = sum(t.read for t in sizes.tensors)
    assert not any(t.expert for t in sizes.tensors)

    def layers_of(caches: float) -> float:
        speeds = {"cpu": replace(SLOW, head=(0.0, 0.0), caches=int(caches)), "remote": FAST}
        found = predict(placement, sizes, speeds)
        assert found.prompt == plain.prompt, "a prompt's products are bound by other things"
        return found.decode

    plain = predict(placement, sizes, {"cpu": replace(SLOW, head=(0.0, 0.0)), "remote": FAST})
    assert layers_of(0) == layers_of(read / 2) == plain.decode
    assert layers_of(0.75 * read) == pytest.approx((1 - KEPT / 2) * plain.decode, rel=1e-3)
    assert layers_of(read) == pytest.approx((1 - KEPT) * plain.decode, rel=1e-3)
    assert layers_of(100 * read) == layers_of(read)


def test_a_cache_that_cores_share_counts_once(tmp_path: Path) -> None:
    for cpu, shared, size in ((0, "0-1", "32M"), (1, "0-1", "32M"), (2, "2-3", "16M"), (3, "4", "much")):
        cache = tmp_path / f"cpu{cpu}" / "cache" / "index3"
        cache.mkdir(parents=True)
        (cache / "shared_cpu_list").write_text(f"{shared}\n")
        (cache / "size").write_text(f"{size}\n")
    (tmp_path / "cpu5").mkdir()
    assert speeds.processor_caches(tmp_path) == 48_000_000
    assert speeds.processor_caches(tmp_path / "nowhere") == 0


def test_no_two_tokens_of_a_measured_prompt_are_the_same(tmp_path: Path) -> None:
    """Tokens that are go to the same experts, of which a prompt then reads a part."""
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen3moe", "q8_0")
    with open_gguf(path) as gguf:
        table = speeds._MadeUp(speeds._Slice(gguf, speeds._Span(0, 1, 2)))["token_embd.weight"]
        rows = {row.tobytes() for row in table}
        assert len(rows) == min(len(table), speeds.PROMPT) > speeds.ROWS


@pytest.mark.parametrize("format", ["q4_k", "f16"])
def test_what_reaches_a_device_is_packed_on_the_way(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As prefetched weights are, where the device packs those of the file."""
    if "dry" not in HAVE:
        pytest.skip("needs the backend dry")
    path, sent = tiny_file.write_model(tmp_path / "m.gguf", "llama", format), list[str]()
    for name in ("write", "pack"):
        usual = getattr(Buffer, name)

        def noted(self: Buffer, *given: Any, name: str = name, usual: Any = usual) -> None:
            sent.append(name)
            usual(self, *given)

        monkeypatch.setattr(Buffer, name, noted)
    monkeypatch.setattr(Device, "pin", lambda self, *given: BytesIO())  # this driver locks nothing
    with open_gguf(path) as gguf, find_backend("dry").open() as device:
        kind, rows, columns = speeds._packed_matrix(gguf, device)
        assert speeds.direct_to(device, gguf) > 0 and set(sent) == {"pack" if format == "q4_k" else "write"}
        if format == "q4_k":
            block = FORMATS[format]
            raw = rows * block.row_bytes(columns)
            assert kind == block.id and speeds.DIRECT - 256 * block.row_bytes(columns) < raw <= speeds.DIRECT
        sent.clear()
        assert speeds.direct_to(device) > 0 and set(sent) == {"write"}
    with find_backend("remote").open(threads=1) as device:
        assert speeds.direct_to(device) == 0


@pytest.mark.parametrize("arch", sorted({"llama", *tiny_grown.SPECS}))
def test_every_architecture_is_measured_by_some_of_its_layers(arch: str, tmp_path: Path) -> None:
    """Also those that begin with layers of another kind: dense ones of a mixture, without attention of its
    own, or with keys that other layers read.
    """
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "q8_0")
    with open_gguf(path) as gguf, find_backend("cpu").open(threads=1) as device:
        found = speeds.speed_of(
            gguf, device, lambda: find_backend("cpu").open(threads=1), cache=tmp_path / "speeds.json"
        )
        assert min(found.layer) > 0 and min(found.head) > 0
        start, period = speeds._mixture(gguf)
        kept = speeds._layers(gguf, 0)
        mixture = {speeds.layer_number(n) for n in gguf.tensors if "_exps." in n}
        assert not mixture or mixture & set(range(start, start + max(period, kept // speeds.FEWER)))
