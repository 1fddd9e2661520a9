"""Answers in each family's tool-call format, with the message that the parser must make of each."""

from typing import Any, NamedTuple

# ruff: noqa: E501 - answers stand as they are written

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "deep": {"type": ["object", "null"]},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "time",
            "description": "Now",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
CITY = '{"city": "Zürich", "days": 3}'
ESCAPES = r'{"city": "a \"b\" \\ {}[]</tool_call> \u00e9", "tags": ["x", []]}'
W, T = ("weather", CITY), ("time", "{}")


class Case(NamedTuple):
    family: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    notes: int = 0
    opening: str = ""


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
ALL, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>"
)
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Zürich'
    '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>"
)
INVOKE = (
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Zürich</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="time">\n</invoke>\n</minimax:tool_call>'
)
FENCED = '```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": %s\n    }\n]```'
DIRECT = 'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]```'
ONE_SOLAR = "<|tool_call:begin|>call_1<|tool_call:name|>{}<|tool_call:args|>{}<|tool_call:end|>"
SOLAR = f"<|tool_calls|>{ONE_SOLAR}{ONE_SOLAR}<|calls|>"
HUNYUAN = (
    "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city"
    "</arg_key:opensource>\n<arg_value:opensource>Zürich</arg_value:opensource>\n<arg_key:opensource>days"
    "</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
    "<tool_call:opensource>time<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
)

