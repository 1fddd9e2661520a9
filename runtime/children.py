"""Starts other programs; the only place that does.

Invariant: nothing runs, is imported or is loaded because it lies in the current folder. A child Python starts
with `-P`; its module path is this process's without the current folder and the script's folder; PYTHON*
variables that name modules or relative folders are dropped. A program name without a slash is searched in the
absolute folders of PATH alone, and no child gets a relative folder in a list of folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from satchel.errors import DeviceError

# Variables with lists of folders, which the loader, the shell, compilers and Python read. In most of them an
# empty entry is the current folder.
FOLDER_LISTS = frozenset(
    {
        "PATH",
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "DYLD_FALLBACK_LIBRARY_PATH",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "COMPILER_PATH",
    }
)
LIBRARY_LISTS = frozenset({"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"})
# Variables of Python that a child Python keeps: switches, and folders where they are absolute. All others
# stay behind: PYTHONPATH (the path is given explicitly), PYTHONWARNINGS and PYTHONBREAKPOINT (they import
# modules), PYTHONINSPECT and PYTHONSTARTUP.
SWITCHES = frozenset(
    {
        "PYTHONCOERCECLOCALE",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED",
        "PYTHONINTMAXSTRDIGITS",
        "PYTHONIOENCODING",
        "PYTHONMALLOC",
        "PYTHONNOUSERSITE",
        "PYTHONOPTIMIZE",
        "PYTHONUNBUFFERED",
        "PYTHONUTF8",
        "PYTHON_GIL",
    }
)
FOLDERS = frozenset({"PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"})
# Satchel and the libraries that it computes with: their folders must stay on the module path.
NEEDED = (
    "satchel",
    "numpy",
    "numba",
    "llvmlite",
    "cffi",
    "_cffi_backend",
    "llguidance",
    "tokenizers",
    "jinja2",
)

Child: TypeAlias = "subprocess.Popen[bytes]"  # a program that start() began

# First argument of a frozen program that is to run code as `python -c` does.
AS_PYTHON = "--as-python"
_programs: set[str] = set()  # the frozen program, where it does that


def run_as_python(arguments: Sequence[str]) -> bool:
    """Lets a frozen program, beside which there is no Python, start itself for code: the program calls this
    first, with its arguments. Runs the code and returns True where that is what it was started for.
    """
    _programs.add(sys.executable)
    if list(arguments[:2]) != [AS_PYTHON, "-c"]:
        return False
    code, sys.argv = arguments[2], ["-c", *arguments[3:]]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return True


def interpreter() -> list[str]:
    """Command that starts a Python like this one, without the command's own folder on the module path."""
    if sys.executable in _programs:
        return [sys.executable, AS_PYTHON]
    if getattr(sys, "frozen", False):  # sys.executable is the program itself
        raise DeviceError(
            "worker='process' needs Python, and a frozen program has none: take worker='thread'"
        )
    if not sys.executable:
        raise DeviceError("worker='process' needs to know where Python is, and sys.executable is empty")
    flags = {
        "-I": sys.flags.isolated,
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
        "-S": sys.flags.no_site,
        "-B": sys.flags.dont_write_bytecode,
    }
    return [sys.executable, "-P", *(flag for flag, on in flags.items() if on)]


def module_path() -> list[str]:
    """sys.path for a child: absolute, without what Python added for the current folder or the script's. If
    Satchel or one of its libraries came from such a folder, it goes to the end.
    """
    own = {Path(folder).resolve() for folder in _own_folders()}
    installed = [Path(p).resolve() for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    kept, late = list[str](), list[str]()
    for entry in (p or _here() for p in sys.path if isinstance(p, str)):
        if not Path(entry).is_absolute():
            continue
        folder = Path(entry).resolve()
        if folder not in own or any(p in folder.parents for p in installed):
            kept.append(entry)
        elif any(came_from(name, folder) for name in NEEDED):
            late.append(entry)
    return list(dict.fromkeys([*kept, *late]))


def _own_folders() -> Iterator[Path]:
    """Folders that Python itself puts on the module path."""
    if sys.argv and sys.argv[0] and Path(sys.argv[0]).exists():
        yield Path(sys.argv[0]).resolve().parent
    if here := _here():
        yield Path(here)


def _here() -> str:
    """The current folder; "" if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def came_from(module: str, folder: Path) -> bool:
    """Whether this module, if it was imported, was found in this entry of the module path."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str):
        return False
    path = Path(file).resolve()
    return folder == (path.parent.parent if path.stem == "__init__" else path.parent)


def environment(given: Mapping[str, str] | None = None, *, isolated: bool = False) -> dict[str, str]:
    """Environment of a child, from this process's variables or the given ones. isolated: the child is a
    Python that gets its module path explicitly.
    """
    found: dict[str, str] = {}
    for name, value in (os.environ if given is None else given).items():
        if isolated and name.startswith("PYTHON"):
            kept = value if name in SWITCHES or (name in FOLDERS and Path(value).is_absolute()) else ""
        elif name in FOLDER_LISTS:
            kept = os.pathsep.join(_absolute(value))
        elif name in LIBRARY_LISTS:
            entries = value.replace(":", " ").split()
            kept = " ".join(e for e in entries if Path(e).is_absolute() or "/" not in e)
        else:
            found[name] = value
            continue
        if kept:
            found[name] = kept
    return found


def _absolute(folders: str) -> Iterable[str]:
    return (folder for folder in folders.split(os.pathsep) if Path(folder).is_absolute())


def find_program(name: str) -> str | None:
    """Path of a program: a name with a slash as it is, any other from the absolute folders of PATH; None if
    not found.
    """
    if Path(name).name != name:
        return name if _runs(Path(name)) else None
    endings = os.environ.get("PATHEXT", "").split(os.pathsep) if sys.platform == "win32" else [""]
    folders = _absolute(os.environ.get("PATH", os.defpath))
    paths = (Path(folder, name + ending) for folder in folders for ending in endings)
    return next((str(path) for path in paths if _runs(path)), None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _command(command: Sequence[str]) -> list[str]:
    found = find_program(command[0])
    if found is None:
        raise FileNotFoundError(2, "there is no such program", command[0])
    return [found, *command[1:]]


def start(command: Sequence[str], *, isolated: bool, **how: Any) -> subprocess.Popen[bytes]:
    """Starts a program. isolated: it is interpreter()'s, and gets module_path() explicitly. how: arguments of
    Popen. Raises OSError if it cannot start.
    """
    return subprocess.Popen(_command(command), env=environment(isolated=isolated), **how)


def run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a program to its end. how: arguments of subprocess.run. Raises OSError if it cannot start."""
    return subprocess.run(_command(command), env=environment(), **how)
