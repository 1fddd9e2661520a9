"""The `satchel` program: finds the command by its file name, runs it, and prints an error as one line.

Exit codes: 0 success, 1 failure, 2 wrong use, 130 interrupted, 141 broken pipe.
Only the chosen command's modules are imported, so that `satchel run` starts fast.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from satchel.cli.usage import CONFIG, UsageError
from satchel.errors.spelling import closest, did_you_mean

DONE, FAILED, USAGE, INTERRUPTED, CLOSED = 0, 1, 2, 130, 141
HELP_ALL = "--help-all"
HELP = ("-h", "--help", "--usage", HELP_ALL)
EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}  # by pydantic's kind of error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program with these arguments (default: sys.argv) and returns its exit code."""
    if getattr(sys, "frozen", False):
        from satchel.runtime.children import run_as_python

        if run_as_python(sys.argv[1:]):
            return DONE
    args = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take(args, "--debug")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal can't encode must not be an error
            with suppress(OSError):  # what could not be flushed is said when it is tried again
                stream.reconfigure(errors="replace")
    before = os.environ.get(CONFIG)
    try:
        if (config := _take_value(args, "--config")) is not None:
            os.environ[CONFIG] = config  # for the commands, and for processes that they start
        code = dispatch(args)
        sys.stdout.flush()
        return code
    except BaseException as error:
        if debug and not isinstance(error, SystemExit | BrokenPipeError):
            raise
        return report(error)
    finally:
        os.environ.pop(CONFIG, None) if before is None else os.environ.update({CONFIG: before})


def dispatch(args: list[str]) -> int:
    """Runs the command that the first argument names."""
    if not args or args[0] in (*HELP, "help"):
        return overview(HELP_ALL in args) if {*args} <= {*HELP, "help"} else dispatch([args[1], "--help"])
    if args[0] in ("--version", "-V", "version"):
        return version(args[1:])
    known = commands()
    if (both := "-".join(args[:2])) in known and args[0] in known:  # `doctor api` is commands/doctor_api.py
        return invoke(both, args[2:])
    name = args[0].replace("_", "-")
    if name not in known:
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"no {kind} {args[0]!r}{nearest(name, known)} (see `satchel --help`)")
    return invoke(name, args[1:])


def version(rest: Sequence[str]) -> int:
    """Prints the version; with --json also what this Satchel was made of and what it can compute with."""
    if rest and list(rest) != ["--json"]:
        raise UsageError(f"--version: expected nothing or --json after it, got {' '.join(rest)!r}")
    if rest:
        from satchel.cli.version import text

        print(text())
    else:
        from importlib import metadata

        print(f"satchel {metadata.version('satchel')}")
    return DONE


def commands() -> dict[str, Path]:
    """The commands' files by name. Nothing is imported."""
    folder = Path(__file__).parent / "commands"
    stems = sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))
    return {stem.replace("_", "-"): folder / f"{stem}.py" for stem in stems}


def summary(path: Path) -> str:
    """The first line of the docstring of a command's function, read from its source."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == path.stem:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def overview(everything: bool = False) -> int:
    """Prints the common commands, or all of them. Their options are in each command's --help."""
    from satchel.cli.overview import page

    print(page({name: summary(path) for name, path in commands().items()}, everything))
    return DONE


def invoke(name: str, args: list[str]) -> int:
    """Imports the command's module and runs its function, which may return an exit code, on the arguments."""
    import typer

    from satchel.cli.llama_cpp.arguments import RunInstead

    command = parsed(name)
    options, offered = declared(command), parameters(command)
    try:
        given = spelled(name, args, options, offered)
        command.everything = HELP_ALL in given
        result = command.main(
            given, f"satchel {name}", standalone_mode=False, default_map=configured(name, command)
        )
    except RunInstead as other:
        return dispatch(list(other.command))
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except (typer.TyperException, UsageError) as error:
        option = getattr(error, "option_name", "")
        text = unknown(option, offered) if option and option not in options else wording(error)
        begun = (
            text if text[:2].isupper() else text[:1].lower() + text[1:]
        )  # MODEL is the name of an argument
        raise UsageError(f"{begun} (see `satchel {name} --help`)") from error
    return result if isinstance(result, int) else DONE


def declared(command: Any) -> dict[str, bool]:
    """The spellings of a command's options, and whether each takes a value."""
    options = dict.fromkeys(HELP, False)
    for param in command.params:
        names = [o for o in (*param.opts, *param.secondary_opts) if o[0] == "-"]
        options |= dict.fromkeys(names, not getattr(param, "is_flag", False))
    return options


def parameters(command: Any) -> dict[str, str]:
    """The names of a command's parameters, by each spelling of their options."""
    return {o: p.name or "" for p in command.params for o in (*p.opts, *p.secondary_opts)}


@cache
def parsed(name: str) -> Any:
    """The click command that typer builds, with all environment variables of its options."""
    import typer
    from typer.main import get_command

    from satchel.cli.manual import HelpCommand

    stem = name.replace("-", "_")
    function = getattr(importlib.import_module(f"satchel.cli.commands.{stem}"), stem)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=HelpCommand, context_settings={"help_option_names": list(HELP)})(function)
    command = cast(HelpCommand, get_command(app))
    command.sections = getattr(function, "sections", {})
    for param in command.params:
        param.envvar = variables(param.envvar)
    return command


