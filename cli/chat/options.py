"""Options of `satchel chat` only: the file of the conversation, and the output format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.groups import option, wrong


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Single or multiple turns, the session's name, and output for users or programs."""

    single: Annotated[bool, option("-st", "--single-turn", help="Leave after one answer.")] = False
    session: Annotated[
        str | None,
        option(
            "--session",
            metavar="NAME",
            help="Go on with the conversation of this name, or in this file, and keep it there.",
        ),
    ] = None
    resumed: Annotated[
        str | None, option("--resume", metavar="NAME", help="The same, of one that must be there.")
    ] = None
    as_json: Annotated[
        bool, option("--json", help="For programs: one JSON object a line; turns may be objects too.")
    ] = False
    markdown: Annotated[
        bool, option("--markdown/--no-markdown", env="MARKDOWN", help="Render answers on a terminal.")
    ] = True
    template: Annotated[
        bool, typer.Option("-cnv/-no-cnv", "--conversation/--no-conversation", hidden=True)
    ] = True

    def __post_init__(self) -> None:
        if not self.template:
            raise wrong("-no-cnv", "a chat is always in turns; `satchel complete` goes on with raw text")
        if self.session is not None and self.resumed is not None:
            raise wrong("--resume", "--session is given already")

    def file(self) -> Path | None:
        """The file in which the conversation is kept, or None. RequestError where --resume names a missing
        one.
        """
        from satchel.cli.chat.names import conversation_path, existing_folder, found_path

        if self.resumed is not None:
            return found_path(self.resumed, "resume")
        if self.session is not None:
            return existing_folder(conversation_path(self.session, "session"))
        return None
