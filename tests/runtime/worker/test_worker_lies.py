"""A worker's messages are not trusted: lengths, shapes and kinds are compared with the request, and a process
with an impossible message is ended, while its requests continue in the next.
"""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_file import write_model

from satchel import Model
from satchel.errors import DeviceError
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.sampling import GREEDY
from satchel.runtime.worker import process
from satchel.runtime.worker.child import ITEMS, count_of
from satchel.runtime.worker.expected import LEAST, most_bytes
from satchel.runtime.worker.pending_call import PendingCall
from satchel.runtime.worker.wire import LENGTHS, MOST, PART, decode, encode_error, read_message, write_message


def test_no_length_that_is_read_reserves_more_than_a_message_may_have() -> None:
    tracemalloc.start()
    for lengths in ((MOST + 1, 0), (2, PART + 1), (1 << 60, 0), (2**64 - 1, 2**64 - 1)):
        with pytest.raises(DeviceError, match="sent a message of"):
            read_message(io.BytesIO(LENGTHS.pack(*lengths) + b"{}"))
    call = PendingCall("embed", ["text"], {}, most_bytes("embed", ["text"], {}, 1000, 64))
    for size in (1 << 36, 2**63, -1):
        with pytest.raises(DeviceError, match="sent an answer to embed of"):
            call.answered({"answer": 1, "json": 2, "bytes": size})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("head", [b"{", b"[]", b"7", b"[" * 100_000, b"\xff", b"1" * 10_000, b'{"a": NaN'])
def test_what_is_no_message_is_said_to_be_none(head: bytes) -> None:
    with pytest.raises(DeviceError, match="no message"):
        read_message(io.BytesIO(LENGTHS.pack(len(head), 0) + head))


@pytest.mark.parametrize(
    "array",
    [
        ["<f4", [2**31, 2**31, 2**31], 0],
        ["<f4", [2**62, 4], 0],
        ["<f4", [-1], 0],
        ["<f4", [2, -2], 0],
        ["<f4", [2.0], 0],
        ["<f4", [5], 0],
        ["<f4", [1], 16],
        ["<f4", [1], -4],
    ],
)
def test_an_array_lies_within_the_bytes_that_came(array: list[Any]) -> None:
    with pytest.raises(DeviceError, match="the worker process sent"):
        decode({"$": "array", "v": array}, np.zeros(16, np.uint8))


def test_an_answer_has_as_many_bytes_as_it_said() -> None:
    def call() -> PendingCall:
        return PendingCall("bandwidth", [], {}, LEAST)

    one = call()
    one.answered({"answer": 1, "json": 8, "bytes": 0})
    with pytest.raises(DeviceError, match="more of an answer"):
        one.part(bytes(9))
    with pytest.raises(DeviceError, match="more of an answer"):
        call().part(b"x")  # before any answer
    for text in (b"[[[[1.5 ", b'{"$": 7}', b"[" * 2000, b'{"$":"Ranked","v":{"x":1}}'):
        bad = call()
        bad.answered({"answer": 1, "json": len(text), "bytes": 0})
        bad.part(text)
        with pytest.raises(DeviceError, match="the worker process sent"):
            bad.result()


def test_bounds_hold_what_verbs_really_give() -> None:
    """Bounds of the responses by request, against the longest real ones."""
    vocabulary, width, ids = 1000, 64, list(range(50))
    assert most_bytes("logits", [ids], {}, vocabulary, width) >= 4 * vocabulary * 50
    assert most_bytes("logits", [np.arange(50)], {}, vocabulary, width) >= 4 * vocabulary * 50
    assert most_bytes("embed_tokens", [["a text"] * 40], {}, vocabulary, width) >= 40 * 6 * 4 * width
    told = json.dumps([[i, -123.456789012345678] for i in range(50 * 20)])
    assert most_bytes("prompt_logprobs", [ids], {"top": 20}, vocabulary, width) >= len(told)
    many = [(ids, [ids] * 300)] * 10
    said = len(json.dumps([[{"ids": ids * 2, "logprobs": [-12.345678901234567] * 100}] * 300] * 10))
    assert most_bytes("score_many", [many], {"salt": "s"}, vocabulary, width) >= said
    assert most_bytes("score", [ids, [ids] * 300], {"salt": "s"}, vocabulary, width) >= said // 10
    assert most_bytes("rerank", ["q", ["d"] * 100_000], {}, vocabulary, width) >= 50 * 100_000
    assert most_bytes("beam_search", [ids, 64, 5000], {}, vocabulary, width) >= 64 * 5000 * 20
    assert most_bytes("stats", [], {}, vocabulary, width) < 2 * LEAST


def test_tokens_go_in_messages_of_a_bounded_size() -> None:
    rows = [(n, [0] * ITEMS) for n in range(3)] + [(n, [0]) for n in range(ITEMS + 5)]
    sizes = []
    while rows:
        some = count_of(rows)
        sizes.append(sum(len(items) for _, items in rows[:some]))
        del rows[:some]
    assert max(sizes) <= ITEMS and sum(sizes) == 4 * ITEMS + 5
    assert len(encode_error(ValueError("x" * 10**7))[1]) < MOST / 8


LIES: tuple[bytes | dict[str, Any], ...] = (LENGTHS.pack(1 << 40, 0), {"tokens": 5}, {"beat": 7})


def test_a_worker_that_lies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lie replaces the first tokens of an answer, which continues in the next process."""
    path = write_model(tmp_path / "tiny.gguf")
    how: dict[str, Any] = {"max_tokens": 6, "sampling": GREEDY, "ignore_eos": True}
    lies: list[bytes] = []
    real = process.Process.read

    def read(self: process.Process) -> Any:
        got = real(self)
        if lies and got is not None and "tokens" in got[0]:
            return read_message(io.BytesIO(lies.pop()))
        return got

    monkeypatch.setattr(process.Process, "read", read)
    with Model.load(path, threads=1, worker="process") as model:
        assert isinstance(model, WorkerModel)
        wanted = model.generate([1, 2, 3], **how)
        wanted.read()
        for number, lie in enumerate(LIES):
            file = io.BytesIO()
            if isinstance(lie, dict):
                write_message(file, lie)
            else:
                file.write(lie)
            lies.append(file.getvalue())
            reply = model.generate([1, 2, 3], **how)
            reply.read()
            assert reply.ids == wanted.ids and model.worker.restarts == number + 1
