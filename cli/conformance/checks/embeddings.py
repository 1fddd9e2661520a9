"""/v1/embeddings: vectors as numbers and as base64, of texts and of tokens."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from satchel.cli.conformance.expect import Skip, expect, fits, same, short
from satchel.cli.conformance.target import ConformanceTarget

PATH = "/v1/embeddings"
TEXTS = ["a harbour in the rain", "the price of bread"]


def _body(target: ConformanceTarget, **fields: Any) -> dict[str, Any]:
    return {"model": target.model, "input": TEXTS[0], "encoding_format": "float", **fields}


def _vectors(target: ConformanceTarget, **fields: Any) -> list[list[float]]:
    found = target.able(PATH, _body(target, **fields))
    return [item["embedding"] for item in found["data"]]


def _alike(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(
        math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-5) for x, y in zip(a, b, strict=True)
    )


def create(target: ConformanceTarget) -> None:
    """encoding_format float gives a list of numbers of length 1."""
    found = target.able(PATH, _body(target))
    item = {"object": "embedding", "index": 0, "embedding": [float]}
    usage = {"prompt_tokens": int, "total_tokens": int}
    fits(found, {"object": "list", "model": str, "data": [item], "usage": usage})
    length = math.hypot(*found["data"][0]["embedding"])
    expect(abs(length - 1) < 1e-3, f"the vector's length is {length:.4f}, expected 1")


def packed(target: ConformanceTarget) -> None:
    """encoding_format base64 gives the same numbers as little-endian float32."""
    wanted = _vectors(target)[0]
    text = target.able(PATH, _body(target, encoding_format="base64"))["data"][0]["embedding"]
    expect(isinstance(text, str), f"expected base64, got {short(text)}")
    raw = base64.b64decode(text)
    same("bytes", len(raw), 4 * len(wanted))
    expect(_alike(list(struct.unpack(f"<{len(wanted)}f", raw)), wanted), "other numbers than with float")


def client(target: ConformanceTarget) -> None:
    """openai: embeddings.create(), which asks for base64 by itself, gives the numbers."""
    wanted = _vectors(target)[0]
    found = target.openai.embeddings.create(model=target.model, input=TEXTS[0])
    expect(_alike(found.data[0].embedding, wanted), "other numbers than with float")


def several(target: ConformanceTarget) -> None:
    """A list of texts gives a vector for each, in order."""
    each = [_vectors(target, input=text)[0] for text in TEXTS]
    found = target.able(PATH, _body(target, input=TEXTS))["data"]
    same("indices", [item["index"] for item in found], [0, 1])
    expect(all(_alike(i["embedding"], e) for i, e in zip(found, each, strict=True)), "others than alone")


def tokens(target: ConformanceTarget) -> None:
    """A list of tokens is one input, a list of such lists is several."""
    same("vectors", len(_vectors(target, input=[40, 41, 42])), 1)
    same("vectors", len(_vectors(target, input=[[40, 41, 42], [43]])), 2)


def dimensions(target: ConformanceTarget) -> None:
    """dimensions gives so many numbers, or 400 for a model that was not trained for it."""
    _vectors(target)
    found = _vectors(target, dimensions=8)[0]
    same("numbers", len(found), 8)
    expect(abs(math.hypot(*found) - 1) < 1e-3, "the shorter vector's length is not 1")


def empty(target: ConformanceTarget) -> None:
    """No input is 400."""
    try:
        _vectors(target)
    except Skip as reason:
        raise Skip(str(reason)) from None
    target.refused(PATH, _body(target, input=[]))
