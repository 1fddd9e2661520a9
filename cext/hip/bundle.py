"""Build step: puts code objects for several GPUs into one bundle, of which HIP's driver takes what fits.

    bundle.py OUT TARGET=FILE...

TARGET is a processor's name (gfx942), or a whole entry id. The layout is that of clang-offload-bundler, which
compilers from Debian do not bring along: 24 bytes of magic, the number of entries, then for each where it
lies, its size and its id; all numbers 64-bit, little-endian. The first entry is the host's, and empty.
"""

import struct
import sys
from pathlib import Path

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
HOST = "host-x86_64-unknown-linux--"
ALIGNMENT = 4096  # code objects are mapped where they lie


def bundle(parts: list[tuple[str, bytes]]) -> bytes:
    """The bundle of (entry id, code object)."""
    entries = [(HOST.encode(), b""), *((name.encode(), code) for name, code in parts)]
    at = len(MAGIC) + 8 + sum(24 + len(name) for name, _ in entries)
    head, body = MAGIC + struct.pack("<Q", len(entries)), b""
    for name, code in entries:
        gap = -(at + len(body)) % ALIGNMENT if code else 0
        body += b"\0" * gap
        head += struct.pack("<QQQ", at + len(body), len(code), len(name)) + name
        body += code
    return head + body


def main(out: str, *parts: str) -> None:
    read = []
    for part in parts:
        target, _, path = part.partition("=")
        name = target if "-" in target else f"hipv4-amdgcn-amd-amdhsa--{target}"
        read.append((name, Path(path).read_bytes()))
    Path(out).write_bytes(bundle(read))


if __name__ == "__main__":
    main(*sys.argv[1:])
