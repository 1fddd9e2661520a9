"""README and docs: their code blocks run and print what the pages show, the commands that they name exist,
and every page is linked from the contents.
"""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path

import doc_blocks
import extra_files
import page_checkpoints
import pytest
import toy_checkpoint
from doc_blocks import PAGES, ROOT, Block, Runner, blocks, same, server, unclear
from hub_server import hub_server
from packages import PACKAGES
from tiny_file import write_model

from satchel import GenerateOptions, Model, Options, Sampling
from satchel.cli.llama_cpp.table import ROWS
from satchel.cli.main import commands, declared, parsed
from satchel.runtime.option import options_of
from satchel.runtime.speculation import Speculation

RUN = [page for page in PAGES if any(block.mark != "not run" for block in blocks(page))]
CONTENTS = ROOT / "docs" / "README.md"
TEXTS = {
    "letter.txt": "Dear Ann, the roof is mended and the garden is full of beans. Come and see it. Tom\n",
    "article.txt": "The ferry to the island leaves at nine and takes an hour. It does not run in winter.\n",
    "my-texts.txt": "The ferry to the island leaves at nine and takes an hour. " * 40,
    "question.txt": "What is the capital of France?\n",
    "review.txt": "The soup was cold.\n",
    "template.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "docs.txt": "Paris is the capital of France.\nTea is made with hot water.\nThe sea is deep.\n",
    "stars.json": '{"type": "object", "properties": {"stars": {"enum": [1, 2, 3, 4, 5]}}, '
    '"required": ["stars"], "additionalProperties": false}\n',
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, bundled_model: Path) -> Path:
    """The files that the pages name: small texts, tiny models and adapters, and the bundled model."""
    for file, text in TEXTS.items():
        (tmp_path / file).write_text(text)
    model = write_model(tmp_path / "model.gguf")
    write_model(tmp_path / "model-bf16.gguf", format="bf16")
    for other in ("large.gguf", "small.gguf"):
        shutil.copy(model, tmp_path / other)
    for seed, adapter in enumerate(("law.gguf", "style.gguf")):
        factors = extra_files.factors(seed, arch="qwen3")
        extra_files.write_adapter(tmp_path / adapter, factors, arch="qwen3")
    extra_files.write_vector(tmp_path / "calm.gguf", extra_files.directions(2))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    toy_checkpoint.write(checkpoint, "llama")
    shutil.copytree(ROOT / "examples" / "backend", tmp_path / "examples" / "backend")
    (tmp_path / "bundled.gguf").symlink_to(bundled_model)
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    return tmp_path


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[str, str]]]:
    """Starts the server that all pages share, when the first of them needs it."""
    folder = tmp_path_factory.mktemp("server")
    with ExitStack() as servers:
        yield cache(lambda: servers.enter_context(server(folder, doc_blocks.environment(folder))))


@contextmanager
def hub(model: Path) -> Iterator[str]:
    """The URL of a server in the hub's place, with the repositories of docs/store.md."""
    content = model.read_bytes()
    with hub_server() as running:
        running.put_repo("satchel/tiny", {"tiny-Q4_K_M.gguf": content})
        running.put_repo("satchel/pair", {"pair-Q6_K.gguf": content, "pair-Q8_0.gguf": content})
        yield running.url


def skip_without(page: Path) -> None:
    """Skips a page whose blocks take a program or a package that this machine lacks."""
    text = "".join(block.text for block in blocks(page) if block.mark != "not run")
    for program in ("cc", "curl"):
        if re.search(rf"\b{program} -", text) and shutil.which(program) is None:
            pytest.skip(f"no {program}")
    for package in ("anthropic", "ollama", "openai"):
        if re.search(rf"\b{package}\b", text):
            pytest.importorskip(package)
    if doc_blocks.ADDRESS.search(text):
        pytest.importorskip("fastapi")


