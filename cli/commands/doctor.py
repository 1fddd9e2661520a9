"""`satchel doctor`: checks that each backend computes correctly on this machine, and names a repair where
not.

Every backend that is found runs a small computation with a known result.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import typer

from satchel.cli.console import note, plain
from satchel.cli.groups import wrong
from satchel.cli.machine import MISSING, memory, processor, system, version
from satchel.cli.progress import awaited, working

if TYPE_CHECKING:
    from satchel.cli.issue_report import IssueReport
    from satchel.runtime.device.device import BackendLibrary

PASS, FAIL, TEST, NONE = "PASS", "FAIL", "TEST", "NONE"
ABSENT = ("driver is not installed", "sees no device", "run time cannot be used")  # errors without a GPU
LOW = 2 << 30  # bytes of free memory below which a small model may not fit
PACKAGES = ("numpy", "numba", "cffi", "llguidance", "tokenizers", "sentencepiece", "jinja2")
EXTRAS = ("numba", "tokenizers")  # of PACKAGES, what no model needs: named only where it is installed


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. NONE: the thing is absent, and no model needs it."""

    kind: str
    name: str
    result: str
    text: str
    mend: str = ""  # the command that repairs it; never empty for FAIL


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a file for an issue, without keys and prompts."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --report: replace the file.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="With --report: a log, for its last lines.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(
            "--request", metavar="FILE", help="With --report: what `satchel run --json --report` printed."
        ),
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--with-prompts", help="With --report: prompts and answers too.")
    ] = False,
    devices: Annotated[
        str,
        typer.Option("-dev", "--device", metavar="HOST/NAME", help="Devices of other hosts to try, a,b,c."),
    ] = "",
    key: Annotated[
        str, typer.Option("--device-key-file", metavar="FILE", help="The key of these hosts.")
    ] = "",
) -> int:
    """Test each backend and the bundled model; print what works and how to repair the rest.

    Examples:
        satchel doctor
        satchel doctor --report issue.md --log server.log
        satchel doctor -dev host2/cuda:0 --device-key-file fleet.key
    """
    issue = _issue_report(report, force, log, request, prompts)
    facts, checks = machine(), []
    if not as_json:
        print("\n".join(f"{key:<8} {value}" for key, value in facts.items()))
    far = hosts(devices, key)
    for check in awaited(chain(backends(), [searches()], gpus(), model(), sandbox(), far), "the next check"):
        checks.append(check)
        if not as_json:
            show(check)
    usable = any(c.kind == "backend" and c.result == PASS for c in checks)
    if as_json:
        found = {"system": facts, "checks": [asdict(c) for c in checks], "usable": usable}
        print(json.dumps(found, indent=2))
    elif not usable:
        note("no backend can run a model here")
    if issue is not None:
        with working("writing the report"):
            issue.write(facts, map(told, checks))
        note(f"{issue.path}: written; read it before you send it")
    return 0 if usable else 1


def _issue_report(
    path: Path | None, force: bool, log: Path | None, request: Path | None, prompts: bool
) -> IssueReport | None:
    """What --report asks for; None without it. A usage error for options that need it."""
    from satchel.cli.issue_report import IssueReport

    given = {"--force": force, "--log": log, "--request": request, "--with-prompts": prompts}
    if path is None:
        for flag, value in given.items():
            if value:
                raise wrong(flag, "expected --report FILE beside it")
        return None
    issue = IssueReport(path, force, log, request, prompts)
    issue.check()
    return issue


def told(check: CheckResult) -> str:
    """The line of a report."""
    mend = f" (mend: {check.mend})" if check.mend else ""
    return f"{check.result:<4} {check.kind} {check.name}: {check.text}{mend}"


def show(check: CheckResult) -> None:
    print(f"{check.result:<4}  {check.name:<8} {plain(check.text)}")
    if check.mend:
        print(f"      {'':<8} mend: {check.mend}", flush=True)


