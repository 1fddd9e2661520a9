"""Drives the desktop program of examples/ as a user would. Arguments: the folder of examples, a model.

It prints the answer and its token rate. It runs in a process of its own, because Tk aborts a process in which
a thread other than Tk's collects a closed window as garbage.
"""

from __future__ import annotations

import sys

from waiting import until

sys.path.insert(0, sys.argv[1])

from window import Window


def main() -> None:
    window = Window(sys.argv[2])

    def said() -> str:
        window.update()
        return str(window.said.get("1.0", "end"))

    until(lambda: "is ready" in said(), "the model is ready")
    window.entry.insert(0, "Who are you?")
    window.send()
    until(lambda: "tokens a second" in said(), "the answer")
    print(said().partition("Who are you?\n")[2], end="")
    window.leave()


main()
