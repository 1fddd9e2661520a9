"""Load options: one field of Options gives the check of its value, its flags and its key in [models.NAME]."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Annotated, Any

import pytest

from satchel.cli.groups import Taking, with_options
from satchel.cli.load_flags import DEFAULTS, LoadFlags
from satchel.cli.main import parsed
from satchel.cli.options import ModelOptions, loading
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.load_option import (
    KEY,
    PARALLEL,
    SERVER,
    WORKER,
    load_fields,
    load_option,
    with_values,
)
from satchel.runtime.scheduler import SchedulerLimits

FIELDS = {f.name: f for f in load_fields(Options)}
FLAGGED = {name: f for name, f in FIELDS.items() if f.option.flags}
# A value of each option with bounds, choices or a text that is read, which its declaration refuses.
WRONG = {
    **{n: f.option.least - 1 for n, f in FIELDS.items() if f.option.least is not None},
    **{n: 0.0 for n, f in FIELDS.items() if f.option.above is not None},
    **{n: 3 if n == "activations" else "none such" for n, f in FIELDS.items() if f.option.choices},
    "gpu_layers": "many", "device": "a,a", "override_tensor": ("x",), "tensor_split": "0",
    "expert_cache": "x",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Extended(Options):
    """Options with one more."""

    colour: str = load_option(
        "red", doc="Its colour.", choices=("red", "blue"), flags=("--colour",), env="COLOUR"
    )


def made(given: dict[str, Any], taking: Taking | None = None) -> Options:
    """The options of what the flags were given; the others have their defaults."""
    flags, taking = LoadFlags(), taking or Taking(groups=(PARALLEL, WORKER, SERVER))
    return flags.made({p.name: p.default for p in flags.parameters(taking)} | given, taking)


def test_every_field_is_declared_and_documented() -> None:
    for kind in (Options, SchedulerLimits):
        for f in dataclasses.fields(kind):
            doc = f.metadata[KEY].doc
            assert doc.endswith(".") and f"    {f.name}: {doc}\n" in f"{kind.__doc__}\n"
    assert all(f.option.env for f in FLAGGED.values())
    flags = [name for f in FLAGGED.values() for name in f.option.flags]
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
            Options(**{name: value}).check()
    if name in FLAGGED:
        given = {"host_cache": -2, "gpu_memory": "x", "threads": -2, "threads_batch": -2}.get(name, value)
        with pytest.raises(UsageError, match=f"^{FLAGGED[name].option.flags[0]}: "):
            made({name: list(given) if isinstance(given, tuple) else given})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "60", -(10**400)])
def test_a_number_is_finite(value: Any) -> None:
    with pytest.raises(RequestError, match=r"step_timeout is .*: expected 0 or more"):
        Options(step_timeout=value).check()


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
        ModelOptions(load=Options(device="a,b", tensor_split="1,1,1"))


def test_one_more_field_is_a_flag_a_key_and_a_line_of_the_help() -> None:
    catalog = pytest.importorskip("satchel.server.catalog")
    table, flags = catalog.model_table(Extended), LoadFlags(Extended())
    assert table(path="m", colour="blue").options(Extended()) == Extended(colour="blue")
    with pytest.raises(RequestError, match="colour is 'green': expected one of red, blue"):
        table(path="m", colour="green").options(Extended())
    (colour,) = (p for p in flags.parameters(Taking()) if p.name == "colour")
    assert colour.default == "red"
    given = {p.name: p.default for p in flags.parameters(Taking())}
    assert flags.made(given | {"colour": "blue"}, Taking()) == Extended(colour="blue")
    with pytest.raises(UsageError, match=r"^--colour: colour is 'green'"):
        flags.made(given | {"colour": "green"}, Taking())


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
    assert seen[0] == ModelOptions(load=dataclasses.replace(DEFAULTS, slots=8))


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