CASES = [
    Case("hermes", "plain words, 1 < 2 and <b>", content="plain words, 1 < 2 and <b>"),
    Case("hermes", hermes(*W), calls=(W,)),
    Case("hermes", f"Let me see.\n{hermes(*W)}\n{hermes(*T)}", content="Let me see.", calls=(W, T)),
    Case("hermes", f"<think>\nhm <tool_call>\n</think>\n\n{hermes(*W)}", "", "hm <tool_call>", (W,)),
    Case("hermes", f"hm\n</think>\n\nyes {hermes(*T)} no", "yesno", "hm", (T,), opening="reasoning"),
    Case("hermes", hermes("weather", ESCAPES), calls=(("weather", ESCAPES),)),
    Case("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', calls=(("f", '{"a": 1}'),)),
    Case("hermes", '<tool_call>{"name": "f"}', calls=(("f", "{}"),)),
    Case("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', calls=(("f", '{"a": 1}'),)),
    Case("hermes", f"[{hermes(*W)[12:-13]}]".join(("<tool_call>", "</tool_call>")), calls=(W,)),
    Case("hermes", '<tool_call>{"function": {"name": "f", "arguments": {}}}</tool_call>', calls=(("f", "{}"),)),
    # Malformed calls: the text is kept, with a note.
    Case("hermes", "<tool_call>", content="<tool_call>", notes=1),
    Case("hermes", '<tool_call>{"name": "f", "arg', content='<tool_call>{"name": "f", "arg', notes=1),
    Case("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call> x',
         content='<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call> x', notes=1),
    Case("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
         content='<tool_call>{"name": "f", "arguments": [1]}</tool_call>', notes=1),
    Case("hermes", f"<tool_call>no JSON</tool_call>{hermes(*T)}",
         content="<tool_call>no JSON</tool_call>", calls=(T,), notes=1),
    Case("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>',
         content='<tool_call>{"name": "", "arguments": {}}</tool_call>', notes=1),
    Case("hermes", '<tool_call>{"name": "f", "more": 1}</tool_call>', calls=(("f", "{}"),), notes=1),
    Case("qwen_xml", f"ok\n\n{XML}", "ok", "", (W,)),
    Case("qwen_xml", XML.replace("\n</tool_call>", ""), calls=(W,)),
    Case("qwen_xml", XML.removeprefix("<tool_call>\n"), calls=(W,)),
    Case("qwen_xml", "<tool_call>\n<function=time>\n</function>\n</tool_call>", calls=(T,)),
    Case("qwen_xml", XML.replace("</function>", ""), content=XML.replace("</function>", ""), notes=1),
    Case("glm", f"<think>a</think>ok{GLM}", "ok", "a", (W,)),
    Case("glm", "<tool_call>time\n</tool_call>", calls=(T,)),
    Case("glm", GLM[:60], content=GLM[:60], notes=1),
    Case("dsml", f"fine\n\n{DSML}", "fine", "", (W,)),
    Case("dsml", INVOKE, calls=(W, T)),
    Case("llama3", '{"name": "weather", "parameters": ' + CITY + "}", calls=(W,)),
    Case("llama3", '\n{"name": "time", "parameters": {}}; {"name": "time"}', calls=(T, T)),
    Case("llama3", '<|python_tag|>{"name": "time", "parameters": {}}', calls=(T,)),
    Case("llama3", '<|python_tag|>weather.call(city="Zürich", days=3)', calls=(W,)),
    Case("llama3", '{"answer": {"name": "time"}}', content='{"answer": {"name": "time"}}'),
    Case("llama3", '{"name": "Bob", "parameters": 3}', content='{"name": "Bob", "parameters": 3}'),
    Case("llama3", '{"name": "time", "parameters": {"a"', content='{"name": "time", "parameters": {"a"', notes=1),
    Case("llama3", "{", content="{", notes=1),
    Case("llama3", "<|python_tag|>print(1)", content="<|python_tag|>print(1)", notes=1),
    Case("function_tag", f"<function=weather>{CITY}</function>", calls=(W,)),
    Case("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": ' + CITY + ', "id": "abcdefghi"}]', calls=(W,)),
    Case("mistral", '[TOOL_CALLS] [{"name": "time", "arguments": {}}, {"name": "time", "arguments": {}}]',
         calls=(T, T)),
    Case("mistral", f"yes[TOOL_CALLS]weather[ARGS]{CITY}[TOOL_CALLS]time[CALL_ID]123456789[ARGS]{{}}",
         "yes", "", (W, T)),
    Case("mistral", f"[TOOL_CALLS]weather{CITY}", calls=(W,)),
    Case("mistral", '[TOOL_CALLS][{"name": "time", "arguments": {}}', calls=(T,), notes=1),
    Case("mistral", "[TOOL_CALLS][]", content="[TOOL_CALLS][]", notes=1),
    Case("deepseek", ALL + R1.format("weather", CITY) + "\n" + R1.format("time", "{}") + END, calls=(W, T)),
    Case("deepseek", f"hm</think>so{ALL}{V31.format('weather', CITY)}{V31.format('time', '{}')}{END}",
         "so", "hm", (W, T), opening="reasoning"),
    Case("deepseek", ALL + R1.format("weather", CITY[:-1]) + END,
         content=ALL + R1.format("weather", CITY[:-1]) + END, notes=1),
    Case("kimi", f"<|tool_calls_section_begin|>{KIMI.format('weather', 0, CITY)}{KIMI.format('time', 1, '{}')}"
         "<|tool_calls_section_end|>", calls=(W, T)),
    Case("command_r", '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "weather", "parameters": '
         + CITY + "}\n]<|END_ACTION|>", calls=(W,)),
    Case("listed", '<|tool_call|>[{"name": "weather", "arguments": ' + CITY + "}]<|/tool_call|>", calls=(W,)),
    Case("listed", ' functools[{"name": "weather", "arguments": ' + CITY + "}]", calls=(W,)),
    Case("listed", 'a<TOOLCALL>[{"name": "time", "arguments": {}}]</TOOLCALL>', "a", "", (T,)),
    Case("pythonic", '<|tool_call_start|>[weather(city="Zürich", days=3), time()]<|tool_call_end|>', calls=(W, T)),
    Case("pythonic", "[weather(city='Zürich', days=3)]", calls=(W,)),
    Case("pythonic", "[1, 2, 3]", content="[1, 2, 3]"),
    Case("pythonic", "[open(path='x')]", content="[open(path='x')]"),
    Case("pythonic", "<|tool_call_start|>[weather(f())]<|tool_call_end|>",
         content="<|tool_call_start|>[weather(f())]<|tool_call_end|>", notes=1),
    Case("pythonic", "Now:\n<function_calls>\nweather(city='Zürich', days=3)\ntime()\n</function_calls>\nok", "Now:ok",
         calls=(W, T)),
    Case("pythonic", "<function_calls>weather(city='Zürich', days=3)", calls=(W,)),
    Case("pythonic", "<function_calls>\ntime()\nno call\n</function_calls>", calls=(T,), notes=1,
         content="no call\n</function_calls>"),
    Case("pythonic", "```tool_code\nprint(weather(city='Zürich', days=3))\ntime()\n```", calls=(W, T)),
    Case("pythonic", "<|python_start|>[time(), time(a={'b': [1, None, true]})]<|python_end|>",
         calls=(T, ("time", '{"a": {"b": [1, null, true]}}'))),
    Case("pythonic", "<|tool_call_start|>[weather(city='a\nb', tags=[\"it's\"])]<|tool_call_end|>",
         calls=(("weather", '{"city": "a\\nb", "tags": ["it\'s"]}'),)),
    Case("llama3", "[weather(city='Zürich', days=3), time()]", calls=(W, T)),
    Case("llama3", "[rm(path='/')]", content="[rm(path='/')]"),
    Case("llama3", '[{"name": "weather", "arguments": ' + CITY + '}, {"name": "time", "arguments": {}}]', calls=(W, T)),
    Case("llama3", '[{"name": "rm", "arguments": {}}]', content='[{"name": "rm", "arguments": {}}]'),
    Case("llama3", "[1, 2]", content="[1, 2]"),
    Case("llama3", "<|python_start|>[time()]<|python_end|>", calls=(T,)),
    Case("llama3", '<|python_start|>{"name": "weather", "parameters": ' + CITY + "}<|python_end|>", calls=(W,)),
    Case("pythonic", "<|tool_call_start|>\n```python\nweather(city='Zürich',days=3)\ntime()\n```\n<|tool_call_end|>\nok",
         "ok", calls=(W, T)),
    Case("pythonic", "<|tool_call_start|>\n```python\nimport os\n```\n<|tool_call_end|>",
         content="<|tool_call_start|>\n```python\nimport os\n```\n<|tool_call_end|>", notes=1),
    Case("command_r_plus", f"Plan: look.\nAction: {FENCED % CITY}", "Plan: look.", "", (W,)),
    Case("command_r_plus", 'Action:```json\n[{"tool_name": "time", "parameters": {}},\n{"tool_name": "time"}]\n```',
         calls=(T, T)),
    Case("command_r_plus", "Action: none is needed.", content="Action: none is needed."),
    Case("command_r_plus", DIRECT, content=DIRECT),
    Case("command_r_plus", f"Action: {FENCED % '[1]'}", content=f"Action: {FENCED % '[1]'}", notes=1),
    Case("gigachat", 'I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": '
         + CITY + "}<|message_sep|>", "I look.", "", (W,)),
    Case("gigachat", "Hello.<|message_sep|>", content="Hello."),
    Case("gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n{x", notes=1,
         content="<|message_sep|>\n\nfunction call<|role_sep|>\n{x"),
    Case("solar", f"<|think|>hm<|end|><|begin|>assistant{SOLAR.format('weather', CITY, 'time', '{}')}", "", "hm", (W, T)),
    Case("solar", "<|content|>Hello <b>.<|end|>", content="Hello <b>."),
    Case("solar", "hm<|end|><|begin|>assistant<|content|>So.<|end|>", "So.", "hm", opening="reasoning"),
    Case("solar", SOLAR.format("weather", CITY[:-1], "time", "{}"),
         content=SOLAR.format("weather", CITY[:-1], "time", "{}").removesuffix("<|calls|>"), notes=1),
    Case("minicpm", 'Yes.\n<function name="weather"><param name="city">Zürich</param><param name="days">3</param></function>'
         '\n<function name="time"></function>', "Yes.", "", (W, T)),
    Case("minicpm", '<function name="weather"><param name="city"><![CDATA[</param> & "x"]]></param>'
         "<param name=\"deep\">{'a': [1, None, True]}</param></function>",
         calls=(("weather", '{"city": "</param> & \\"x\\"", "deep": {"a": [1, null, true]}}'),)),
    Case("minicpm", '<function name="weather"><param name="city">Zür', notes=1,
         content='<function name="weather"><param name="city">Zür'),
    Case("hunyuan", f"<think>a</think>ok{HUNYUAN}", "ok", "a", (W, T)),
    Case("hunyuan", HUNYUAN[:90], content=HUNYUAN[:90], notes=1),
    Case("listed", '<function_call> {"name": "weather", "arguments": ' + CITY + '}\n<function_call> {"name": "time"}',
         calls=(W, T)),
    Case("listed", 'a<longcat_tool_call>\n{"name": "time", "arguments": {}}\n</longcat_tool_call>', "a", calls=(T,)),
    Case("listed", '<|action_start|><|plugin|>\n{"name": "weather", "parameters": ' + CITY + "}<|action_end|>\n"
         '<|action_start|><|plugin|>{"name": "time", "arguments": {}}<|action_end|>', calls=(W, T)),
    Case("listed", "<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
         content="<|action_start|><|interpreter|>\nprint(1)<|action_end|>", notes=1),
    Case("gemma", 'Yes.<|tool_call>call:weather{city:<|"|>Zürich<|"|>,days:3}<tool_call|><|tool_call>call:time{}'
         "<tool_call|>", "Yes.", "", (W, T)),
    Case("gemma", '<|tool_call>call:f{a:{b:[<|"|>x, {y}<|"|>,1.5,null],<|"|>c d<|"|>:true},e:[]}<tool_call|>',
         calls=(("f", '{"a": {"b": ["x, {y}", 1.5, null], "c d": true}, "e": []}'),)),
    Case("gemma", '<|tool_call>call:weather{city:3,days:3}<tool_call|>', calls=(("weather", '{"city": "3", "days": 3}'),)),
    Case("gemma", '<|tool_call>call:f{a: {"b": "c\\n}"}}<tool_call|>', calls=(("f", '{"a": {"b": "c\\n}"}}'),)),
    Case("gemma", "<start_function_call>call:weather{city:<escape>Zürich<escape>,days:3}<end_function_call>", calls=(W,)),
    Case("gemma", '<|tool_call>call:weather{city:<|"|>Zür', content='<|tool_call>call:weather{city:<|"|>Zür', notes=1),
    Case("gemma", "<|tool_call>call:f{a:1 b:[}<tool_call|>", content="<|tool_call>call:f{a:1 b:[}<tool_call|>", notes=1),
    Case("gemma", "<|tool_call>weather{}<tool_call|>", content="<|tool_call>weather{}<tool_call|>", notes=1),
    Case("named", f"weather\n{CITY}", calls=(W,)),
    Case("named", f"\nweather\n{CITY}\n<|assistant|>time\n{{}}", calls=(W, T)),
    Case("named", "weather is nice\n{}", content="weather is nice\n{}"),
    Case("named", "\nHello", content="\nHello"),
    Case("named", 'time\n{"a": ', content='time\n{"a": ', notes=1),
    Case("listed", '<tool_calls>\n{"name": "weather", "arguments": ' + CITY + '}\n{"name": "time", "arguments": {}}\n'
         "</tool_calls>", calls=(W, T)),
    Case("listed", '<|tools_prefix|>[{"weather": ' + CITY + '}, {"time": {}}]<|tools_suffix|>', calls=(W, T)),
    Case("listed", '<|tools_prefix|>[{"weather": 3}]', content='<|tools_prefix|>[{"weather": 3}]', notes=1),
    Case("listed", '<|function_call|>{"name": "time", "arguments": {}}', calls=(T,)),
    Case("qwen_xml", XML.replace("tool_call>", "seed:tool_call>"), calls=(W,)),
    Case("dsml", DSML.replace("function_calls", "tool_calls"), calls=(W,)),
    Case("spoken", '{"tool_calls": [{"name": "weather", "arguments": ' + CITY + '}, {"name": "time"}]}',
         calls=(W, T)),
    Case("spoken", '```json\n{"tool_calls": [{"name": "time", "arguments": {}}]}\n```', calls=(T,)),
    Case("spoken", '{"tool_calls": [{"name": "rm", "arguments": {}}]}',
         content='{"tool_calls": [{"name": "rm", "arguments": {}}]}'),
    Case("spoken", "```python\nx = 1\n```", content="```python\nx = 1\n```"),
    Case("harmony", "<|channel|>analysis<|message|>We think.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
         "Hi.", "We think."),
    Case("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
         f"to=functions.weather <|constrain|>json<|message|>{CITY}<|call|>", "", "hm", (W,)),
    Case("harmony", f" to=functions.weather<|channel|>commentary json<|message|>{CITY}", calls=(W,)),
    Case("harmony", "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Then.",
         "First.\n\nThen."),
    Case("harmony", "ing on.<|end|><|start|>assistant<|channel|>final<|message|>x", "x", "ing on.",
         opening="reasoning"),
    Case("harmony", "no channel at all", content="no channel at all"),
    Case("functionary", f"all\nOn it.>>>weather\n{CITY}", "On it.", "", (W,)),
    Case("functionary", f">>>weather\n{CITY}>>>time\n{{}}", calls=(W, T)),
    Case("", "x<tool_call>{}</tool_call>", content="x<tool_call>{}</tool_call>"),
    Case("", "<think>a</think>\n\nb", "b", "a"),
    Case("", "a <think>b</think>", content="a <think>b</think>"),
    Case("", "<think>cut of", reasoning="cut of"),
    Case("", "<thin ice", content="<thin ice"),
    Case("", "</think>x", content="</think>x"),
    Case("", "\n two\n", content="\n two\n"),
    Case("", "", content=""),
    Case("", "more text", content="more text", opening="content"),
]  # fmt: skip


def identity(found: Any) -> tuple[str, str, tuple[tuple[str, str], ...], int]:
    """The parts of a collected message that a case compares."""
    calls = tuple((call.name, call.arguments) for call in found.tool_calls)
    return found.content, found.reasoning, calls, len(found.notes)
