"""A checked JSON schema in llguidance's form: our settings, never the schema's own."""

from __future__ import annotations

import json
from typing import Any

from satchel.errors import RequestError
from satchel.runtime.grammar.schema import bare

# A blank, or a line end with its indent: without a bound, a model may write blanks for ever.
SPACES = r" ?|\n[ \t]{0,24}"
ESCAPES = 'nrbtf\\"'  # \u could spell a key that the schema forbids


def json_options(spaces: bool = True) -> dict[str, Any]:
    how: dict[str, Any] = {"whitespace_pattern": SPACES} if spaces else {"whitespace_flexible": False}
    return how | {"json_allowed_escapes": ESCAPES, "coerce_one_of": False, "lenient": False}


def compiled_schema(schema: Any, spaces: bool = True) -> str:
    """RequestError for a number that llguidance cannot hold, and what else it refuses to read."""
    from llguidance import LLMatcher

    options: Any = json_options(spaces)
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    except ValueError as error:
        raise RequestError(f"the JSON schema: it cannot be read: {error}") from None


def with_settings(schema: Any) -> str:
    """A schema's text for a Lark grammar, in which settings stand in the schema."""
    if schema is False:
        return "false"
    return json.dumps(({} if schema is True else bare(schema)) | {"x-guidance": json_options()})
