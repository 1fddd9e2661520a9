"""Shared data of the chat template tests: the files of tests/data/template, and parts of requests."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "template"
TOOLS = json.loads((DATA / "tools.json").read_text("utf-8"))
USER = {"role": "user", "content": "hi"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
