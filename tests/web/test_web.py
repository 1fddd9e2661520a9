"""libsatchel in WebAssembly: both builds answer as the engine does, in Node and in a page of Chromium, which
goes on without a network.

They run with a folder of packaging/wasm.py: dist/web, or the one that SATCHEL_WEB names.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import installed
import pytest
from browser import browsing
from built_families import DECODERS, FAMILIES, family
from embedded import ROOT
from installed import PROMPT, TOKENS, ran
from waiting import SECONDS

from satchel import Model
from satchel.runtime.device.libraries import find_backend, kernel_sets

WEB = Path(os.environ.get("SATCHEL_WEB") or ROOT / "dist" / "web")
SETS = ("simd128", "relaxed")
# Node takes relaxed SIMD by itself from version 21 on. Before, its first compiler computes it wrongly.
RELAXED = ("--experimental-wasm-relaxed-simd", "--no-liftoff")
MESSAGES = [{"role": "user", "content": "Hello! Who are you?"}]


@pytest.fixture(scope="module")
def built() -> Path:
    missing = [name for name in SETS if not (WEB / f"satchel-{name}.wasm").exists()]
    if missing:
        pytest.skip(f"{WEB}: no WebAssembly builds: python packaging/wasm.py")
    return WEB


@pytest.fixture(scope="module")
def app(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.bundled_app(tmp_path_factory, bundled_model)[0]


@pytest.fixture(scope="module")
def scalar() -> Iterator[None]:
    """The engine takes its scalar kernels: WebAssembly's have as many lanes and no fused multiply-add."""
    if "scalar" not in kernel_sets(Path(find_backend("cpu").path)):
        pytest.skip("the engine has no scalar kernels here: SATCHEL_SETS=runnable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SATCHEL_CPU", "scalar")
        yield


@pytest.fixture(scope="module")
def wanted(bundled_model: Path, scalar: None) -> tuple[str, str]:
    """The engine's greedy answers to PROMPT and MESSAGES."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS}
    with Model.load(bundled_model, context=512, device="cpu") as model:
        return model.generate(PROMPT, **options).read(), model.chat(MESSAGES, **options).read()


def node(script: str, *words: str | Path, flags: tuple[str, ...] = ()) -> str:
    program = installed.tool("node", "nodejs")
    return ran([program, *flags, "--input-type=module", "-e", script, *words], dict(os.environ))


LOAD = f"""
import {{ readFile }} from "node:fs/promises";
import {{ Model, pickModule }} from "{ROOT.as_uri()}/web/satchel.mjs";
const [folder, kernels, path, text] = process.argv.slice(1);
const module = await readFile(`${{folder}}/satchel-${{kernels}}.wasm`);
"""
COMPLETE = f"""
const options = {{ temperature: 0, max_tokens: {TOKENS} }};
const model = await Model.open(module, await readFile(path), {{ context: 512 }});
for (const piece of model.complete(text, options)) process.stdout.write(piece);
process.stdout.write("\\0" + JSON.stringify(model.report()) + "\\0");
const messages = [{{ role: "user", content: "Hello! Who are you?" }}];
for (const piece of model.chat(messages, options)) process.stdout.write(piece);
"""


@pytest.mark.model
@pytest.mark.parametrize("kernels", SETS)
def test_node_answers_as_the_engine(kernels: str, built: Path, app: Path, wanted: tuple[str, str]) -> None:
    flags = flags_of(kernels)
    text, report, chat = node(LOAD + COMPLETE, built, kernels, app, PROMPT, flags=flags).split("\0")
    assert (text, chat) == wanted
    assert re.search(rf'"cached":0,"tokens":{TOKENS}', report)


def flags_of(kernels: str) -> tuple[str, ...]:
    """The flags with which this Node takes the module; skips where it takes it with none."""
    if kernels == "simd128" or takes_relaxed(()):
        return ()
    if not takes_relaxed(RELAXED):
        pytest.skip("this node has no relaxed SIMD")
    return RELAXED


def takes_relaxed(flags: tuple[str, ...]) -> bool:
    try:
        return "relaxed" in node(LOAD.partition("const [")[0] + "console.log(pickModule())", flags=flags)
    except AssertionError:  # the flag is not known any more
        return False


@pytest.mark.model
def test_errors_have_the_librarys_words(built: Path, bundled_model: Path, app: Path) -> None:
    script = """