def machine() -> dict[str, str]:
    """The system's facts by name: versions, processor, memory."""
    found = {name: version(name) for name in PACKAGES}
    packages = ", ".join(f"{n} {v}" for n, v in found.items() if v != MISSING or n not in EXTRAS)
    total, free = memory()
    low = "; that is little" if 0 < free < LOW else ""
    return {
        "satchel": f"{version('satchel')} on Python {platform.python_version()} ({sys.executable})",
        "system": system(),
        "packages": packages,
        "cpu": processor(),
        "memory": f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free{low}",
    }


def backends() -> Iterator[CheckResult]:
    """Checks every backend library found, the compiled CPU backend even if it is missing, and numba."""
    from satchel.runtime.device.libraries import offered

    found = offered()
    if not any(f.name == "cpu" for f in found):
        text = "not built: there was no C compiler when Satchel was installed, so models run slowly, on numba"
        sudo = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
        yield CheckResult("backend", "cpu", FAIL, text, f"{sudo}apt-get install -y gcc && {reinstall()}")
    for library in found:
        yield tried(library)
    yield numba()


def gpus() -> Iterator[CheckResult]:
    """Checks the requirements of NVIDIA GPUs, and the results of `satchel tune`."""
    from satchel.cli.gpus import parts, tunings
    from satchel.runtime.device.libraries import libraries

    built = any(f.name == "cuda" for f in libraries())
    for kind, found in (("gpu", parts(built, reinstall())), ("tuning", tunings())):
        for part in found:
            result = PASS if part.there else FAIL if part.needed else NONE
            yield CheckResult(kind, part.name, result, part.text, part.mend)


def tried(library: BackendLibrary) -> CheckResult:
    from satchel.runtime.device.libraries import open_backend

    path = Path(library.path)
    if library.name in ("cuda", "hip", "metal", "sycl") and any(what in library.reason for what in ABSENT):
        # Most machines have no such card; if there is one, the gpu checks give the repair.
        return CheckResult("backend", library.name, NONE, library.reason)
    if library.reason:
        own = path.parent.name == "cext"
        mend = reinstall() if own else "unset SATCHEL_BACKENDS"
        return CheckResult("backend", library.name, FAIL, library.reason, mend)
    return computed(library.name, open_backend(library), reinstall())


def numba() -> CheckResult:
    """Checks the backend for machines without a C compiler; where another one runs, it may be absent."""
    from satchel.errors import DeviceError
    from satchel.runtime.device.libraries import find_backend, numba_installed, offered

    if not numba_installed() and any(f.name == "cpu" and not f.reason for f in offered()):
        text = "not installed; it is for machines without a wheel or a C compiler"
        return CheckResult("backend", "numba", NONE, text)
    try:
        return computed("numba", find_backend("numba"), slow())
    except DeviceError as error:
        return CheckResult("backend", "numba", FAIL, str(error), slow())


def slow() -> str:
    """The command that installs numba."""
    return f"{shlex.quote(sys.executable)} -m pip install --upgrade 'satchel[slow]'"


def searches() -> CheckResult:
    """Checks what `satchel quantize` searches with."""
    from satchel.quant.native.compiled import means
    from satchel.quant.native.library import search_library

    library, found = search_library(), means()
    if not library.reason:
        return CheckResult("quantizer", "quantize", PASS, f"searches in {found}")
    text = f"searches in {found}; the C library of searches: {library.reason}"
    if found == "numba":
        return CheckResult("quantizer", "quantize", PASS, text)
    return CheckResult("quantizer", "quantize", FAIL, text, slow())


def computed(name: str, backend: Any, mend: str) -> CheckResult:
    """Opens the backend's first device and runs its self-test."""
    from satchel.cli.gpus import image_text, mend_image
    from satchel.runtime.device.device import TEST_ONLY
    from satchel.runtime.device.libraries import find_backend
    from satchel.runtime.device.selftest import cache_types, lacking, selftest

    try:
        device = backend.open()
        info = device.info()
        image = image_text(info.variant, info.image)
        text = f"{info.name}, {info.variant}{image}, {info.threads} threads"
        if name == "null":
            device.close()
            return CheckResult("backend", name, TEST, "computes nothing; for Satchel's own tests")
        types, lacks = cache_types(device), lacking(device)
        share = selftest(device, [find_backend("cpu").open()] if lacks else [])
    except Exception as error:
        return CheckResult(
            "backend", name, FAIL, f"{type(error).__name__}: {error}", mend_image(str(error), mend)
        )
    if info.flags & TEST_ONLY:
        return CheckResult("backend", name, TEST, f"computes right ({share:.0e}); for Satchel's own tests")
    kept = f"cache types {', '.join(types) or 'none'}"
    kept += f"; leaves {', '.join(lacks)} to the CPU" if lacks else ""
    return CheckResult(
        "backend", name, PASS, f"{text}; computes right ({share:.0e} of the definition); {kept}"
    )


