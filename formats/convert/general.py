"""The general.* metadata (name, licence) and the chat templates, from config.json, the model card's YAML head
and the template files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.config import ModelConfig
from satchel.formats.convert.jsonfile import read_optional, read_text

CARD_LIMIT = 1 << 22
TEMPLATE_LIMIT = 1 << 20
FIELD = re.compile(r"^(license|license_name|license_link):[ \t]*[\"']?([^\"'\n#]+?)[\"']?[ \t]*$", re.M)
KEYS = {
    "license": "general.license",
    "license_name": "general.license.name",
    "license_link": "general.license.link",
}
TEMPLATE = "tokenizer.chat_template"


def general(folder: Path, model: ModelConfig) -> dict[str, Any]:
    """The general.* metadata."""
    values: dict[str, Any] = {"general.architecture": model.arch, "general.type": "model"}
    values["general.name"] = _name(folder, model)
    return values | _card(folder / "README.md")


def _name(folder: Path, model: ModelConfig) -> str:
    """The last component of the config's _name_or_path, else the folder's name."""
    stated = model.config.get("_name_or_path")
    if isinstance(stated, str) and stated.strip("./ ") and stated.isprintable():
        return stated.rstrip("/").rsplit("/", 1)[-1][:200]
    return folder.resolve().name or model.arch


def _card(path: Path) -> dict[str, Any]:
    """The licence fields of a model card's YAML head."""
    if not path.is_file():
        return {}
    text = read_text(path, CARD_LIMIT)
    head = re.match(r"---\r?\n(.*?)\r?\n---", text, re.S)
    if head is None:
        return {}
    return {KEYS[key]: value for key, value in FIELD.findall(head[1]) if value.isprintable()}


def chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The default and the named chat templates. A template file wins over the entry of tokenizer_config.json
    (`config`), as in transformers."""
    named: dict[str, str] = {}
    stated = config.get("chat_template")
    if isinstance(stated, str):
        named["default"] = stated
    elif isinstance(stated, list):
        for entry in stated:
            if not isinstance(entry, dict):
                raise _fault(folder, entry)
            named[_text(folder, entry.get("name"))] = _text(folder, entry.get("template"))
    elif stated is not None:
        raise _fault(folder, stated)
    other = read_optional(folder / "chat_template.json").get("chat_template")
    if isinstance(other, str):
        named["default"] = other
    if (folder / "chat_template.jinja").is_file():
        named["default"] = read_text(folder / "chat_template.jinja", TEMPLATE_LIMIT)
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        named[path.stem] = read_text(path, TEMPLATE_LIMIT)
    return _keys(named)


def _keys(named: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if "default" in named:
        values[TEMPLATE] = named["default"]
    others = {re.sub(r"[^A-Za-z0-9_]", "_", name): text for name, text in named.items() if name != "default"}
    if others:
        values["tokenizer.chat_templates"] = sorted(others)
        values |= {f"{TEMPLATE}.{name}": text for name, text in sorted(others.items())}
    return values


def _text(folder: Path, value: object) -> str:
    if not isinstance(value, str):
        raise _fault(folder, value)
    return value


def _fault(folder: Path, got: object) -> ModelError:
    return ModelError(
        f"{folder / 'tokenizer_config.json'}: chat_template: expected a text or a list of named texts, got"
        f" {got!a:.60}; the file is damaged: download it again"
    )
