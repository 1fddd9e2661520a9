"""Makes the pictures of the page in docs/images, 1400 and 390 pixels wide, light and dark: `satchel serve`
with the bundled model and a tiny random one, seen by Debian's chromium.

python docs/make_page.py [FOLDER]
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import sync_playwright

from satchel.store.resolve import default_model

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from page_talk import new_folder  # noqa: E402
from terminal import PYTHON  # noqa: E402
from tiny_file import write_model  # noqa: E402
from waiting import ready  # noqa: E402

WIDE, NARROW = {"width": 1400, "height": 800}, {"width": 390, "height": 844}
STORY, WHO, TEA = "Write a short story about a lighthouse keeper.", "Who are you?", "Which tea shall I pack?"
SAMPLING = {"temperature": 0.7, "seed": 5, "max_tokens": 200}
CROWD, LOOKS = 6, 45  # clients under which the dashboard is seen, and how many seconds it counts
WRITTEN = """Here is the tea that I would take along, **in the order** of its strength:

| Tea | Colour | Minutes |
|:--|:-:|--:|
| Green | pale | 2 |
| Black | deep amber | 4 |

Its warmth after $t$ minutes[^1] is $T(t) = T_0 + \\Delta T\\, e^{-t/\\tau}$.

```python
def minutes(tea: str) -> int:
    return {"green": 2, "black": 4}.get(tea, 3)  # three will do
```

- [x] Boil the water, then wait a little
- [ ] Pour it over the leaves

[^1]: By Newton's law of cooling.
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server of this machine's bundled model and a second one; its address."""
    models = [default_model(), write_model(folder / "tiny-qwen3.gguf")]
    command = [*PYTHON, "-m", "satchel", "serve", *map(str, models), "--port", "0", "--parallel", str(CROWD)]
    hidden = dict.fromkeys(("HOME", "SATCHEL_MODELS"), str(folder / "none"))  # this machine's store
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | hidden) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found
            ready(found[0])
            yield found[0]
        finally:
            process.terminate()


def opened(browser: Any, address: str, theme: str, path: str = "/", size: dict[str, int] = WIDE) -> Any:
    """A tab of a new user who has chosen a theme."""
    context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce", locale="en")
    defaults = json.dumps({"sampling": SAMPLING})
    context.add_init_script(f"localStorage['satchel.defaults'] = {json.dumps(defaults)}")
    tab = context.new_page()
    tab.goto(address + path)
    return tab


# The pixels of a picture in base64, as RGBA.
PIXELS = """async (source) => {
  const bitmap = await createImageBitmap(await (await fetch(source)).blob());
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  const bytes = canvas.getImageData(0, 0, bitmap.width, bitmap.height).data;
  return await new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1]);
    reader.readAsDataURL(new Blob([bytes]));
  });
}"""


def save(tab: Any, path: Path) -> None:
    """A picture of the tab as PNG. Rows without a filter make it a fifth smaller than the browser's own."""
    size, shot = tab.viewport_size, base64.b64encode(tab.screenshot()).decode()
    blank = tab.context.browser.new_page()
    raw = base64.b64decode(blank.evaluate(PIXELS, f"data:image/png;base64,{shot}"))
    blank.close()
    width, height = size["width"], size["height"]
    pixels = np.frombuffer(raw, np.uint8).reshape(height, width, 4)[:, :, :3]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        made += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(made)


def ask(tab: Any, question: str) -> None:
    tab.wait_for_selector("#send[aria-label=Send]")
    tab.fill("#question", question)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".message.assistant.last:not(.coming)")
    tab.wait_for_selector("#send[aria-label=Send]")


def conversation(browser: Any, address: str, folder: Path) -> None:
    """Two conversations, one of them in a folder; an answer that was made again."""
    tab = opened(browser, address, "light")
    ask(tab, WHO)
    tab.click("#new-chat")
    ask(tab, STORY)
    tab.locator(".message.last").get_by_role("button", name="Answer again").click()
    tab.wait_for_selector("text=2 / 2")
    tab.wait_for_selector(".message.assistant.last:not(.coming)")
    new_folder(tab, "Stories")
    row = tab.locator(".conversation", has_text=STORY[:20])
    row.hover()
    row.get_by_role("button", name=re.compile("^Move")).click()
    tab.locator("#folder-dialog").get_by_role("button", name="Stories").click()
    tab.focus("#question")
    save(tab, folder / "page-light.png")
    tab.set_viewport_size(NARROW)
    tab.evaluate("document.querySelector('#scroller').scrollTop = 0")
    save(tab, folder / "page-phone.png")
    tab.context.close()


def markdown(browser: Any, address: str, folder: Path) -> None:
    """An answer that was written for the picture, and the settings with their choice for a full context."""
    tab = opened(browser, address, "dark")
    chunks = [{"delta": {"content": WRITTEN}, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}]
    events = [f"data: {json.dumps({'choices': [{'index': 0, **chunk}]})}\n\n" for chunk in chunks]
    counts = {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 172}}
    events.append(f"data: {json.dumps(counts)}\n\n")
    body, headers = "".join([*events, "data: [DONE]\n\n"]), {"content-type": "text/event-stream"}
    tab.route("**/v1/chat/completions", lambda route: route.fulfill(headers=headers, body=body))
    ask(tab, TEA)
    tab.wait_for_selector("math")
    save(tab, folder / "page-dark.png")
    tab.set_viewport_size(NARROW)
    tab.click("#toggle-settings")
    tab.locator("#overflow-help").scroll_into_view_if_needed()
    save(tab, folder / "page-phone-settings.png")
    tab.context.close()


def models(browser: Any, address: str, folder: Path) -> None:
    tab = opened(browser, address, "dark")
    tab.click("#open-models")
    tab.wait_for_selector("#models-dialog li >> nth=1")
    save(tab, folder / "page-models.png")
    tab.context.close()


def dashboard(browser: Any, address: str, folder: Path) -> None:
    """The dashboard while several clients ask."""
    over = threading.Event()

    def client(number: int) -> None:
        body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 150, "seed": number}
        while not over.is_set():
            httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CROWD)]
    for one in clients:
        one.start()
    tab = opened(browser, address, "light", "/dashboard")
    tab.wait_for_timeout(1000 * LOOKS)
    save(tab, folder / "page-dashboard.png")
    over.set()
    for one in clients:
        one.join()


def main(folder: Path) -> None:
    flags = ["--no-sandbox", "--disable-gpu"]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        address = stack.enter_context(serving(Path(scratch)))
        play = stack.enter_context(sync_playwright())
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        for draw in (conversation, markdown, models, dashboard):
            draw(browser, address, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
