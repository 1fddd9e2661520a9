"""What tests of every folder share: where larger data lies, and how long property tests search."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
os.environ["SATCHEL_CONFIG"] = ""  # the user's own file has no say here
os.environ["SATCHEL_TUNING"] = ""  # nor what was tuned
# The backends that only tests use are not installed: they lie where `make test` built them.
folders = [os.environ.get("SATCHEL_BACKENDS", ""), *map(str, sorted(ROOT.glob("build/*/test-backends")))]
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: shared out among processes, none is left alone with one of them."""
    items.sort(key=lambda item: "server" not in item.path.parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped", type=Path, metavar="FILE", help="for skipped tests and why")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--skipped"):
        if not hasattr(config, "workerinput"):
            file.write_text("")
        if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
            config.pluginmanager.register(SkippedTests(file))


class SkippedTests:
    """Appends a line for each skipped test, or file of tests: its name, a tab, the reason. Processes share
    the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\t{' '.join(reason.split())}\n")

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
