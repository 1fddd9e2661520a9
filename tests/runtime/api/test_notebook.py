"""How models and answers show themselves: repr(), escaped HTML, and a notebook's display that grows with an
answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tiny_file import write_model

from satchel import AsyncModel, Model
from satchel.runtime.api import notebook
from satchel.runtime.api.chat_reply import ChatReply

HOSTILE = (
    "<script>alert(1)</script> [a](javascript:alert(1)) ![b](http://far.example/x.png) <img src=x onerror=y>"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("notebook") / "tiny.gguf")


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, slots=2, threads=1, context=64) as made:
        yield made


class Elements(HTMLParser):
    """The names of a page's tags, and the values of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")


class Kernel:
    """Stands for IPython in a kernel, and records what is displayed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[dict[str, str]] = []
        ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
        vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
        vars(display)["display"] = self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        monkeypatch.setattr(notebook, "EVERY", 0)

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        self.shown.append(bundle)
        return SimpleNamespace(update=self.update)

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_a_model_says_what_it_is(path: Path) -> None:
    with Model.load(path, slots=2, threads=1, context=64) as model:
        model.notes.append("<b>beware</b>")
        for part in ("<Model tiny.gguf: architecture qwen3", "context 64", "slots 2", "on cpu"):
            assert part in repr(model)
        assert repr(AsyncModel(model)) == f"<AsyncModel of {model!r}>"
        html = model._repr_html_()
        assert html.startswith("<table>") and "<td>qwen3</td>" in html and "&lt;b&gt;beware" in html
    assert repr(model) == "<Model tiny.gguf: closed>"
    assert "closed" in model._repr_html_()


def test_the_model_of_a_worker_process_says_so(path: Path) -> None:
    with Model.load(path, worker="process") as model:
        assert repr(model).startswith("<WorkerModel tiny.gguf: ") and "on a worker process" in repr(model)


def test_an_answer_says_how_far_it_is(model: Model) -> None:
    reply = model.generate([1, 2], max_tokens=3, temperature=0, ignore_eos=True)
    assert repr(reply) == "<Reply, not begun: iterate over it, or call read() or display()>"
    assert "not begun" in reply._repr_html_() and not reply.began
    next(reply)
    assert "running" in repr(reply)
    reply.read()
    assert repr(reply).startswith(f"<Reply {reply.text!r}, 3 tokens, ") and repr(reply).endswith("length>")
    assert repr(model.chat([{"role": "user", "content": "a"}])).startswith("<ChatReply, not begun")


def test_the_text_of_a_model_is_escaped(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = model.generate([1, 2], max_tokens=2)
    chat = model.chat([{"role": "user", "content": "a"}], max_tokens=2)
    for reply in (raw, chat):
        reply.read()
    monkeypatch.setattr(type(raw), "text", HOSTILE)
    monkeypatch.setattr(ChatReply, "content", f"**bold**\n\n| a |\n|---|\n| 1 |\n\n{HOSTILE}")
    monkeypatch.setattr(ChatReply, "reasoning", HOSTILE)
    for html in (raw._repr_html_(), chat._repr_html_()):
        assert "&lt;script&gt;" in html
        page = Elements(html)
        assert not {"script", "img"} & page.tags and not {"src", "onerror"} & page.attributes.keys()
        assert all(link.startswith("http://far.example") for link in page.attributes.get("href", []))
    assert "<strong>bold</strong>" in chat._repr_html_() and "<td>1</td>" in chat._repr_html_()
    assert "<summary>Reasoning</summary>" in chat._repr_html_()


def test_a_cell_shows_an_answer_while_it_grows(model: Model, kernel: Kernel) -> None:
    reply = model.generate([1, 2, 3], max_tokens=12, temperature=0, ignore_eos=True)
    reply._ipython_display_()
    assert reply.over and len(reply.ids) == 12
    lengths = [len(bundle["text/html"]) for bundle in kernel.shown]
    assert len(kernel.shown) > 3 and lengths[1] < lengths[-1]
    assert kernel.shown[-1] == {"text/html": reply._repr_html_(), "text/plain": repr(reply)}
    # What was begun is only shown: IPython then asks for its HTML.
    count = len(kernel.shown)
    with pytest.raises(NotImplementedError):
        reply._ipython_display_()
    assert len(kernel.shown) == count


def test_an_async_answer_is_displayed_too(model: Model, kernel: Kernel) -> None:
    async def run() -> None:
        reply = await AsyncModel(model).generate([1, 2, 3], max_tokens=6, temperature=0, ignore_eos=True)
        assert repr(reply) == "<AsyncReply, not begun: iterate over it, or await read() or display()>"
        await reply.display()
        assert repr(reply).startswith("<AsyncReply ") and "6 tokens" in repr(reply)
        assert kernel.shown[-1]["text/plain"] == repr(reply)

    asyncio.run(run())


def test_an_interrupt_ends_the_answer_and_keeps_what_came(
    model: Model, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = model.generate([1, 2, 3], ignore_eos=True, temperature=0)
    grow = notebook.LiveDisplay.grow

    def interrupted(self: notebook.LiveDisplay, piece: str) -> None:
        grow(self, piece)
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook.LiveDisplay, "grow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reply.display()
    assert reply.over and "cancelled" in kernel.shown[-1]["text/html"] and reply.text


@pytest.mark.parametrize("begun", [False, True])
def test_elsewhere_an_answer_is_printed(
    model: Model, begun: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = model.generate([1, 2, 3], max_tokens=5, temperature=0, ignore_eos=True)
    with pytest.raises(NotImplementedError):
        reply._ipython_display_()
    if begun:
        next(reply)
    reply.display()
    assert capsys.readouterr().out == reply.text + "\n"


NOTEBOOK = """
import satchel
model = satchel.Model.load({path!r}, context=64)
reply = model.generate([1, 2, 3], max_tokens=8, temperature=0, ignore_eos=True)
reply
"""


def test_a_real_notebook_shows_a_growing_answer(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [NOTEBOOK.format(path=str(path)), "reply", "model"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    updates: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            updates.append(msg["msg_type"])
            return super().process_message(msg, cell, cell_index)

    Client(book, timeout=200, kernel_name="python3").execute()
    first, second, third = (cell.outputs[0].data["text/html"] for cell in book.cells)
    assert "update_display_data" in updates and updates.count("display_data") == 1
    assert "8 tokens" in first and second == first and "<td>qwen3</td>" in third
