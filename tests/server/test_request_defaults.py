"""Options of `satchel serve` that its models' requests have where they set none, over every API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_file import write_model

from satchel.errors import RequestError
from satchel.runtime.api.defaults import request_defaults
from satchel.runtime.api.options import Options
from satchel.runtime.grammar.spec import Gbnf, JsonSchema, Lark
from satchel.server.catalog import catalog_of
from satchel.server.settings import ServerSettings

HI = [{"role": "user", "content": "hi"}]
CHOSEN = {"temperature": 0.5, "max_tokens": 3, "stop": ("zz",), "ignore_eos": True}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server whose file recommends top_k 7, and whose user chose CHOSEN."""
    path = write_model(tmp_path_factory.mktemp("m") / "m.gguf", general__sampling__top_k=7)
    settings = ServerSettings(port=0, page=False)
    with serving_of([path], Options(context=64, slots=2, defaults=CHOSEN), settings) as found:
        yield found


def post(address: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text[:500]
    return answer.json()


def test_a_request_that_sets_nothing_has_the_defaults(address: str) -> None:
    said = post(address, "/completion", prompt="hi")
    used = said["generation_settings"]
    assert (used["temperature"], used["top_k"], used["top_p"]) == (0.5, 7, 0.95)
    assert (used["n_predict"], used["stop"], said["tokens_predicted"]) == (3, ["zz"], 3)


def test_a_request_goes_before_the_defaults(address: str) -> None:
    said = post(address, "/completion", prompt="hi", temperature=0.8, top_k=40, n_predict=2, stop=["y"])
    used = said["generation_settings"]
    assert (used["temperature"], used["top_k"], used["n_predict"], used["stop"]) == (0.8, 40, 2, ["y"])


def test_props_show_them(address: str) -> None:
    params = httpx.get(f"{address}/props").json()["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["n_predict"]) == (0.5, 7, 3)


def test_every_api_has_them(address: str) -> None:
    assert post(address, "/v1/chat/completions", messages=HI)["usage"]["completion_tokens"] == 3
    assert post(address, "/v1/completions", prompt="hi")["usage"]["completion_tokens"] == 3
    assert post(address, "/v1/responses", input="hi")["usage"]["output_tokens"] == 3
    assert post(address, "/api/generate", model="m", prompt="hi", stream=False)["eval_count"] == 3
    assert post(address, "/v1/messages", model="m", messages=HI, max_tokens=2)["usage"]["output_tokens"] == 2


def test_a_table_says_those_of_one_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    base = Options(defaults={"temperature": 0.5, "top_k": 5})

    def defaults(given: dict[str, Any]) -> Any:
        tables = {"models": {"a": {"path": str(path), "defaults": given}}}
        return catalog_of({}, tables, base, 0, tmp_path / "config.toml").models["a"].options.defaults

    assert defaults({"top_k": 3, "stop": ["x"]}) == {"temperature": 0.5, "top_k": 3, "stop": ["x"]}
    with pytest.raises(RequestError, match=r"\[models.a\] defaults: 'topk' is no option of a request"):
        defaults({"topk": 3})


@pytest.fixture(scope="module")
def constrained(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server whose answers are `yes` or `no` where a request has no grammar."""
    path = write_model(tmp_path_factory.mktemp("g") / "m.gguf")
    defaults = {"grammar": Gbnf('root ::= "yes" | "no"'), "temperature": 0, "on_overflow": "shift"}
    settings = ServerSettings(port=0, page=False)
    with serving_of([path], Options(context=256, slots=2, defaults=defaults), settings) as found:
        yield found


def test_a_default_grammar_holds_over_every_api(constrained: str) -> None:
    said = [
        post(constrained, "/completion", prompt="hi")["content"],
        post(constrained, "/v1/completions", prompt="hi")["choices"][0]["text"],
        post(constrained, "/v1/chat/completions", messages=HI)["choices"][0]["message"]["content"],
        post(constrained, "/v1/messages", model="m", messages=HI, max_tokens=9)["content"][0]["text"],
        post(constrained, "/api/chat", model="m", messages=HI, stream=False)["message"]["content"],
    ]
    assert all(text in ("yes", "no") for text in said)


def test_a_request_s_grammar_goes_before_the_default(constrained: str) -> None:
    own = [{"grammar": 'root ::= "maybe"'}, {"json_schema": {"const": "maybe"}}]
    said = [post(constrained, "/completion", prompt="hi", **field)["content"] for field in own]
    assert said == ["maybe", '"maybe"']
    body = {"prompt": "hi", "use_beam_search": True, "best_of": 2, "max_tokens": 4}
    refused = httpx.post(f"{constrained}/v1/completions", json=body, timeout=60)
    assert refused.status_code == 400 and "structured output" in refused.text


def test_a_grammar_of_a_table(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    for grammar, kind in (('root ::= "a"', Gbnf), ('start: "a"', Lark), ({"type": "object"}, JsonSchema)):
        chosen = {"grammar": grammar}
        tables = {"models": {"a": {"path": str(path), "defaults": chosen}}}
        options = catalog_of({}, tables, Options(), 0, tmp_path / "config.toml").models["a"].options
        assert isinstance(request_defaults({}, options.defaults, "")[0].grammar, kind)
    for wrong in ("root ::= (", {"type": "none such"}, 3):
        with pytest.raises(RequestError, match="defaults: grammar: "):
            Options(defaults={"grammar": wrong})


def test_without_the_page_there_is_none(address: str) -> None:
    for path in ("/", "/dashboard", "/page/options"):
        assert httpx.get(f"{address}{path}").status_code == 404
    assert httpx.get(f"{address}/healthz").status_code == 200
