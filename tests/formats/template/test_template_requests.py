"""Requests to a chat template (rows T06, T10), and how messages are read and normalized."""

import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_data import DATA, TOOLS, USER, call

from satchel.errors import ModelError, RequestError
from satchel.formats.template import ChatTemplate, from_metadata

CHATML = ChatTemplate.chatml()

# T06: variables that a caller may set

RESERVED = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "pad_token",
    "chat_template",
    "tokenize",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "loop",
    "self",
    "_private",
    "__class__",
    "no name",
    "",
    "none",
]


@pytest.mark.parametrize("name", RESERVED)
def test_t06_reserved_variable_is_refused(name: str) -> None:
    template = ChatTemplate("{{ messages[0].content }}", tokens={"pad_token": "<pad>"})
    with pytest.raises(RequestError, match=re.escape(f"variables: {name!r}")):
        template.render([USER], variables={name: "x"})


def test_t06_own_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ enable_thinking is false }} {{ level }} {{ nothing is defined }}")
    assert (
        template.render([USER], variables={"enable_thinking": False, "level": [1, "a"]})
        == "True [1, 'a'] False"
    )
    assert template.reads("level") and not template.reads("messages")


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}, b"x", 1 << 5000, "\udc80", len])
def test_t06_variable_must_be_plain(value: object) -> None:
    with pytest.raises(RequestError, match=r"variables\.v"):
        CHATML.render([USER], variables={"v": value})


# T10: the templates of a file

MAIN, NAMES, USE = "tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template.tool_use"
BAD_METADATA = [
    ({MAIN: 5}, f"{MAIN}: expected a string, got int"),
    ({MAIN: ["x"]}, f"{MAIN}: expected a string, got list"),
    ({MAIN: [{"name": "default", "template": "x"}]}, f"{MAIN}: expected a string, got list"),
    ({MAIN: b"x"}, f"{MAIN}: expected a string, got bytes"),
    ({MAIN: "x", USE: 7}, f"{USE}: expected a string, got int"),
    ({MAIN: "x", NAMES: "tool_use"}, f"{NAMES}: expected a list of names, got str"),
    ({MAIN: "x", NAMES: 3}, f"{NAMES}: expected a list of names, got int"),
    ({MAIN: "x", NAMES: ["tool_use"]}, f"{NAMES} names 'tool_use', but {USE} is missing"),
    ({MAIN: "x", NAMES: ["tool_use", 4], USE: "y"}, rf"{NAMES}\[1\]: expected a name, got int"),
]


