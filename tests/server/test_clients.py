"""The server with common clients: the conformance suite with the official packages of PyPI, the openai
package of npm, LangChain and LiteLLM. Clients that are not installed are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("httpx")

from satchel.cli.conformance.suite import FAIL, chosen, found_checks, verdicts
from satchel.cli.conformance.target import ConformanceTarget

pytestmark = pytest.mark.model
CLIENTS = Path(__file__).parent.parent / "clients"
GROUPS = sorted({c.name.partition(".")[0] for c in found_checks()})
ASKED = "Who are you?"


@pytest.fixture(scope="module")
def target(server: str) -> ConformanceTarget:
    return ConformanceTarget(server)


@pytest.mark.parametrize("group", GROUPS)
def test_the_server_conforms(target: ConformanceTarget, group: str) -> None:
    failed = {v.name: v.text for v in verdicts(target, chosen([group])) if v.result == FAIL}
    assert failed == {}


def test_the_openai_package_of_npm(server: str, target: ConformanceTarget) -> None:
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / "openai").exists():
        pytest.skip("no node, or no openai package: npm install --prefix tests/clients")
    command = [node, str(CLIENTS / "openai.mjs"), server, target.model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert target.model in found["models"]
    assert found["chat"] and {found[n] for n in ("stream", "helper", "after")} == {found["chat"]}
    assert found["tokens"] == 12 and found["form"].keys() == {"n"}
    error = {
        "name": "BadRequestError",
        "status": 400,
        "param": "temperature",
        "type": "invalid_request_error",
    }
    assert found["error"] == error
    assert found["completion"] and found["response"] and found["embedding"] > 1


def test_langchain(server: str, target: ConformanceTarget) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    client = chat(model=target.model, base_url=f"{server}/v1", api_key="none", temperature=0, max_tokens=12)
    whole = client.invoke(ASKED).content
    assert whole and "".join(piece.content for piece in client.stream(ASKED)) == whole
    schema = {
        "title": "Number",
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = chat(model=target.model, base_url=f"{server}/v1", api_key="none", max_tokens=60)
    assert form.with_structured_output(schema, method="json_schema").invoke(ASKED).keys() == {"n"}


def test_litellm(server: str, target: ConformanceTarget) -> None:
    litellm = pytest.importorskip("litellm")
    asked = {
        "model": f"openai/{target.model}",
        "api_base": f"{server}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": ASKED}],
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = litellm.completion(**asked).choices[0].message.content
    pieces = (c.choices[0].delta.content or "" for c in litellm.completion(**asked, stream=True))
    assert whole and "".join(pieces) == whole
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**asked | {"top_p": 7})
