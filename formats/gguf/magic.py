"""Recognizes common files that are not GGUF by their first bytes, for an error that says what the file is."""

from __future__ import annotations

from satchel.formats.gguf.check import quote

MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"", "an empty file"),
    (b"FUGG", "a byte-swapped (big-endian) magic"),
    (b"\x1f\x8b", "a gzip archive (unpack it first)"),
    (b"PK\x03\x04", "a zip archive or PyTorch file (unpack or convert it first)"),
    (b"BZh", "a bzip2 archive (unpack it first)"),
    (b"\xfd7zXZ\x00", "an xz archive (unpack it first)"),
    (b"(\xb5/\xfd", "a zstd archive (unpack it first)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it first)"),
    (b"version https://git-lfs", "a Git LFS pointer (the model itself was not fetched: git lfs pull)"),
    (b"<!DOCTYPE", "a web page (the download went wrong)"),
    (b"<html", "a web page (the download went wrong)"),
)
# llama.cpp's formats of 2023. Their magics were written as little-endian words, hence reversed.
OLD_MAGICS = ("ggml", "ggmf", "ggjt", "ggla")


def explain_magic(head: bytes) -> str:
    """The kind of file that begins with `head` (512 bytes are enough)."""
    for magic, meaning in MAGICS:
        if head.startswith(magic) and (magic or not head):
            return meaning
    word = head[:4].decode("latin-1").lower()
    for old in OLD_MAGICS:
        if old in (word, word[::-1]):
            return f"the old {old.upper()} format (convert the model again)"
    if head[257:262] == b"ustar":
        return "a tar archive (unpack it first)"
    if len(head) > 9 and head[8:9] == b"{" and head[5:8] == b"\x00\x00\x00":
        return "a safetensors file (convert it first)"
    return quote(head[:4])
