"""The final check of an answer: whether the whole text satisfies the spec.

JSON is parsed by the standard library and validated by `validate.py`, whose cost is bounded. Regular
expressions run in a matcher over bytes, which is linear; Python's own may take exponential time. A check may
take a second: it runs on a thread that nothing else waits for, never on an event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from satchel.runtime.grammar.matching import fits
from satchel.runtime.grammar.validate import Validator

MAX_DIGITS = 1000  # longest number that is parsed as an int
Check = Callable[[str], str]


def sentence_check(grammar: str, what: str) -> Check:
    """Check for regular expressions and grammars: the matcher over bytes must accept the whole text."""
    return lambda text: "" if fits(grammar, text) else f"the text is not a whole sentence of the {what}"


def json_check(schema: Any) -> Check:
    """Check for JSON: the text parses to a value that satisfies the schema."""
    validator = Validator(schema)

    def check(text: str) -> str:
        try:
            value = parse_exact(text)
        except RecursionError:
            return "the JSON is nested too deeply to be checked"
        except ValueError as error:
            return f"the text is not JSON: {error}"
        return validator.error(value)

    return check


def parse_exact(text: str) -> Any:
    """Parses JSON with exact numbers: int, and Decimal for a number with a point, an exponent or
    many digits.
    """
    return json.loads(text, parse_float=_decimal, parse_int=_whole, parse_constant=_refuse)


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < MAX_DIGITS else _decimal(digits)


def _decimal(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except ArithmeticError:
        raise ValueError(f"the exponent of {digits[:40]!r} is out of range") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
