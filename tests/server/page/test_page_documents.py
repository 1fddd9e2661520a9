"""Documents beside a question: by button, drop and paste; and the server's reader of PDFs."""

from __future__ import annotations

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from page_talk import ANSWER, QUESTION, button, export
from pdf_file import pdf

from satchel.server.page import documents, pdf_text
from satchel.server.problem import Problem

pytestmark = pytest.mark.model
CODE = "if x:\n    print('```')\n"
# A file that is dropped on the page, or pasted.
MADE = "const data = new DataTransfer(); data.items.add(new File(['a,b\\n1,2\\n'], 'table.csv'));"
DROP = f"{MADE} document.body.dispatchEvent(new DragEvent('drop', {{ dataTransfer: data, bubbles: true }}));"
PASTE = (
    f"{MADE} document.getElementById('question').dispatchEvent("
    "new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));"
)


def add(tab: Any, name: str, content: bytes) -> None:
    given = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    tab.set_input_files("#document-files", given)


def bodies(tab: Any) -> list[dict[str, Any]]:
    """The bodies of requests from now on."""
    seen: list[dict[str, Any]] = []
    tab.on("request", lambda r: seen.append(r.post_data_json) if r.url.endswith("/completions") else None)
    return seen


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_document_goes_before_its_question_and_stays_with_it(
    page: Any, ask: Any, expect: Any, canned: Any
) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    add(page, "code.py", CODE.encode())
    expect(page.locator("#documents .document-name")).to_have_text("code.py")
    ask(page, "What is it?")
    expect(page.locator("#documents")).to_be_hidden()
    said = f"code.py:\n\n````py\n{CODE}````\n\nWhat is it?"
    assert seen[0]["messages"] == [{"role": "user", "content": said}]
    page.reload()
    expect(page.locator(QUESTION)).to_have_text("What is it?")
    page.click(".document-part summary")
    expect(page.locator(".document-part pre")).to_have_text(CODE)
    button(page, "Edit", ".message.user").click()
    page.keyboard.type(" And why?")
    page.keyboard.press("Enter")
    expect(page.locator(ANSWER)).to_have_text("yes")
    expect(page.locator(".document-part")).to_have_count(1)
    assert seen[1]["messages"][0]["content"] == said + " And why?"


@pytest.mark.parametrize("way", [DROP, PASTE], ids=["dropped", "pasted"])
def test_a_document_is_dropped_or_pasted(page: Any, ask: Any, expect: Any, canned: Any, way: str) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    page.evaluate(f"{{ {way} }}")
    expect(page.locator("#documents .document-name")).to_have_text("table.csv")
    page.click("#send")  # a document needs no question
    expect(page.locator(ANSWER)).to_have_text("yes")
    assert seen[0]["messages"][0]["content"] == "table.csv:\n\n```csv\na,b\n1,2\n```"
    expect(page.locator(".conversation-link")).to_have_text("table.csv")


def test_a_document_is_removed_before_it_is_sent(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    add(page, "a.txt", b"secret")
    page.get_by_role("button", name="Remove a.txt").click()
    ask(page, "Hello")
    assert seen[0]["messages"][0]["content"] == "Hello"


@pytest.mark.parametrize(
    ("content", "text"),
    [("é€".encode(), "é€"), ("\ufeffé".encode("utf-16-le"), "é"), ("é€".encode("cp1252"), "é€")],
    ids=["utf-8", "utf-16", "windows-1252"],
)
def test_text_is_read_in_its_encoding(page: Any, expect: Any, canned: Any, content: bytes, text: str) -> None:
    canned(page, {"content": "yes"})
    add(page, "a.txt", content)
    page.click("#send")
    page.click(".document-part summary")
    expect(page.locator(".document-part pre")).to_have_text(text)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0", "a.png is no text"),
        ("a.txt", b" \n", "a.txt is empty"),
        ("a.txt", b"x" * ((2 << 20) + 1), "a.txt has more than 2 MB"),
        ("a.pdf", b"x" * ((8 << 20) + 1), "a.pdf has more than 8 MB"),
    ],
    ids=["a picture", "empty", "large", "a large PDF"],
)
def test_a_file_that_cannot_be_used_is_refused(
    page: Any, expect: Any, name: str, content: bytes, line: str
) -> None:
    add(page, name, content)
    expect(page.locator(".toast")).to_contain_text(line)
    expect(page.locator("#documents")).to_be_hidden()
    expect(page.locator("#send")).to_be_disabled()


def test_a_pdf_is_read_by_its_text(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    add(page, "paper.pdf", pdf("The first page", "The second"))
    expect(page.locator("#documents .document-name")).to_have_text("paper.pdf")
    ask(page, "What is it?")
    said = "paper.pdf:\n\n```\nThe first page\n\nThe second\n```\n\nWhat is it?"
    assert seen[0]["messages"][0]["content"] == said


def test_a_pdf_that_is_none_is_said(open_page: Any, server: str, expect: Any) -> None:
    tab = open_page(server, expected="400").tab
    add(tab, "paper.pdf", b"%PDF-nothing")
    expect(tab.locator(".toast")).to_contain_text("paper.pdf: the PDF cannot be used: it is no PDF")


def test_documents_are_exported(
    page: Any, ask: Any, expect: Any, canned: Any, open_page: Any, server: str, tmp_path: Path
) -> None:
    canned(page, {"content": "yes"})
    add(page, "code.py", CODE.encode())
    ask(page, "What is it?")
    expect(page.locator(".document-part")).to_have_count(1)
    assert f"## You\n\ncode.py:\n\n````py\n{CODE}````\n\nWhat" in export(
        page, tmp_path / "out.md", "Markdown"
    )
    export(page, tmp_path / "out.json")
    other = open_page(server).tab
    other.set_input_files("#import-file", tmp_path / "out.json")
    other.click(".conversation-link")
    expect(other.locator(".document-part pre")).to_have_text(CODE)


def test_the_server_gives_the_text_of_a_pdf(server: str) -> None:
    answer = httpx.post(f"{server}/page/pdf", json={"data": encoded(pdf("Hello", "there"))})
    assert answer.json() == {"text": "Hello\n\nthere", "pages": 2, "read": 2}


def locked() -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer, out = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("Hello")))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (lambda: "*", "expected a file in base64"),
        (lambda: encoded(b"hello"), "it is no PDF"),
        (lambda: encoded(pdf("")), "it holds no text"),
        (lambda: encoded(locked()), "it is encrypted"),
        (lambda: encoded(pdf(zlib.compress(bytes(100 << 20)))), "the PDF "),
    ],
    ids=["no base64", "no PDF", "no text", "encrypted", "a bomb"],
)
def test_a_pdf_that_cannot_be_read_is_refused(server: str, data: Any, line: str) -> None:
    answer = httpx.post(f"{server}/page/pdf", json={"data": data()})
    assert answer.status_code == 400 and line in answer.json()["error"]["message"]


def test_a_pdf_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    loops += "from satchel.server.page import pdf_text as p; p.SECONDS = 1; p.limit()\nwhile True: pass"
    monkeypatch.setattr(documents, "START", loops)
    with pytest.raises(Problem, match="needs more than 20 seconds"):
        documents.text_of(encoded(pdf("Hello")))


def test_a_long_pdf_is_cut_at_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_text, "MOST_CHARACTERS", 25)
    found = pdf_text.read(pdf("0123456789", "0123456789", "0123456789"))
    assert found == {"text": "0123456789\n\n0123456789", "pages": 3, "read": 2}
