"""A thread that the system refuses is one error; other errors pass through unchanged."""

import subprocess
import sys
import threading

import pytest

from satchel.errors import DeviceError
from satchel.errors.threads import SafeThreadPool, begin

REFUSED, MISUSED = "can't start new thread", "threads can only be started once"


@pytest.mark.parametrize(("text", "kind"), [(REFUSED, DeviceError), (MISUSED, RuntimeError)])
def test_a_thread_that_does_not_begin(
    text: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, start = threading.get_ident(), threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if threading.get_ident() == here:  # servers of other tests run on
            raise RuntimeError(text)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(kind, match="ulimit -u" if kind is DeviceError else text):
        begin(threading.Thread(target=print))
    with pytest.raises(kind), SafeThreadPool(1) as pool:
        pool.submit(print)


NEARLY_FULL = """
import resource, sys, threading
from pathlib import Path
from satchel.errors import DeviceError
from satchel.errors.threads import SafeThreadPool, begin
pool = SafeThreadPool(1)
data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
limit = data + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for start in (lambda: begin(threading.Thread(target=int)), lambda: pool.submit(int)):
    try:
        start()
        print("begun")
    except DeviceError:
        print("refused")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and limits data as Linux does")
@pytest.mark.parametrize(("room", "said"), [(9 << 20, "refused"), (64 << 20, "begun")])
def test_a_thread_begins_only_where_its_memory_is(room: int, said: str) -> None:
    """With room for a stack and little more Python's start() would wait for ever."""
    command = [sys.executable, "-c", NEARLY_FULL, str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.returncode) == ([said, said], 0), done.stderr
