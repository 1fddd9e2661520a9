"""Body fields that OpenAI's chat and text completions share, converted to the library's options."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import AliasChoices, BeforeValidator, Field

from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.sampling.logprobs import TOP
from satchel.runtime.words import MAX_COMPLETIONS
from satchel.server.asked import FRESH
from satchel.server.fields import (
    MOST_TOKENS,
    Body,
    GenerateFields,
    SamplingFields,
    TokenId,
    TokenIds,
    Word,
    body_values,
)
from satchel.server.openai.refused import check_refused
from satchel.server.openai.structured_output import StructuredOutputFields
from satchel.server.problem import Problem
from satchel.server.settings import MOST_PRIORITY

STOPS = 64
MOST_MILLISECONDS = 1 << 40
MOST_BIAS = 1e9
MOST_BIASES = 4096
DIGITS = 20  # a longer text is no token id, and Python refuses to parse a number of thousands of digits
Scale = Annotated[float, Field(ge=-1e6, le=1e6)]
Limit = Annotated[int, Field(ge=-1, le=MOST_TOKENS)]
Amount = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)] | bool


def _few(given: Any) -> Any:
    """Checks the number of entries first: pydantic counts the entries of an object after validating them."""
    if isinstance(given, dict | list) and len(given) > MOST_BIASES:
        raise ValueError(f"it has {len(given):,} entries, expected at most {MOST_BIASES:,}")
    return given


BiasPair = Annotated[list[int | str | Amount], Field(min_length=2, max_length=2)]
Biases = Annotated[dict[str, Amount] | list[BiasPair], BeforeValidator(_few)]
BadWord = Word | Annotated[list[TokenId], Field(min_length=1, max_length=64)]


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class AdapterScale(Body):
    id: int = Field(ge=0, le=1 << 16)
    scale: Scale


class TextFields(SamplingFields, GenerateFields, StructuredOutputFields):
    """Body fields of chat and of text completions."""

    model: str = Field(default="", max_length=1000)
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    n: int = Field(default=1, ge=1, le=MAX_COMPLETIONS, validation_alias=AliasChoices("n", "n_cmpl"))
    best_of: int | None = Field(default=None, ge=1, le=MAX_COMPLETIONS)
    stop: Word | Annotated[list[Word], Field(max_length=STOPS)] | None = None
    stop_token_ids: TokenIds | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    sse_ping_interval: int | None = Field(default=None, ge=-1, le=3600)
    logit_bias: Biases | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=256)] | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=TOP)
    use_beam_search: bool = False
    length_penalty: float = Field(default=1.0, ge=-100, le=100)
    t_max_predict_ms: int | None = Field(default=None, ge=-1, le=MOST_MILLISECONDS)
    priority: int = Field(default=0, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    cache_salt: str = Field(default="", max_length=256)
    cache_prompt: bool = True
    id_slot: int = Field(default=-1, ge=-1, le=4095)
    lora: Annotated[list[AdapterScale], Field(max_length=64)] | None = None
    user: str | None = Field(default=None, max_length=256)
    timings_per_token: bool = False
    return_progress: bool = False
    return_tokens_as_token_ids: bool = False

    @property
    def unknown(self) -> list[str]:
        return check_refused(self.model_extra or {})

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int:
        """The limit on tokens of a completion; -1: none."""
        given = [v for v in (self.max_tokens, self.n_predict) if v is not None and v >= 0]
        return min(given) if given else -1

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def adapters(self) -> dict[int, float] | None:
        return None if self.lora is None else {one.id: one.scale for one in self.lora}

    @property
    def biases(self) -> tuple[dict[int, float], list[tuple[str, float]]]:
        """Logit biases by token id, and by text."""
        given = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        by_token: dict[int, float] = {}
        by_text: list[tuple[str, float]] = []
        for key, amount in given:
            if (
                amount is True
                or isinstance(amount, str)
                or isinstance(key, bool | float)
                or abs(amount) > MOST_BIAS
            ):
                line = f"expected a token or a text with a number up to {MOST_BIAS:g}, or with false"
                raise Problem("invalid", f"logit_bias: {line}", "logit_bias")
            number = float("-inf") if amount is False else float(amount)
            if isinstance(key, int):
                by_token[key] = number
            elif key.isascii() and key.isdecimal() and isinstance(self.logit_bias, dict):
                by_token[int(key) if len(key) <= DIGITS else MOST_TOKENS + 1] = number
            elif key:
                by_text.append((key, number))
        if any(not 0 <= token <= MOST_TOKENS for token in by_token):
            raise Problem("invalid", "logit_bias: a token id is a whole number from 0 on", "logit_bias")
        return by_token, by_text

    def sampling_values(self) -> dict[str, Any]:
        found = super().sampling_values()
        if self.logit_bias is not None:
            found["logit_bias"] = self.biases[0]
        if self.allowed_token_ids is not None:
            found["allowed"] = tuple(self.allowed_token_ids)
        if self.bad_words is not None:
            found["bad_words"] = tuple(w if isinstance(w, str) else tuple(w) for w in self.bad_words)
        return found

    def generate_kwargs(self) -> GenerateKwargs:
        """The request's fields of GenerateOptions, without its sampling."""
        milliseconds = self.t_max_predict_ms or 0
        made = GenerateKwargs(
            max_tokens=self.limit,
            stop=self.stops,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            priority=self.priority,
            user=self.user or "",
            timeout=max(0, milliseconds) / 1e3,
            salt=self.cache_salt if self.cache_prompt else FRESH,
            grammar=self.structured_output()[1],
        )
        return {**made, **self.plain_kwargs}

    @property
    def plain_kwargs(self) -> GenerateKwargs:
        """The options whose body value is that of GenerateOptions."""
        return cast(GenerateKwargs, body_values(self, GenerateOptions))

    def check_together(self) -> None:
        """Raises a Problem for fields that exclude each other."""
        if self.cache_salt and not self.cache_prompt:
            raise Problem("invalid", "cache_salt has no meaning with cache_prompt: false", "cache_salt")
        if self.stream and (self.best_of or 1) > self.n:
            raise Problem("invalid", "best_of can be chosen when all is read: leave stream out", "best_of")
        if self.stream and self.prompt_logprobs is not None:
            raise Problem(
                "invalid", "prompt_logprobs come with a whole answer: leave stream out", "prompt_logprobs"
            )
        if self.stream_options is not None and not self.stream:
            raise Problem("invalid", "stream_options needs stream: true", "stream_options")
        if self.return_progress and not self.stream:
            raise Problem("invalid", "return_progress needs stream: true", "return_progress")
        if self.plain_kwargs.get("on_overflow") == "shift" and self.structured_output()[1] is not None:
            raise Problem(
                "invalid",
                "structured output cannot shift: leave on_overflow out",
                "on_overflow",
            )
