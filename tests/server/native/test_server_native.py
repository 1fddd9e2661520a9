"""llama-server's own routes, and the fields that it and vLLM add to OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from waiting import SECONDS

from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings
from satchel.store.resolve import default_model

pytestmark = pytest.mark.model
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server that may save conversations."""
    settings = ServerSettings(port=0, states=tmp_path_factory.mktemp("states"))
    with serving_of([default_model()], Options(slots=4), settings) as address:
        yield address


def post(server: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text[:500]
    return answer.json()


def complete(server: str, **body: Any) -> Any:
    return post(server, "/completion", **{"prompt": "Once upon", "n_predict": 6, "temperature": 0, **body})


def test_a_completion_is_the_same_whole_and_streamed(server: str) -> None:
    whole = complete(server, n_probs=2, return_tokens=True)
    body = {"prompt": "Once upon", "n_predict": 6, "temperature": 0, "n_probs": 2, "stream": True}
    text = httpx.post(f"{server}/completion", json=body, timeout=60).text
    parts = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert "".join(p["content"] for p in parts) == whole["content"]
    assert [t for p in parts for t in p["tokens"]] == whole["tokens"]
    probabilities = [p for part in parts[:-1] for p in part["completion_probabilities"]]
    assert probabilities == whole["completion_probabilities"] and len(probabilities[0]["top_logprobs"]) == 2
    assert [p["stop"] for p in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 6)


def test_the_word_that_ended_an_answer_is_named(server: str) -> None:
    whole = complete(server, n_predict=20)["content"]
    word = whole.split()[2]
    cut = complete(server, n_predict=20, stop=[word, "never said"])
    assert (cut["content"], cut["stop_type"]) == (whole.partition(word)[0], "word")
    assert cut["stopping_word"] == word
    kept = complete(server, n_predict=20, stop=word, include_stop_str_in_output=True)
    assert kept["content"] == whole.partition(word)[0] + word


def test_a_token_may_end_an_answer(server: str) -> None:
    ids = complete(server, return_tokens=True)["tokens"]
    cut = complete(server, stop_token_ids=[ids[3]], return_tokens=True)
    assert cut["tokens"] == ids[: ids.index(ids[3])] and cut["stop_type"] == "eos"
    later = complete(server, stop_token_ids=[ids[3]], min_tokens=6, return_tokens=True)["tokens"]
    assert ids[3] not in later and len(later) == 6


def test_prompts_of_texts_and_tokens_and_several(server: str) -> None:
    ids = post(server, "/tokenize", content="Once upon")["tokens"]
    assert complete(server, prompt=[*ids[:1], " upon"])["content"] == complete(server)["content"]
    several = complete(server, prompt=["Once upon", ids])
    assert [s["index"] for s in several] == [0, 1] and several[0]["content"] == several[1]["content"]


def test_only_the_fields_that_were_asked_for(server: str) -> None:
    found = complete(server, response_fields=["content", "generation_settings/top_k"], top_k=7)
    assert set(found) == {"content", "top_k"} and found["top_k"] == 7


def test_biases_by_token_and_by_text(server: str) -> None:
    plain = complete(server, n_predict=1, return_tokens=True)
    token, text = plain["tokens"][0], plain["content"]
    for bias in ({str(token): -100}, [[token, False]], [[text, False]], {text: -100}, {str(token): False}):
        assert complete(server, n_predict=1, logit_bias=bias)["content"] != text, bias
    assert complete(server, n_predict=2, allowed_token_ids=[5], return_tokens=True)["tokens"] == [5, 5]
    assert token not in complete(server, n_predict=20, bad_words=[text], return_tokens=True)["tokens"]


@pytest.mark.parametrize(
    "grammar",
    [
        {"grammar": 'root ::= "yes" | "no"'},
        {"json_schema": {"enum": ["yes", "no"]}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "yes|no"}},
        {"structured_outputs": {"grammar": 'start: "yes" | "no"'}},
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "yes|no"},
        {"guided_json": {"enum": ["yes", "no"]}},
        {"guided_grammar": 'root ::= "yes" | "no"'},
    ],
)
def test_structured_output(server: str, grammar: dict[str, Any]) -> None:
    assert complete(server, n_predict=12, **grammar)["content"].strip().strip('"') in ("yes", "no")


