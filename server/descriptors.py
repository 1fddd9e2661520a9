"""File descriptors of the server's process: the soft limit is raised at the start, and the number of
connections stays below it, so that models, worker pipes and pulls always find descriptors.
"""

from __future__ import annotations

import sys
from pathlib import Path

from satchel.errors import RequestError
from satchel.server.log import LOG

if sys.platform != "win32":
    import resource

ENOUGH = 1 << 16  # the soft limit is raised no further: some programs walk over all descriptors
SUNDRY = 32  # pulls, saved states, logs, traces
EACH_MODEL = 8  # its file, and the pipes of its worker process
FEWEST = 4  # connections with which a server makes sense


def raised_limit() -> int | None:
    """The soft limit of open files after it was raised as far as the hard limit allows; None: no limit."""
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:  # macOS refuses more than its kernel's limit
        LOG.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return wanted


def in_use() -> int:
    """Descriptors that are open now."""
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        if folder.is_dir():
            return sum(1 for _ in folder.iterdir())
    return SUNDRY


def connections_below(limit: int | None, wanted: int, kept: int, models: int) -> int:
    """How many connections of the `wanted` fit below `limit` descriptors beside those in use, `kept` ones for
    health probes, and those of `models` models and pulls. RequestError where almost none do.
    """
    if limit is None:
        return wanted
    others = min(SUNDRY + EACH_MODEL * models, limit // 2)
    most = limit - in_use() - others - kept
    if most < min(wanted, FEWEST):
        raise RequestError(
            f"the limit of open files is {limit}, which leaves no room for connections: "
            f"raise it to {limit + FEWEST - most} or more with `ulimit -n`"
        )
    if most < wanted:
        LOG.warning(
            "at most %d connections, not %d: the limit of open files is %d (raise it with `ulimit -n`)",
            most, wanted, limit,
        )  # fmt: skip
    return min(wanted, most)