const told = async (work) => { try { await work(); } catch (error) { console.log(error.message); } };
await told(async () => Model.open(module, await readFile(path)));
await told(async () => Model.open(module, new Uint8Array(1000)));
const model = await Model.open(module, await readFile(text), { context: 64 });
await told(async () => [...model.complete("word ".repeat(500))]);
await told(async () => [...model.chat([{ role: "nobody", content: "x" }])]);
"""
    lines = node(LOAD + script, built, "simd128", bundled_model, app).splitlines()
    assert "holds no plan: run `satchel build" in lines[0]
    assert "expected a GGUF file" in lines[1]
    assert lines[2].startswith("prompt: expected at most 64 tokens, the context, got")
    assert "expected a role of system, user or assistant" in lines[3]


EACH = """
const found = {};
for (const [file, answers] of Object.entries(JSON.parse(text))) {
  const model = await Model.open(module, await readFile(file), { context: 96 });
  found[file] = answers.map(([prompt, options]) => {
    const said = [...model.complete(prompt, options)].join("");
    return [said, model.report().tokens];
  });
}
process.stdout.write(JSON.stringify(found));
"""
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("x", {"max_tokens": 12, "seed": 1}),
    ("A sentence of some forty letters, and more", {"max_tokens": 12, "seed": 2}),
    ("again", {"max_tokens": 12, "temperature": 0}),
]


def answers_of_families(
    kernels: str, built: Path, factory: pytest.TempPathFactory, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What one process of Node and the engine answer, by file: texts and numbers of tokens."""
    flags = flags_of(kernels)
    files = [family(factory, name) for name in names]
    told = json.dumps({str(path): ASKED for path in files})
    found = json.loads(node(LOAD + EACH, built, kernels, "-", told, flags=flags))
    right = {}
    for path in files:
        with Model.load(path, context=96, slots=1, device="cpu", threads=1, deterministic=True) as model:
            replies = [model.generate(prompt, **options) for prompt, options in ASKED]
            right[str(path)] = [[reply.read(), len(reply.ids)] for reply in replies]
    return found, right


@pytest.mark.parametrize("kernels", SETS)
def test_families_answer_as_the_engine(
    kernels: str, built: Path, tmp_path_factory: pytest.TempPathFactory, scalar: None
) -> None:
    found, right = answers_of_families(kernels, built, tmp_path_factory, FAMILIES)
    assert found == right


@pytest.mark.nightly
@pytest.mark.parametrize("kernels", SETS)
def test_every_family_answers_as_the_engine(
    kernels: str, built: Path, tmp_path_factory: pytest.TempPathFactory, scalar: None
) -> None:
    found, right = answers_of_families(kernels, built, tmp_path_factory, DECODERS)
    assert found == right


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(built: Path, app: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a file server of a folder with the page and a model."""
    for source in (*(ROOT / "web").glob("*.*"), *built.glob("*.wasm")):
        shutil.copy(source, tmp_path)
    shutil.copy(app, tmp_path / "app.gguf")
    handler = functools.partial(_Files, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def tab() -> Iterator[Any]:
    with browsing() as browser:
        page = browser.new_page()
        page.set_default_timeout(1000 * SECONDS)
        yield page


def ask(tab: Any, text: str) -> str:
    """The page's answer to a message."""
    tab.wait_for_function("() => document.getElementById('state').textContent !== 'Loading'")
    tab.wait_for_function("() => !document.getElementById('send').disabled")
    tab.fill("#text", text)
    tab.click("#send")
    tab.wait_for_function("() => !document.getElementById('send').disabled")
    assert tab.locator("p.error").count() == 0, tab.locator("p.error").all_inner_texts()
    return str(tab.locator("p.assistant").last.inner_text())


@pytest.mark.model
def test_a_page_chats_and_opens_again_without_a_network(site: str, tab: Any) -> None:
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(site)
    tab.wait_for_function("() => !document.getElementById('send').disabled")
    assert "Ready: relaxed, " in tab.inner_text("#state")
    assert len(ask(tab, MESSAGES[0]["content"])) > 10
    assert re.fullmatch(r"\d+ tokens a second", tab.inner_text("#state"))
    tab.evaluate("async () => void (await navigator.serviceWorker.ready)")
    tab.context.set_offline(True)
    tab.reload()
    assert len(ask(tab, "And what can you do?")) > 10
    assert all(url.startswith(site) for url in asked)


@pytest.mark.model
def test_a_worker_of_a_page_gives_the_engines_tokens(site: str, tab: Any, wanted: tuple[str, str]) -> None:
    tab.goto(site)
    found = tab.evaluate(
        """async (messages) => {
            const { Chat } = await import("./satchel.mjs");
            const worker = new Worker("worker.mjs", { type: "module" });
            const url = new URL("app.gguf", location.href).href;
            const chat = await Chat.open(worker, { url, context: 512 });
            let text = "", cut = 0;
            for await (const piece of chat.chat(messages, { temperature: 0 })) if (++cut === 3) break;
            for await (const piece of chat.chat(messages, { temperature: 0, max_tokens: 64 })) text += piece;
            return [text, chat.facts.kernels];
        }""",
        MESSAGES,
    )
    assert found == [wanted[1], "relaxed"]
