"""Options of `satchel quantize`, in groups: the format of each tensor, importance data, a size limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong

if TYPE_CHECKING:
    from satchel.formats.quantizing.plan import Override
    from satchel.formats.quantizing.rules import Rules

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{u}I": 1024**i for i, u in enumerate("KMGT", 1)}
FORMAT = "PATTERN=FORMAT"


@dataclass(frozen=True, slots=True)
class MixOptions:
    """Options for the format of each tensor."""

    pure: Annotated[bool, option("--pure", help="One format for every matrix.")] = False
    requantize: Annotated[
        bool, option("--allow-requantize", help="Accept a source that is quantized, at a loss.")
    ] = False
    leave_output: Annotated[
        bool, option("--leave-output-tensor", "--leave-output", help="Keep the output matrix as it is.")
    ] = False
    tensor_type: Annotated[
        list[str] | None,
        option(
            "--tensor-type", metavar=FORMAT, help="Format of matrices whose name matches; may be repeated."
        ),
    ] = None
    type_file: Annotated[
        Path | None, option("--tensor-type-file", metavar="FILE", help=f"The same, a {FORMAT} on each line.")
    ] = None
    output: Annotated[
        str | None, option("--output-tensor-type", metavar="FORMAT", help="Format of output.weight.")
    ] = None
    embedding: Annotated[
        str | None, option("--token-embedding-type", metavar="FORMAT", help="Format of token_embd.weight.")
    ] = None

    def rules(self, type_name: str) -> Rules:
        """The rules of the named type, with these options' rules before its own."""
        from satchel.formats.quantizing.rules import Rules, find_recipe, is_rules_file, read_rules

        named = read_rules(Path(type_name)) if is_rules_file(type_name) else Rules(find_recipe(type_name))
        return Rules(named.recipe, (*self.overrides(), *named.overrides), self.pure or named.pure)

    def overrides(self) -> list[Override]:
        from satchel.formats.quantizing.rules import read_type_file, split_pair

        found = [split_pair(pair, "--tensor-type") for pair in self.tensor_type or []]
        found += read_type_file(self.type_file) if self.type_file else []
        if self.output is not None:
            found.append((r"^output\.weight$", self.output))
        if self.embedding is not None:
            found.append((r"^token_embd\.weight$", self.embedding))
        return found


@dataclass(frozen=True, slots=True)
class ImportanceOptions:
    """Importance data, and the algorithms that use it."""

    file: Annotated[
        Path | None,
        option("--imatrix", metavar="FILE", help="Importance data, made by `satchel imatrix` or llama.cpp."),
    ] = None
    gptq: Annotated[
        bool,
        option(
            "--gptq/--no-gptq",
            help="GPTQ: with data that has the Hessian, pass rounding errors on from column to column.",
        ),
    ] = True
    awq: Annotated[
        bool,
        option(
            "--awq/--no-awq",
            help="AWQ: with data, scale columns where that lowers the error; adapters of IN no longer fit.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.awq and self.file is None:
            raise wrong("--awq", "scales are found by importance data: give --imatrix FILE")


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """A size instead of a type: formats are chosen by measured divergence."""

    size: Annotated[
        str | None, option("--target-size", metavar="SIZE", help="Bytes of the file: 3.2GB, 900MiB, ...")
    ] = None
    bpw: Annotated[
        float | None, option("--target-bpw", metavar="BITS", min=0.1, help="Bits per weight, all tensors.")
    ] = None
    text: Annotated[
        Path | None, option("--text", metavar="FILE", help="The text that divergence is measured on.")
    ] = None
    candidates: Annotated[
        str | None,
        option("--candidates", metavar="A,B,...", help="Formats to choose from; default: Q2_K to Q8_0."),
    ] = None
    seconds: Annotated[
        float, option("--search-time", metavar="SECONDS", min=1, help="About how long measuring may take.")
    ] = 300
    windows: Annotated[
        int,
        option("--chunks", metavar="N", min=1, help="Windows of 512 tokens that each choice is tried on."),
    ] = 4
    report: Annotated[
        Path | None, option("--report", metavar="FILE.html", help="Write what was found as a page.")
    ] = None
    rules: Annotated[
        Path | None,
        option(
            "--save-rules", metavar="FILE.toml", help="Write the choice as a file of rules, to be a TYPE."
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.size is not None and self.bpw is not None:
            raise wrong("--target-bpw", "the size is given by --target-size already")
        if self.size is not None:
            parse_size(self.size)
        if self.wanted and self.text is None:
            raise wrong(
                "--text", "a size is met by measuring: give a text like those that the model will see"
            )
        for name, value in (("--text", self.text), ("--report", self.report), ("--save-rules", self.rules)):
            if value is not None and not self.wanted:
                raise wrong(name, "it belongs to a budget: give --target-size or --target-bpw")

    @property
    def wanted(self) -> bool:
        return self.size is not None or self.bpw is not None

    @property
    def formats(self) -> tuple[str, ...]:
        """The candidate formats. UsageError for an unknown name."""
        from satchel.formats.quantizing.plan import writable

        names = [n.strip().lower() for n in (self.candidates or "").split(",") if n.strip()]
        for name in names:
            if name not in writable():
                raise wrong(
                    "--candidates", f"{name} is not a format: expected one of {', '.join(writable())}"
                )
        return tuple(names)


def parse_size(text: str) -> int:
    """Parses a size in bytes: a number with K, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (of 1024), then
    optionally B.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]I?|)B?\s*", text.upper())
    if found is None or float(found[1]) <= 0:
        raise wrong("--target-size", f"{text}: expected a size as in 3.2GB, 900MiB or 26375936")
    return int(float(found[1]) * UNITS[found[2]])