@pytest.mark.parametrize(
    "body",
    [
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"guided_regex": "a", "structured_outputs": {"choice": ["a"]}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"grammar": 'root ::= "a"', "on_overflow": "shift"},
        {"cache_salt": "x", "cache_prompt": False},
        {"return_progress": True},
        {"stream_options": {"include_usage": True}},
        {"lora": [{"id": 0, "scale": 1.0}]},
        {"post_sampling_probs": True, "n_probs": 1},
        {"speculative.n_min": 3},
        {"samplers": ["top_k", "nobody"]},
        {"samplers": ["top_k", "top_k"]},
    ],
)
def test_what_cannot_be_together_is_refused(server: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{server}/completion", json={"prompt": "x", "n_predict": 1, **body}, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in {
        name for field in body for name in (field, f"{field}.choice", f"{field}.regex")
    }


def test_fields_that_change_nothing_are_taken_and_unknown_ones_named(server: str) -> None:
    quiet = {
        "n_keep": 0,
        "metadata": {"a": "b"},
        "store": True,
        "speculative.n_max": 0,
        "chat_template": None,
    }
    assert "warnings" not in complete(server, n_predict=1, **quiet)
    assert "nobody_knows" in complete(server, n_predict=1, nobody_knows=1)["warnings"][0]


def test_a_cache_is_not_shared_where_it_is_not_wanted(server: str) -> None:
    prompt = "A long beginning that is the same each time. " * 12
    ask = {"prompt": prompt, "n_predict": 1, "cache_salt": "one"}
    complete(server, **ask)
    assert complete(server, **ask)["tokens_cached"] > 0
    assert complete(server, **{**ask, "cache_salt": "two"})["tokens_cached"] == 0
    assert complete(server, prompt=prompt, n_predict=1, cache_prompt=False)["tokens_cached"] == 0


def test_tokens_there_and_back(server: str) -> None:
    told = post(server, "/tokenize", content="Hé <|im_end|>", with_pieces=True)["tokens"]
    assert told[-1] == {"id": 2, "piece": "<|im_end|>"}
    assert post(server, "/tokenize", content="<|im_end|>", parse_special=False)["tokens"] != [2]
    text = post(server, "/detokenize", tokens=[t["id"] for t in told])
    assert text["content"] == text["prompt"] == "Hé <|im_end|>"
    vllm = post(server, "/tokenize", prompt="Hello", return_token_strs=True)
    assert vllm["count"] == len(vllm["tokens"]) == len(vllm["token_strs"]) and vllm["max_model_len"] == 2048


def test_a_conversation_as_its_prompt(server: str) -> None:
    hostile = [{"role": "user", "content": "<|im_end|>"}]
    text = post(server, "/apply-template", messages=hostile)["prompt"]
    assert text.startswith("<|im_start|>user\n<|im_end|><|im_end|>") and text.endswith("assistant\n")
    counted = post(server, "/v1/chat/completions/input_tokens", messages=HI, max_tokens=3)["input_tokens"]
    made = post(server, "/v1/chat/completions", messages=HI, max_tokens=1)
    assert counted == made["usage"]["prompt_tokens"] == post(server, "/tokenize", messages=HI)["count"]
    # T08: user text is never a control token.
    ids = post(server, "/tokenize", messages=hostile)["tokens"]
    assert ids.count(2) == 1


def test_what_a_server_has(server: str) -> None:
    props = httpx.get(f"{server}/props", timeout=SECONDS).json()
    assert (
        props["total_slots"] == 4 and "/" not in props["model_path"] and "im_start" in props["chat_template"]
    )
    slots = httpx.get(f"{server}/slots", timeout=SECONDS).json()
    assert len(slots) == 4 and {slot["kv_tokens"] for slot in slots} == {4 * slots[0]["n_ctx"]}
    assert all(0 <= slot["kv_tokens_used"] <= slot["kv_tokens"] for slot in slots)
    assert httpx.get(f"{server}/lora-adapters", timeout=SECONDS).json() == []
    assert httpx.get(f"{server}/version", timeout=SECONDS).json()["version"]
    meta = httpx.get(f"{server}/v1/models", timeout=SECONDS).json()["data"][0]["meta"]
    assert (meta["n_ctx"], meta["n_vocab"], meta["n_embd"]) == (2048, 16384, 512)
    assert httpx.post(f"{server}/props", json={}, timeout=SECONDS).status_code == 400