@pytest.mark.parametrize(("metadata", "text"), BAD_METADATA)
def test_t10_wrong_types(metadata: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        from_metadata(metadata, "<s>", "</s>")


def test_t10_named_templates() -> None:
    metadata = {
        MAIN: "plain{{ bos_token }}",
        NAMES: ["default", "tool_use", "rag"],
        USE: "use{{ tools|length }}",
        f"{MAIN}.rag": "rag{{ eos_token }}",
    }
    template = from_metadata(metadata, "<s>", "</s>")
    assert template is not None
    assert template.render([USER]) == "plain<s>"
    assert template.render([USER], tools=[]) == "plain<s>"
    assert template.render([USER], documents=[{"title": "t", "text": "x"}]) == "rag</s>"
    broken = from_metadata({MAIN: "x", USE: "\n{% if %}"}, "", "")
    assert broken is not None and broken.render([USER]) == "x"
    with pytest.raises(ModelError, match=r"^tokenizer\.chat_template\.tool_use line 2: "):
        broken.check()


def test_t10_tool_use_is_taken_for_tools() -> None:
    template = from_metadata(
        {MAIN: "plain", USE: "{% for t in tools %}{{ t.function.name }} {% endfor %}"}, "", ""
    )
    assert template is not None
    assert template.render([USER], tools=TOOLS) == "weather time "


def test_no_template_is_none_and_chatml_stands_in() -> None:
    assert from_metadata({"general.name": "x"}, "<s>", "</s>") is None
    assert from_metadata({MAIN: " \n"}, "<s>", "</s>") is None
    only = from_metadata({USE: "{{ messages[0].content }}"}, "", "")
    assert only is not None and only.render([USER]) == "hi"
    prompt = CHATML.render([{"role": "system", "content": "S"}, USER])
    assert (
        prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "ChatML" in CHATML.warning and ChatTemplate("x").warning == ""


# messages

BAD_MESSAGES: list[tuple[Any, str]] = [
    ("hi", "messages: expected a list of messages, got str"),
    ({"role": "user"}, "messages: expected a list of messages, got dict"),
    (None, "messages: expected a list of messages, got NoneType"),
    ([], "messages: the list is empty"),
    (["hi"], r"messages\[0\]: expected an object with role and content, got str"),
    ([{"content": "x"}], r"messages\[0\]\.role: expected one of system, .* got None"),
    ([USER, {"role": "robot", "content": "x"}], r"messages\[1\]\.role: .* got 'robot'"),
    ([{"role": ["user"], "content": "x"}], r"messages\[0\]\.role: "),
    ([{"role": "user"}], r"messages\[0\]\.content: missing"),
    ([{"role": "tool", "content": None}], r"messages\[0\]\.content: missing; a tool message needs text"),
    (
        [{"role": "user", "content": 5}],
        r"messages\[0\]\.content: expected text or a list of text parts, got int",
    ),
    ([{"role": "user", "content": {"text": "x"}}], r"messages\[0\]\.content: .* got dict"),
    (
        [{"role": "user", "content": ["x"]}],
        r"messages\[0\]\.content\[0\]: expected an object with type and text",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        r"content\[0\]\.type: only 'text' .* got 'image_url'",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        r"content\[0\]\.text: expected a string, got int",
    ),
    (
        [{"role": "user", "content": "a\ud83d"}],
        r"messages\[0\]\.content: character 1 is U\+D83D, half of a surrogate",
    ),
    ([{"role": "user", "content": "x", "name": "\udfff"}], r"messages\[0\]\.name: character 0 is U\+DFFF"),
    ([{"role": "user", "content": "x", 5: 6}], r"messages\[0\]: the key 5 is no string"),
    ([{"role": "user", "content": "x", "more": {1, 2}}], r"messages\[0\]\.more: set is no JSON value"),
    ([{"role": "user", "content": "x", "more": 1 << 5000}], r"messages\[0\]\.more: an integer of 5001 bits"),
    (
        [{"role": "user", "content": "x", "tool_calls": [call("f", {})]}],
        r"tool_calls: only an assistant message",
    ),
    (
        [{"role": "assistant", "tool_calls": {}, "reasoning_content": 5}],
        "reasoning_content: expected text, got int",
    ),
    ([{"role": "assistant", "tool_calls": "f()"}], r"messages\[0\]\.tool_calls: expected a list, got str"),
    (
        [{"role": "assistant", "tool_calls": [{"name": "f"}]}],
        r"tool_calls\[0\]: expected an object with a function that has a name",
    ),
    (
        [{"role": "assistant", "tool_calls": [call("f", 5)]}],
        r"tool_calls\[0\]\.function\.arguments: .* got int",
    ),
]


@pytest.mark.parametrize(("messages", "text"), BAD_MESSAGES)
def test_bad_messages(messages: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        CHATML.render(messages)


@pytest.mark.parametrize(
    "tools", ["f", {"a": 1}, [5], [{"function": {}}], [{"type": "function", "function": {"name": 1}}]]
)
def test_bad_tools(tools: Any) -> None:
    with pytest.raises(RequestError, match=r"^tools"):
        CHATML.render([USER], tools=tools)


@pytest.mark.parametrize("documents", ["x", [5], {"a": 1}])
def test_bad_documents(documents: Any) -> None:
    with pytest.raises(RequestError, match=r"^documents"):
        CHATML.render([USER], documents=documents)


def test_t07_cycle_in_a_request_is_refused() -> None:
    cycle: dict[str, Any] = {"role": "user", "content": "x"}
    cycle["self"] = cycle
    with pytest.raises(RequestError, match="nests deeper than 64"):
        ChatTemplate("{{ messages|tojson }}").render([cycle])


def test_request_is_left_as_it_was() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call("f", '{"a": 1}')]},
        {"role": "tool", "content": "r"},
    ]
    before = json.dumps([messages, TOOLS])
    source = (DATA / "tools_xml.jinja").read_text(
        "utf-8"
    ) + "{% set _ = messages.append(1) %}{% set _ = tools.pop() %}"
    ChatTemplate(source).render(messages, tools=TOOLS)
    assert json.dumps([messages, TOOLS]) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=6))
def test_any_text_comes_through_unchanged(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in ["NUL \0", *texts]]
    wanted = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in messages)
    assert CHATML.render(messages, add_generation_prompt=False) == wanted


# forms


def test_system_goes_before_the_next_user_message() -> None:
    template = ChatTemplate((DATA / "alternating.jinja").read_text("utf-8"))
    messages = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        USER,
        {"role": "assistant", "content": "yes"},
        {"role": "system", "content": "C"},
        USER,
    ]
    assert template.render(messages) == "[USER]A\n\nB\n\nhi[MODEL]yes[USER]C\n\nhi[MODEL]"
    assert template.render([{"role": "system", "content": "A"}]) == "[USER]A[MODEL]"


def test_developer_is_kept_where_the_template_names_it() -> None:
    body = "{% if m.role != 'nobody' %}[{{ m.role }}]{{ m.content }}{% endif %}"
    source = "{% for m in messages %}" + body + "{% endfor %}"
    messages = [{"role": "developer", "content": "A"}, USER]
    assert ChatTemplate(source).render(messages) == "[system]A[user]hi"
    named = source.replace("m.role != 'nobody'", "m.role in ['developer', 'user']")
    assert ChatTemplate(named).render(messages) == "[developer]A[user]hi"


