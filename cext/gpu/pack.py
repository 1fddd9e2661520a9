"""Build step: puts compiled kernels into one archive, from which a GPU library takes what fits its device.

    pack.py OUT DRIVER NAME,LEAST,ARCH,FILE...

DRIVER: the lowest version of the driver's API that loads these images (12000 for CUDA 12.0), 0 for any.
NAME: the source that an image is compiled from. One image of each name is loaded (archive.c); without one of
the first name a device cannot be used.
ARCH: what an image is for. sm_80: machine code for 8.0 and later ones of that major; sm_90a: for 9.0 alone;
compute_75: PTX, which the driver compiles for 7.5 and all later ones; source: a text for the vendor's
run-time compiler; sm_90 of compute_80: machine code for 9.0 of what is compiled for 8.0, for a device that
passes for one of that; else a list of names, from which the driver takes one by itself (a fat binary, a
bundle).
LEAST: the lowest compute capability of such a list, times 10; of the others it is in ARCH.

Layout, little-endian: magic, number of images, DRIVER; for each image name, arch, kind, number, where it
lies, its bytes here and unpacked; then the images, deflated without a header (RFC 1951).
"""

import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

MAGIC = b"SATCHEL1"
HEAD = struct.Struct("<8sII")
ENTRY = struct.Struct("<24s64sIIQQQ")
# In the order in which a device tries them.
EXACT, FAMILY, LIST, PTX, SOURCE, LOWERED = range(6)
BITS = 15  # of deflate's window


def kind_of(least: int, arch: str) -> tuple[int, int]:
    """The kind and the number of an image."""
    if lowered := re.fullmatch(r"sm_\d+a? of compute_(\d+)", arch):
        return LOWERED, int(lowered[1])
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", arch)
    if not found:
        return (SOURCE if arch == "source" else LIST), least
    kind = PTX if found[1] == "compute" else EXACT if found[3] else FAMILY
    return kind, int(found[2])


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -BITS, 9)
    return packer.compress(data) + packer.flush()


def pack(
    driver: int,
    images: list[tuple[str, int, str, bytes]],
    deflate: Callable[[bytes], bytes] = deflated,
) -> bytes:
    """The archive of (name, least, arch, image). deflate: gives what `deflated` does."""
    at = HEAD.size + len(images) * ENTRY.size
    head, body = HEAD.pack(MAGIC, len(images), driver), b""
    for name, least, arch, data in images:
        if len(name) >= 24 or len(arch) >= 64:
            raise SystemExit(f"pack.py: the names {name!r} and {arch!r} are longer than 23 and 63 bytes")
        if not data:
            raise SystemExit(f"pack.py: the image {name!r} for {arch} is empty")
        stored = deflate(data)
        kind, number = kind_of(least, arch)
        place = at + len(body)
        head += ENTRY.pack(name.encode(), arch.encode(), kind, number, place, len(stored), len(data))
        body += stored
    return head + body


def entries(archive: bytes) -> list[tuple[str, str, bytes]]:
    """(name, arch, image) of an archive."""
    magic, n, _ = HEAD.unpack_from(archive)
    if magic != MAGIC:
        raise SystemExit("pack.py: this is no archive of images")
    out = []
    for i in range(n):
        name, arch, _, _, at, stored, _ = ENTRY.unpack_from(archive, HEAD.size + i * ENTRY.size)
        data = zlib.decompress(archive[at : at + stored], -BITS)
        out.append((name.rstrip(b"\0").decode(), arch.rstrip(b"\0").decode(), data))
    return out


def main(out: str, driver: str, *parts: str) -> None:
    images = []
    for part in parts:
        name, least, arch, path = part.split(",", 3)
        images.append((name, int(least), arch, Path(path).read_bytes()))
    Path(out).write_bytes(pack(int(driver), images))


if __name__ == "__main__":
    main(*sys.argv[1:])
