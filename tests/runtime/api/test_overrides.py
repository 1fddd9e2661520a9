"""Metadata in place of the file's: --override-kv, another chat template, llama.cpp's options of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_file import write_model

from satchel.cli.rope import RopeOptions
from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.api.overrides import Override, read_overrides

IDS = list(range(3, 43))
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = "{% if who %}{{ who }}: {% endif %}{{ messages[0].content }}"
    return write_model(tmp_path_factory.mktemp("m") / "m.gguf", tokenizer__chat_template=template)


def loaded(file: Path, **options: Any) -> Model:
    return Model.load(file, context=64, threads=1, cache_type="f32", **options)


def logits(file: Path, *overrides: str) -> Any:
    with loaded(file, override_kv=overrides) as model:
        return np.asarray(model.logits(IDS))


def test_overrides_are_read() -> None:
    text = "a.b=int:0x10,c=str:x,y,d=bool:false,e=float:1e-3"
    assert read_overrides(text) == [
        Override("a.b", "int", 16),
        Override("c", "str", "x,y"),
        Override("d", "bool", False),
        Override("e", "float", 0.001),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "expected KEY=TYPE:VALUE"),
        ("a=1", "expected KEY=TYPE:VALUE"),
        ("a=u32:1", "expected KEY=TYPE:VALUE"),
        ("a=int:x", "a: expected a value of type int, got 'x'"),
        ("a=bool:1", "a: expected a value of type bool"),
        ("general.architecture=str:llama", "describes the file itself"),
        ("split.count=int:2", "describes the file itself"),
    ],
)
def test_a_wrong_override_is_refused_before_a_file_is_opened(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Options(override_kv=[text])


def test_a_value_has_the_type_of_the_file_s(file: Path) -> None:
    key = "qwen3.context_length"
    with loaded(file, override_kv=[f"{key}=int:48"]) as model:
        assert any("beyond the 48 tokens" in note for note in model.notes)
        assert model.gguf.metadata[key] == 48
    with pytest.raises(RequestError, match=f"{key}: expected a value of the file's type, uint32, got str"):
        loaded(file, override_kv=[f"{key}=str:48"])


def test_what_is_computed_is_that_of_a_file_with_the_values(file: Path, tmp_path: Path) -> None:
    keys = {"qwen3__rope__freq_base": 500.0}
    other = write_model(tmp_path / "other.gguf", **keys)
    assert np.array_equal(logits(file, "{arch}.rope.freq_base=float:500"), logits(other))
    assert not np.array_equal(logits(file), logits(other))


def overrides(**options: Any) -> list[str]:
    return RopeOptions(**options).overrides()


def test_a_scale_alone_is_linear(file: Path) -> None:
    linear = logits(file, *overrides(rope_scale=4.0))
    assert np.array_equal(linear, logits(file, *overrides(rope_freq_scale=0.25)))
    assert np.array_equal(linear, logits(file, *overrides(rope_scaling="linear", rope_scale=4.0)))
    assert not np.array_equal(linear, logits(file))


def test_yarn_and_its_factors(file: Path) -> None:
    options = {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 4096}
    yarn = logits(file, *overrides(**options))
    linear = logits(file, *overrides(rope_scale=4.0))
    assert not np.array_equal(yarn, linear)
    assert np.array_equal(yarn, logits(file, *overrides(**options, yarn_ext_factor=-1.0)))
    assert np.array_equal(linear, logits(file, *overrides(**options, yarn_ext_factor=0.0)))
    for name, value in (("yarn_attn_factor", 1.5), ("yarn_beta_fast", 8.0), ("yarn_beta_slow", 2.0)):
        assert not np.array_equal(yarn, logits(file, *overrides(**options, **{name: value}))), name


END = "<|start_header_id|>assistant<|end_header_id|>\n\n"


def test_another_template_is_used(file: Path) -> None:
    with loaded(file, chat_template="<{{ messages[0].content }}>") as model:
        assert model.detokenize(model.prompt_ids(HI), special=True).endswith("<hi>")
    with loaded(file, chat_template="chatml") as model:
        assert "im_start" in model.template.source
    for worker in ("thread", "process"):  # a sandboxed process reads the template too
        with Model.load(file, context=64, chat_template="llama3", worker=worker) as model:
            assert model.detokenize(model.prompt_ids(HI)).endswith("hi<|eot_id|>" + END)
    with pytest.raises(RequestError, match=r"chat_template: 'rwkv-world' is no name .* chatml, .* llama3, "):
        Options(chat_template="rwkv-world")


def test_variables_of_the_template_hold_for_requests_without_them(file: Path) -> None:
    with loaded(file, chat_template_kwargs='{"who": "me"}') as model:
        assert model.detokenize(model.prompt_ids(HI)).endswith("me: hi")
        asked = model.chat(HI, variables={"who": "you"}, max_tokens=1)
        assert model.detokenize(asked.prompt).endswith("you: hi")
        assert model.detokenize(model.chat(HI, max_tokens=1).prompt).endswith("me: hi")
    with pytest.raises(RequestError, match="expected a JSON object"):
        Options(chat_template_kwargs="[]")