def test_parts_are_joined_or_passed_on() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    assert "user\none\ntwo<" in CHATML.render(messages)
    typed = ChatTemplate((DATA / "parts.jinja").read_text("utf-8"))
    assert typed.render(messages) == "<|user|>onetwo<|end|><|assistant|>"
    listed = "{{ c | map(attribute='text') | join('/') }}"
    both = "{% set c = messages[0].content %}{% if c is string %}{{ c }}{% else %}" + listed + "{% endif %}"
    assert ChatTemplate(both).render(messages) == "one/two"
    assert ChatTemplate(both).render([USER]) == "hi"


ARGUMENTS = [
    ("{{ f.arguments | tojson }}", '{"a": "é"}'),
    ("{{ f.arguments }}", '{"a": "é"}'),
    ("{{ f.arguments if f.arguments is string else f.arguments | tojson }}", '{"a": "é"}'),
    ("{% for k, v in f.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}", "<a>é"),
]


@pytest.mark.parametrize("given_form", [{"a": "é"}, '{"a": "é"}'], ids=["object", "text"])
@pytest.mark.parametrize(("expression", "wanted"), ARGUMENTS)
def test_arguments_take_the_form_that_the_template_prints(
    expression: str, wanted: str, given_form: Any
) -> None:
    body = "{% set f = c.function %}{{ f.name }} " + expression
    source = "{% for m in messages %}{% for c in m.tool_calls %}" + body + "{% endfor %}{% endfor %}"
    template = ChatTemplate(source)
    messages = [USER, {"role": "assistant", "tool_calls": [call("f", given_form)]}]
    assert template.render(messages) == f"f {wanted}"


@pytest.mark.parametrize("text", ["{", "[1]", "nothing", "{" * 100_000, '{"a": ' + "9" * 10_000 + "}"])
def test_arguments_that_are_no_object(text: str) -> None:
    template = ChatTemplate((DATA / "tools_xml.jinja").read_text("utf-8"))
    messages = [USER, {"role": "assistant", "tool_calls": [call("f", text)]}]
    with pytest.raises(RequestError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments"):
        template.render(messages)


def test_what_a_template_has_no_place_for_is_written_as_json() -> None:
    messages = [
        {"role": "system", "content": "S"},
        USER,
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [call("weather", '{"city": "Bern"}'), call("time", {})],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "tool", "tool_call_id": "2", "content": "noon"},
    ]
    template = ChatTemplate((DATA / "alternating.jinja").read_text("utf-8"))
    prompt = template.render(messages, tools=TOOLS)
    user, model, results, rest = re.split(r"\[(?:USER|MODEL)\]", prompt)[1:]
    assert not template.supports_tools and rest == ""
    assert user.startswith("S\n\nYou can call these tools:\n[") and user.endswith("hi")
    assert model.startswith("Wait.\n\n")
    calls = json.loads(model.removeprefix("Wait."))["tool_calls"]
    assert [(c["name"], c["arguments"]) for c in calls] == [("weather", {"city": "Bern"}), ("time", {})]
    assert [json.loads(line)["tool_response"]["content"] for line in results.split("\n")] == ["rain", "noon"]


def test_text_that_would_hide_a_call_stands_before_it() -> None:
    source = (
        "{% for m in messages %}{% if m.content %}[{{ m.role }}]{{ m.content }}"
        "{% elif m.tool_calls %}[call]{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
    )
    messages = [USER, {"role": "assistant", "content": "Wait.", "tool_calls": [call("f", {"a": 1})]}]
    wanted = '[user]hi[assistant]Wait.[call]{"name": "f", "arguments": {"a": 1}}'
    assert ChatTemplate(source).render(messages) == wanted


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_stands_under_each_name(field: str) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }};{% endfor %}"
    messages = [USER, {"role": "assistant", "content": "x", field: "why"}]
    assert ChatTemplate(source).render(messages) == "/;why/why;"


# the template object


def test_one_template_serves_many_threads() -> None:
    template = ChatTemplate("{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}")
    wrong: list[str] = []

    def work(letter: str) -> None:
        for _ in range(20):
            if template.render([{"role": "user", "content": letter * 200}]) != letter * 200:
                wrong.append(letter)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_jinja_is_imported_at_first_use_only() -> None:
    code = (
        "import sys; from satchel.formats.template import ChatTemplate;"
        "t = ChatTemplate('x{{ messages[0].content }}');"
        "assert 'jinja2' not in sys.modules; print(t.render([{'role': 'user', 'content': 'y'}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "xy\n"


def test_tool_support_is_asked_within_limits() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ tools }}"
    with pytest.raises(RequestError, match="took more than"):
        _ = ChatTemplate(loop).supports_tools
    assert ChatTemplate("{{ tools | tojson }}").supports_tools
    assert not ChatTemplate("{% if tools %}{% endif %}").supports_tools


def test_malformed_template_is_a_model_error_at_first_use() -> None:
    template = ChatTemplate("a\n{{ b", name="my.jinja")
    with pytest.raises(ModelError, match=r"^my\.jinja line 2: "):
        template.render([USER])
    with pytest.raises(ModelError, match=r"^my\.jinja line 2: "):
        template.check()
