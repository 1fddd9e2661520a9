"""Chat templates by llama.cpp's names: each writes a conversation as its model's format is published."""

from __future__ import annotations

import pytest

from satchel.errors import RequestError
from satchel.formats.template.chat import ChatTemplate, named, names

# A system message, a question and its answer, each with a space to trim, and a question.
CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hi "},
    {"role": "assistant", "content": "Hello "},
    {"role": "user", "content": "Bye"},
]
SYS = "<<SYS>>\nBe brief. \n<</SYS>>\n\n"
TURN, OVER = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
WRITTEN = {
    "chatml": "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\nHi <|im_end|>\n"
    "<|im_start|>assistant\nHello <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "chatglm4": "[gMASK]<sop><|system|>\nBe brief. <|user|>\nHi <|assistant|>\nHello <|user|>\n"
    "Bye<|assistant|>\n",
    "command-r": f"{TURN}<|SYSTEM_TOKEN|>Be brief.{OVER}{TURN}<|USER_TOKEN|>Hi{OVER}"
    f"{TURN}<|CHATBOT_TOKEN|>Hello{OVER}{TURN}<|USER_TOKEN|>Bye{OVER}{TURN}<|CHATBOT_TOKEN|>",
    "deepseek": "Be brief. ### Instruction:\nHi \n### Response:\nHello \n<|EOT|>\n### Instruction:\n"
    "Bye\n### Response:\n",
    "deepseek2": "Be brief. \n\nUser: Hi \n\nAssistant: Hello <｜end▁of▁sentence｜>User: Bye\n\nAssistant:",
    "deepseek3": "Be brief. \n\n<｜User｜>Hi <｜Assistant｜>Hello <｜end▁of▁sentence｜>"
    "<｜User｜>Bye<｜Assistant｜>",
    "exaone3": "[|system|]Be brief.[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n"
    "[|user|]Bye\n[|assistant|]",
    "exaone4": "[|system|]Be brief.[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n"
    "[|user|]Bye\n[|assistant|]",
    "falcon3": "<|system|>\nBe brief. \n<|user|>\nHi \n<|assistant|>\nHello \n<|user|>\nBye\n<|assistant|>\n",
    "gemma": "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "glmedge": "<|system|>\nBe brief. <|user|>\nHi <|assistant|>\nHello <|user|>\nBye<|assistant|>",
    "gpt-oss": "<|start|>system<|message|>Be brief. <|end|><|start|>user<|message|>Hi <|end|>"
    "<|start|>assistant<|message|>Hello <|return|><|start|>user<|message|>Bye<|end|><|start|>assistant",
    "granite": "<|start_of_role|>system<|end_of_role|>Be brief. <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Hi <|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>Hello <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Bye<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "grok-2": "System: Be brief.<|separator|>\n\nHuman: Hi<|separator|>\n\nAssistant: Hello <|separator|>\n\n"
    "Human: Bye<|separator|>\n\nAssistant:",
    "kimi-k2": "<|im_system|>system<|im_middle|>Be brief. <|im_end|><|im_user|>user<|im_middle|>Hi <|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>Hello <|im_end|><|im_user|>user<|im_middle|>Bye<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>",
    "llama2": "[INST] Be brief. \nHi  [/INST]Hello </s>[INST] Bye [/INST]",
    "llama2-sys": f"[INST] {SYS}Hi  [/INST]Hello </s>[INST] Bye [/INST]",
    "llama2-sys-bos": f"[INST] {SYS}Hi  [/INST]Hello </s><s>[INST] Bye [/INST]",
    "llama2-sys-strip": f"[INST] {SYS.replace('brief. ', 'brief.')}Hi [/INST]Hello</s>[INST] Bye [/INST]",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n"
    "Bye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama4": "<|header_start|>system<|header_end|>\n\n"
    "Be brief.<|eot|><|header_start|>user<|header_end|>\n\nHi<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\nHello<|eot|><|header_start|>user<|header_end|>\n\nBye<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\n",
    "megrez": "<|role_start|>system<|role_end|>Be brief. <|turn_end|><|role_start|>user<|role_end|>Hi "
    "<|turn_end|>"
    "<|role_start|>assistant<|role_end|>Hello <|turn_end|><|role_start|>user<|role_end|>Bye<|turn_end|>"
    "<|role_start|>assistant<|role_end|>",
    "mistral-v1": " [INST] Be brief. \n\nHi  [/INST] Hello </s> [INST] Bye [/INST]",
    "mistral-v3": "[INST] Be brief. \n\nHi [/INST] Hello</s>[INST] Bye[/INST]",
    "mistral-v3-tekken": "[INST]Be brief. \n\nHi [/INST]Hello </s>[INST]Bye[/INST]",
    "mistral-v7": "[SYSTEM_PROMPT] Be brief. [/SYSTEM_PROMPT][INST] Hi [/INST] Hello </s>[INST] Bye[/INST]",
    "mistral-v7-tekken": "[SYSTEM_PROMPT]Be brief. [/SYSTEM_PROMPT][INST]Hi [/INST]Hello "
    "</s>[INST]Bye[/INST]",
    "monarch": "system\nBe brief. </s>\n<s>user\nHi </s>\n<s>assistant\nHello </s>\n<s>user\n"
    "Bye</s>\n<s>assistant\n",
    "openchat": "Be brief. <|end_of_turn|>GPT4 Correct User: Hi <|end_of_turn|>"
    "GPT4 Correct Assistant: Hello <|end_of_turn|>GPT4 Correct User: Bye"
    "<|end_of_turn|>GPT4 Correct Assistant:",
    "phi3": "<|system|>\nBe brief. <|end|>\n<|user|>\nHi <|end|>\n<|assistant|>\nHello <|end|>\n"
    "<|user|>\nBye<|end|>\n"
    "<|assistant|>\n",
    "phi4": "<|im_start|>system<|im_sep|>Be brief. <|im_end|><|im_start|>user<|im_sep|>Hi <|im_end|>"
    "<|im_start|>assistant<|im_sep|>Hello <|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|>"
    "<|im_start|>assistant<|im_sep|>",
    "seed_oss": "<seed:bos>system\nBe brief. <seed:eos><seed:bos>user\nHi <seed:eos>"
    "<seed:bos>assistant\nHello<seed:eos><seed:bos>user\nBye<seed:eos><seed:bos>assistant\n",
    "smolvlm": "<|im_start|>Be brief. \n\nUser: Hi <end_of_utterance>\nAssistant: Hello <end_of_utterance>\n"
    "User: Bye<end_of_utterance>\nAssistant:",
    "solar-open": "<|begin|>system<|content|>Be brief. <|end|><|begin|>user<|content|>Hi <|end|>"
    "<|begin|>assistant<|content|>Hello <|end|><|begin|>user<|content|>Bye<|end|><|begin|>assistant",
    "vicuna": "Be brief. \n\nUSER: Hi \nASSISTANT: Hello </s>\nUSER: Bye\nASSISTANT:",
    "vicuna-orca": "SYSTEM: Be brief. \nUSER: Hi \nASSISTANT: Hello </s>\nUSER: Bye\nASSISTANT:",
    "zephyr": "<|system|>\nBe brief. <|endoftext|>\n<|user|>\nHi <|endoftext|>\n<|assistant|>\n"
    "Hello <|endoftext|>\n"
    "<|user|>\nBye<|endoftext|>\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", names())
def test_a_named_template_writes_its_format(name: str) -> None:
    assert ChatTemplate(named(name), name=name).render(CHAT) == WRITTEN[name]


@pytest.mark.parametrize("name", names())
def test_without_a_system_message_and_with_tools(name: str) -> None:
    """Every message is in the prompt, also those whose role the format lacks."""
    template = ChatTemplate(named(name), name=name)
    called = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    chat = [CHAT[1], {"role": "assistant", "tool_calls": [called]}, {"role": "tool", "content": "sunny"}]
    text = template.render(chat)
    assert all(part in text for part in ("Hi", "weather", "Rome", "sunny")) and "Be brief" not in text


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(RequestError, match=r"'rwkv-world' is no name .* chatml, .* llama3, .* zephyr"):
        named("rwkv-world")
    assert set(WRITTEN) == set(names())
