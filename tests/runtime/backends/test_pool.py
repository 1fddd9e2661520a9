"""The CPU backend's threads: the same results for any number of them, none busy when idle, none in a forked
child, no more than the process may use.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from waiting import until

from satchel.errors import DeviceError
from satchel.runtime.device.device import (
    Device,
)
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache

CACHE = Cache(context=tiny.CONTEXT, slots=4, block=16)
IDS = [int(i) for i in np.random.default_rng(11).integers(0, tiny.VOCAB, 45)]
CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

pytestmark = needs("cpu")


def open_cpu(threads: int, threads_decode: int = 0) -> Device:
    return find_backend("cpu").open(threads=threads, threads_decode=threads_decode)


def open_engine(device: Device, format: str = "q8_0") -> Engine:
    return tiny.engine("qwen3", tiny.weights("qwen3", format), CACHE, device)


def logits(threads: int, threads_decode: int, format: str) -> Array:
    """Of a prompt of more tokens than a step of decoding has, and of three single tokens after it."""
    engine = open_engine(open_cpu(threads, threads_decode), format)
    parts = [engine.logits([BatchEntry(0, ids)]) for ids in (IDS, IDS[:1], IDS[1:2], IDS[2:3])]
    engine.close()
    return np.concatenate(parts)


def in_child(script: str) -> str:
    """The output of a script in a process of its own."""
    paths = [p for p in sys.path if p]
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(tiny.__file__).parent), *paths])},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("format", ["f32", "q4_k"])
def test_results_do_not_depend_on_the_number_of_threads(format: str) -> None:
    one = logits(1, 1, format)
    for threads, decode in ((2, 2), (4, 4), (1, 3), (3, 1)):
        np.testing.assert_array_equal(logits(threads, decode, format), one)


def at_work() -> dict[str, tuple[str, str]]:
    """State, run time and number of runs of each other thread of this process."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            if int(task.name) != threading.get_native_id():
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                found[task.name] = (state, (task / "schedstat").read_text())
    return found


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads /proc/self/task/*/schedstat")
def test_idle_threads_take_no_time() -> None:
    """They sleep: between two looks no thread has run; a spinning or yielding one always has."""
    before = set(at_work())
    engine = open_engine(open_cpu(4))
    engine.logits([BatchEntry(0, IDS)])
    seen: list[dict[str, tuple[str, str]]] = []

    def still() -> bool:
        own = {name: found for name, found in at_work().items() if name not in before}
        seen.append(own)
        asleep = all(state == "S" for state, _ in own.values())
        return asleep and len(seen) > 5 and all(earlier == own for earlier in seen[-5:])

    until(still, lambda: f"the threads sleep; they did {seen[-2:]}")
    assert len(seen[-1]) >= 3, "threads of its own"
    assert engine.logits([BatchEntry(1, IDS)]).shape[0] == len(IDS)  # and they wake again
    engine.close()


@pytest.mark.parametrize("threads, decode", [(-1, 0), (0, -1), (5000, 0), (1, 5000)])
def test_impossible_counts_are_refused(threads: int, decode: int) -> None:
    with pytest.raises(DeviceError, match=r"threads(_decode)? is -?\d+: it must lie between 1 and 1024"):
        open_cpu(threads, decode)


def test_info_tells_the_threads_of_a_prompt() -> None:
    with open_cpu(2, 3) as device:
        assert device.info().threads == 2


FORK = """
import os, signal, sys, tiny
from satchel.errors import DeviceError
from satchel.runtime.layers.arch import Cache
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
cache = Cache(context=tiny.CONTEXT, slots=4, block=16)
weights = tiny.weights("qwen3", "q8_0")
open_engine = lambda: tiny.engine("qwen3", weights, cache, find_backend("cpu").open(threads=3))
engine = open_engine()
wanted = engine.logits([BatchEntry(0, [1, 2, 3])])
child = os.fork()
if child == 0:
    signal.alarm(120)  # what hangs ends with a signal
    try:
        engine.logits([BatchEntry(1, [1, 2, 3])])
        os._exit(3)
    except DeviceError as error:
        print(error, flush=True)
    engine.close()
    own = open_engine()
    same = (own.logits([BatchEntry(0, [1, 2, 3])]) == wanted).all()
    own.close()
    os._exit(0 if same else 4)
_, status = os.waitpid(child, 0)
assert (engine.logits([BatchEntry(2, [1, 2, 3])]) == wanted).all()
engine.close()
print("status", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told_and_may_open_its_own() -> None:
    out = in_child(FORK)
    assert "forked" in out and "open a device in the child" in out
    assert out.endswith("status 0\n")


AFFINITY = """
import os
from satchel.runtime.device.libraries import find_backend
os.sched_setaffinity(0, {cpus})
with find_backend("cpu").open() as device:
    print(device.info().threads)
"""


@pytest.mark.skipif(not CPUS, reason="this system has no affinity masks")
@pytest.mark.parametrize("count", [1, 2])
def test_the_affinity_mask_bounds_the_threads(count: int) -> None:
    if len(CPUS) < count:
        pytest.skip(f"needs {count} CPUs")
    cpus = sorted(CPUS)[:count]
    assert int(in_child(AFFINITY.format(cpus=set(cpus)))) <= count
    assert int(in_child(AFFINITY.format(cpus={cpus[0]}))) == 1
