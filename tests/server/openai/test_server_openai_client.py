"""OpenAI's official client against the server: its requests are understood, and it can read the responses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

openai = pytest.importorskip("openai")

from openai import OpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

pytestmark = pytest.mark.model
MODEL = "satchel-40m-q6_k"
WHO = [{"role": "user", "content": "Who are you?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
OTHER = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


class Number(BaseModel):
    """Its digits are bounded, so that an answer ends whatever is sampled."""

    value: int = Field(ge=0, le=99)


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client: OpenAI) -> None:
    (one,) = client.models.list().data
    assert client.models.retrieve(one.id).id == one.id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nope")
    assert error.value.code == "model_not_found" and error.value.param == "model"


def test_a_chat_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": WHO, "max_completion_tokens": 10, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=usage))
    choices = [c.choices[0] for c in chunks if c.choices]
    text = "".join(c.delta.content or "" for c in choices)
    assert text == whole.choices[0].message.content != ""
    assert choices[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 10
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 10


def test_only_the_first_delta_has_a_role(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=WHO, max_tokens=3, temperature=0, stream=True
    )
    assert [bool(chunk.choices[0].delta.role) for chunk in stream][:3] == [True, False, False]


def test_a_seed_gives_the_same_answers_again(client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": WHO, "max_tokens": 12, "temperature": 1.5, "seed": 7, "n": 2}
    first, second = (client.chat.completions.create(**asked) for _ in range(2))
    texts = [[c.message.content for c in answer.choices] for answer in (first, second)]
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]


def test_logprobs_come_whole_and_streamed(client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": WHO, "max_tokens": 4, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=3).choices[0].logprobs.content
    assert [len(t.top_logprobs) for t in whole] == [3] * 4
    assert whole[0].token == whole[0].top_logprobs[0].token and whole[0].logprob <= 0
    stream = client.chat.completions.create(**asked, top_logprobs=3, stream=True)
    parts = [c.choices[0].logprobs for c in stream]
    assert [t.token for p in parts if p for t in p.content] == [t.token for t in whole]


def test_an_answer_is_parsed_into_the_callers_class(client: OpenAI) -> None:
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "integer", "minimum": 0, "maximum": 9}},
    }
    asked = {"model": MODEL, "messages": WHO, "temperature": 0}
    plain = client.chat.completions.create(**asked, response_format=schema, max_tokens=5)
    assert 0 <= int(plain.choices[0].message.content) <= 9
    found = client.chat.completions.parse(**asked, response_format=Number, max_tokens=60)
    assert isinstance(found.choices[0].message.parsed, Number)


def test_an_answer_that_was_cut_off_is_not_parsed(client: OpenAI) -> None:
    class Words(BaseModel):
        words: list[str]

    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=WHO, response_format=Words, max_tokens=3)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_is_forced(client: OpenAI, choice: object) -> None:
    asked = {
        "model": MODEL,
        "messages": WHO,
        "tools": [OTHER, *TOOLS] if isinstance(choice, dict) else TOOLS,
        "tool_choice": choice,
        "max_tokens": 80,
        "temperature": 0,
        "parallel_tool_calls": False,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, call.function.name) == ("tool_calls", "weather")
    with client.chat.completions.stream(**asked, logprobs=True) as stream:
        events = [e.type for e in stream]
        found = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in events
    assert [c.function.arguments for c in found] == [call.function.arguments]


def test_tools_that_need_not_be_called_are_told_of_and_hidden(client: OpenAI) -> None:
    def prompt(**more: object) -> int:
        made = client.chat.completions.create(model=MODEL, messages=WHO, max_tokens=1, **more)
        return made.usage.prompt_tokens

    alone = prompt()
    assert prompt(tools=TOOLS, tool_choice="none") == alone < prompt(tools=TOOLS, tool_choice="auto")


def test_a_tools_result_is_answered(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *WHO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    found = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=4)
    assert found.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize("prompt", ["Once upon", ["Once upon", "Hello"], [5, 6, 7], [[5, 6], [7]]])
def test_completions_take_four_kinds_of_prompts(client: OpenAI, prompt: object) -> None:
    found = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0)
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert [c.index for c in found.choices] == list(range(len(prompt) if several else 1))
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0, stream=True)
    texts = ["" for _ in found.choices]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [c.text for c in found.choices]


def test_a_prompt_is_scored_where_it_is_echoed(client: OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "Once upon a time", "logprobs": 2, "temperature": 0}
    found = client.completions.create(**asked, echo=True, max_tokens=0).choices[0]
    told = found.logprobs
    assert found.text == "".join(told.tokens) == "Once upon a time"
    assert told.token_logprobs[0] is None and all(p <= 0 for p in told.token_logprobs[1:])
    assert told.text_offset == [0, 4, 9, 11]
    made = client.completions.create(**asked, echo=True, max_tokens=2).choices[0].logprobs
    plain = client.completions.create(**asked, max_tokens=2).choices[0].logprobs
    assert made.tokens[4:] == plain.tokens and made.text_offset[4:] == [16 + at for at in plain.text_offset]
    assert all(len(tops) in (2, 3) for tops in plain.top_logprobs)


def test_the_best_of_many_is_the_likeliest(client: OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 4, "temperature": 2, "seed": 3, "logprobs": 0}

    def mean(choice: object) -> float:
        values = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    all_ = client.completions.create(**asked, n=4).choices
    best = client.completions.create(**asked, best_of=4, n=2).choices
    assert [c.text for c in best] == [c.text for c in sorted(all_, key=mean, reverse=True)[:2]]


def test_embeddings_come_in_both_forms(client: OpenAI) -> None:
    plain = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
    short = client.embeddings.create(model=MODEL, input="one", dimensions=8)  # base64, by the client itself
    assert [len(d.embedding) for d in plain.data] == [512, 512] and len(short.data[0].embedding) == 8
    assert math.isclose(sum(v * v for v in plain.data[0].embedding), 1, rel_tol=1e-5)
    head = plain.data[0].embedding[:8]
    scale = math.sqrt(sum(v * v for v in head))
    assert short.data[0].embedding == pytest.approx([v / scale for v in head], rel=1e-4)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 0


def test_embeddings_take_token_ids(client: OpenAI) -> None:
    both = client.embeddings.create(model=MODEL, input=[[5, 6, 7], [8]], encoding_format="float")
    one = client.embeddings.create(model=MODEL, input=[8], encoding_format="float")
    assert both.data[1].embedding == pytest.approx(one.data[0].embedding, abs=1e-6)


def test_a_response_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    asked = {"model": MODEL, "input": "Who are you?", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    found = events[-1].response
    assert found.output_text == whole.output_text != ""
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(e.type.removeprefix("response.") for e in events))
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip


def test_a_response_calls_tools(client: OpenAI) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
    asked = {"model": MODEL, "temperature": 0}
    # One call: how many more a model makes, and so the answer's length, may depend on how a processor rounds.
    forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
    with client.responses.stream(
        **asked, **forced, input=turns, instructions="Be brief", max_output_tokens=80
    ) as stream:
        kinds = [e.type for e in stream]
        found = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds and found.status == "completed"
    (call,) = found.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    given = call.model_dump(include={"type", "call_id", "name", "arguments"})
    after = client.responses.create(**asked, input=[*turns, given, result], max_output_tokens=4)
    assert after.output_text


def test_a_response_keeps_to_a_schema(client: OpenAI) -> None:
    asked = {"model": MODEL, "input": "A number", "temperature": 0}
    found = client.responses.parse(**asked, text_format=Number, max_output_tokens=60)
    assert isinstance(found.output_parsed, Number)


def test_what_is_refused_is_named_and_not_tried_again(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert error.value.param == "previous_response_id" and "items of input" in str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    assert error.value.code == "context_length_exceeded" and error.value.param == "messages"
    assert error.value.body["n_prompt_tokens"] > error.value.body["n_ctx"]
