"""No verdict of a test depends on time: tests wait for events or poll conditions through support/waiting.py.
Every sleep, clock and short bound is listed here with its reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LONG = 60.0  # seconds: a bound that only a hang can reach
SLEEPS = {"sleep", "Timer", "nanosleep", "setitimer"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
BOUNDED = {"wait", "join", "result", "wait_for", "settimeout", "alarm", "set_default_timeout"}

# The allowed places: (file, the called function or name) -> why no verdict depends on it.
ALLOWED = {
    ("support/waiting.py", "sleep"): "the polling helper",
    ("support/waiting.py", "monotonic"): "its bound",
    ("support/crashing_child.py", "sleep"): "a simulated delay: steps of a worker take their time",
    ("soak.py", "sleep"): "simulated users pause",
    ("cli/test_deploy_front.py", "wait"): "pauses between looks; what they saw is judged at the end",
    ("runtime/ray/test_ray_cluster.py", "wait"): "a simulated client pauses between its requests",
    ("soak.py", "monotonic"): "how long users stay; what must have happened is counted",
    ("soak.py", "time"): "the seed of a soak by hand",
    ("runtime/api/test_library_face.py", "timeout"): "a deadline that passes while the request is made",
    ("formats/tokenizer/test_tokenizer_any_text.py", "thread_time"): "a thread's own time, until it fits",
    ("stressed.py", "monotonic"): "a figure of its report",
    ("fuzz/nightly.py", "process_time"): "a figure of the nightly fuzzing",
    ("faults/points.py", "monotonic"): "the bound of a hang, which is what is looked for",
    ("support/crashing_child.py", "time_ns"): "the age of a file, not a duration",
    ("support/house.py", "monotonic"): "the clock of deadlines, which the test moves on",
    ("support/loop_budget.py", "thread_time"): "the loop thread's own time, whatever else the machine does",
    ("support/loop_budget.py", "perf_counter"): "a figure that is judged by night alone",
    ("support/loop_budget.py", "wait"): "a pause between two looks",
    ("runtime/net/test_net_link.py", "wait"): "a pause between two bytes of a slow peer",
    ("store/test_store_download.py", "timeout"): "a client's patience with a server that stays silent",
}


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def number(node: ast.expr | None) -> float | None:
    """A literal number."""
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def timed(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each sleep, clock and short bound in a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio", "threading"):
            yield from ((node.lineno, a.name) for a in node.names if a.name in SLEEPS | CLOCKS)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "sleep(" in node.value:
            yield node.lineno, "text"
        elif isinstance(node, ast.Call):
            yield from timed_call(node)
        elif isinstance(node, ast.Attribute) and name_of(node.value) == "time" and node.attr in CLOCKS:
            yield node.lineno, node.attr


def timed_call(node: ast.Call) -> Iterator[tuple[int, str]]:
    called = name_of(node.func)
    given = [number(a) for a in (*node.args, *(k.value for k in node.keywords))]
    if called in SLEEPS and given != [0.0]:  # asyncio.sleep(0) only yields to other tasks
        yield node.lineno, called
    if called in BOUNDED and any(n is not None and 0 < n < LONG for n in given):
        yield node.lineno, called
    if called == "setattr" and sets_clock(node):
        yield node.lineno, "every thread's clock"
    for keyword in node.keywords:
        value = number(keyword.value)
        if keyword.arg == "timeout" and value is not None and 0 < value < LONG and called not in BOUNDED:
            yield node.lineno, "timeout"


def sets_clock(node: ast.Call) -> bool:
    """Whether a call of setattr() replaces a function of the module `time`, which is every thread's: the loop
    of another test's server would sleep for hours by it.
    """
    target = ast.unparse(node.args[0]).strip("f'\"") if node.args else ""
    *path, last = target.split(".")
    named = any(isinstance(a, ast.Constant) and a.value in CLOCKS for a in node.args[1:2])
    return path[-1:] == ["time"] or (last == "time" and named)


def test_no_test_depends_on_time() -> None:
    """A finding needs support/waiting.py, or a line in ALLOWED where no verdict depends on it."""
    found: dict[tuple[str, str], list[int]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        if path != Path(__file__):
            where = path.relative_to(ROOT).as_posix()
            for line, what in timed(path.read_text(encoding="utf-8")):
                found.setdefault((where, what), []).append(line)
    assert {place: lines for place, lines in found.items() if place not in ALLOWED} == {}
    assert set(ALLOWED) - set(found) == set(), "what is allowed and not there any more goes out of the list"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time\ntime.sleep(0.1)", "sleep"),
        ("from time import sleep", "sleep"),
        ("async def f():\n    await asyncio.sleep(0.1)", "sleep"),
        ("threading.Timer(0.05, f).start()", "Timer"),
        ("began = time.monotonic()", "monotonic"),
        ("clock = time.perf_counter", "perf_counter"),
        ("process.wait(20)", "wait"),
        ("process.wait(timeout=20)", "wait"),
        ("thread.join(5)", "join"),
        ("get(url, timeout=10)", "timeout"),
        ("asyncio.wait_for(f(), 0.5)", "wait_for"),
        ("run('import time; time.sleep(3)')", "text"),
        ("patch.setattr(progress.time, 'monotonic', f)", "every thread's clock"),
        ("patch.setattr('satchel.cli.progress.time.monotonic', f)", "every thread's clock"),
        ("patch.setattr(f'time.{name}', f)", "every thread's clock"),
    ],
)
def test_what_depends_on_time_is_seen(source: str, what: str) -> None:
    assert [found for _, found in timed(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.sleep(0)",
        "get(url, timeout=SECONDS)",
        "get(url, timeout=60)",
        "' '.join(words)",
        "t.join()",
        "patch.setattr(progress, 'time', SimpleNamespace(monotonic=f))",
    ],
)
def test_what_does_not_is_left_alone(source: str) -> None:
    assert list(timed(source)) == []
