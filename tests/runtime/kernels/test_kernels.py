"""Custom kernels: used where they apply, checked first, and refused by name where they are wrong. On the
emulated GPU, whose kernels the system's C compiler builds; `pytest -m gpu` on a real one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from kernel_cases import cases_of
from one_step import define, plan_of, run
from tiny_file import write_model

from satchel import kernels
from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import Device, KernelOverride, include
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.device.selftest import selftest
from satchel.runtime.kernels import image, native, nvrtc, trial
from satchel.runtime.kernels.call import call_of
from satchel.runtime.kernels.registry import NOT_ALONE
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import OPS
from satchel.runtime.plan import Bucket

EXAMPLE = Path(__file__).parents[3] / "examples" / "kernel.py"
Register = Callable[..., kernels.Kernel]


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    found = next((f for f in libraries() if f.name == request.param), None)
    if found is None or found.reason:
        pytest.skip(f"{request.param}: {found.reason if found else 'its library was not built'}")
    if not include().is_dir():
        pytest.skip(f"no headers in {include()}: install Satchel again")
    return str(request.param)


@pytest.fixture
def device(backend: str) -> Iterator[Device]:
    with find_backend(backend).open() as opened:
        yield opened


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("kernel_example", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def register(example: Any) -> Iterator[Register]:
    """Registers the example's kernel, or a variant of it, for the time of a test."""
    made = []

    def one(source: str = example.SOURCE, entry: str = "my_norm", **more: Any) -> kernels.Kernel:
        more = {"op": "rms_norm", "grid": example.grid, "devices": ("emulated", "cuda"), **more}
        made.append(kernels.register(source=source, entry=entry, **more))
        return made[-1]

    yield one
    for kernel in made:
        if kernel in kernels.registered():
            kernels.unregister(kernel)


def norm(device: Device) -> Any:
    return run(device, "rms_norm", cases_of("rms_norm")[0])


def test_a_kernel_is_used_where_it_says_so(device: Device, register: Register, example: Any) -> None:
    want = define("rms_norm", cases_of("rms_norm")[0])
    assert norm(device) == pytest.approx(want, rel=1e-4)
    # One percent too large: within the requested bound, and noticed.
    more = example.SOURCE.replace("* sum *", "* sum * 1.01f *")
    kernel = register(more, bound=1e-3)
    assert norm(device) == pytest.approx(1.01 * want, rel=1e-4)
    register(more.replace("1.01f", "1.02f"), bound=1e-2)
    assert norm(device) == pytest.approx(1.02 * want, rel=1e-4), "the last one is asked first"
    register(more, when=lambda call: call.inputs[0].shape[0] == 10**6)
    assert norm(device) == pytest.approx(1.02 * want, rel=1e-4), "it does not take such a call"
    kernels.unregister(kernels.registered()[1])
    assert norm(device) == pytest.approx(1.01 * want, rel=1e-4)
    kernels.unregister(kernel)
    assert norm(device) == pytest.approx(want, rel=1e-4)


def test_a_model_runs_with_it(backend: str, register: Register) -> None:
    calls: list[kernels.KernelCall] = []
    register(when=lambda call: not calls.append(call))
    assert selftest(find_backend(backend).open()) < 1e-4
    assert calls and all(call.op == "rms_norm" for call in calls)


def test_the_example_runs(
    backend: str,
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = write_model(tmp_path / "model.gguf")
    monkeypatch.setattr("sys.argv", ["kernel.py", "--device", backend, "-m", str(model), "-n", "1"])
    try:
        example.main()
        assert [k.entry for k in kernels.registered()] == ["my_norm"]
    finally:
        for kernel in kernels.registered():
            kernels.unregister(kernel)
    assert capsys.readouterr().out


WRONG = {
    "it leaves out a factor": ("* w[i]", ""),
    "it writes beyond the step's rows": ("m.group[1] >= rows_of(c, c->v)", "0"),
    "it leaves rows as they were": ("y[i] = x[i]", "if (i > 3) y[i] = x[i]"),
    "it gives no numbers": ("1 / sqrtf(", "1 / sqrtf(-"),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_kernel_is_an_error(device: Device, register: Register, example: Any, why: str) -> None:
    old, new = WRONG[why]
    assert old in example.SOURCE
    register(example.SOURCE.replace(old, new))
    with pytest.raises(DeviceError, match=r"kernel my_norm: it is \S+ off the definition of rms_norm on f32"):
        if why == "it writes beyond the step's rows":
            selftest(device)  # a step of more rows than it has
        else:
            norm(device)


def test_what_cannot_be_compiled_or_launched_says_why(device: Device, register: Register) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"source": '#include "port.h"\nint x = y;'}, RequestError, "refused its source:\n.*y"),
        ({"entry": "another"}, DeviceError, "kernel another: its code has no function of this name"),
        ({"grid": lambda call: (1, 2)}, RequestError, "grid gave"),
        ({"grid": lambda call: kernels.LaunchGrid((0,), 1)}, RequestError, "no launch can have"),
        ({"grid": lambda call: kernels.LaunchGrid((1,), 2048)}, DeviceError, "groups of 1 to 1024 threads"),
        ({"grid": lambda call: kernels.LaunchGrid((1,), 32, 1 << 30)}, DeviceError, "more local memory"),
    ]
    for given, error, text in cases:
        kernel = register(**given)
        with pytest.raises(error, match=f"(?s){text}"):
            norm(device)
        kernels.unregister(kernel)
    if device.name == "emulated":
        register(PTX, language=kernels.PTX)
        with pytest.raises(RequestError, match="emulated does not take PTX"):
            norm(device)


