"""Request bodies: their shape is checked before they are parsed, they are parsed and validated once, and all
bodies in flight share one memory budget.

Invariant: a body is parsed only if it has at most MOST_DEPTH levels, MOST_CONTAINERS lists and objects,
MOST_STRINGS strings and MOST_ELEMENTS values, and after the budget has reserved its memory. A body larger
than INLINE is scanned, parsed and validated in a thread, never on the event loop.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Scope

from satchel.formats import strict_json
from satchel.server.fields import Body
from satchel.server.pools import Pools
from satchel.server.problem import Problem

MOST_DEPTH = 100
MOST_CONTAINERS = 1 << 17
MOST_STRINGS = 1 << 18
MOST_ELEMENTS = 1 << 20  # values, among them the token ids of a prompt
INLINE = 1 << 14  # bytes of a body that is parsed on the event loop, which takes a few milliseconds
# Measured memory of a body from its arrival to its answer, in bytes: per byte of the body, per list or
# object, per string, per value. A body of at most INLINE bytes is not counted: the number of connections
# bounds it.
FACTOR, CONTAINER, STRING, ELEMENT = 8, 256, 96, 40
PIECE = 1 << 20  # bytes that are scanned at a time
QUOTE, BACKSLASH, COMMA = b'"\\,'
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
Bytes = npt.NDArray[np.uint8]
JSON = "json"  # the key of a request's state that holds the parsed body


class BodyBudget:
    """The memory budget for the bodies of all requests in flight.

    most: bytes in all. One key gets at most half of them.
    """

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self._by_user: Counter[str] = Counter()

    def hold(self, user: str) -> BodyReservation:
        return BodyReservation(self, user)

    def take(self, user: str, count: int) -> None:
        """Reserves `count` bytes for the user. Raises a Problem (503) where the budget does not have them."""
        own = self._by_user[user] + count
        if self.taken + count > self.most or (user and own > self.most // 2):
            whose = "yours" if user and own > self.most // 2 else "all"
            line = f"the bodies of {whose} requests under way fill their memory: try again later"
            raise Problem("busy", line, code="bodies", retry_after=1)
        self.taken += count
        self._by_user[user] = own

    def give(self, user: str, count: int) -> None:
        self.taken -= count
        self._by_user[user] -= count
        if not self._by_user[user]:
            del self._by_user[user]


class BodyReservation:
    """One request's reservation in the budget. It grows as the body arrives."""

    def __init__(self, budget: BodyBudget, user: str) -> None:
        self._budget, self._user, self._count = budget, user, 0

    def grow(self, size: int) -> None:
        """Reserves for a body of `size` bytes so far. Raises a Problem where the budget is spent."""
        if size > INLINE:
            self.cover(size * FACTOR)

    def cover(self, count: int) -> None:
        """Raises the reservation to at least `count` bytes. Raises a Problem where the budget is spent."""
        if count > self._count:
            self._budget.take(self._user, count - self._count)
            self._count = count

    def release(self) -> None:
        if self._count:
            self._budget.give(self._user, self._count)
        self._count = 0


async def parsed(body: bytes, pools: Pools, user: str, held: BodyReservation) -> Any:
    """The parsed value of a body. Raises a Problem where it is not JSON, exceeds a limit of its shape, or
    does not fit the memory budget.
    """
    if len(body) <= INLINE:
        return read_body(body)
    held.cover(await pools.run("body", partial(check_shape, body), user))
    return await pools.run("body", partial(_parse, body), user)


def read_body(body: bytes) -> Any:
    """The value of a strict JSON text (no duplicate keys, no NaN) within the limits of shape;
    else a Problem.
    """
    check_shape(body)
    return _parse(body)


