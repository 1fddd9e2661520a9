"""The template section: a model's chat template as code, what it supports of a conversation, and the markers
of its answers.

What the template does with roles, tools, calls and reasoning is what formats/template and formats/chat find
out by rendering; the C library asks nothing anew. A template that its machine does not run is left out by
name: the section then says why, and keeps the markers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np

from satchel.errors import ModelError
from satchel.formats.chat import Style, detect, guard_of, special_texts
from satchel.formats.gguf import GGUF
from satchel.formats.template import ChatTemplate, from_metadata
from satchel.formats.template.limits import LimitReached
from satchel.formats.template.messages import ROLES
from satchel.formats.template.probes import BESIDE, SYSTEM, Probes
from satchel.formats.tokenizer import MarkerGuard, build_tokenizer
from satchel.runtime.aot.records import (
    TEMPLATE_CASE,
    TEMPLATE_CODE,
    TEMPLATE_CONSTANT,
    TEMPLATE_ESCAPE,
    TEMPLATE_HEAD,
    TEMPLATE_MACRO,
    TEMPLATE_RANGE,
    TEMPLATE_VARIABLE,
    TEMPLATE_VARIANT,
    section,
)
from satchel.runtime.aot.template_code import OWN, STRING, TemplatePool, compile_template
from satchel.runtime.graph import Array

MAGIC = b"SATTPL01"
THINKS, EFFORTS, TOOLS, SPOKEN, FALLBACK = 1, 2, 4, 8, 16  # flags of the head
WANTS_PARTS, NAMES_DEVELOPER, SHOWS_TOOLS, SHOWS_RESULTS, NAMES_BY_ID, CALL_BESIDE_TEXT = 1, 2, 4, 8, 16, 32
SHOWS_ROLE, READS_PARTS = 64, 1024  # flags of a variant, as those before; shifted by a number
CASED = {"capitalize", "dictsort", "lower", "max", "min", "sort", "title", "unique", "upper"}  # need _cases()
PLACES = ("", "variable", SYSTEM, BESIDE)
ARGUMENTS = ("", "any", "object", "text")
CONTENTS = ("", "any", "none", "empty")


@dataclass(frozen=True, slots=True)
class TemplateSection:
    """The section's bytes, and why the template was left out, or ""."""

    data: bytes
    refused: str


def pack_template(gguf: GGUF) -> TemplateSection:
    """The section of the file's chat template, or of ChatML where it has none."""
    tokenizer = build_tokenizer(gguf.metadata, source=str(gguf.path))
    bos, eos = (tokenizer.text(i) if i is not None else "" for i in (tokenizer.bos, tokenizer.eos))
    try:
        found = from_metadata(gguf.metadata, bos, eos)
        template = found or ChatTemplate.chatml(bos_token=bos, eos_token=eos)
        style = detect(template, special_texts(tokenizer))
    except ModelError as error:
        return _without(str(error))
    return pack(template, style, guard_of(tokenizer, template.source), fallback=found is None)


def pack(
    template: ChatTemplate, style: Style, guard: MarkerGuard | None, fallback: bool = False
) -> TemplateSection:
    """The section of a template. guard: how user text is escaped before it; None: not at all."""
    pool, rows, own = TemplatePool(), [], set[int]()
    try:
        for name, probes in template.compiled().items():
            rows.append(_variant(pool, name, probes))
            own |= {pool.constant(text) for text in probes.program.strings}
    except (ModelError, LimitReached) as error:
        return _without(str(error), style)
    head = np.zeros((), TEMPLATE_HEAD)
    head["flags"] = (
        THINKS * style.thinks
        + EFFORTS * style.efforts
        + TOOLS * template.supports_tools
        + SPOKEN * style.spoken
        + FALLBACK * fallback
    )
    _style(pool, head, style, "")
    names = [(pool.constant(key), pool.constant(value)) for key, value in template.tokens.items()]
    escapes = sorted(guard.escaping.pairs.items()) if guard else []
    head["mark"] = ord(guard.escaping.mark) if guard else 0
    tables: dict[str, Array | bytes] = {
        "n_variants": np.array(rows, TEMPLATE_VARIANT),
        "n_code": np.array(pool.code, TEMPLATE_CODE),
        "n_macros": np.array(
            [(m.entry, m.n_slots, m.name, m.arguments, m.flags, 0) for m in pool.macros], TEMPLATE_MACRO
        ),
        **_constants(pool, own),
        "n_variables": np.array(names, TEMPLATE_VARIABLE),
        "n_escapes": np.array([(ord(a), ord(b)) for a, b in escapes], TEMPLATE_ESCAPE),
        "n_markers": np.array(sorted(guard.markers) if guard else [], np.uint32),
        "n_ranges": np.array(_unprinted(), TEMPLATE_RANGE),
        "n_cases": np.array(_cases() if CASED & pool.strings else [], TEMPLATE_CASE),
        "n_bytes": bytes(pool.data),
    }
    return TemplateSection(_section(head, tables), "")


