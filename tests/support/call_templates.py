"""Chat templates that write tool calls in the formats of families whose own templates are not in
tests/data.
"""

# How these families' templates write a turn with calls; `call` is the variable of one call.
OWN = {
    "qwen_xml": "<tool_call>\n<function={{ call.name }}>\n{% for k, v in call.arguments.items() %}<parameter="
    "{{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "glm": "<tool_call>{{ call.name }}\n{% for k, v in call.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ call.name }}:0"
    "<|tool_call_argument_begin|>{{ call.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
    "listed": '<|tool_call|>[{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}]',
    "command_r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ call.name }}", "parameters": '
    "{{ call.arguments | tojson }}}]<|END_ACTION|>",
    "function_tag": "<function={{ call.name }}>{{ call.arguments | tojson }}</function>",
    "functionary": ">>>{{ call.name }}\n{{ call.arguments | tojson }}",
    "dsml": '<minimax:tool_call>\n<invoke name="{{ call.name }}">\n{% for k, v in call.arguments.items() %}'
    '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n'
    "</minimax:tool_call>",
    "pythonic": "<|tool_call_start|>[{{ call.name }}({% for k, v in call.arguments.items() %}{{ k }}="
    "{{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})]<|tool_call_end|>",
    "gemma": "<|tool_call>call:{{ call.name }}{{ '{' }}{% for k, v in call.arguments | dictsort %}{{ k }}:"
    "{{ '<|\"|>' ~ v ~ '<|\"|>' if v is string else v | tojson }}{{ ',' if not loop.last }}{% endfor %}"
    "{{ '}' }}<tool_call|>",
    "named": "<|assistant|>{{ call.name }}\n{{ call.arguments | tojson }}",
    "command_r_plus": 'Action: ```json\n[\n    {\n        "tool_name": "{{ call.name }}",\n'
    '        "parameters": '
    "{{ call.arguments | tojson }}\n    }\n]```",
    "gigachat": '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "{{ call.name }}", "arguments": '
    "{{ call.arguments | tojson }}}",
    "solar": "<|tool_calls|><|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ call.name }}<|tool_call:args|>"
    "{{ call.arguments | tojson }}<|tool_call:end|><|calls|>",
    "minicpm": '<function name="{{ call.name }}">{% for k, v in call.arguments.items() %}'
    '<param name="{{ k }}">'
    "{{ '<![CDATA[' ~ v ~ ']]>' if v is string and '<' in v else v }}</param>{% endfor %}</function>\n",
    "hunyuan": "<tool_calls:opensource>\n<tool_call:opensource>{{ call.name }}<tool_sep:opensource>\n"
    "{% for k, v in call.arguments.items() %}<arg_key:opensource>{{ k }}</arg_key:opensource>\n"
    "<arg_value:opensource>{{ v if v is string else v | tojson }}</arg_value:opensource>\n{% endfor %}"
    "</tool_call:opensource>\n</tool_calls:opensource>",
    "mistral": "[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments | tojson }}",
}
# Markers that may begin the calls of one family.
BEGINS = {
    "listed": (
        "<|tool_call|>",
        "<TOOLCALL>",
        "<tool_calls>",
        "functools",
        "<|function_call|>",
        "<function_call>",
        "<longcat_tool_call>",
        "<|action_start|>",
    ),
    "gemma": ("<|tool_call>", "<start_function_call>"),
    "qwen_xml": ("<tool_call>", "<seed:tool_call>"),
    "dsml": ("<minimax:tool_call>", "<function_calls>"),
    "pythonic": ("<|tool_call_start|>", "<|python_start|>", "<function_calls>", ""),
}


def template_of(family: str, begin: str = "") -> str:
    """A template's text. begin: replaces the marker that begins its calls."""
    call = OWN[family]
    if begin:
        call = call.replace(BEGINS[family][0], begin)
    turn = f"{{% for c in m.tool_calls %}}{{% set call = c.function %}}{call}{{% endfor %}}"
    return (
        "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>\n{% if m.tool_calls %}"
        f"{{{{ m.content or '' }}}}{turn}"
        "{% else %}{{ m.content }}{% endif %}<|end_of_turn|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