def hosts(devices: str, key: str) -> Iterator[CheckResult]:
    """Reaches each of these devices of other hosts, and measures the link to it."""
    from satchel.errors import SatchelError
    from satchel.runtime.net.address import SLASH, read_name
    from satchel.runtime.net.device import NetBackend
    from satchel.runtime.placement.speeds import link_to

    for text in filter(None, devices.split(",")):
        if SLASH not in text:
            raise wrong("--device", f"{text}: expected a device of another host, as in host2/cuda:0")
        name = read_name(text)
        try:
            with NetBackend(name, key).open(name.number) as device:
                info, (rate, latency) = device.info(), link_to(device)
        except SatchelError as error:
            listen = f"satchel device --listen {name.address} --key-file FILE"
            yield CheckResult("host", str(name), FAIL, str(error), f"on {name.address.host}: {listen}")
            continue
        free = f"{info.memory_free / 2**30:.1f} GiB free"
        link = f"{1000 * latency:.2f} ms there and back, {rate / 1e9:.2f} GB/s"
        yield CheckResult("host", str(name), PASS, f"{info.name}, {info.variant}, {free}; {link}")


def model() -> Iterator[CheckResult]:
    """Checks that the bundled model exists and answers."""
    from satchel.errors import RequestError
    from satchel.runtime.api.model import Model
    from satchel.runtime.sampling import GREEDY
    from satchel.store.bundled import PACKAGE
    from satchel.store.resolve import default_model

    try:
        path = default_model()
    except RequestError as error:
        mend = f"{shlex.quote(sys.executable)} -m pip install {PACKAGE}"
        yield CheckResult("model", "model", FAIL, str(error), mend)
        return
    try:
        with Model.load(path, context=64) as loaded:
            question = [{"role": "user", "content": "Hello!"}]
            reply = "".join(loaded.chat(question, max_tokens=4, sampling=GREEDY))
        size = path.stat().st_size / 2**20
        yield CheckResult("model", "model", PASS, f"{path.name}, {size:.1f} MiB; answers {reply!r}")
    except Exception as error:
        yield CheckResult("model", "model", FAIL, f"{type(error).__name__}: {error}", reinstall())


def sandbox() -> Iterator[CheckResult]:
    """Checks the worker's sandbox: a process in it attempts forbidden calls, each of which must fail."""
    from satchel.cli.sandboxing import REFUSALS, probe
    from satchel.errors import SatchelError

    try:
        found = probe()
    except (OSError, SatchelError) as error:
        yield CheckResult("sandbox", "sandbox", FAIL, f"it cannot be tried: {error}", reinstall())
        return
    if found.note:
        yield CheckResult("sandbox", "sandbox", NONE, found.note)
    else:
        text = f"{found.text}; a worker process tried what follows (--worker thread has no sandbox)"
        yield CheckResult("sandbox", "sandbox", PASS, text)
    for name, answer in found.answers.items():
        refused = answer in REFUSALS
        text = f"refused ({answer})" if refused else f"not refused ({answer})"
        result = PASS if refused else NONE if found.note else FAIL
        yield CheckResult("sandbox", name, result, text, "" if result != FAIL else reinstall())


def reinstall() -> str:
    """The command that reinstalls Satchel from its original source."""
    source, editable = "satchel", ""
    try:
        origin = json.loads(metadata.distribution("satchel").read_text("direct_url.json") or "{}")
        source = unquote(origin.get("url", source).removeprefix("file://"))
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    except (metadata.PackageNotFoundError, ValueError):
        pass
    pip = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps"
    return f"{pip} {editable}{shlex.quote(source)}"
