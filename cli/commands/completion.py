"""`satchel completion SHELL`: prints the script by which a shell completes commands, options and models."""

from __future__ import annotations

from typing import Annotated

import typer

from satchel.cli.groups import wrong


def completion(
    words: Annotated[list[str], typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")],
    *,
    asked: Annotated[bool, typer.Option("--words", hidden=True)] = False,
    following: Annotated[bool, typer.Option("--next", hidden=True)] = False,
) -> None:
    """Print a script that completes satchel's command lines in a shell.

    bash: eval "$(satchel completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit.
    fish: satchel completion fish > ~/.config/fish/completions/satchel.fish.
    PowerShell: satchel completion powershell >> $PROFILE.

    Examples:
        eval "$(satchel completion bash)"
    """
    if asked:
        from satchel.cli.completing.candidates import candidates

        for found in candidates([*words, ""] if following else words):
            print(f"{found.word}\t{found.about}" if found.about else found.word)
        return
    from satchel.cli.completing.scripts import SCRIPTS

    if len(words) != 1 or words[0] not in SCRIPTS:
        raise wrong("SHELL", f"expected {', '.join(SCRIPTS)}, got {' '.join(words)}")
    print(SCRIPTS[words[0]], end="")
