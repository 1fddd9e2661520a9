"""Writes a bundle: a file for Linux and Windows, an app folder for macOS.

A program of macOS that has bytes behind its own cannot be signed, and an Arm Mac runs nothing unsigned. So
there the program stays as it is, and the model lies in the app's Resources.
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from satchel.cli.bundles.footer import ALIGN, FOOTER, SERVE, append_model, copy
from satchel.cli.bundles.stubs import Stub
from satchel.errors import RequestError
from satchel.formats.gguf.atomic import Fill, replace_files, write_all

MOST_OF_WINDOWS = (1 << 32) - 1  # bytes of a program that Windows loads


def write_bundle(
    stub: Stub, model: Path, output: Path, serve: bool, progress: Callable[[int], None] = lambda n: None
) -> Path:
    """Writes the program with a built model; gives what was written. RequestError where the system would
    not run it, or where it cannot be written.
    """
    size = model.stat().st_size
    if stub.system == "macos":
        return _write_app(stub, model, output, serve, progress)
    if stub.system == "windows":
        _check_windows(stub, size)
        output = output if output.suffix.lower() == ".exe" else output.with_name(f"{output.name}.exe")
    if output.exists() and output.samefile(model):
        raise RequestError(f"{output}: is the model: expected another name for the program")
    flags = SERVE if serve else 0
    replace_files([(output, lambda file: append_model(file, stub.data, model, flags, progress))])
    output.chmod(0o755)
    return output


def _check_windows(stub: Stub, size: int) -> None:
    total = len(stub.data) + ALIGN + size + FOOTER.size + 8
    if total > MOST_OF_WINDOWS:
        raise RequestError(
            f"a program for Windows: expected 4 GiB at most, got {total:,} bytes: ship the program and the "
            "model as two files, and start it with --model FILE"
        )


def _write_app(stub: Stub, model: Path, output: Path, serve: bool, progress: Callable[[int], None]) -> Path:
    """NAME.app: Contents/MacOS/NAME, Contents/Resources/model.gguf, and `serve` beside it."""
    app = output if output.suffix == ".app" else output.with_name(f"{output.name}.app")
    name, contents = app.stem, app / "Contents"
    facts = {
        "CFBundleExecutable": name,
        # Letters of ASCII, digits, - and . alone.
        "CFBundleIdentifier": f"satchel.bundle.{re.sub(r'[^A-Za-z0-9.-]', '-', name)}",
        "CFBundleName": name,
        "CFBundlePackageType": "APPL",
        "CFBundleInfoDictionaryVersion": "6.0",
        "CFBundleVersion": "1",
        "LSMinimumSystemVersion": "11.0" if stub.target.startswith("aarch64") else "10.15",
    }
    try:
        (contents / "MacOS").mkdir(parents=True, exist_ok=True)
        (contents / "Resources").mkdir(exist_ok=True)
        (contents / "Resources" / "serve").unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(f"{app}: can't be written: {error.strerror}") from None
    files = [
        (contents / "Info.plist", plistlib.dumps(facts)),
        (contents / "MacOS" / name, stub.data),
        *([(contents / "Resources" / "serve", b"")] if serve else []),
    ]
    fills: list[tuple[Path, Fill]] = [(path, partial(_write, data=data)) for path, data in files]
    fills.append((contents / "Resources" / "model.gguf", partial(_copy, model, progress=progress)))
    replace_files(fills)
    (contents / "MacOS" / name).chmod(0o755)
    return app


def _write(file: IO[bytes], data: bytes) -> None:
    write_all(file, data)


def _copy(model: Path, file: IO[bytes], progress: Callable[[int], None]) -> None:
    copy(model, file, progress)
