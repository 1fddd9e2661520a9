"""`satchel create`: Modelfiles, and the models that are made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import Hub
from tiny_file import write_model

from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.store import Store
from satchel.store.create import with_system
from satchel.store.modelfile import Modelfile, read_modelfile

FILE = '''# A brief one
FROM base.gguf

PARAMETER temperature 0.25
parameter top_k 7
PARAMETER stop "<|x|>"
SYSTEM """You are "brief".
{% Always %}."""
LICENSE mit
TEMPLATE {{ .Prompt }}
'''
HI = [{"role": "user", "content": "hi"}]


def test_a_modelfile_is_read() -> None:
    recipe = read_modelfile(FILE)
    assert recipe == Modelfile(
        "base.gguf",
        [("temperature", "0.25"), ("top_k", "7"), ("stop", "<|x|>")],
        'You are "brief".\n{% Always %}.',
        "mit",
        ["TEMPLATE"],
    )
    assert read_modelfile('FROM a\r\nSYSTEM "b"').system == "b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a line FROM"),
        ("PARAMETER top_k 1", "expected a line FROM"),
        ("FROM a\nPARAMETER top_k", "line 2: expected PARAMETER NAME VALUE"),
        ("FROM a\n\nGREET b", "line 3: expected one of FROM, PARAMETER"),
        ("FROM a\nhello", "line 2: expected one of"),
    ],
)
def test_a_wrong_modelfile_names_its_line(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_modelfile(text)


def test_a_model_is_made(environ: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = write_model(tmp_path / "base.gguf", tokenizer__chat_template="{{ messages[0].content }}|")
    (tmp_path / "Modelfile").write_text(FILE)
    assert main(["create", "brief", "-f", str(tmp_path / "Modelfile")]) == 0
    said = capfd.readouterr()
    assert "PARAMETER stop is not kept in the file: -r" in said.err and "TEMPLATE: " in said.err
    store = Store(environ=environ)
    path = store.find("brief")
    assert said.out == f"{path}\n" and path.is_relative_to(store.root)
    with Model.load(path, context=256, threads=1) as model:
        text = model.detokenize(model.prompt_ids(HI), special=True)
        assert text.endswith('You are "brief".\n{% Always %}.|')
        drawn = model.generate("hi", max_tokens=1).sampling
        assert (drawn.temperature, drawn.top_k) == (0.25, 7)
    with open_gguf(base) as old, open_gguf(path) as new:
        assert new.metadata["general.license"] == "mit" and list(new.tensors) == list(old.tensors)
    assert main(["create", "brief", "-f", str(tmp_path / "Modelfile")]) == 1
    assert "brief: expected a new name" in capfd.readouterr().err
    store.remove("brief")
    assert not path.exists() and base.exists()


def test_the_source_is_pulled(environ: dict[str, str], hub: Hub, model: bytes, tmp_path: Path) -> None:
    hub.put_ollama("library/tiny", "latest", model)
    (tmp_path / "Modelfile").write_text("FROM tiny\nPARAMETER temperature hot\n")
    assert main(["create", "mine", "-f", str(tmp_path / "Modelfile")]) == 1
    (tmp_path / "Modelfile").write_text("FROM tiny\nPARAMETER temperature 0\n")
    assert main(["create", "mine:latest", "-f", str(tmp_path / "Modelfile")]) == 0
    names = [entry.name for entry in Store(environ=environ).list()]
    assert names[:2] == ["mine", "ollama:tiny:latest"]


def test_a_system_prompt_of_the_conversation_goes_first(tmp_path: Path) -> None:
    template = with_system("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "Be brief.")
    path = write_model(tmp_path / "m.gguf", tokenizer__chat_template=template)
    with Model.load(path, context=64, threads=1) as model:
        own = [{"role": "system", "content": "Own."}, *HI]
        assert model.detokenize(model.prompt_ids(own)).endswith("system:Own.;user:hi;")
        assert model.detokenize(model.prompt_ids(HI)).endswith("system:Be brief.;user:hi;")
