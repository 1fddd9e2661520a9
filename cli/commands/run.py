"""`satchel run [PROMPT]`: one prompt, one answer on stdout; notes and timings go to stderr."""

from __future__ import annotations

from typing import Annotated

import typer

from satchel.cli.adapters import AdapterOptions
from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import Taking, option, with_options
from satchel.cli.once import Once
from satchel.cli.options import ModelOptions, TextOptions
from satchel.cli.replies import CountOptions, ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.speculation import SpeculationOptions
from satchel.runtime.option import WORKER


@with_options
def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; text from stdin is put before it.")
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

    Several sources are joined by newlines: stdin, the files of -f, the prompt. Most options are also read
    from the environment: --ctx-size from SATCHEL_CTX_SIZE or LLAMA_ARG_CTX_SIZE.
    """
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
