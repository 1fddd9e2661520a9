"""Load options: one field of Options defines the check of its value, its flags and its key in
[models.NAME].
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from math import inf
from typing import Annotated, Any

import pytest

from satchel.cli.groups import Group, Taking, with_options
from satchel.cli.main import (
    parsed,
)
from satchel.cli.options import ModelOptions, loading
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.option import PARALLEL, REPLICAS, SERVER, WORKER, option_field, options_of, with_values
from satchel.runtime.scheduler import SchedulerLimits

FIELDS = options_of(Options)
FLAGGED = {name: one for name, one in FIELDS.items() if one.flags}
# A value of each option with bounds, choices or a text that is read, which its declaration refuses.
WRONG = {
    **{n: one.low - 1 for n, one in FIELDS.items() if one.low > -inf},
    **{n: 0.0 for n, one in FIELDS.items() if one.above is not None},
    **{n: 3 if n == "activations" else "none such" for n, one in FIELDS.items() if one.choices},
    "gpu_layers": "many", "device": "a,a", "override_tensor": ("x",), "tensor_split": "0",
    "expert_cache": "x", "kv_budget": "0", "replicas": "many", "pools": "x",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Extended(Options):
    """Options with one more field."""

    colour: str = option_field("red", "Its colour.", "--colour", choices=("red", "blue"))


@dataclasses.dataclass(frozen=True)
class ExtendedGroup:
    """A group that holds them."""

    load: Extended = dataclasses.field(default_factory=Extended)


def made(given: dict[str, Any], taking: Taking | None = None) -> Options:
    """The options of what the flags were given; the others have their defaults."""
    return group_made(ModelOptions, given, taking or Taking(groups=(PARALLEL, WORKER, SERVER, REPLICAS)))


def group_made(kind: type, given: dict[str, Any], taking: Taking | None = None) -> Any:
    """The field `load` of a group of what the flags were given."""
    group = Group("g", kind, taking or Taking())
    defaults = {p.name: p.default for p in group.parameters()}
    return group.made(defaults | {f"g_{name}": value for name, value in given.items()}).load


def test_every_field_is_declared_and_documented() -> None:
    for kind in (Options, SchedulerLimits):
        for f in dataclasses.fields(kind):
            doc = f.metadata["doc"]
            assert doc.endswith(".") and f"    {f.name}: {doc}\n" in f"{kind.__doc__}\n"
    assert all(one.variable for one in FLAGGED.values())
    flags = [name for one in FLAGGED.values() for name in one.flags]
    assert len(set(flags)) == len(flags)


def test_flags_that_are_not_given_leave_the_defaults() -> None:
    assert made({}) == Options() == loading(ModelOptions())
    assert made({}, Taking()) == Options()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_all_that_take_it(name: str) -> None:
    value = WRONG[name]
    with pytest.raises(RequestError, match=name):
        with_values(Options(), {name: value})
    if FIELDS[name].inside:
        with pytest.raises(RequestError, match=name):
            SchedulerLimits(**{name: value})
    else:
        with pytest.raises(RequestError, match=name):
            Options(**{name: value})
    if name in FLAGGED:
        given = {"host_cache": -2, "gpu_memory": "x", "threads": -2, "threads_batch": -2}.get(name, value)
        with pytest.raises(UsageError, match=f"^{FLAGGED[name].flags[0]}: "):
            made({name: list(given) if isinstance(given, tuple) else given})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "60", -(10**400)])
def test_a_number_is_finite(value: Any) -> None:
    with pytest.raises(RequestError, match=r"step_timeout is .*: expected 0 or more"):
        Options(step_timeout=value)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("threads", -1, 0),
        ("threads_batch", -1, 0),
        ("host_cache", 3, 3 << 20),
        ("host_cache", -1, 1 << 62),
        ("gpu_memory", "3GB", 3 * 10**9),
        ("device", "none", "cpu"),
        ("override_tensor", ["a=cpu", "b=cpu"], ("a=cpu", "b=cpu")),
    ],
)
def test_words_of_flags_become_values(name: str, given: object, value: object) -> None:
    assert getattr(made({name: given}), name) == value


def test_limits_are_flags_of_serve_alone() -> None:
    found = made({"queue": 3, "ageing": 2.0, "shortest": True})
    assert found.limits == SchedulerLimits(queue=3, ageing=2.0, shortest=True)
    names = {
        name: {o for p in parsed(name).params for o in p.opts} for name in ("serve", "run", "chat", "bench")
    }
    assert {"--queue", "--worker", "--parallel", "--dense-attention"} <= names["serve"]
    assert "--queue" not in names["run"] and "--worker" in names["run"] and "--worker" in names["chat"]
    assert "--worker" not in names["bench"] and "--dense-attention" in names["bench"]


def test_options_of_the_command_line_alone_become_load_options() -> None:
    options = ModelOptions(load=Options(batch=64, override_tensor=("a=cpu",)), micro_batch=32, cpu_moe=True)
    found = loading(options)
    assert found.batch == 32 and found.override_tensor[0] == "a=cpu" and len(found.override_tensor) == 2
    with pytest.raises(UsageError, match="tensor_split has 3 numbers for 2 devices"):
        made({"device": "a,b", "tensor_split": "1,1,1"})


def test_one_more_field_is_a_flag_a_key_and_a_line_of_the_help() -> None:
    catalog = pytest.importorskip("satchel.server.catalog")
    table = catalog.model_table(Extended)
    assert table(path="m", colour="blue").options(Extended()) == Extended(colour="blue")
    with pytest.raises(RequestError, match="colour is 'green': expected one of red, blue"):
        table(path="m", colour="green").options(Extended())
    (colour,) = (p for p in Group("g", ExtendedGroup, Taking()).parameters() if p.name == "g_colour")
    (declared,) = colour.annotation.__metadata__
    assert colour.default == "red" and declared.envvar == "LLAMA_ARG_COLOUR"
    assert group_made(ExtendedGroup, {"colour": "blue"}) == Extended(colour="blue")
    with pytest.raises(UsageError, match=r"^--colour: colour is 'green'"):
        group_made(ExtendedGroup, {"colour": "green"})


def test_a_command_says_what_it_takes() -> None:
    seen: list[ModelOptions] = []

    @with_options
    def command(
        *,
        model: Annotated[
            ModelOptions, Taking(without=("threads",), groups=(PARALLEL,), defaults={"slots": 8})
        ],
    ) -> None:
        seen.append(model)

    hints = command.__annotations__
    assert "model_slots" in hints and "model_threads" not in hints and "model_worker" not in hints
    defaults = {p.name: p.default for p in command.__signature__.parameters.values()}  # type: ignore[attr-defined]
    command(**defaults)
    assert seen[0] == ModelOptions(load=Options(slots=8))


def test_options_import_no_engine() -> None:
    script = (
        "import sys, satchel.cli.options; print(*sorted(m for m in sys.modules if m.startswith('satchel.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.removeprefix("satchel.") for name in done.stdout.split()}
    assert "runtime.api.options" in loaded
    heavy = {
        "runtime.engine.engine",
        "runtime.device.device",
        "runtime.scheduler",
        "runtime.speculative",
    }
    assert not loaded & heavy
