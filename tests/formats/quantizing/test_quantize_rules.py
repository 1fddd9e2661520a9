"""Files of rules and of types: their meaning, and one clear error for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from satchel.errors import RequestError
from satchel.formats.quantizing.rules import (
    find_recipe,
    is_rules_file,
    read_rules,
    read_type_file,
    write_rules,
)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml, same = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text("base = 'q4_k_m'\npure = true\n[types]\n'b' = 'q8_0'\n'a' = 'f16'\n")
    same.write_text('{"base": "q4_k_m", "pure": true, "types": {"b": "q8_0", "a": "f16"}}')
    assert read_rules(toml) == read_rules(same)
    assert read_rules(toml).overrides == (("b", "q8_0"), ("a", "f16")), "the order decides which rule wins"
    assert read_rules(toml).recipe.name == "Q4_K_M"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    names = {"blk.0.ffn_up.weight": "q4_k", "output.weight": "q8_0"}
    (tmp_path / "x.toml").write_text(write_rules("Q8_0", names))
    found = dict(read_rules(tmp_path / "x.toml").overrides)
    assert found == {r"^blk\.0\.ffn_up\.weight$": "q4_k", r"^output\.weight$": "q8_0"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.toml", "base = ", "not TOML"),
        ("x.json", "{", "not JSON"),
        ("x.json", "[" * 100_000, "not JSON"),
        ("x.json", "[1]", "got list"),
        ("x.toml", "types = {}", "base: expected the name"),
        ("x.toml", "base = 3", "base: expected the name"),
        ("x.toml", "base = 'q9'", "type q9"),
        ("x.toml", "base = 'q8_0'\npure = 1", "pure: expected true or false"),
        ("x.toml", "base = 'q8_0'\ntypes = ['a']", "types: expected pairs"),
        ("x.toml", "base = 'q8_0'\n[types]\na = 4", "types: expected pairs"),
        ("x.toml", "base = 'q8_0'\nbits = 4", "'bits'"),
        ("x.toml", "#" * (1 << 21), "at most"),
    ],
)
def test_rules_that_cannot_be(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=says) as caught:
        read_rules(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"base = '\x00'"])
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(RequestError, match="not TOML"):
        read_rules(tmp_path / "x.toml")


def test_type_files(tmp_path: Path) -> None:
    path = tmp_path / "types"
    path.write_text("# comment\n  ffn_(up|gate)=q4_0  \n\na=b=q8_0\n")
    assert read_type_file(path) == [("ffn_(up|gate)", "q4_0"), ("a=b", "q8_0")]
    path.write_text("a=q8_0\nnothing\n")
    with pytest.raises(RequestError, match="line 2"):
        read_type_file(path)
    with pytest.raises(RequestError, match="can't be read"):
        read_type_file(tmp_path / "none")


def test_a_format_without_a_recipe_is_one_for_every_matrix() -> None:
    assert find_recipe("q5_k_s").name == "Q5_K_S"
    assert {find_recipe("i8_g128").base, find_recipe("I8_G128").head} == {"i8_g128"}
    assert is_rules_file("mix.TOML") and not is_rules_file("Q4_0")
