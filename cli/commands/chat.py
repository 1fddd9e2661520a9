"""`satchel chat`: a conversation in a terminal; from a pipe, one turn per line, answers alone on stdout."""

from __future__ import annotations

from typing import Annotated

from satchel.cli.adapters import AdapterOptions
from satchel.cli.chat.options import ChatOptions
from satchel.cli.chat.start import ChatStart, converse
from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import Taking, with_options
from satchel.cli.options import ModelOptions, TextOptions
from satchel.cli.replies import ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.speculation import SpeculationOptions
from satchel.runtime.option import WORKER


@with_options
def chat(
    *,
    model: Annotated[ModelOptions, Taking(groups=(WORKER,))],
    text: TextOptions,
    sampling: SamplingOptions,
    adapters: AdapterOptions,
    speculation: SpeculationOptions,
    grammar: GrammarOptions,
    reply: ReplyOptions,
    talk: ChatOptions,
) -> int | None:
    """Talk with a model. /help in the chat lists its commands.

    From a pipe, each line is a turn and stdout gets the answers alone. With --json stdout gets one object a
    line, and a line of stdin that begins with { is an object {"text": TURN}. Most options are also read from
    the environment: --ctx-size from SATCHEL_CTX_SIZE or LLAMA_ARG_CTX_SIZE.

    Examples:
        satchel chat
        satchel chat -m llama3.2 -sys "Answer in one sentence." --session trip
    """
    groups = (model, text, sampling, adapters, speculation, grammar, reply, talk)
    return converse(ChatStart(*groups))
