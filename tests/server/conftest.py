"""A server over the bundled model, in this process, on a port of its own: `server` is its address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from chat_model import MARKERS, TEMPLATE
from tiny_file import write_model
from waiting import until

uvicorn = pytest.importorskip("uvicorn")

from satchel.cli.options import default_model  # noqa: E402
from satchel.cli.server.app import create_app  # noqa: E402
from satchel.cli.server.catalog import Catalog, catalog_of  # noqa: E402
from satchel.cli.server.models import Models  # noqa: E402
from satchel.cli.server.run import listen, server_of  # noqa: E402
from satchel.cli.server.settings import ServerSettings  # noqa: E402
from satchel.cli.server.telemetry import Spans  # noqa: E402
from satchel.runtime.options import Options  # noqa: E402


@contextmanager
def serving(paths: list[Path], options: Options, settings: ServerSettings) -> Iterator[str]:
    """A server in a thread; gives its address."""
    catalog = catalog_of({p.stem: p for p in paths}, {}, options, 0, None)
    with serving_catalog(catalog, settings) as address:
        yield address


@contextmanager
def serving_catalog(
    catalog: Catalog, settings: ServerSettings, budget: int = 0, spans: Spans | None = None
) -> Iterator[str]:
    """The same for a catalog."""
    models = Models(catalog, budget, spans)
    bound = listen(settings.host, settings.port, settings)
    server = server_of(create_app(models, settings), settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "the server's start")
        if not server.started:
            raise AssertionError("the server's thread ended before it began to answer: see its log above")
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with serving([default_model()], Options(slots=4), ServerSettings(port=0)) as address:
        yield address


@pytest.fixture(scope="session")
def serving_of() -> Callable[..., AbstractContextManager[str]]:
    """`serving`, for servers that differ from the usual one."""
    return serving


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over a tiny random model whose template opens a thought in each answer; it knows tools."""
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    template = TEMPLATE.replace("{% elif opened %}", "{% else %}")
    write_model(path, tokenizer__chat_template=template, markers=MARKERS, qwen3__context_length=1024)
    with serving([path], Options(slots=2), ServerSettings(port=0)) as address:
        yield address


@pytest.fixture(scope="session")
def serving_with() -> Callable[[Path, Spans], AbstractContextManager[str]]:
    """A server of one model, with spans that go somewhere."""

    def made(path: Path, spans: Spans) -> AbstractContextManager[str]:
        catalog = catalog_of({path.stem: path}, {}, Options(slots=2), 0, None)
        return serving_catalog(catalog, ServerSettings(port=0), spans=spans)

    return made
