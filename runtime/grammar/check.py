"""The last word on an answer: whether the whole text is what was asked for.

JSON is read by the standard library and checked by `jsonschema`. Whatever has a regular expression in it goes
through a matcher over bytes, which is linear; Python's own may take exponential time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation, localcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END = 256
MAX_DIGITS = 20_000  # of a number whose divisor is to be checked
Check = Callable[[str], str]


class _Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id, bos_token_id = END, None
    special_token_ids = (END,)

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(END)] + [b"\xffend"]

    def __call__(self, data: bytes) -> list[int]:
        return list(data)


@cache
def _tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def fits(grammar: str, text: str) -> bool:
    """Whether a text, whole, is a sentence of a grammar in llguidance's form."""
    from llguidance import LLMatcher

    matcher = LLMatcher(_tokenizer(), grammar, log_level=0)
    data = list(text.encode(errors="replace"))
    return matcher.try_consume_tokens(data) == len(data) and not matcher.is_error() and matcher.is_accepting()


def sentence_check(grammar: str, what: str) -> Check:
    """For regular expressions and grammars: the matcher's own accept state, over bytes."""
    return lambda text: "" if fits(grammar, text) else f"the text is not a whole sentence of the {what}"


def json_check(schema: Any) -> Check:
    """For JSON: it parses, to a value that satisfies the schema."""

    def check(text: str) -> str:
        try:
            value = parse_exact(text)
        except RecursionError:
            return "the JSON is nested too deeply to be checked"
        except ValueError as error:
            return f"the text is no JSON: {error}"
        return value_errors(schema, value)

    return check


def value_errors(schema: Any, value: Any) -> str:
    """What is wrong with a value (numbers as `parse_exact` gives them), with its JSON pointer; or empty."""
    try:
        errors = sorted(_validator(json.dumps(schema)).iter_errors(value), key=lambda e: len(e.absolute_path))
    except RecursionError:
        return "the JSON is nested too deeply to be checked"
    if not errors:
        return ""
    place = "".join(f"/{part}" for part in errors[0].absolute_path)
    return f"at #{place}: {errors[0].message[:200]}"


def parse_exact(text: str) -> Any:
    """JSON with numbers as they stand: int, and Decimal for what has a point, an exponent or many digits."""
    return json.loads(text, parse_float=_exact, parse_int=_whole, parse_constant=_refuse)


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 1000 else _exact(digits)


def _exact(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:  # an exponent of more than 18 digits
        raise ValueError(f"{digits[:40]} is a number out of range") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator, validators

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
    own = {
        "pattern": _pattern,
        "format": _format,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "multipleOf": _multiple_of,
    }
    made = validators.extend(Draft202012Validator, own, type_checker=types)
    return made(json.loads(schema, parse_float=Decimal))


def _is_integer(checker: Any, value: Any) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


@lru_cache(maxsize=256)
def _string_grammar(key: str, value: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", key: value}))


def _fits_string(key: str, value: str, text: str) -> bool:
    return fits(_string_grammar(key, value), json.dumps(text, ensure_ascii=False))


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, str) and not _fits_string("pattern", pattern, value):
        yield _error(f"{value!r:.60} does not match {pattern!r:.60}")


def _format(validator: Any, name: str, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, str) and not _fits_string("format", name, value):
        yield _error(f"{value!r:.60} is no {name}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    for pattern, inner in patterns.items():
        for key, item in value.items():
            if _fits_string("pattern", pattern, key):
                yield from validator.descend(item, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, item in value.items():
        if key in named or any(_fits_string("pattern", pattern, key) for pattern in patterns):
            continue
        if inner is False:
            yield _error(f"the key {key!r:.60} is not allowed")
        else:
            yield from validator.descend(item, inner, path=key)


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return
    exact = Decimal(value)
    digits = len(exact.as_tuple().digits) + abs(exact.adjusted())
    try:
        with localcontext() as context:
            context.prec = min(digits, MAX_DIGITS) + 50
            wrong = exact % Decimal(str(step)) != 0
    except ArithmeticError:  # more digits than the check has
        wrong = True
    if wrong:
        yield _error(f"{value} is no multiple of {step}")
