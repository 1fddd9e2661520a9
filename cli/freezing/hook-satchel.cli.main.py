"""PyInstaller's hook for `satchel` itself: the commands, found by their files, whose first lines are the
help, and what its processes run (a worker, the reader of PDF files, the probe of `satchel doctor`).
"""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError

from PyInstaller.utils.hooks import collect_submodules, copy_metadata

from satchel.cli.commands.doctor import PACKAGES
from satchel.cli.main import commands

STARTED = ("cli.commands", "cli.conformance", "runtime.sandbox", "runtime.worker")

hiddenimports = [module for package in STARTED for module in collect_submodules(f"satchel.{package}")]
datas = [(str(path), "satchel/cli/commands") for path in commands().values()]
for name in PACKAGES:  # `satchel doctor` tells their versions
    with suppress(PackageNotFoundError):
        datas += copy_metadata(name)