@pytest.mark.model
@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_page_runs(
    page: Path, folder: Path, reach: Callable[[], tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(page)
    if page.name == "converting.md":
        page_checkpoints.write(folder)
    monkeypatch.chdir(folder)
    environment = doc_blocks.environment(folder)
    with ExitStack() as servers:
        if page.name == "store.md":
            environment["HF_ENDPOINT"] = servers.enter_context(hub(folder / "bundled.gguf"))
        Runner(folder, environment, reach, servers).run(blocks(page))


def test_a_page_is_skipped_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(pytest.skip.Exception, match="no cc"):
        skip_without(ROOT / "docs" / "user-kernels.md")
    skip_without(ROOT / "docs" / "library.md")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_runs_or_says_why_not(page: Path) -> None:
    assert unclear(blocks(page)) == []
    assert doc_blocks.INDENTED.findall(page.read_text(encoding="utf-8")) == []


def test_a_block_that_is_false_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    runs, other, told = "```\n$ echo one; echo 2\none\n2\n```", "```\n-\n```", "<!-- not run: a drawing -->"
    page.write_text(f"{runs}\n\n{other}\n\n{told}\n{other}\n")
    session, neither, drawing = blocks(page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doc_blocks, "ROOT", tmp_path)
        assert unclear([session, neither, drawing]) == [str(neither)] == ["page.md:7"]
        runner = Runner(
            tmp_path, doc_blocks.environment(tmp_path), lambda: pytest.fail("no server is needed")
        )
        runner.run([session, drawing])
        for text in ("$ echo one\ntwo\n", "$ false\n", "$ echo one\nsatchel: error: one\n"):
            with pytest.raises(AssertionError, match=r"page\.md:1: "):
                runner.run([Block(page, 1, "", text)])
        with pytest.raises(AssertionError, match=r"page\.md:3: page\.md:1 printed\n2"):
            runner.run([Block(page, 1, "python", "print(2)\n"), Block(page, 3, "", "3\n")])


def test_addresses_of_a_page_are_those_of_the_servers_that_run(tmp_path: Path) -> None:
    runner = Runner(tmp_path, {}, lambda: ("", "41"))
    text = "curl localhost:8080/x; satchel run -dev cpu,127.0.0.1/cpu"
    assert runner.addressed(text) == "curl 127.0.0.1:41/x; satchel run -dev cpu,127.0.0.1/cpu"
    runner.device_port = "42"
    assert runner.addressed(text) == "curl 127.0.0.1:41/x; satchel run -dev cpu,127.0.0.1:42/cpu"
    options = {
        "satchel serve       # or: make serve": "",
        "satchel serve -m m.gguf -np 2 # two": "-m m.gguf -np 2",
        "satchel serve | tee log": None,
        "satchel server": None,
    }
    for command, given in options.items():
        found = doc_blocks.SERVE.fullmatch(command)
        assert (found and found[1].strip()) == given, command


@pytest.mark.parametrize(
    ("shown", "printed", "mark", "holds"),
    [
        ("a ... d", "a b c d", "", True),
        ("a ... d", "a b c", "", False),
        ("a\n...\nd", "a\nd", "", True),
        ("1.5 s", "2.25 s", "", False),
        ("1.5 s", "2.25 s", "numbers vary", True),
        ("1.5 s", "2.25 ms", "numbers vary", False),
        ("a long\n  line", "a long line", "", True),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, mark: str, holds: bool) -> None:
    assert same(shown, printed, mark) == holds


def spoken(page: Path) -> Iterator[str]:
    """The command lines of satchel that a page has, in its text and in its blocks."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"(?<!`)`(satchel [^`]+)`", text)
    for block in blocks(page):
        yield from (
            part.strip()
            for line in block.text.replace("\\\n", " ").splitlines()
            for part in re.findall(r"(?:^|^\$ .*[|&;] *|^\$ )(satchel [^|&;]+)", line)
        )


def unknown(line: str) -> list[str]:
    """What a command line names that the program lacks: the command, or options."""
    words = shlex.split(line, comments=True)[1:]
    first = next((word for word in words if not word.startswith("-")), "")
    if not re.fullmatch(r"[a-z]+", first):
        return []
    known = commands()
    if first not in known:
        return [first]
    two = "-".join([first, *words[words.index(first) + 1 :][:1]])
    offered = declared(parsed(two if two in known else first))
    options = [word.partition("=")[0] for word in words[words.index(first) :] if re.match(r"--?[a-z]", word)]
    return [word for word in options if word not in offered and word not in ROWS]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_its_commands_and_options_are_there(page: Path) -> None:
    assert {line: lacks for line in spoken(page) if (lacks := unknown(line))} == {}


def test_an_unknown_command_or_option_is_found() -> None:
    assert unknown("satchel fly") == ["fly"]
    assert unknown("satchel doctor api URL --colour") == ["--colour"]
    assert unknown("satchel run -m FILE --temp 0 'hi' # -x") == []


LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([\w-]+))?\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files and headings that a page links to."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for file, heading in LINK.findall(text):
        yield ((page.parent / file).resolve() if file else page), heading


def headings(page: Path) -> list[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{there.name}#{heading}"
        for there, heading in links(page)
        if not there.exists() or (heading and heading not in headings(there))
    ]
    assert broken == []


def test_the_contents_name_every_page() -> None:
    """Pages that others include, such as those of a folder with contents of its own, are linked there."""
    listed = {there for there, _ in links(CONTENTS)}
    pages = {page for page in PAGES if page != CONTENTS}
    assert pages - listed == set()


def errors() -> list[str]:
    """The texts of errors in the tables of the page for them."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").partition("## It works")[0]
    return re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)


def test_errors_of_the_page_are_in_the_program() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    )
    assert len(errors()) > 60
    assert [text for text in errors() if text not in sources] == []


