"""Custom kernels for the CPU: C functions that compute a range of a grid's items."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
import tiny
from devices import skip_without
from kernel_cases import cases_of
from one_step import define, run

from satchel import kernels
from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import (
    include,
)
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache

SOURCE = """
#include <math.h>
#include "call.h"

/* Items are heads of tokens, one after the other. */
void my_norm(const gpu_call *c, int64_t from, int64_t to) {
    int64_t d = c->v[2].shape[0], heads = (int64_t)c->v[0].shape[1] * c->v[0].shape[2] / d;
    for (int64_t i = from; i < to && i / heads < c->v[0].shape[0]; i++) {
        uint64_t token = (uint64_t)(i / heads);
        const float *x = (const float *)(c->v[1].data + c->v[1].stride * token) + i % heads * d;
        float *y = (float *)(c->v[0].data + c->v[0].stride * token) + i % heads * d;
        float eps = *(const float *)c->arg, sum = 0;
        for (int64_t k = 0; k < d; k++)
            sum += x[k] * x[k];
        sum = 1.01f / sqrtf(sum / (float)d + eps);
        for (int64_t k = 0; k < d; k++)
            y[k] = x[k] * sum * *(const float *)(c->v[2].data + c->v[2].stride * (uint64_t)k);
    }
}
"""


def grid(call: kernels.KernelCall) -> kernels.LaunchGrid:
    return kernels.LaunchGrid(
        (prod(call.output.shape[1:]) // call.inputs[1].shape[0] * call.output.shape[0],), 1
    )


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    skip_without("cpu")
    if not include().is_dir():
        pytest.skip("there are no headers: install Satchel again")
    yield
    for kernel in kernels.registered():
        kernels.unregister(kernel)


def register(source: str = SOURCE, **more: Any) -> kernels.Kernel:
    given = {"entry": "my_norm", "grid": grid, "devices": ("cpu",), "bound": 1e-3, **more}
    return kernels.register("rms_norm", source, **given)


@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_used_for_every_shape(threads: int) -> None:
    register()
    with find_backend("cpu").open(threads=threads) as device:
        for one in cases_of("rms_norm"):
            assert run(device, "rms_norm", one) == pytest.approx(
                1.01 * define("rms_norm", one), rel=1e-4, abs=1e-30
            )


def logits() -> list[Array]:
    engine = tiny.engine("llama", tiny.weights("llama"), Cache(32, 1), find_backend("cpu").open(threads=2))
    found = [np.array(engine.logits([BatchEntry(0, ids)])) for ids in ((5, 9, 77), (1,))]
    engine.close()
    return found


def test_a_model_runs_with_it() -> None:
    before = logits()
    exact = register(SOURCE.replace("1.01f", "1"), bound=1e-9)
    assert all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(logits(), before, strict=True))
    kernels.unregister(exact)
    register()
    assert not any(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(logits(), before, strict=True))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"bound": 1e-6}, DeviceError, "kernel my_norm: it is .* off the definition of rms_norm"),
        ({"entry": "another"}, DeviceError, "kernel another: its code has no function of this name"),
        ({"source": "int x = y;"}, RequestError, "refused its source"),
        (
            {"grid": lambda call: kernels.LaunchGrid((1 << 20, 1 << 20), 1)},
            DeviceError,
            "on the CPU a kernel has 1 to",
        ),
        (
            {"grid": lambda call: kernels.LaunchGrid((1,), 1, local=8)},
            DeviceError,
            "no local and no scratch memory",
        ),
        ({"source": SOURCE.replace("i / heads < c->v[0].shape[0]", "1")}, DeviceError, "off the definition"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], error: type[Exception], text: str) -> None:
    register(**given)
    with pytest.raises(error, match=f"(?s){text}"):
        logits()