def configured(name: str, command: Any) -> dict[str, Any]:
    """The configuration file's values of the command's parameters."""
    from satchel.cli.config import defaults

    return defaults(name, long_names(command), commands())


def long_names(command: Any) -> dict[str, str]:
    """A command's parameters by long option name."""
    listed = [(o, p.name) for p in command.params for o in p.opts]
    return {option.removeprefix("--"): name for option, name in listed if option.startswith("--")}


def wording(error: Exception) -> str:
    """typer's message for wrong use, without the aliases and environment variables of the option."""
    param, message = getattr(error, "param", None), expectation(error) or getattr(error, "message", "")
    if param is not None and message:
        names = [o for o in param.opts if o[0] == "-"]
        return f"{names[0] if names else param.human_readable_name}: {message.rstrip('.')}"
    formatted = getattr(error, "format_message", None)
    return (formatted() if formatted else str(error)).rstrip(".")


def expectation(error: Exception) -> str:
    """What an option expects of its value, and what it got; "" where the error is not typer's validation."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return ""
    first = details()[0]
    kind, limits = first["type"], first.get("ctx", {})
    numbers = {"greater_than_equal": ("ge", "or more"), "less_than_equal": ("le", "or less")}
    if kind in numbers:
        limit, side = numbers[kind]
        wanted = f"{limits[limit]} {side}"
    else:
        wanted = EXPECTED.get(kind.partition("_")[0], "")
    return f"expected {wanted}, got {first['input']!r:.60}" if wanted else ""


def spelled(
    command: str, args: Iterable[str], options: Mapping[str, bool], offered: Mapping[str, str]
) -> list[str]:
    """The arguments with options spelled as declared: `_` becomes `-`, and letters after one dash are one
    name. Options of llama.cpp that the command does not declare are taken out or refused (cli/llama_cpp).

    options: by name, whether it takes a value. `-ngl 99`, `-n5` and `--top_k=4` are options; `-nlg 99` is an
    error, never read as `-n lg`. offered: parameter names of the options that an error may suggest.
    """
    from satchel.cli.llama_cpp.arguments import is_known, take

    out: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            return [*out, arg, *rest]
        name, equals, value = arg.partition("=")
        if arg.startswith("--"):
            name = name.replace("_", "-")
        if arg.startswith("-") and name not in options and is_known(name, options):
            take(command, name, equals, rest)
            continue
        if re.match(r"-[A-Za-z][^\d.-]", arg) and name not in options:
            raise UsageError(unknown(name, offered))
        out.append(name + equals + value)
        if options.get(name) and not equals:
            out.extend(rest[:1])
            del rest[:1]
    return out


def variables(declared: str | Sequence[str] | None) -> list[str] | None:
    """The environment variables of an option: SATCHEL_X goes before each LLAMA_ARG_X that it declares."""
    names = [declared] if isinstance(declared, str) else list(declared or ())
    own = [n.replace("LLAMA_ARG_", "SATCHEL_", 1) for n in names if n.startswith("LLAMA_ARG_")]
    return [*own, *names] or None


def unknown(name: str, offered: Mapping[str, str]) -> str:
    """The error for an undeclared option. offered: parameter names of the command's options. An option whose
    parameter has the name in the library, as `-n` has max_tokens, is meant by it.
    """
    meant = bare(name).replace("-", "_")
    flag = next((o for o, p in offered.items() if p.endswith(f"_{meant}") and len(meant) > 2), "")
    return f"no such option: {name}" + (f"; did you mean {flag}?" if flag else nearest(name, offered))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where a known name is similar without its dashes and `no-`."""
    names: dict[str, list[str]] = {}
    for one in known:
        names.setdefault(bare(one), []).append(one)
    found = closest(bare(name), names)
    return f"; {did_you_mean(name, names[found], least=0.0)}" if found else ""


def bare(option: str) -> str:
    """The name of an option without its dashes and `no-`."""
    return option.lstrip("-").removeprefix("no-")


def _take(args: list[str], flag: str) -> bool:
    """Removes the flag from the arguments before `--`; returns whether it was there."""
    before = args[: args.index("--")] if "--" in args else args
    if flag not in before:
        return False
    args.remove(flag)
    return True


def _take_value(args: list[str], flag: str) -> str | None:
    """Removes the flag and its value from the arguments; returns the value."""
    before = args[: args.index("--")] if "--" in args else args
    for at, arg in enumerate(before):
        name, equals, value = arg.partition("=")
        if name == flag and equals:
            del args[at]
            return value
        if name == flag:
            if at + 1 == len(before):
                raise UsageError(f"{flag}: a file is missing")
            del args[at]
            return args.pop(at)
    return None


def report(error: BaseException) -> int:
    """Prints one line to stderr for the exception, and returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # typer turns a broken pipe into an exit with the wrong code.
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if isinstance(cause, BrokenPipeError):
        # Python flushes stdout again at exit, where it must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    print(f"satchel: error: {describe(error)}", file=sys.stderr)
    return USAGE if isinstance(error, UsageError) else FAILED


def describe(error: BaseException) -> str:
    """The line for an exception. One that is neither the user's fault nor the machine's is
    reported as a bug.
    """
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory; a smaller model or context (-c) needs less"
    from satchel.errors import SatchelError

    if isinstance(error, SatchelError):
        return " ".join(str(error).split("\n"))
    return f"internal error: {type(error).__name__}: {error}; this is a bug, --debug shows where it stands"
