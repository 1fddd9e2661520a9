"""Every example of docs/library.md runs, in a folder with a tiny model."""

import re
from pathlib import Path

import pytest
from tiny_file import write_model

PAGE = Path(__file__).parents[3] / "docs" / "library.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_model(folder / "model.gguf")
    return folder


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    said = capsys.readouterr()
    assert "Traceback" not in said.err and (said.out.strip() or "break" in code)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