def _without(refused: str, style: Style | None = None) -> TemplateSection:
    """The section of a template that is left out."""
    pool, head = TemplatePool(), np.zeros((), TEMPLATE_HEAD)
    style = style or Style()
    head["flags"] = THINKS * style.thinks
    _style(pool, head, style, refused)
    tables = {"n_variants": b"", **_constants(pool, set()), "n_bytes": bytes(pool.data)}
    return TemplateSection(_section(head, tables), refused)


def _section(head: Array, tables: Mapping[str, Array | bytes]) -> bytes:
    head["magic"] = MAGIC
    for count, table in tables.items():
        head[count] = len(table)
    return section(head, list(tables.values()))


def _constants(pool: TemplatePool, own: set[int]) -> dict[str, Array | bytes]:
    """The constants and the members of tuples. own: strings that no user wrote."""
    rows = [
        (OWN if i in own and kind == STRING else kind, size, value)
        for i, (kind, size, value) in enumerate(pool.constants)
    ]
    return {
        "n_constants": np.array(rows, TEMPLATE_CONSTANT),
        "n_members": np.array(pool.members, np.uint32),
    }


def _style(pool: TemplatePool, head: Array, style: Style, refused: str) -> None:
    calls = style.calls
    texts = {
        "refused": refused,
        "thinking_begin": style.open,
        "thinking_end": style.close,
        "calls_format": style.family,
        "calls_begin": "\n".join(calls.begins if calls else ()),
        "switches": "\n".join(style.switches),
    }
    for key, text in texts.items():
        head[key] = pool.constant(text)


def _variant(pool: TemplatePool, name: str, probes: Probes) -> tuple[int, ...]:
    source = probes.program.source
    entry, n_slots = compile_template(pool, source, probes.program.name)
    place = probes.tools_place()
    kind = PLACES.index(place) if place in PLACES else PLACES.index("variable")
    arguments, content = probes.call_form()
    return (
        pool.constant(name), entry, n_slots, len(source), _supports(probes), kind, pool.constant(place),
        ARGUMENTS.index(arguments), CONTENTS.index(content), 0,
    )  # fmt: skip


def _supports(probes: Probes) -> int:
    flags = (
        WANTS_PARTS * probes.wants_parts()
        + NAMES_DEVELOPER * probes.names_developer()
        + SHOWS_TOOLS * probes.shows_tools()
        + SHOWS_RESULTS * probes.shows_results()
        + NAMES_BY_ID * probes.names_by_id()
        + CALL_BESIDE_TEXT * probes.shows_call_beside_text()
    )
    shown = [probes.shows_role(role, first) for role in ("system", "developer") for first in (True, False)]
    flags += sum(SHOWS_ROLE << i for i, shows in enumerate(shown) if shows)
    return flags + sum(READS_PARTS << i for i, role in enumerate(ROLES) if probes.reads_parts(role))


@cache
def _unprinted() -> Sequence[tuple[int, int]]:
    """Ranges of code points beyond ASCII that repr() writes as numbers."""
    points = range(0x80, sys.maxunicode + 1)
    shown = np.fromiter(map(str.isprintable, map(chr, points)), bool, len(points))
    edges = np.flatnonzero(np.diff(shown, prepend=True, append=True)) + points.start
    return [(int(first), int(after) - 1) for first, after in edges.reshape(-1, 2)]


def _blocks() -> Iterator[range]:
    """The code points beyond ASCII, some hundred at a time."""
    return (range(start, start + 128) for start in range(0x80, sys.maxunicode + 1, 128))


def _has_cases(text: str) -> bool:
    """Whether a letter has another case. None has one as a word's first letter alone."""
    return text.lower() != text or text.upper() != text


def _becomes(kind: int, char: str) -> str:
    """What a character becomes as a small, a capital or a word's first letter. The last is "" where it is the
    capital one.
    """
    if kind < 2:
        return char.upper() if kind else char.lower()
    return "" if char.title() == char.upper() else char.title()


@cache
def _cases() -> Sequence[tuple[int, int, int, int, int]]:
    """Letters beyond ASCII with another case: rows of TEMPLATE_CASE. What becomes several characters, or
    depends on those beside it, is refused in the run.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    cased = [*chain.from_iterable(block for block in _blocks() if _has_cases("".join(map(chr, block))))]
    for kind in range(3):
        for point in cased:
            made = _becomes(kind, chr(point))
            if made in ("", chr(point)):
                continue
            refused = len(made) != 1 or (kind == 0 and chr(point) == "\u03a3")  # a sigma depends on its place
            delta = -(1 << 31) if refused else ord(made) - point
            last = rows[-1] if rows else (-1, 0, 0, 0, 0)
            step = point - last[3]
            if (
                last[0] == kind
                and last[4] == delta
                and step in (1, 2)
                and (last[2] == last[3] or last[1] == step)
            ):
                rows[-1] = kind, step, last[2], point, delta
            else:
                rows.append((kind, 1, point, point, delta))
    return rows
