"""`satchel run [MODEL] [PROMPT]`: one prompt, one answer on stdout; notes and timings go to stderr."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from satchel.cli.adapters import AdapterOptions
from satchel.cli.chat.options import ChatOptions
from satchel.cli.chat.start import ChatStart, converse
from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import Taking, option, with_options
from satchel.cli.model_argument import model_and_prompt
from satchel.cli.once import Once
from satchel.cli.options import ModelOptions, TextOptions
from satchel.cli.replies import CountOptions, ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.speculation import SpeculationOptions
from satchel.runtime.option import WORKER


@with_options
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL] [PROMPT]", help="A model's name or file, and the prompt."),
    ] = None,
    *,
    model: Annotated[ModelOptions, Taking(groups=(WORKER,))],
    text: TextOptions,
    sampling: SamplingOptions,
    adapters: AdapterOptions,
    speculation: SpeculationOptions,
    grammar: GrammarOptions,
    reply: ReplyOptions,
    count: CountOptions,
    template: Annotated[
        bool,
        option(
            "-cnv/-no-cnv",
            "--conversation/--no-conversation",
            help="Use the chat template, or complete raw text.",
        ),
    ] = True,
    single: Annotated[bool, typer.Option("-st", "--single-turn", hidden=True)] = True,
    as_json: Annotated[bool, option("--json", help="Print one JSON object: text, counts, timings.")] = False,
) -> int | None:
    """Answer one prompt: from the argument, -p, -f or stdin.

    Several sources are joined by newlines: stdin, the files of -f, the prompt. In a terminal, a model without
    a prompt begins a chat. Most options are also read from the environment: --ctx-size from SATCHEL_CTX_SIZE
    or LLAMA_ARG_CTX_SIZE.

    Examples:
        satchel run "Why is the sky blue?"
        satchel run llama3.2 "Sum it up" -f notes.txt
    """
    named, prompt = model_and_prompt(words or (), model.model or model.hub or model.url)
    model = replace(model, model=named or model.model)
    plain = template and not as_json and count.made == 1
    if named and plain and not (prompt or text.has_prompt) and sys.stdin.isatty() and sys.stdout.isatty():
        talk = ChatOptions()
        return converse(ChatStart(model, text, sampling, adapters, speculation, grammar, reply, talk))
    once = Once(
        prompt,
        model,
        text,
        sampling,
        adapters,
        speculation,
        grammar,
        reply,
        count,
        raw=not template,
        as_json=as_json,
    )
    return once.answer()
