"""A server over the bundled model, in this process, on its own port: `server` is its address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from _pytest.runner import runtestprotocol
from chat_model import MARKERS, TEMPLATE
from loop_budget import BUDGET, RUNNING, Turns, timed
from tiny_file import write_model
from waiting import SECONDS, joined, ready, task_stacks, until

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")


from satchel.errors import DeviceError  # noqa: E402
from satchel.runtime.api.options import Options  # noqa: E402
from satchel.runtime.engine.request_handle import RequestHandle  # noqa: E402
from satchel.server import stream  # noqa: E402
from satchel.server.answer import Answer, AnswerDelta  # noqa: E402
from satchel.server.app import create_app  # noqa: E402
from satchel.server.catalog import Catalog, catalog_of  # noqa: E402
from satchel.server.models import Models  # noqa: E402
from satchel.server.run import listen, server_of  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402
from satchel.server.telemetry import SpanRecorder  # noqa: E402
from satchel.store.resolve import default_model  # noqa: E402

stream.PATIENCE = SECONDS  # what fails has its status, however long a busy machine takes to fail
# httpx times out after five seconds by default; here every call has the bound of all waits.
for _phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _phase, SECONDS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny random model."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@contextmanager
def serving(paths: list[Path], options: Options, settings: ServerSettings) -> Iterator[str]:
    """Runs a server in a thread; yields its address once its models are loaded."""
    catalog = catalog_of({p.stem: p for p in paths}, {}, options, 0, None)
    with serving_catalog(catalog, settings) as address:
        yield address


@contextmanager
def serving_catalog(
    catalog: Catalog, settings: ServerSettings, budget: int = 0, spans: SpanRecorder | None = None
) -> Iterator[str]:
    """The same for a catalog."""
    models = Models(catalog, budget, spans)
    bound = listen(settings.host, settings.port, settings)
    app = create_app(models, settings)
    with timed() as turns:
        server = server_of(app, settings)
        server.config.app = turns.around(app)
        yield from _running(server, bound, turns)


def _running(server: uvicorn.Server, bound: socket.socket, turns: Turns) -> Iterator[str]:
    def run() -> None:
        with asyncio.Runner(loop_factory=turns.loop) as runner:
            runner.run(server.serve([bound]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "the server's start")
        if not server.started:
            raise AssertionError("the server's thread ended before it began to answer: see its log above")
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        ready(address)  # a page that is opened while a model is loaded says so, and asks again
        turns.clear()
        yield address
    finally:
        server.should_exit = True
        try:
            joined(thread, "the server")
        except AssertionError as error:
            woken = "can" if turns.can_be_woken else "cannot"
            tasks = task_stacks(turns.made) if turns.made else "none"
            raise AssertionError(f"{error}\nits loop {woken} be woken; its tasks:\n{tasks}") from None


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of this process goes on once its last token was read, so that tokens of a stream do not wait
    for the loop together. For requests that begin in the test, one at a time, and are read to their end: the
    engine does not wait for those of earlier tests, whose clients may have left.
    """
    make, put = RequestHandle.__init__, RequestHandle.put
    take, plain = RequestHandle._take, RequestHandle.plain
    taken, watched = threading.Semaphore(0), WeakSet[RequestHandle]()

    def makes(self: RequestHandle, *what: Any) -> None:
        make(self, *what)
        watched.add(self)

    def waits(self: RequestHandle, item: Any) -> None:
        put(self, item)
        if self in watched:
            assert taken.acquire(timeout=SECONDS), "nobody reads the answer"

    def takes(self: RequestHandle, item: Any) -> int | None:
        try:
            return take(self, item)
        finally:
            if self in watched:
                taken.release()

    def takes_plain(self: RequestHandle) -> list[int]:
        tokens = plain(self)
        if tokens and self in watched:
            taken.release(len(tokens))
        return tokens

    monkeypatch.setattr(RequestHandle, "__init__", makes)
    monkeypatch.setattr(RequestHandle, "plain", takes_plain)
    monkeypatch.setattr(RequestHandle, "put", waits)
    monkeypatch.setattr(RequestHandle, "_take", takes)


STALL = "the event loop stood still"
RUNS = 3  # of a test that found a stall
_WORST: dict[str, tuple[float, str]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Runs a test again that found a stall: what a request costs it costs every time. On an overloaded
    virtual machine, cheap requests have been charged with more than the budget, once each. The worst turn is
    told at the end, even where it did not come again.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(RUNS):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if run + 1 == RUNS or not any(report.failed and STALL in report.longreprtext for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(autouse=True)
def loop_budget(request: pytest.FixtureRequest) -> Iterator[None]:
    """No request of any test may block a server's loop for longer than the budget, in processor time of the
    loop's thread; on a quiet machine (nightly), in wall time. Nor may a test take its means of waking.
    """
    for turns in RUNNING:
        turns.clear()
    yield
    nightly = request.config.getoption("-m") == "nightly or not nightly"  # the marks of `make nightly`
    for turns in RUNNING:
        assert turns.can_be_woken, "something closed a descriptor that is a server's loop's"
        worst = turns.worst_wall if nightly else turns.worst_cpu
        for kind, turn, seconds in (("processor", turns.worst_cpu, turns.worst_cpu.cpu),
                                    ("wall", turns.worst_wall, turns.worst_wall.wall)):  # fmt: skip
            if seconds > _WORST.get(kind, (0.0, ""))[0]:
                _WORST[kind] = seconds, f"{turn}\n    in {request.node.nodeid:.200}"
        spent = worst.wall if nightly else worst.cpu
        assert spent <= BUDGET, f"{STALL} for over {BUDGET * 1e3:.0f} ms: {worst}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind, (_, told) in _WORST.items():
        terminalreporter.write_line(f"worst turn of a server's loop ({kind} time): {told}")


@pytest.fixture
def engine_gone(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the engine fails with after an answer's first delta, which is never its last: on a busy machine a
    whole answer may come at once.
    """
    told, text, begun = Answer._next, "the engine is gone", WeakSet[Answer]()

    async def failing(self: Answer, index: int) -> AnswerDelta:
        if self in begun:
            raise DeviceError(text)
        begun.add(self)
        return replace(await told(self, index), finish="")

    monkeypatch.setattr(Answer, "_next", failing)
    return text


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with serving([default_model()], Options(slots=4), ServerSettings(port=0)) as address:
        yield address


@pytest.fixture(scope="session")
def serving_of() -> Callable[..., AbstractContextManager[str]]:
    """`serving`, for servers with other settings."""
    return serving


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over a tiny random model whose template opens a reasoning section in each answer and supports
    tools.
    """
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    template = TEMPLATE.replace("{% elif opened %}", "{% else %}")
    write_model(path, tokenizer__chat_template=template, markers=MARKERS, qwen3__context_length=1024)
    with serving([path], Options(slots=2), ServerSettings(port=0)) as address:
        yield address


@pytest.fixture(scope="session")
def serving_with() -> Callable[[Path, SpanRecorder], AbstractContextManager[str]]:
    """A server of one model, with recorded spans."""

    def made(path: Path, spans: SpanRecorder) -> AbstractContextManager[str]:
        catalog = catalog_of({path.stem: path}, {}, Options(slots=2), 0, None)
        return serving_catalog(catalog, ServerSettings(port=0), spans=spans)

    return made
