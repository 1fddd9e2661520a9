"""Which image of an archive a GPU gets (cext/gpu/archive.c), with the test device `dry`: its driver takes and
refuses images by NVIDIA's rules, of any compute capability and any version.
"""

from __future__ import annotations

import ctypes
import random
import runpy
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from devices import skip_without

from satchel.cli.gpus import mend_image
from satchel.errors import DeviceError
from satchel.runtime.device.device import Info
from satchel.runtime.device.libraries import find_backend

GPU = Path(__file__).parents[2] / "cext" / "gpu"
PACK = runpy.run_path(str(GPU / "pack.py"))
PORTABLE = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120", "compute_75")
WHEEL = [("portable", arch) for arch in PORTABLE] + [("fp8", "sm_89"), ("fp8", "sm_90a"), ("wide", "sm_90a")]
Opened = Callable[..., Info]


def image(arch: str) -> bytes:
    """What dry's driver takes for code of this architecture; some of it repeats, some doesn't."""
    random_text = random.Random(arch).choices(b"abcdefghijklmnopqrstuvwxyz0123456789", k=3000)
    return f"{arch} ".encode() + bytes(random_text) + b"mov " * 3000 + b"end"


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens dry with an archive of (name, arch) on a card; gives what it says of itself."""
    skip_without("dry")

    def on(
        arch: int,
        driver: int = 12000,
        archive: list[tuple[str, str]] = WHEEL,
        needs: int = 12000,
        refused: str = "nothing",
        change: Callable[[bytes], bytes] = bytes,
    ) -> Info:
        data = PACK["pack"](needs, [(name, 0, of, image(of)) for name, of in archive])
        path = tmp_path / f"{zlib.crc32(change(data))}.images"
        path.write_bytes(change(data))
        monkeypatch.setenv("SATCHEL_DRY_IMAGES", str(path))
        monkeypatch.setenv("SATCHEL_DRY_ARCH", str(arch))
        monkeypatch.setenv("SATCHEL_DRY_DRIVER", str(driver))
        monkeypatch.setenv("SATCHEL_DRY_REFUSED", refused)
        with find_backend("dry").open() as device:
            return device.info()

    return on


@pytest.mark.parametrize(
    ("arch", "used"),
    [
        (75, "sm_75"),
        (80, "sm_80"),
        (86, "sm_80"),
        (89, "sm_80"),
        (90, "sm_90a"),
        (100, "sm_100"),
        (103, "sm_100"),
        (120, "sm_120"),
        (121, "sm_120"),
        (110, "PTX of compute_75, compiled by the driver"),
        (91, "PTX of compute_75, compiled by the driver"),
    ],
)
def test_a_card_gets_its_own_code_or_its_majors_or_ptx(opened: Opened, arch: int, used: str) -> None:
    info = opened(arch)
    assert info.image == used
    assert info.variant == f"dry {arch // 10}.{arch % 10}"


def test_the_highest_of_several_is_taken(opened: Opened) -> None:
    both = [("portable", arch) for arch in ("sm_80", "sm_86", "compute_75", "compute_80")]
    assert [opened(arch, archive=both).image for arch in (80, 86, 89)] == ["sm_80", "sm_86", "sm_86"]
    assert opened(90, archive=both).image == "PTX of compute_80, compiled by the driver"


def test_a_card_that_passes_for_an_older_one_gets_code_for_that_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of the card itself, of what is compiled for the older one."""
    lowered = [("portable", f"sm_90 of compute_{n}") for n in (75, 80, 86)]
    assert opened(90, archive=[*WHEEL, *lowered]).image == "sm_90a"
    for asked, used in (("7.5", 75), ("8.0", 80), ("8.6", 86), ("8.9", 86)):
        monkeypatch.setenv("SATCHEL_CUDA_CAPABILITY", asked)
        info = opened(90, archive=[*WHEEL, *lowered])
        assert info.image == f"sm_90 of compute_{used}" and info.variant == f"dry {asked}"
    with pytest.raises(
        DeviceError, match=r"8\.9, for which it passes; that needs a build with SATCHEL_CUDA_LOW"
    ):
        opened(90)
    for wrong in ("9.0", "8", "8.1", "8.0x", "x"):
        monkeypatch.setenv("SATCHEL_CUDA_CAPABILITY", wrong)
        with pytest.raises(DeviceError, match=f"is '{wrong}': expected 7.5, 8.0.*below the device's own 9.0"):
            opened(90)


def test_code_of_one_card_alone_goes_to_no_other(opened: Opened) -> None:
    """Block-scaled tensor cores: 12.0 and 12.1 have code of their own each, and other cards of 12 none."""
    whole = [*WHEEL, *(("expert_scaled", arch) for arch in ("sm_89", "sm_120a", "sm_121a"))]
    for arch, refused, used in (
        (120, "sm_120a", "sm_120; 1 of 2 files of kernels refused"),
        (121, "sm_121a", "sm_120; 1 of 2 files of kernels refused"),
        (121, "sm_120a", "sm_120"),
        (120, "sm_121a", "sm_120"),
        (122, "nothing", "sm_120"),
        (86, "sm_89", "sm_80"),
    ):
        assert opened(arch, archive=whole, refused=refused).image == used, (arch, refused)


