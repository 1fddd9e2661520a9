"""Hooks of PyInstaller for programs that use Satchel: what they need that no import statement names.

PyInstaller finds this folder through the entry point `pyinstaller40` of pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """The folders with hooks, as PyInstaller asks for them."""
    return [str(Path(__file__).parent)]
