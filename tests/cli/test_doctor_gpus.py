"""`satchel doctor` on machines with and without a GPU, its driver, NVRTC, NVML and a tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from satchel.cli import gpus
from satchel.cli.commands import doctor
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.kernels import nvrtc
from satchel.runtime.tuning import Tuned, remember


def bus(folder: Path, *devices: tuple[str, str]) -> Path:
    """A system bus with devices of these vendors and classes."""
    for i, (vendor, kind) in enumerate(devices):
        (folder / str(i)).mkdir(parents=True)
        (folder / str(i) / "vendor").write_text(f"{vendor}\n")
        (folder / str(i) / "class").write_text(f"{kind}\n")
    (folder / "no device").mkdir(parents=True)
    return folder


BRIDGE, INTEL, CARD = ("0x10de", "0x068000"), ("0x8086", "0x030000"), ("0x10de", "0x030200")
CASES = {
    "no card": ((INTEL, BRIDGE), (), True, {"gpu": "NONE"}),
    "no driver": ((CARD,), (), True, {"driver": "FAIL", "kernels": "PASS", "nvrtc": "NONE", "nvml": "NONE"}),
    "all": (
        (CARD, CARD),
        ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"),
        True,
        {"driver": "PASS", "nvml": "PASS", "nccl": "PASS"},
    ),
    "no NCCL": ((CARD, CARD), ("libcuda.so.1",), True, {"driver": "PASS", "nccl": "NONE"}),
    "no nvcc at install": ((CARD,), ("libcuda.so.1",), False, {"driver": "PASS", "kernels": "FAIL"}),
    "a card behind a window": ((), ("libcuda.so.1",), True, {"driver": "PASS"}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_is_named_with_what_mends_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, installed, built, wanted = CASES[name]
    monkeypatch.setattr(gpus, "DEVICES", bus(tmp_path, *devices))
    monkeypatch.setattr(gpus, "opens", lambda *names: bool(set(names) & set(installed)))
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    monkeypatch.setattr("satchel.runtime.device.nccl.nccl_asked", lambda: "")
    monkeypatch.setattr(
        "satchel.runtime.device.libraries.libraries",
        lambda: tuple(f for f in libraries() if built or f.name != "cuda"),
    )
    if built and not any(f.name == "cuda" for f in libraries()):
        wanted = {k: v for k, v in wanted.items() if k != "kernels"}
    found = {c.name: c for c in doctor.gpus()}
    assert {k: found[k].result for k in wanted} == wanted
    assert all(c.mend for c in found.values() if c.result == "FAIL")
    if name == "no driver":
        assert found["driver"].text.startswith("1 NVIDIA GPU, but") and "pip install" in found["nvrtc"].mend


def test_the_tuning_in_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SATCHEL_TUNING", str(path))
    assert list(gpus.tunings()) == []
    with find_backend("remote").open() as device:
        made = remember(device, {"a": Tuned("x", "y", 1, 2), "b": Tuned("y", "y", 2, 2)}, "2026-01-02")
    (part,) = gpus.tunings()
    assert part.there and part.text.endswith(f"tuning {made.name} of 2026-01-02, 1 of 2 steps changed")
    path.write_text("[]")
    (part,) = gpus.tunings()
    assert part.needed and not part.there and part.mend == "satchel tune --forget"


@pytest.mark.parametrize(
    ("variant", "image", "said"),
    [
        ("cuda 9.0", "sm_90a", ", image sm_90a (wgmma)"),
        ("cuda 8.6", "sm_80", ", image sm_80 (mma.sync)"),
        ("cuda 12.0", "sm_120", ", image sm_120 (mma.sync)"),
        ("cuda 8.0", "sm_90 of compute_80", ", image sm_90 of compute_80 (mma.sync)"),
        ("cuda 7.5", "sm_75", ", image sm_75 (m8n8k16 for products and experts, other kernels portable)"),
        ("dry 11.0", "PTX of compute_75", ", image PTX of compute_75 (portable kernels alone)"),
        ("hip gfx942", "gfx942", ", image gfx942"),
        ("avx512", "", ""),
    ],
)
def test_an_image_comes_with_the_family_of_kernels_that_the_card_gets(
    variant: str, image: str, said: str
) -> None:
    assert gpus.image_text(variant, image) == said
