"""Resolves a `GenerationRequest` against one model: tokenizes texts, writes a forced call as a grammar of the
model's tool-call format, and finds adapters by name. A Problem names the field that the model cannot serve.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from satchel.errors import RequestError
from satchel.formats.tokenizer import TooManyTokens, at_most
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.api.model import Model
from satchel.runtime.api.refusals import Busy, PromptTooLong
from satchel.runtime.grammar.compiled import compile_grammar
from satchel.runtime.grammar.spec import Spec, ToolCallGrammar, ToolSchema
from satchel.runtime.grammar.styles import STYLES, tool_call_format
from satchel.runtime.sampling import Sampling
from satchel.server.generation import Caller, GenerationRequest, Text, Turn
from satchel.server.problem import Problem

T = TypeVar("T")
CUT = 16  # a prompt that may be truncated is tokenized up to this many times the context's length
FRESH = "\0fresh"  # stands for a random salt: the request finds nothing in the prefix cache


def generate_kwargs(
    model: Model, wanted: GenerationRequest, caller: Caller, adapters: Mapping[int, float] | None
) -> GenerateKwargs:
    """The keyword arguments of generate() for this model and caller.

    adapters: the scales used where the request names none.
    """
    kwargs: GenerateKwargs = {**wanted.kwargs}
    kwargs["salt"] = _salt(kwargs.get("salt", ""), caller)
    kwargs["client"], kwargs["weight"] = caller.client, caller.share
    urgency = -kwargs.get("priority", 0)
    if urgency > caller.most_priority:
        line = f"priority is {-urgency}: this key may ask for {-caller.most_priority} and more"
        raise Problem("invalid", line, "priority")
    if kwargs.get("max_tokens") == -1:  # the request sets no limit: the model's default holds
        del kwargs["max_tokens"]
    if not kwargs.get("stop"):
        kwargs.pop("stop", None)
    tools = isinstance(wanted.prompt, Turn) and bool(wanted.prompt.tools)
    kwargs = model.request_defaults.completed(kwargs, tools)
    if "max_tokens" not in kwargs:
        kwargs["max_tokens"] = wanted.usual_tokens
    kwargs["sampling"] = replace(kwargs["sampling"] or model.request_defaults.sampling, **wanted.sampled)
    kwargs["sampling"] = _sampling(model, GenerateOptions.of(**kwargs).seeded_sampling, wanted.words)
    _check_ids(model, "stop_token_ids", kwargs.get("stop_token_ids", ()))
    if wanted.slot >= model.slots:
        raise Problem("invalid", f"id_slot is {wanted.slot}: there are {model.slots} slots", "id_slot")
    chosen = wanted.adapters if wanted.adapters is not None else adapters
    if chosen is not None:
        kwargs["adapters"] = named_adapters(model, chosen)
    if isinstance(wanted.prompt, Turn) and wanted.prompt.call is not None:
        if kwargs.get("grammar") is not None:
            raise Problem(
                "invalid",
                "a forced tool call and another grammar were given: take one of them",
                "tool_choice",
            )
        kwargs["grammar"] = call_grammar(model, wanted.prompt)
    _check_grammar(model, kwargs.get("grammar"), wanted.grammar_field or "tools")
    if wanted.best_of > wanted.n:
        kwargs["logprobs"] = max(0, kwargs.get("logprobs", -1))  # best_of ranks completions by them
    return kwargs


def _salt(asked: str, caller: Caller) -> str:
    """The salt of the prefix cache, prefixed with the caller's: no caller reaches another's cached blocks."""
    own = secrets.token_hex(16) if asked == FRESH else asked
    return f"{caller.salt}/{own}" if caller.salt else own


def _sampling(model: Model, sampling: Sampling, words: Sequence[tuple[str, float]]) -> Sampling:
    biases = dict(sampling.bias_pairs)
    for text, amount in words:
        biases |= dict.fromkeys(model.tokenize(text, bos=False), amount)
    _check_ids(model, "logit_bias", tuple(biases))
    _check_ids(model, "allowed_token_ids", sampling.allowed or ())
    for word in sampling.bad_words:
        _check_ids(model, "bad_words", () if isinstance(word, str) else word)
    return replace(sampling, logit_bias=tuple(biases.items())) if words else sampling


def _check_grammar(model: Model, grammar: Spec | None, field: str) -> None:
    """Compiles the grammar into the cache, where generation finds it. Raises a Problem where it
    is invalid.
    """
    if grammar is None:
        return
    try:
        compile_grammar(model.tokenizer, grammar)
    except Busy:
        raise
    except RequestError as error:
        raise Problem("invalid", f"{field}: {error}", field) from None


def _check_ids(model: Model, name: str, ids: Sequence[int]) -> None:
    size = model.tokenizer.vocab_size
    bad = next((i for i in ids if not 0 <= i < size), None)
    if bad is not None:
        raise Problem("invalid", f"{name}: the token id {bad} is not in the vocabulary of {size}", name)


def named_adapters(model: Model, scales: Mapping[int, float]) -> dict[str, float]:
    """Adapter scales by name. scales: by the adapter's index."""
    names = list(model.adapters.lora) if model.adapters else []
    bad = next((i for i in scales if not 0 <= i < len(names)), None)
    if bad is not None:
        raise Problem("invalid", f"lora: there is no adapter {bad}: {len(names)} are loaded", "lora")
    return {names[i]: scale for i, scale in scales.items()}


