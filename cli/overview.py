"""The help of the program: its commands by task. Nothing of a command is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.cli.lines import EXAMPLES, WIDTH, at_word


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """What a user wants to do: the commands that most need, and further ones."""

    title: str
    common: tuple[str, ...]
    others: tuple[str, ...] = ()


TASKS = (
    CommandGroup("Ask a model", ("chat", "run"), ("complete", "embed", "rerank", "tokenize")),
    CommandGroup("Get models", ("pull", "search", "list"), ("show", "cp", "rm", "create")),
    CommandGroup("Serve models", ("serve", "ps"), ("stop", "device", "engine", "deploy", "worker")),
    CommandGroup(
        "Make files", ("quantize", "convert"), ("build", "bundle", "imatrix", "edit", "split", "merge")
    ),
    CommandGroup(
        "Check and measure", ("doctor", "bench"), ("verify", "hash", "inspect", "plan", "perplexity", "tune")
    ),
    CommandGroup("Set up", (), ("config", "completion", "doctor-api")),
)
EXAMPLE_LINES = ("satchel chat", 'satchel run "Why is the sky blue?"', "satchel serve -m hf:USER/REPO:Q4_K_M")
OPTIONS = """\
Options:
  --version      Print the version; with --json also kernels and devices.
  --debug        Show where an error comes from.
  --config FILE  Take options from this TOML file; see `satchel config`.
  --help         Print the common commands, or after a command, its common options.
  --help-all     Print all commands, or after a command, all of its options."""


def page(summaries: Mapping[str, str], everything: bool) -> str:
    """The commands by task, those that no task names at the end. A page that does not show everything fits a
    terminal of 24 lines.
    """
    named = {name for task in TASKS for name in (*task.common, *task.others)}
    rest = CommandGroup("Other commands", tuple(name for name in summaries if name not in named))
    lines = ["Usage: satchel COMMAND [OPTIONS] [ARGUMENTS]"]
    tasks = [*TASKS, rest]
    shown = [n for t in tasks for n in (*t.common, *(t.others if everything else ())) if n in summaries]
    width = max(map(len, shown), default=0)
    for task in tasks:
        names = [n for n in (*task.common, *task.others) if n in shown]
        also = [n for n in task.others if n in summaries and n not in shown]
        if names or also:
            end = f": {', '.join(also)}" if not names else f" (also {', '.join(also)}):" if also else ":"
            lines += [*([""] if everything else []), f"{task.title}{end}"]
        lines += [f"  {name:<{width}}  {at_word(summaries[name], WIDTH - width - 4)}" for name in names]
    lines += [*([""] if everything else []), EXAMPLES, *(f"  {line}" for line in EXAMPLE_LINES)]
    if everything:
        return "\n".join([*lines, "", OPTIONS])
    return "\n".join([*lines, "satchel COMMAND --help: its common options; satchel --help-all: all commands"])
