"""README's examples run with the bundled model; its commands and pages exist."""

import re
from pathlib import Path

import pytest

from satchel.cli.main import commands

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_shows(
    code: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not list((ROOT / "models").glob("*.gguf")):
        pytest.skip("the bundled model is not in this tree")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_its_commands_and_pages_are_there() -> None:
    told = set(re.findall(r"`satchel ([a-z]+)", TEXT))
    assert told and told <= set(commands())
    pages = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert pages and [page for page in pages if not (ROOT / page).exists()] == []
    assert len(EXAMPLES) == TEXT.count("```python") == 2


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for name, heading in re.findall(r"\]\(([\w./]*\.md)?(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        there = page.parent / name if name else page
        assert there.exists(), name
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
            assert heading in [re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles], heading