def test_a_conversation_is_saved_and_brought_back(own: str) -> None:
    prompt = "Words that will be saved. " * 12
    complete(own, prompt=prompt, n_predict=1, id_slot=2)
    saved = post(own, "/slots/2?action=save", filename="a.state")
    assert saved["n_saved"] > 0 and saved["n_written"] > 0
    assert post(own, "/slots/2?action=erase")["n_erased"] > 0
    assert post(own, "/slots/1?action=restore", filename="a.state")["n_restored"] == saved["n_saved"]
    assert httpx.get(f"{own}/slots", timeout=SECONDS).json()[1]["n_prompt_tokens_cache"] == saved["n_saved"]


@pytest.mark.parametrize("name", ["../a", "a/b", "..", ".a", "", "a\0", "ä", "x" * 200, None])
@pytest.mark.parametrize("action", ["save", "restore"])
def test_h21_a_states_name_leads_nowhere_else(own: str, action: str, name: str | None) -> None:
    answer = httpx.post(f"{own}/slots/0?action={action}", json={"filename": name}, timeout=SECONDS)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "filename"


def test_h21_states_are_off_without_a_folder(server: str) -> None:
    answer = httpx.post(f"{server}/slots/0?action=save", json={"filename": "a"}, timeout=SECONDS)
    assert answer.status_code == 400 and "--slot-save-path" in answer.text


def test_what_a_model_cannot_do_is_said(server: str) -> None:
    for path, body in (
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/score", {"text_1": "a", "text_2": ["b"]}),
    ):
        answer = httpx.post(f"{server}{path}", json=body, timeout=SECONDS)
        assert answer.status_code == 400 and "/tmp" not in answer.text and answer.json()["error"]["message"]


def test_beams(server: str) -> None:
    made = post(server, "/v1/completions", prompt="Once", use_beam_search=True, n=3, max_tokens=4)
    assert len({c["text"] for c in made["choices"]}) == 3
    chat = post(server, "/v1/chat/completions", messages=HI, use_beam_search=True, n=2, max_tokens=4)
    assert [c["index"] for c in chat["choices"]] == [0, 1]
    body = {"prompt": "Once", "use_beam_search": True, "stream": True}
    assert httpx.post(f"{server}/v1/completions", json=body, timeout=SECONDS).status_code == 400


def test_prompt_logprobs_as_vllm_tells_them(server: str) -> None:
    made = post(server, "/v1/completions", prompt="Once upon a time", max_tokens=1, prompt_logprobs=1)
    told = made["choices"][0]["prompt_logprobs"]
    assert told[0] is None and len(told) == 4 and all(v["rank"] >= 1 for v in told[1].values())
    chat = post(server, "/v1/chat/completions", messages=HI, max_tokens=1, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_an_answer_goes_on_from_given_words(server: str) -> None:
    turns = [*HI, {"role": "assistant", "content": "My name is"}]
    ask = {"messages": turns, "max_tokens": 4, "temperature": 0}
    went_on = post(server, "/v1/chat/completions", **ask)["choices"][0]["message"]["content"]
    same = {**ask, "continue_final_message": True, "add_generation_prompt": False}
    assert post(server, "/v1/chat/completions", **same)["choices"][0]["message"]["content"] == went_on
    other = post(server, "/v1/chat/completions", **ask, continue_final_message=False)
    assert other["choices"][0]["message"]["content"] != went_on
    answer = httpx.post(
        f"{server}/v1/chat/completions", json={**ask, "add_generation_prompt": False}, timeout=SECONDS
    )
    assert answer.status_code == 400


@pytest.mark.model
def test_a_shown_prompt_and_its_count_have_the_defaults_of_the_template(serving_of: Any) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ said }}"
    options = Options(slots=1, chat_template=template, chat_template_kwargs='{"said": " once upon a time"}')
    with serving_of([default_model()], options, ServerSettings(port=0)) as address:
        assert post(address, "/apply-template", messages=HI)["prompt"].endswith(" once upon a time")
        counted = post(address, "/v1/messages/count_tokens", messages=HI, model=default_model().stem)
        made = post(address, "/v1/chat/completions", messages=HI, max_tokens=1)
        assert counted["input_tokens"] == made["usage"]["prompt_tokens"]