def _parse(body: bytes) -> Any:
    try:
        value = strict_json.loads(body.decode("utf-8"), bounded=True)
        if SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        raise Problem("invalid", f"the body is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Problem(
            "invalid", f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeEncodeError:
        raise Problem("invalid", "the body has half a surrogate pair in a text") from None
    except (ValueError, RecursionError) as error:
        raise Problem("invalid", f"the body cannot be read: {error}") from None


def check_shape(body: bytes) -> int:
    """Bytes of memory that the body's value takes. Raises a Problem where it has too many parts or is too
    deep.

    One pass over the bytes in numpy, which releases the GIL. Of a body that is not valid JSON it counts at
    least the parts that a parser would create before its error.
    """
    data = np.frombuffer(body, np.uint8)
    scan = _Scan()
    for at in range(0, len(data), PIECE):
        scan.piece(data[at : at + PIECE])
        if scan.deepest > MOST_DEPTH:
            raise Problem("invalid", f"the body is nested deeper than {MOST_DEPTH} levels")
        for name, count, most in scan.counts():
            if count > most:
                raise Problem("invalid", f"the body {name}: expected at most {most:,}")
    return len(body) + scan.memory


class _Scan:
    """Counts the parts of a JSON text piece by piece; a piece may end anywhere."""

    def __init__(self) -> None:
        self.depth = self.deepest = self.containers = self.commas = self.quotes = 0
        self._inside = False  # whether the last piece ended inside a string
        self._slashes = 0  # backslashes at the end of the last piece

    @property
    def memory(self) -> int:
        return self.containers * CONTAINER + self.quotes // 2 * STRING + self.commas * ELEMENT

    def counts(self) -> list[tuple[str, int, int]]:
        elements = self.commas + self.containers + 1
        return [
            ("has too many lists and objects", self.containers, MOST_CONTAINERS),
            ("has too many texts", self.quotes // 2, MOST_STRINGS),
            ("has too many values", elements, MOST_ELEMENTS),
        ]

    def piece(self, data: Bytes) -> None:
        quotes = self._real_quotes(data)
        self.quotes += len(quotes)
        marks = np.zeros(len(data), np.uint8)
        marks[quotes] = 1
        inside = np.bitwise_xor.accumulate(marks) ^ np.uint8(self._inside)
        self._inside ^= len(quotes) % 2 == 1
        outside = data[inside == 0]
        self.commas += int(np.count_nonzero(outside == COMMA))
        opens, closes = (outside | 0x20) == ord("{"), (outside | 0x20) == ord("}")  # [ and ] with bit 5 set
        self.containers += int(np.count_nonzero(opens))
        if len(outside):
            depths = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
            self.deepest = max(self.deepest, self.depth + int(depths.max()))
            self.depth += int(depths[-1])

    def _real_quotes(self, data: Bytes) -> npt.NDArray[np.intp]:
        """Indexes of unescaped quotes: the run of backslashes before each has an even length."""
        quotes = np.flatnonzero(data == QUOTE)
        others = data != BACKSLASH
        if self._slashes == 0 and bool(others.all()):
            return quotes
        places = np.arange(len(data), dtype=np.int32)
        # last[i]: the last index <= i that is not a backslash; -1 where the run goes back into the last
        # piece.
        last = np.maximum.accumulate(np.where(others, places, np.int32(-1)))
        before = np.where(quotes > 0, last[quotes - 1], -1)
        runs = quotes - 1 - before + np.where(before < 0, self._slashes, 0)
        end = int(last[-1])
        self._slashes = len(data) - 1 - end + (self._slashes if end < 0 else 0)
        real: npt.NDArray[np.intp] = quotes[runs % 2 == 0]
        return real


class _Read(Request):
    """A request whose body has been read and validated."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"-"  # not empty, so that FastAPI calls json()

    async def json(self) -> Any:
        return self._value


class BodyRoute(APIRoute):
    """A route whose body the guard has parsed. A body larger than INLINE is validated in a thread; FastAPI
    then gets the validated model, which costs it nothing to validate again.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, field = super().get_route_handler(), self.body_field

        async def with_body(request: Request) -> Response:
            state = request.scope["state"]
            if field is None or JSON not in state:
                return await handle(request)
            value, size = state.pop(JSON)
            if value is None:
                return await handle(_Read(request, None))
            work = partial(_validated, field, value)
            if size <= INLINE:
                made, errors = work()
            else:
                made, errors = await request.app.state.models.pools.run("body", work, _user(request.scope))
            if errors:
                raise RequestValidationError(errors, body=value)
            return await handle(_Read(request, made))

        return with_body


def _validated(field: Any, value: Any) -> tuple[Any, Any]:
    """The body as the route's pydantic model, and the validation errors."""
    made, errors = field.validate(value, {}, loc=("body",))
    if isinstance(made, Body):
        made.prepare()
    return made, errors


def _user(scope: Scope) -> str:
    return str(scope["state"]["caller"].user)