def test_code_that_the_driver_refuses_is_replaced_and_told(opened: Opened) -> None:
    assert opened(90, refused="sm_90a").image == (
        "PTX of compute_75, compiled by the driver; 2 of 3 files of kernels refused"
    )
    with pytest.raises(DeviceError, match=r"has those for sm_90a; sm_90a: the driver gave error 209"):
        opened(90, archive=[("portable", "sm_90a")], refused="sm_90a")


def test_a_card_that_no_image_fits_is_told_what_there_is_and_what_mends_it(opened: Opened) -> None:
    with pytest.raises(DeviceError, match=r"compute capability 7\.0.*has those for sm_75, sm_80,") as error:
        opened(70)
    assert mend_image(str(error.value), "pip install satchel").startswith("--device cpu")
    with pytest.raises(
        DeviceError, match=r"no kernels.*compute capability 8\.6.*has those for sm_90a$"
    ) as error:
        opened(86, archive=[("portable", "sm_90a")])
    mend = "with nvcc: CMAKE_ARGS=-DSATCHEL_CUDA_ARCHITECTURES=86 pip install satchel --no-binary satchel"
    assert mend_image(str(error.value), "pip install satchel") == mend


@pytest.mark.parametrize(("version", "needs", "words"), [(11080, 12000, "525"), (12090, 13000, "580")])
def test_a_driver_that_is_too_old_is_named(opened: Opened, version: int, needs: int, words: str) -> None:
    with pytest.raises(
        DeviceError, match=f"knows CUDA {version // 1000}.{version % 1000 // 10}, and"
    ) as error:
        opened(90, driver=version, needs=needs)
    assert mend_image(str(error.value), "reinstall").startswith(f"install NVIDIA's driver {words} or newer")
    assert opened(90, driver=needs, needs=needs).image == "sm_90a"
    assert opened(90, driver=version, needs=0, archive=[("portable", "sm_90a")]).image == "sm_90a"


def test_a_list_is_the_drivers_own_choice(opened: Opened) -> None:
    """A fat binary, or a bundle. Dry knows every kernel, so the first name is what the driver took."""
    data = PACK["pack"](0, [("portable", 75, "86 90a", image("sm_90a"))])
    assert opened(90, archive=[], change=lambda _: data).image == "86"
    assert mend_image("anything else", "reinstall") == "reinstall"


def test_a_damaged_archive_is_refused(opened: Opened) -> None:
    """Its first block is of a kind that deflate does not have."""
    start = PACK["HEAD"].size + PACK["ENTRY"].size
    with pytest.raises(DeviceError, match="sm_90a: it is damaged in the library"):
        opened(90, archive=[("portable", "sm_90a")], change=lambda d: d[:start] + b"\xff" + d[start + 1 :])


def test_pack_gives_back_what_it_was_given() -> None:
    given = [("portable", 0, arch, image(arch)) for arch in PORTABLE] + [("portable", 0, "source", b"text\0")]
    archive = PACK["pack"](12000, given)
    assert PACK["entries"](archive) == [(name, arch, data) for name, _, arch, data in given]
    assert PACK["pack"](12000, given) == archive


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"the image 'portable' for sm_90a is empty"):
        PACK["pack"](12000, [("portable", 75, "sm_90a", b"")])


@pytest.fixture(scope="module")
def inflate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, int], bytes | None]:
    """gpu_inflate() of inflate.c: the unpacked bytes, or None."""
    if not shutil.which("gcc"):
        pytest.skip("the test compiles inflate.c by gcc")
    path = tmp_path_factory.mktemp("inflate") / "inflate.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", GPU / "inflate.c", "-o", path], check=True)
    unpack = ctypes.CDLL(str(path)).gpu_inflate
    unpack.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]

    def call(data: bytes, size: int) -> bytes | None:
        out = ctypes.create_string_buffer(size + 8)
        out[size:] = b"\xa5" * 8  # type: ignore[assignment]
        code = unpack(data, len(data), out, size)
        assert out.raw[size:] == b"\xa5" * 8
        return None if code else out.raw[:size]

    return call


def deflated(data: bytes, level: int, strategy: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(data) + packer.flush()


def by_zlib(data: bytes, size: int) -> bytes | None:
    """What zlib makes of it, if it is one whole stream of that size."""
    stream = zlib.decompressobj(-15)
    try:
        out = stream.decompress(data)
    except zlib.error:
        return None
    return out if stream.eof and len(out) == size else None


@pytest.mark.parametrize("letters", [1, 2, 16, 256])
def test_inflate_gives_what_zlib_gives(inflate: Callable[[bytes, int], bytes | None], letters: int) -> None:
    """Blocks of each kind (strategy 4 has the fixed code), then bits changed and ends cut off."""
    rng = random.Random(letters)
    for size in (0, 1, 300, 4000, 70_000):
        data = bytes(rng.choices(range(letters), k=size))
        for level, strategy in ((9, 0), (1, 0), (0, 0), (9, 4), (6, 2)):
            stream = deflated(data, level, strategy)
            assert inflate(stream, size) == data
            assert size == 0 or inflate(stream, size - 1) is None
        for _ in range(60):
            changed = bytearray(deflated(data[:4000], 9, rng.choice((0, 4))))
            for _ in range(rng.randrange(3)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            cut = bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed) + 1)))])
            assert inflate(cut, min(size, 4000)) == by_zlib(cut, min(size, 4000))
