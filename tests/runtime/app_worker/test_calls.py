"""A worker's calls: whatever a program sends is answered, and hostile values are refused by one line."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_file import write_model

from satchel.errors import RequestError
from satchel.runtime.app_worker import calls, wire
from satchel.runtime.app_worker.calls import CALLS, AppSession

OPEN, GENERATE, NEXT, END, EMBED, GRAMMAR, RENDER = sorted(CALLS)
EXTREME = (0, 1, -1, 7, 255, 1 << 20, 1 << 31, (1 << 63) - 1, -(1 << 63))


def opening(path: Path) -> bytes:
    return wire.data(str(path).encode()) + b"".join(map(wire.number, (96, 2, 1, 1)))


def generation(kind: int = 0, text: bytes = b"") -> bytes:
    """An answer of at most four tokens to three, by the usual samplers."""
    usual = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, "top_n_sigma": -1,
             "dynatemp_exponent": 1, "repeat_penalty": 1, "repeat_last_n": 64, "dry_base": 1.75}  # fmt: skip
    ids = wire.data(struct.pack("<3i", 5, 9, 17))
    numbers = b"".join(wire.REAL.pack(usual.get(name, 0)) for name in calls.NUMBERS)
    lists = wire.data(struct.pack("<if", 7, 1.5)) + wire.data(struct.pack("<3i", 5, 9, 17)) + wire.data(b"")
    asked = b"".join(map(wire.number, (4, 1, 3, kind)))
    return ids + asked + wire.data(text) + numbers + wire.data(b"edskypmxt") + lists + wire.number(-1)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppSession]:
    made = AppSession()
    path = write_model(tmp_path_factory.mktemp("worker") / "m.gguf")
    assert made.answer(OPEN, opening(path))[0] == 0
    yield made
    made.close()


def test_an_answer_and_its_end(session: AppSession) -> None:
    code, values = session.answer(GENERATE, generation())
    assert code == 0
    tokens = []
    while True:
        code, told = session.answer(NEXT, values)
        token, cached, reason = struct.unpack("<3q", told)
        assert (code, 0 <= cached <= 3, reason) == (0, True, 2 * (token < 0))
        if token < 0:
            break
        tokens.append(token)
    assert len(tokens) == 4 and {*tokens} <= {5, 9, 17}
    assert session.answer(END, values) == (0, b"")
    code, text = session.answer(NEXT, values)
    assert (code, b"there is none of this number" in text) == (-1, True)


def refused(session: AppSession, call: int, values: bytes) -> bool:
    """Whether a call was refused; an answer that it began is ended."""
    code, told = session.answer(call, values)
    if code:
        size = wire.NUMBER.unpack(told[:8])[0]
        assert -9 <= code < 0 and 0 < size == len(told) - 8
        told[8:].decode()
    elif call == GENERATE:
        session.answer(END, told)
    return code != 0


def mutated(rng: random.Random, values: bytes) -> bytes:
    data = bytearray(values)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            at = at // 8 * 8
            data[at : at + 8] = struct.pack("<q", rng.choice(EXTREME))
        elif kind == 2:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        if not data:
            break
    return bytes(data)


@pytest.mark.parametrize("call", [GENERATE, NEXT, END, EMBED, GRAMMAR, RENDER])
def test_mutated_calls(call: int, session: AppSession) -> None:
    request = b'{"messages": [{"role": "user", "content": "hi"}], "tools": []}'
    values = {
        GENERATE: generation(8, b'root ::= "a" | "b"'),
        NEXT: wire.number(1 << 40),
        END: wire.number(1 << 40),
        EMBED: wire.data(struct.pack("<3i", 1, 2, 3)),
        GRAMMAR: wire.data(b'root ::= "a" | [b-z] root'),
        RENDER: wire.data(request),
    }[call]
    rng = random.Random(call)
    count = sum(refused(session, call, mutated(rng, values)) for _ in range(150))
    assert count > 50
    assert refused(session, call, values) == (call in (NEXT, END))


def test_calls_before_a_model_and_unknown_ones(session: AppSession) -> None:
    fresh = AppSession()
    for call in (*sorted(CALLS)[1:], 0, -1, 99):
        assert refused(fresh, call, generation() if call == GENERATE else b"")
    assert refused(fresh, OPEN, b"")
    fresh.close()
    assert refused(session, OPEN, opening(Path("/nothing/there")))  # one is open


def test_messages() -> None:
    head = wire.HEAD.pack(wire.REQUEST, 3, 8)
    assert wire.read_request(io.BytesIO(head + wire.number(5))) == (3, wire.number(5))
    for cut in (b"", head[:7], head, head + b"1234567"):
        assert wire.read_request(io.BytesIO(cut)) is None
    for wrong in (
        b"Hello, I am no library!",
        wire.HEAD.pack(wire.ANSWER, 3, 8),
        wire.HEAD.pack(wire.REQUEST, 3, wire.MOST + 1),
    ):
        with pytest.raises(RequestError, match="expected calls of libsatchel"):
            wire.read_request(io.BytesIO(wrong + bytes(20)))