def call_grammar(model: Model, turn: Turn) -> ToolCallGrammar:
    """The grammar of the forced call, in the tool-call format of the model's family."""
    if turn.call is None:
        raise TypeError("this turn wants no call")
    by_name = {
        tool.get("function", tool).get("name"): tool.get("function", tool) for tool in turn.tools or ()
    }
    missing = next((name for name in turn.call.names if name not in by_name), None)
    if missing is not None or not turn.call.names:
        raise Problem("invalid", f"tool_choice: no tool is named {missing or ''!r:.80}", "tool_choice")
    family, begin = model.style.family, model.style.begin
    if family not in STYLES:
        raise Problem(
            "unsupported",
            f"tool_choice: calls as this model writes them ({family or 'none'}) cannot be forced: take auto",
            "tool_choice",
        )
    tools = [ToolSchema(n, by_name[n].get("parameters") or {"type": "object"}) for n in turn.call.names]
    several = turn.call.parallel and tool_call_format(family, begin).several
    return ToolCallGrammar(tools, family, several, begin)


def limited(model: Model, wanted: GenerationRequest, work: Callable[[], T]) -> T:
    """Runs the work with a limit on the tokens of each text: the context's length, or CUT times that where
    the request truncates long prompts. Raises PromptTooLong, before tokenizing where the byte count already
    proves it.
    """
    cut = wanted.kwargs.get("on_overflow") == "truncate-middle" or any(
        isinstance(prompt, Text) and prompt.last for prompt in wanted.prompts
    )
    most = model.context * (CUT if cut else 1)
    try:
        with at_most(most):
            return work()
    except TooManyTokens as error:
        line = f"the prompt has at least {error.least:,} tokens, the context holds {model.context:,}"
        more = f", and {CUT} times as many may be cut" if cut else ""
        line = f"{line}{more}: shorten it or raise -c"
        raise PromptTooLong(error.least, model.context, line) from None


def ids_of(model: Model, text: Text) -> list[int]:
    """The prompt's token ids."""
    if text.hole is not None:
        ids = with_hole(model, text)
    elif isinstance(text.prompt, str):
        ids = model.tokenize(text.prompt, special=text.special, bos=text.bos)
    else:
        ids = joined(model, text.prompt, text.special)
    most = model.context if text.last == -1 else text.last
    return ids[-most:] if most else ids


def joined(model: Model, parts: Sequence[int | str], special: bool) -> list[int]:
    """The token ids of a mix of texts and ids; a text that comes first gets the BOS token."""
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += model.tokenizer.encode(
                part, special=special, bos=None if at == 0 else False, start=at == 0
            )
    return ids


def with_hole(model: Model, text: Text) -> list[int]:
    """A fill-in-the-middle (FIM) prompt; a Problem where the vocabulary has no FIM tokens."""
    tokenizer, specials = model.tokenizer, model.tokenizer.specials
    pre, suf, mid = specials.fim_pre, specials.fim_suf, specials.fim_mid
    if pre is None or suf is None or mid is None:
        raise Problem(
            "unsupported", "suffix: this model's vocabulary has no tokens to fill a hole with", "suffix"
        )

    def plain(part: str) -> list[int]:
        return tokenizer.encode(part, bos=False) if part else []

    start = [tokenizer.bos] if specials.add_bos and tokenizer.bos is not None else []
    before = plain(text.prompt) if isinstance(text.prompt, str) else joined(model, text.prompt, text.special)
    beside = _files(model, text.files)
    return [*start, *beside, pre, *before, suf, *plain(text.hole or ""), mid, *plain(text.begun)]


def _files(model: Model, files: Sequence[tuple[str, str]]) -> list[int]:
    """Other files of the project in the repository-level FIM format."""
    tokenizer, specials = model.tokenizer, model.tokenizer.specials
    if not files:
        return []
    if specials.fim_rep is None or specials.fim_sep is None:
        line = "input_extra: this model's vocabulary has no tokens for other files"
        raise Problem("unsupported", line, "input_extra")
    ids = [specials.fim_rep, *tokenizer.encode("project\n", bos=False)]
    for name, text in (*files, ("file", "")):
        ids += [specials.fim_sep, *tokenizer.encode(f"{name}\n{text}", bos=False)]
    return ids
