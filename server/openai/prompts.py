"""Validation of prompts and inputs: a text, a list of texts, token ids, or a list of token id lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from satchel.server.answer import MOST
from satchel.server.fields import MOST_TOKENS

MOST_INPUTS = 2048  # texts of one embedding or scoring request
Several = list[str | list[int]]


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(i) is int and 0 <= i <= MOST_TOKENS for i in value)
    )


def checker(most: int, mixed: bool = False) -> Any:
    """A validator of a prompt. most: the limit of texts. mixed: a list of texts and ids is one prompt."""

    def check(value: Any) -> Any:
        if isinstance(value, str) or _is_ids(value):
            return value
        if not isinstance(value, list):
            raise ValueError("expected a text, token ids, or a list of either")
        if not value:
            raise ValueError("the list is empty")
        if (
            mixed
            and all(isinstance(v, str) or type(v) is int for v in value)
            and any(type(v) is int for v in value)
        ):
            return value
        if len(value) > most:
            raise ValueError(f"it has {len(value)} entries, expected at most {most}")
        for at, one in enumerate(value):
            if not (isinstance(one, str) or _is_ids(one)):
                raise ValueError(f"entry {at} is no text and no list of token ids from 0 on")
        return value

    return BeforeValidator(check)


Prompts = Annotated[str | list[str] | list[int] | list[list[int]] | list[Any], checker(MOST)]
Inputs = Annotated[str | list[str] | list[int] | list[list[int]] | list[Any], checker(MOST_INPUTS)]


def several(value: Any) -> Several:
    """The value as a list of texts and token id lists."""
    return [value] if isinstance(value, str) or _is_ids(value) else list(cast("Sequence[Any]", value))