PTX = ".visible .entry my_norm(\n .param .align 8 .b8 my_norm_param_0[680]\n)\n{ ret; }"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (PTX, ""),
        (PTX.replace("680", "600"), r"its PTX takes .*\[600\]\), not a gpu_call of 680 bytes"),
        (PTX.replace(")", ", .param .u64 more)"), "not a gpu_call"),
        (PTX.replace(".param .align 8 .b8 my_norm_param_0[680]", ""), "not a gpu_call"),
        (PTX.replace("my_norm(", "your_norm("), "has no .entry of this name"),
        ("", "has no .entry of this name"),
    ],
)
def test_ptx_made_with_other_headers_is_refused(register: Register, changed: str, text: str) -> None:
    kernel = register(changed, language=kernels.PTX)
    if not text:
        image.check_ptx(kernel)
        return
    with pytest.raises(RequestError, match=text):
        image.check_ptx(kernel)


def test_a_call_is_as_long_as_its_header_says(tmp_path: Path) -> None:
    if not include().is_dir():
        pytest.skip(f"no headers in {include()}: install Satchel again")
    text = f'#include "call.h"\n_Static_assert(sizeof(gpu_call) == {image.CALL_BYTES}, "another size");\n'
    assert native.compile_c("size", text, (), include())


def test_no_compiler_is_said(device: Device, register: Register, example: Any, monkeypatch: Any) -> None:
    register(example.SOURCE + "\n/* another text */\n")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    with pytest.raises(DeviceError, match=r"install (gcc or set CC|the CUDA toolkit or `pip install)"):
        norm(device)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"op": "reshape"}, "'reshape' is not an op"),
        ({"op": "sample"}, "'sample' is not an op"),
        ({"op": "nothing"}, "'nothing' is not an op"),
        ({"entry": "a b"}, "its name must be a C identifier"),
        ({"language": "basic"}, "expected one of cuda, ptx"),
        ({"devices": ()}, "it needs a device"),
        ({"bound": float("nan")}, "a bound from 0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(register: Register, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        register(**changed)
    assert kernels.registered() == ()


def test_nvrtc_makes_machine_code_of_the_dialect(example: Any) -> None:
    if not nvrtc.version():
        pytest.skip(f"no NVRTC: {nvrtc.MEND}")
    code = nvrtc.compile_cuda("my_norm", example.SOURCE, 90, (), include())
    assert code[:4] == b"\x7fELF" and b"my_norm" in code
    with pytest.raises(RequestError, match=r"(?s)NVRTC [\d.]+ refused its source:.*undefined"):
        nvrtc.compile_cuda("bad", "int x = y;", 90, (), include())


@pytest.mark.parametrize("tokens", [1, 9])
def test_the_check_lets_every_step_of_a_mixture_pass(backend: str, tokens: int) -> None:
    device = find_backend(backend).open()
    engine = tiny.engine("qwen3moe", tiny.weights("qwen3moe", "q8_0"), Cache(64, 2), device)
    try:
        segment = engine.plan(Bucket(tokens, 2)).segments[0]
        calls = [call_of(segment, i) for i in range(len(segment.step_table))]
        steps = {call.op: i for i, call in enumerate(calls) if call.op not in NOT_ALONE}
        # CUDA joins these steps of so few tokens.
        assert device.name == "cuda" or {"rms_norm", "linear", "expert_linear", "top_experts"} <= set(steps)
        assert {"rope_qkv_write", "rope_qkv_attention"} & set(steps)
        assert any(OPS[op].attends for op in steps)
        for op, i in steps.items():
            tried = trial.trial_of(segment, i, calls[i], device)
            assert tried.call.output.shape[0] <= max(trial.TOKENS, trial.BLOCKS)
            got, want = trial.run(tried, device, None), trial.define(tried)
            assert trial.error_of(tried, got, want) < 1e-3, op
    finally:
        engine.close()


def test_a_kernel_may_be_asked_for_by_name(device: Device) -> None:
    one = cases_of("rms_norm")[0]
    segment, _ = plan_of("rms_norm", one, 0)
    names = device.kernels(segment, 0)
    assert "rms_norm" in names and len(set(names)) == len(names)
    tried = trial.trial_of(segment, 0, call_of(segment, 0), device)
    want = trial.define(tried)
    for name in names:
        assert trial.error_of(tried, trial.run(tried, device, KernelOverride(0, name)), want) < 1e-6
    assert device.name != "emulated" or names == ("rms_norm", "rms_norm_serial", "rms_norm_serial@3")
    for name in ("fastest", "rms_nor", "rms_norm@3", "rms_norm_serial@4", "rms_norm_serial@", "rms_norm+"):
        with pytest.raises(DeviceError, match="no such kernel as is asked for"):
            trial.run(tried, device, KernelOverride(0, name))
    with pytest.raises(DeviceError, match="a custom kernel that was not added to this device"):
        trial.run(tried, device, KernelOverride(0, "", 7, (1, 1, 1), 32))
    with pytest.raises(DeviceError, match="in the order of the plan's steps"):
        trial.run(tried, device, KernelOverride(1, names[0]))


def test_numbers_of_overrides_are_checked(device: Device) -> None:
    one = cases_of("rms_norm")[0]
    segment, _ = plan_of("rms_norm", one, 0)
    tried = trial.trial_of(segment, 0, call_of(segment, 0), device)
    rng = np.random.default_rng(3)
    for _ in range(20):
        groups = tuple(int(g) for g in rng.integers(0, 1 << 32, 3))
        override = KernelOverride(0, "", int(rng.integers(1, 1 << 32)), groups, int(rng.integers(0, 1 << 32)))  # type: ignore[arg-type]
        with pytest.raises(DeviceError, match="kernel override 0, of step 0"):
            trial.run(tried, device, override)
