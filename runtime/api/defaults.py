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
from satchel.runtime.grammar.sources import check_spec
from satchel.runtime.grammar.spec import Spec, spec_of
from satchel.runtime.sampling.options import Sampling

PREFIX = "general.sampling."
SAMPLED = frozenset(f.name for f in fields(Sampling) if f.init)
REQUESTED = ("max_tokens", "stop", "ignore_eos", "on_overflow")  # of GenerateOptions
THINKING = ("reasoning", "reasoning_end")  # arguments of Model.chat
GRAMMAR = "grammar"  # of GenerateOptions; a text is GBNF or Lark, a mapping a JSON schema
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
    grammar: Spec | None = None  # what answers must match
    of_file: Mapping[str, Any] = field(default_factory=dict)  # the options of `sampling` that the file gave

    def completed(self, given: GenerateKwargs, tools: bool = False) -> GenerateKwargs:
        """The keyword arguments of a request, with the defaults of those that it leaves out. tools: the
        request has tools, which the default grammar would keep the model from calling. Structured output has
        no default shift, which would begin its grammar anew: the answer ends in a full context.
        """
        completed: GenerateKwargs = {**self.kwargs, **given}
        completed["sampling"] = given.get("sampling") or self.sampling
        has_grammar = given.get("grammar") is not None or given.get("constraint") is not None
        if has_grammar and "on_overflow" in given:
            return completed  # a request that wants structured output and a shift is told that it cannot
        if not has_grammar and not tools and self.grammar is not None:
            completed["grammar"] = self.grammar
            has_grammar = True
        if has_grammar and completed.get("on_overflow") == "shift":
            completed["on_overflow"] = "error"
        return completed


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
        None if chosen.get(GRAMMAR) is None else spec_of(chosen[GRAMMAR]),
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
    others = (*REQUESTED, *THINKING, GRAMMAR)
    unknown = next((name for name in values if name not in {*SAMPLED, *others}), None)
    if unknown is not None:
        known = ", ".join((*sorted(SAMPLED), *others))
        raise RequestError(f"defaults: {unknown!r:.60} is no option of a request: expected {known}")
    kinds: tuple[tuple[Callable[..., object], frozenset[str]], ...] = (
        (Sampling, SAMPLED),
        (GenerateOptions, frozenset(REQUESTED)),
    )
    for make, names in kinds:
        make(**{name: value for name, value in values.items() if name in names})
    if values.get(GRAMMAR) is not None:
        try:
            check_spec(spec_of(values[GRAMMAR]))
        except RequestError as error:
            raise RequestError(f"defaults: grammar: {error}") from None


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
