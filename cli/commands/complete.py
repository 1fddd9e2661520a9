"""`satchel complete [PROMPT]`: completes a text without a chat template; the prompt is printed before it."""

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
def complete(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The text to complete."),
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
    echo: Annotated[
        bool, option("--display-prompt/--no-display-prompt", help="Print the prompt before what follows it.")
    ] = True,
    as_json: Annotated[bool, option("--json", help="Print one JSON object: text, counts, timings.")] = False,
) -> int | None:
    """Complete a raw text, without a chat template.

    The text comes from stdin, the files of -f, and the argument or -p, joined by newlines. Without -n it
    continues until the model ends it or the context is full.

    Examples:
        satchel complete "The sea is" -n 20
    """
    groups = (model, text, sampling, adapters, speculation, grammar, reply, count)
    return Once(prompt, *groups, raw=True, echo=echo and count.made == 1, as_json=as_json).answer()
