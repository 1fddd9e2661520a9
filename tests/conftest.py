"""What tests of every folder share: their order, which of them run by night, where larger data lies, and how
long property tests search.
"""

import ctypes
import faulthandler
import functools
import gc
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from nightly import Row, rows

ROOT = Path(__file__).parent.parent
os.environ["SATCHEL_CONFIG"] = ""  # the user's own file has no say here
os.environ["SATCHEL_TUNING"] = ""  # nor what was tuned
# Servers of the tests speak plain HTTP, yet httpx reads the trusted certificates anew for each client, which
# takes 16 ms for the system's 140. One that vouches for nobody is enough.
os.environ["SSL_CERT_FILE"] = str(ROOT / "tests" / "data" / "no-authority.pem")
# Two processes run tests, and each has all cores. A second thread of OpenBLAS waits by spinning: on a busy
# machine a product of 5 by 256 by 512 takes 3.4 ms with it, and 0.04 ms without. numpy reads this when it is
# imported.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
# The backends that only tests use are not installed: they lie where `make test` built them, in the folder of
# the wheel's tag (pyproject.toml). Beside it stand other builds, such as a sanitizer's, whose libraries end a
# process that does not have its runtime.
folders = [os.environ.get("SATCHEL_BACKENDS", ""), *map(str, sorted(ROOT.glob("build/py3-*/test-backends")))]
os.environ["SATCHEL_BACKENDS"] = os.pathsep.join(f for f in folders if f)

# Jobs of a script ignore Ctrl-C, and so would all that they start: tests of Ctrl-C begin as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where a process stands that does nothing more, even one whose interpreter is locked: kill -USR1 PID.
if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)

# Times on a busy machine say nothing, and the same examples on every run are a result that can be repeated.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("nightly", deadline=None, max_examples=20_000, suppress_health_check=slow)
settings.load_profile("default")


DURATIONS = Path(__file__).parent / "durations.txt"  # lines of seconds and file; --record-durations writes it
COLLECTED = pytest.StashKey[
    list[tuple[str, bool]]
]()  # (name, by night) of each test, before any is deselected
RAN: Counter[str] = Counter()  # seconds by file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, default=None, help="shuffle files, and the tests in each")
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name} anew")
    parser.addoption("--listed", type=Path, metavar="FILE", help="only tests that --skipped wrote elsewhere")
    parser.addoption("--skipped", type=Path, metavar="FILE", help="for skipped tests and why")


def name_of(item: pytest.Item) -> str:
    """Path from this folder, and the test's name with its parameters."""
    return item.nodeid.removeprefix("tests/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what runs by night, and orders files: the longest first, so that processes which share them out
    end together; or by a seed, for tests must pass in any order.
    """
    by_file: dict[str, list[Row]] = {}
    for row in rows():
        if row.by_name:
            by_file.setdefault(row.file, []).append(row)
    for item in items:
        name = name_of(item)
        if any(row.covers(name) for row in by_file.get(name.partition("::")[0], ())):
            item.add_marker(pytest.mark.nightly)
    config.stash[COLLECTED] = [(name_of(i), i.get_closest_marker("nightly") is not None) for i in items]
    if file := config.getoption("--listed"):
        items[:] = listed(items, file)
    seed = config.getoption("--order-seed")
    if seed is not None:
        shuffle(items, seed)
        return
    lines = DURATIONS.read_text(encoding="utf-8").split("\n") if DURATIONS.exists() else []
    seconds = {file: float(took) for took, _, file in (line.partition(" ") for line in lines if line)}
    # A file that nobody has measured may be long.
    items.sort(key=lambda item: -seconds.get(name_of(item).partition("::")[0], 10.0))


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules are there to stay. A collection of garbage that looks at them takes
    some thread's time, which limits of processor time then charge to the work that the thread was at.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a file's last test, what functions of the tests have cached is dropped (models, vocabularies,
    results of definitions), and freed memory goes back to the system: glibc keeps arrays of up to 32 MiB.
    """
    if nextitem is not None and nextitem.path == item.path:
        return
    support = {p.stem for p in (ROOT / "tests" / "support").glob("*.py")} & set(sys.modules)
    assert isinstance(item, pytest.Function)
    for function in [f for m in (item.module, *map(sys.modules.get, support)) for f in vars(m).values()]:
        if callable(function) and hasattr(function, "cache_clear"):
            function.cache_clear()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Files in any order, and the classes and functions of each. Afterwards pytest itself brings together
    what shares a parametrized fixture of a module.
    """
    keys: dict[str, float] = {}
    rand = random.Random(seed)

    def key(item: pytest.Item) -> tuple[float, ...]:
        parts = name_of(item).split("::")
        names = ["::".join(parts[: n + 1]) for n in range(len(parts))]
        for name in names:
            if name not in keys:
                keys[name] = rand.random()
        return tuple(keys[name] for name in names)

    items.sort(key=key)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    RAN[report.nodeid.removeprefix("tests/").partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        rows = sorted(((round(took, 1), file) for file, took in RAN.items()), reverse=True)
        DURATIONS.write_text("".join(f"{took} {file}\n" for took, file in rows), encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, a line for each reason, before pytest tells what failed."""
    reasons = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("skipped, and why", sep="=")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:6} {reason}")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Of a skipped test, or of a file that was skipped as a whole, in one line."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.split()).removeprefix("Skipped: ")


@pytest.fixture(scope="session")
def collected(pytestconfig: pytest.Config) -> list[tuple[str, bool]]:
    """Names of all tests that were collected, those by night too, and whether each is such a one."""
    return pytestconfig.stash[COLLECTED]


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--skipped"):
        if not hasattr(config, "workerinput"):
            file.write_text("")
        if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
            config.pluginmanager.register(SkippedTests(file))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --listed, files without such a test are not imported: that takes half a minute."""
    if (file := config.getoption("--listed")) is None or not collection_path.name.startswith("test_"):
        return None
    files = {name.partition("::")[0] for name in names_in(file)}
    return collection_path.relative_to(ROOT).as_posix() not in files or None


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Names of tests and of files that --skipped wrote."""
    return frozenset(line.partition("\t")[0] for line in file.read_text(encoding="utf-8").splitlines())


def listed(items: list[pytest.Item], file: Path) -> list[pytest.Item]:
    """The tests of a file of names. A name that is not there was skipped before its parameters were known, or
    with all of its file: then every test of that function, or file, counts as named.
    """
    names = names_in(file)
    whole = {name.partition("[")[0] for name in names - {item.nodeid for item in items}}

    def is_named(item: pytest.Item) -> bool:
        name = item.nodeid
        return name in names or name.partition("[")[0] in whole or name.partition("::")[0] in whole

    return [item for item in items if is_named(item)]


class SkippedTests:
    """Appends a line for each skipped test, or file of tests: its name, a tab, the reason. Processes share
    the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\t{reason_of(report)}\n")

    pytest_collectreport = pytest_runtest_logreport


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of larger test data beside the repository: models, vocabularies, texts."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} with the larger test data")
    return folder


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The model that ships with the package."""
    found = sorted((ROOT / "models").glob("satchel-40m-*.gguf"))
    if not found:
        pytest.skip("models/ holds no satchel-40m-*.gguf")
    return found[0]


@pytest.fixture(scope="session")
def source_model(shared: Path) -> Path:
    """The bundled model before it was quantized, in BF16."""
    path = shared / "default-model" / "satchel-40m-bf16.gguf"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path
