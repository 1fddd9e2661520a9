"""File descriptor limits: the server raises its soft limit at start, and limits its connections so that
descriptors remain for models, worker pipes and pulls.
"""

from __future__ import annotations

import sys
from pathlib import Path

from satchel.errors import RequestError
from satchel.server.log import LOG

if sys.platform != "win32":
    import resource

ENOUGH = 1 << 16  # the highest soft limit to set: some programs loop over all descriptors up to the limit
SUNDRY = 32  # descriptors for pulls, saved states, logs and traces
EACH_MODEL = 8  # descriptors per model: its file, and the pipes of its worker process
FEWEST = 4  # the fewest connections with which the server starts


def raised_limit() -> int | None:
    """Raises the soft limit of open files towards the hard limit, and returns it; None: no limit."""
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
    """The number of open descriptors of this process."""
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        if folder.is_dir():
            return sum(1 for _ in folder.iterdir())
    return SUNDRY


def connections_below(limit: int | None, wanted: int, kept: int, models: int) -> int:
    """The number of connections, at most `wanted`, that fit below `limit` descriptors.

    Subtracted are the descriptors in use, `kept` ones for health probes, and those of `models` models and of
    pulls. RequestError where fewer than FEWEST remain.
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