def test_names_for_users_of_llama_cpp_python_exist() -> None:
    """`name=` is an option or a parameter of a method, `Model.name` a method or a property."""
    text = (ROOT / "docs" / "llama-cpp-python.md").read_text(encoding="utf-8")
    options = {name for kind in (Options, GenerateOptions, Sampling) for name in options_of(kind)}
    options |= {f.name for kind in (Options, GenerateOptions) for f in fields(kind)}
    methods = [Model.chat, Model.embed, Speculation]
    options |= {name for one in methods for name in inspect.signature(one).parameters}
    assert set(re.findall(r"`(\w+)=`", text)) - options == set()
    named = re.findall(r"`Model\.(\w+)`", text)
    assert len(named) > 15 and [name for name in named if not hasattr(Model, name)] == []


FOLDERS = "bench|cext|cli|examples|formats|packaging|quant|runtime|server|store|tests"
FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
NAMED = re.compile(r"`(\w+)`(?: and `(\w+)`)? in `([\w/]+\.py)`")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_named_files_exist_and_have_the_functions_named_in_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [file for file in FILE.findall(text) if not (ROOT / file).exists()] == []
    lacking = [
        f"{one} in {file}"
        for *names, file in NAMED.findall(text)
        for one in filter(None, names)
        if one not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert lacking == []


HANDBOOK = [page for page in PAGES if page.parent.name == "handbook" and page.name != "README.md"]


@pytest.mark.parametrize("page", HANDBOOK, ids=name)
def test_a_page_of_the_handbook_has_what_its_contents_promise(page: Path) -> None:
    """Formulas, the files that compute them, Python that runs, figures with what measured them, and peers."""
    text = page.read_text(encoding="utf-8")
    assert text.count("\n$$\n") >= 2 and len(set(FILE.findall(text))) >= 3
    assert any(block.is_python and block.mark != "not run" for block in blocks(page))
    figures = [part for part in text.split("\n\n") if "**Our figure" in part]
    assert figures and [part for part in figures if "`" not in part and "](" not in part] == []
    peers = text.partition("\n## What other engines do\n")[2]
    assert [one for one in ("llama.cpp", "vLLM", "SGLang", "TensorRT-LLM") if f"| {one} |" not in peers] == []


def unlike(text: str) -> list[str]:
    """Lines that begin a list, a table or a nested item for GitHub's Markdown, and not for the site's."""
    lines = re.sub(r"^(```|~~~).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    item = re.compile(r"( *)(?:[-*+]|\d+\.) ")
    found = []
    for above, line in pairwise(lines):
        begun = item.match(line)
        inside = not above.strip() or item.match(above) or above.startswith(("  ", "#"))
        table = line.startswith("|") and above.strip() and not above.startswith(("|", "<!--", "#"))
        if table or (begun and (not inside or len(begun[1]) % 4)):
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lists_and_tables_begin_where_every_markdown_sees_them(page: Path) -> None:
    assert unlike(page.read_text(encoding="utf-8")) == []


def test_a_list_that_only_github_sees_is_found() -> None:
    assert unlike("Rules:\n- one\n\n- two\n  goes on\n- three\n  - nested\n") == ["- one", "  - nested"]
    assert unlike("Text\n| a |\n|---|\n\n| a |\n|---|\n") == ["| a |"]
