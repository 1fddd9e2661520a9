"""Base class of open files, devices, models and replies: they have close() and stand in `with` statements."""

from __future__ import annotations

from typing import Self


class Resource:
    """close() is called at the end of the `with` statement, also after an exception."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
