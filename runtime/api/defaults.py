"""Request options of requests that set none, in this order: the load option `defaults`, the file's keys
general.sampling.*, the program's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.sampling.options import Sampling

PREFIX = "general.sampling."
SAMPLED = frozenset(f.name for f in fields(Sampling) if f.init)
REQUESTED = ("max_tokens", "stop", "ignore_eos", "on_overflow")  # of GenerateOptions
THINKING = ("reasoning", "reasoning_end")  # arguments of Model.chat
# The file's keys after PREFIX, with the names of Sampling.
OF_FILE = {
    "sequence": "samplers",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What a model's requests use for the options that they do not set."""

    sampling: Sampling = field(default_factory=Sampling)
    kwargs: GenerateKwargs = field(default_factory=GenerateKwargs)  # of REQUESTED, those that are set
    reasoning: bool | int | str | None = None
    reasoning_end: str = ""
    variables: Mapping[str, object] = field(default_factory=dict)  # of the chat template
    of_file: Mapping[str, Any] = field(default_factory=dict)  # the options of `sampling` that the file gave

    def completed(self, given: GenerateKwargs) -> GenerateKwargs:
        """The keyword arguments of a request, with the defaults of those that it leaves out."""
        sampling = given.get("sampling") or self.sampling
        return {**self.kwargs, **given, "sampling": sampling}


def request_defaults(
    metadata: Mapping[str, Any], chosen: Mapping[str, Any] | None, variables: str
) -> tuple[RequestDefaults, list[str]]:
    """The defaults of a model, and a note for each key of the file that has no meaning here.

    chosen: the load option `defaults`. variables: the load option `chat_template_kwargs`.
    """
    of_file, notes = read_file(metadata)
    chosen = chosen or {}
    sampled = {name: value for name, value in chosen.items() if name in SAMPLED}
    kwargs = {name: chosen[name] for name in REQUESTED if name in chosen}
    return RequestDefaults(
        replace(Sampling(), **{**of_file, **sampled}),
        cast(GenerateKwargs, kwargs),
        chosen.get("reasoning"),
        chosen.get("reasoning_end", ""),
        read_object(variables, "chat_template_kwargs"),
        {name: value for name, value in of_file.items() if name not in sampled},
    ), notes


def read_file(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The sampling options that a file recommends, by names of Sampling, and notes about invalid ones."""
    found: dict[str, Any] = {}
    notes = []
    for key, name in OF_FILE.items():
        value = metadata.get(PREFIX + key)
        if value is None:
            continue
        try:
            read: dict[str, Any] = {name: _stages(value) if name == "samplers" else value}
            replace(Sampling(), **read)
        except (RequestError, TypeError) as error:
            notes.append(f"{PREFIX}{key} of the file is not used: {error}")
            continue
        found |= read
    return found, notes


def _stages(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise RequestError(f"expected names of samplers, got {value!r:.60}")
    return tuple(name.strip() for name in value.split(";") if name.strip())


def check_defaults(values: Mapping[str, Any]) -> None:
    """Raises RequestError for a name that no request option has, or a value that the option refuses."""
    unknown = next((name for name in values if name not in {*SAMPLED, *REQUESTED, *THINKING}), None)
    if unknown is not None:
        known = ", ".join((*sorted(SAMPLED), *REQUESTED, *THINKING))
        raise RequestError(f"defaults: {unknown!r:.60} is no option of a request: expected {known}")
    kinds: tuple[tuple[Callable[..., object], frozenset[str]], ...] = (
        (Sampling, SAMPLED),
        (GenerateOptions, frozenset(REQUESTED)),
    )
    for make, names in kinds:
        make(**{name: value for name, value in values.items() if name in names})


def read_object(text: str, name: str) -> dict[str, Any]:
    """The JSON object of an option's text; {} for "". RequestError where it is another value."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(f'{name} is {text!r:.80}: expected a JSON object, such as {{"key": true}}')
    return found
