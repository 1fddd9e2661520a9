"""Text files attached to a message by /file, or by @FILE in it."""

from __future__ import annotations

import glob
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError

LARGEST = 1 << 20  # bytes per file
MOST = 64  # files per pattern
MENTION = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|'([^'\n]+)'|(\S+))""")
# A path, or a name with a short suffix.
FILE_LIKE = re.compile(r"~?[\w./+-]*/[\w./+-]+|[\w.+-]*\w\.[A-Za-z][A-Za-z0-9]{0,4}")
AFTER = ".,;:!?)]}'\""  # punctuation that may follow a file name


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file's name and content."""

    name: str
    text: str

    def block(self) -> str:
        """The name, and the text in a code fence longer than any fence in the text."""
        longest = max((len(run) for run in re.findall(r"`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{self.name}:\n{fence}\n{self.text}\n{fence}"


def attached(path: Path) -> Attachment:
    """Reads a file. RequestError where it is not a regular file, too large, empty or not text."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise RequestError(f"{path}: is a folder; /glob {path}/* attaches the files in it")
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{path}: expected a file, got something else")
        if status.st_size > LARGEST:
            raise RequestError(f"{path}: {status.st_size:,} bytes are too many: at most {LARGEST:,} fit")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return Attachment(str(path), _text(path, data))


def _text(path: Path, data: bytes) -> str:
    if b"\0" in data:
        raise RequestError(f"{path}: is a binary file; only text can be attached")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at {error.start}"
        raise RequestError(f"{path}: expected UTF-8 text, got {byte}; only text can be attached") from None
    if not text.strip():
        raise RequestError(f"{path}: there is no text in it")
    return text


def mentioned(text: str) -> tuple[list[Attachment], list[str]]:
    """The files that a message names by @FILE, and the names of missing files.

    A word after @ is a missing file if it is quoted, or looks like a path or a file's name. At the start of a
    line of several it is not: code has decorators there.
    """
    found: dict[Path, Attachment] = {}
    missing: list[str] = []
    for match in MENTION.finditer(text):
        quoted, word = match[1] or match[2], match[3] or ""
        path = _file_of(quoted or word, exact=bool(quoted))
        if path is not None:
            found.setdefault(path, attached(path))
        elif quoted or (FILE_LIKE.fullmatch(word.rstrip(AFTER)) and not _begins_line(text, match.start())):
            missing.append(quoted or word.rstrip(AFTER))
    return list(found.values()), missing


def _begins_line(text: str, at: int) -> bool:
    """Whether only spaces stand before this character in its line, of a text of several lines."""
    return "\n" in text and not text[:at].rpartition("\n")[2].strip()


def _file_of(name: str, exact: bool) -> Path | None:
    """The file of this name; unless `exact`, also without trailing punctuation."""
    tries = [name] if exact else [name, name.rstrip(AFTER)]
    for text in tries:
        path = Path(text).expanduser() if text else None
        try:
            if path is not None and path.exists():
                return path
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def with_files(text: str, files: list[Attachment]) -> str:
    """The message with its files in front of it."""
    return "\n\n".join([*(one.block() for one in files), text])


def matches(pattern: str) -> list[Path]:
    """The files that match a pattern, sorted by name."""
    whole = str(Path(pattern).expanduser())
    found = sorted(Path(p) for p in glob.iglob(whole, recursive=True))  # noqa: PTH207
    files = [path for path in found if path.is_file()]
    if not files:
        raise RequestError(f"{pattern}: matches no file")
    if len(files) > MOST:
        raise RequestError(f"{pattern}: matches {len(files):,} files, at most {MOST} can be attached")
    return files
