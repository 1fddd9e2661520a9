"""`satchel worker`: the full engine for a C program, whose libsatchel starts it (docs/apps.md)."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

STANDARD_IN, STANDARD_OUT, STANDARD_ERROR = 0, 1, 2
MOST_TIMEOUT = 1_000_000  # seconds


def worker(
    device: Annotated[
        str, typer.Option("-dev", "--device", metavar="DEVICE", help="Device that computes.")
    ] = "cpu",
    worker_timeout: Annotated[
        float,
        typer.Option(
            "--worker-timeout",
            metavar="SECONDS",
            min=0,
            max=MOST_TIMEOUT,
            help="Silence within a call after which the program ends this process; 0: never.",
        ),
    ] = 60.0,
) -> None:
    """Answer the calls of a program that has libsatchel, which starts this by itself.

    It reads calls from the standard input and answers to the standard output, until the program ends. The
    option worker of satchel_model_options names another program, such as a script that runs this one with
    options.

    Examples:
        satchel worker --device cpu
    """
    from satchel.errors import RequestError
    from satchel.runtime.app_worker.calls import AppSession
    from satchel.runtime.app_worker.serve import serve

    if sys.stdin.isatty():
        raise RequestError("satchel worker: expected calls of libsatchel, got a terminal: see docs/apps.md")
    # What a library prints must not come between the answers.
    calls = os.fdopen(os.dup(STANDARD_IN), "rb")
    answers = os.fdopen(os.dup(STANDARD_OUT), "wb")
    os.dup2(STANDARD_ERROR, STANDARD_OUT)
    session = AppSession(device)
    try:
        serve(session, calls, answers, worker_timeout)
    except BrokenPipeError:
        pass  # the program has ended
    finally:
        session.close()
