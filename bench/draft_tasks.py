"""Examples of the tasks for which drafts are replayed: a prompt, and the answer that a model is to give.

From the repository alone:

    edit     a file before a commit, the commit's subject as request; the whole file after it as answer
    patch    the same, the change alone as answer: a unified diff
    message  the change; the commit's message as answer
    rename   a module of Python's standard library; the module with its commonest name replaced as answer
    chat     questions of docs/faq.md, section by section, each behind those before it and their answers
    write    the title of a page of the handbook; the page as answer, so that nothing is given to copy

With files of yours:

    summary  an article of a WikiText file without its lead; the lead as answer
    story    a piece of a text; what follows it as answer
    others   lines of JSON with "task", "prompt" and "answer", such as recorded requests
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from satchel.errors import RequestError

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = ("*.py", "*.c", "*.h", "*.js")
SIZES = (2_000, 14_000)  # characters of a file: it fits the context of a small model, and is no trifle
CHANGED = (6, 120)  # lines that a commit adds to a file and removes from it
ARTICLE = 12_000  # characters of an article, from its beginning
PIECE, BEGINNING = 4_000, 800  # characters of a story's piece, and those of it that are given
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{5,}")
TITLE = re.compile(r"^ = (?!=)(.+) = $", re.MULTILINE)  # of an article, not of its sections


@dataclass(frozen=True, slots=True)
class Example:
    """A request with its answer."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit made of a file."""

    commit: str
    path: str

    def read(self, root: Path, revision: str) -> str:
        return git(root, "show", f"{revision}:{self.path}")


def spread(rows: Sequence[T], count: int) -> list[T]:
    """`count` of the rows, evenly spread over all of them."""
    if len(rows) <= count:
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]


def git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError as error:
        raise RequestError("git is not installed: install it, or name --tasks without edits") from error
    if ran.returncode:
        raise RequestError(f"git {' '.join(arguments[:2])}: {ran.stderr.strip()}")
    return ran.stdout


def changes(root: Path, revision: str) -> list[Change]:
    """Files of commits up to `revision` that changed in so many lines as CHANGED says."""
    log = git(
        root, "log", "--no-merges", "--diff-filter=M", "--numstat", "--format=@%H", revision, "--", *SUFFIXES
    )
    found, commit = [], ""
    for line in log.splitlines():
        if line.startswith("@"):
            commit = line[1:]
        elif line:
            added, removed, path = line.split("\t")
            if CHANGED[0] <= int(added) + int(removed) <= CHANGED[1]:
                found.append(Change(commit, path))
    return found


def commits(root: Path, revision: str, count: int) -> Iterator[Example]:
    """The tasks edit, patch and message of `count` changes."""
    made = 0
    for change in spread(changes(root, revision), 3 * count):  # some files are too long, or too short
        old = change.read(root, f"{change.commit}^")
        if not SIZES[0] <= len(old) <= SIZES[1]:
            continue
        message = git(root, "log", "-1", "--format=%B", change.commit).strip()
        diff = git(root, "diff", f"{change.commit}^", change.commit, "--", change.path)
        asked = f"{message.splitlines()[0]}\n\n{change.path}:\n\n{old}\n\n"
        yield Example("edit", f"Change this file: {asked}", change.read(root, change.commit))
        yield Example("patch", f"Give a unified diff that changes this file: {asked}", diff)
        yield Example("message", f"Write the message of this commit:\n\n{diff}\n\n", message)
        made += 1
        if made == count:
            return


def commonest_name(text: str) -> str:
    """The name of six letters or more that stands most often in a source text; "" if there is none."""
    known = {*keyword.kwlist, *dir(builtins)}
    names = Counter(name for name in NAME.findall(text) if name not in known)
    return min(names, key=lambda name: (-names[name], name), default="")


def renames(folder: Path, count: int) -> Iterator[Example]:
    """The task rename, of modules in a folder of Python's library."""
    paths = [p for p in sorted(folder.glob("*.py")) if SIZES[0] <= p.stat().st_size <= SIZES[1]]
    for path in spread(paths, count):
        text = path.read_text(encoding="utf-8", errors="replace")
        old = commonest_name(text)
        new = f"new_{old.strip('_')}"
        if old:
            changed = re.sub(rf"\b{old}\b", new, text)
            yield Example("rename", f"Rename {old} to {new} in this module:\n\n{text}\n\n", changed)


def chats(root: Path) -> Iterator[Example]:
    """The task chat: a conversation for each section of the page of questions."""
    page = (root / "docs" / "faq.md").read_text(encoding="utf-8")
    for section in re.split(r"^## .*$", page, flags=re.MULTILINE)[1:]:
        said = ""
        for question, answer in re.findall(r"^\*\*(.+?)\*\* (.+?)$(?=\n\n|\n*\Z)", section, re.M | re.S):
            said += f"{question}\n\n"
            yield Example("chat", said, answer)
            said += f"{answer}\n\n"


def pages(root: Path) -> Iterator[Example]:
    """The task write, of the handbook's pages."""
    for path in sorted((root / "docs" / "handbook").glob("*.md")):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        yield Example("write", f"Write a page of a handbook on this: {title.strip('# ')}\n\n", text)


def given(path: Path) -> str:
    """The text of a file that was named."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"{path}: can't be read: {reason}; check the path and its permissions") from error


def articles(path: Path, count: int) -> Iterator[Example]:
    """The task summary, of a file in WikiText's format."""
    parts = TITLE.split(given(path))
    whole = [(title, text.partition("\n = = ")) for title, text in zip(parts[1::2], parts[2::2], strict=True)]
    usable = [(title, lead.strip(), body) for title, (lead, _, body) in whole if lead.strip() and body]
    for title, lead, body in spread(usable, count):
        yield Example("summary", f"Summarise this article, {title}:\n\n = = {body[:ARTICLE]}\n\n", lead)


def stories(path: Path, count: int) -> Iterator[Example]:
    """The task story, of any text."""
    text = given(path)
    pieces = [text[at : at + PIECE] for at in range(0, len(text) - PIECE, PIECE)]
    for piece in spread(pieces, count):
        yield Example("story", f"Go on with this story:\n\n{piece[:BEGINNING]}", piece[BEGINNING:])


def recorded(path: Path) -> Iterator[Example]:
    """Examples of a file of JSON lines."""
    for number, line in enumerate(given(path).splitlines(), 1):
        try:
            row = json.loads(line)
            yield Example(str(row["task"]), str(row["prompt"]), str(row["answer"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f'{path}:{number}: expected an object with "task", "prompt" and "answer"'
            ) from error


def own_examples(wanted: Collection[str], revision: str, count: int, root: Path = ROOT) -> Iterator[Example]:
    """Examples of these tasks, of those that need the repository alone; () stands for all.

    revision: where the history of commits ends.
    """
    sources: Mapping[tuple[str, ...], Callable[[], Iterator[Example]]] = {
        ("edit", "patch", "message"): lambda: commits(root, revision, count),
        ("rename",): lambda: renames(Path(sysconfig.get_path("stdlib")), count),
        ("chat",): lambda: chats(root),
        ("write",): lambda: pages(root),
    }
    for tasks, source in sources.items():
        if not wanted or not set(wanted).isdisjoint(tasks):
            yield from source()
