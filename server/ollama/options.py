"""A request's `options`, and `keep_alive`: how long the model stays loaded after the request."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.server.fields import MOST_TOKENS, Body, SamplingFields
from satchel.server.generation import Caller
from satchel.server.models import ServedModel
from satchel.server.problem import Problem

SOON = 1e-3  # seconds: the model is unloaded at the next check for idle models
STAYS = 0.0  # the value of ServedModel.keep for a model that is never unloaded
DURATION = re.compile(r"-?(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 1e9  # seconds; a longer keep_alive means that the model is never unloaded

Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=64)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Unused(Body):
    """Options without effect here: load options, and options that Ollama has removed."""

    num_keep: int | None = Field(default=None, ge=-1, le=MOST_TOKENS)
    num_batch: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    num_gpu: int | None = Field(default=None, ge=-1, le=MOST_TOKENS)
    main_gpu: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    num_thread: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    embedding_only: bool | None = None
    numa: bool | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None


class OllamaOptions(SamplingFields, Unused):
    """The `options` object of a request."""

    # -1 or -2: until the model ends the answer or the context is full.
    num_predict: int | None = Field(default=None, ge=-2, le=MOST_TOKENS)
    num_ctx: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    draft_num_predict: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    stop: Annotated[Stops, BeforeValidator(_listed)] = Field(default_factory=list)

    @property
    def limit(self) -> int:
        return -1 if self.num_predict is None else max(-1, self.num_predict)

    def generate_kwargs(self) -> GenerateKwargs:
        """The options as fields of GenerateOptions."""
        return GenerateKwargs(
            max_tokens=self.limit,
            stop=tuple(self.stop),
            draft=-1 if self.draft_num_predict is None else self.draft_num_predict,
        )

    def warnings(self) -> list[str]:
        """A warning for each option that has no effect here."""
        given = (name for name in Unused.model_fields if getattr(self, name) is not None)
        return [f"options.{name} had no effect" for name in given]

    def check_context(self, context: int) -> list[str]:
        """Raises a Problem where num_ctx exceeds the loaded context; returns a warning where it is less."""
        asked = self.num_ctx
        if asked is None or asked == context:
            return []
        if asked < context:
            return [
                f"options.num_ctx had no effect: the context is {context} tokens, as the model was loaded"
            ]
        raise Problem(
            "invalid",
            f"options.num_ctx is {asked}: the model was loaded with a context of {context} tokens; "
            f"start the server with -c {asked}, or leave it out",
            "options.num_ctx",
        )


def keep_seconds(value: Any) -> float | None:
    """keep_alive as a value of ServedModel.keep; None where it is not given. A negative one means never
    unload.
    """
    if value is None:
        return None
    seconds = _seconds(value)
    if seconds is None:
        line = f"keep_alive is {value!r:.40}: expected seconds, or a duration such as 5m, 0 or -1"
        raise Problem("invalid", line, "keep_alive")
    return STAYS if seconds < 0 or seconds > LONGEST else max(seconds, SOON)


def _seconds(value: Any) -> float | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):  # which may be too large for a float
        return float(max(-1, min(value, 2 * int(LONGEST))))
    if not isinstance(value, str) or len(value) > 60:
        return None
    if re.fullmatch(r"-?\d+(\.\d+)?", value):
        return float(value)
    if not DURATION.fullmatch(value):
        return None
    total = sum(float(number) * SECONDS[unit] for number, unit in PART.findall(value))
    return -total if value.startswith("-") else total


def keep(entry: ServedModel, seconds: float | None, caller: Caller) -> list[str]:
    """Sets how long the model stays loaded; None: as configured. It affects all callers, so it takes an
    admin; for others it returns a warning and has no effect.
    """
    if caller.admin:
        entry.keep = entry.served.idle if seconds is None else seconds
        return []
    return [] if seconds is None else ["keep_alive had no effect: it needs an admin key"]
