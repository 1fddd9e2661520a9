"""The sandbox of a worker process: forbidden actions are really attempted in each of its threads; required
actions work; a missing protection is reported once.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from extra_files import factors, write_adapter
from gpus import GPUS
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.cli import sandboxing
from satchel.errors import ModelError, RequestError
from satchel.runtime import children
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.options import Options
from satchel.runtime.device.libraries import libraries
from satchel.runtime.sampling import GREEDY
from satchel.runtime.sandbox import calls, enter, seccomp
from satchel.runtime.sandbox import policy as policy_module
from satchel.runtime.sandbox.policy import policy_of
from satchel.runtime.sandbox.probe import ATTEMPTS
from satchel.runtime.speculative import Speculation
from satchel.runtime.worker import process
from satchel.server.sandbox_note import sandbox_note

LACKS = enter.lacking()
whole = pytest.mark.skipif(bool(LACKS), reason=LACKS or "it is whole")
linux = pytest.mark.skipif(not calls.machine(), reason="there is no filter for this system")
PROMPT = list(range(100, 190))
EVIL = Path(__file__)  # a file that no model needs
TRYING = "trying_child"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sandbox") / "tiny.gguf")


def tries(path: Path) -> str:
    """The attempts of this model's worker, for trying_child.py."""
    folder = path.parent
    (folder / "other.gguf").write_bytes(path.read_bytes())
    given = {
        "file": folder / "other.gguf",
        "folder": folder,
        "new": folder / "new",
        "program": sys.executable,
    }
    given |= {"own model": path, "own facts": "/proc/self/status", "own cpu": "/proc/cpuinfo"}
    return json.dumps({name: str(p) for name, p in given.items()})


@pytest.fixture(scope="module")
def trying(path: Path) -> Iterator[WorkerModel]:
    """A model whose worker attempts forbidden actions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "MODULE", TRYING)
        patch.setenv("SATCHEL_TEST_TRIES", tries(path))
        model = load(path)
    with model:
        yield model


def load(path: Path, **options: Any) -> WorkerModel:
    model = Model.load(path, worker="process", slots=2, threads=2, context=256, **options)
    assert isinstance(model, WorkerModel)
    return model


def refused(answers: list[str]) -> bool:
    given = dict(line.split(": ", 1) for line in answers)
    return set(given) == set(ATTEMPTS) and all(a in sandboxing.REFUSALS for a in given.values())


@whole
def test_every_thread_is_refused_what_a_worker_must_not_do(trying: WorkerModel) -> None:
    assert trying.sandbox.startswith("Landlock") and trying.sandbox.endswith("seccomp")
    *threads, allowed = trying.rerank("", [""])  # type: ignore[misc]
    assert len(threads) == 4
    for answers in threads:
        assert refused(answers), answers  # type: ignore[arg-type]
    assert allowed[:4] == ["own model: opened", "own facts: opened", "own cpu: opened", "(0, 0)"]
    assert allowed[5:] == ["wave", allowed[6], "True"] and allowed[6].isdigit()
    assert trying.worker.pid and not (trying.path.parent / "new").exists()


@whole
def test_a_worker_that_is_begun_anew_is_in_it_too(
    trying: WorkerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MODULE", TRYING)
    monkeypatch.setenv("SATCHEL_TEST_TRIES", tries(trying.path))
    before = trying.worker.restarts
    os.kill(trying.worker.pid, signal.SIGKILL)
    until(lambda: trying.worker.restarts > before, "another worker")
    assert refused(trying.rerank("", [""])[0])  # type: ignore[arg-type]


@whole
def test_the_probe_of_the_doctor() -> None:
    found = sandboxing.probe()
    assert (found.allowed, found.note) == ([], "")
    assert set(found.answers) == set(ATTEMPTS)


def test_the_probe_without_a_sandbox_is_refused_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its attempts are real: an ordinary process may do nearly all of them."""
    start = process.START.replace("enter(given['sandbox'])", "enter(None)")
    monkeypatch.setattr(process, "START", start)
    monkeypatch.setattr(sandboxing, "MODULE", "free_probe")
    found = sandboxing.probe()
    for name in ("open", "list", "write", "socket", "fork", "kill"):
        assert found.answers[name] == "done", name
    assert found.answers["exec"] == "it went through"


def test_switched_off(path: Path) -> None:
    with load(path, sandbox=False) as model:
        assert model.sandbox == "none: it is switched off"
        assert not any("sandbox" in note for note in model.notes)
        assert len(model.generate(PROMPT, max_tokens=3, ignore_eos=True).read()) > 0
    with Model.load(path) as model:
        assert model.sandbox == "none: the engine runs in this process"


SIMULATED = """
import ctypes, errno, sys
from satchel.runtime.sandbox import calls, seccomp
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
seccomp.install(seccomp.answering(int(sys.argv[2]), errno.ENOSYS))
from satchel import Model
with Model.load(sys.argv[1], worker="process", context=64) as model:
    model.generate([5, 6, 7], max_tokens=2).read()
    print(model.sandbox)
    print(*model.notes, sep="\\n")
from satchel.runtime.sandbox.enter import lacking
print(lacking())
"""


@linux
@pytest.mark.parametrize(
    ("call", "held", "said"),
    [
        ("landlock_create_ruleset", "seccomp", "only a part .*: files are not limited.*ENOSYS"),
        pytest.param(
            "seccomp",
            "Landlock",
            "only a part .*: system calls are not limited.*ENOSYS",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_kernel_that_lacks_a_part_is_said_once(path: Path, call: str, held: str, said: str) -> None:
    number = calls.LANDLOCK[0] if "landlock" in call else calls.numbers(calls.REFUSED)[call]
    command = [sys.executable, "-c", SIMULATED, str(path), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "PermissionError" in done.stderr or "OSError" in done.stderr.splitlines()[-1:]:
        pytest.skip("this system takes no filter to simulate another with")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(held)
    assert len(lines) == 3 and lines[1] == lines[2], "one note, and the server's is the same"

    assert re.match(said, lines[1])


def test_no_linux_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(enter, "_entered", None)
    enter.enter({"read": [], "devices": [], "keep": []})
    held = enter.close()
    assert held is not None and held.text == "none"
    assert held.note == enter.lacking() and "no sandbox: darwin has neither" in held.note


@linux
def test_a_kernel_without_filters_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(enter, "_entered", enter.Sandbox(files=1))
    monkeypatch.setattr(enter.landlock, "version", lambda: 1)
    monkeypatch.setattr(enter.seccomp, "check", refuse)
    monkeypatch.setattr(enter.seccomp, "install", refuse)
    held = enter.close()
    assert held is not None and held.text == "Landlock 1"
    assert held.note == enter.lacking() and "system calls are not limited" in held.note


def test_what_serve_says() -> None:
    assert "--worker thread" in sandbox_note([Options(worker="thread"), Options(worker="process")])
    assert sandbox_note([Options(worker="process", sandbox=False)]) == ""
    assert sandbox_note([Options(worker="process")]) == LACKS


def test_a_policy_grants_a_models_files_and_no_folder_of_theirs(path: Path, tmp_path: Path) -> None:
    draft = write_model(tmp_path / "draft.gguf")
    adapter = write_adapter(tmp_path / "a.gguf", factors(1, arch="qwen3"), arch="qwen3")
    options = Options(
        adapters=[AdapterFile(adapter)], control_vectors=[str(tmp_path / "missing.gguf")], device="cpu",
        speculation=Speculation(draft_model=draft),
    )  # fmt: skip
    policy = policy_of([path], options)
    read = set(policy["read"])
    assert {str(p) for p in (path, draft, adapter, tmp_path / "missing.gguf")} <= read
    homes = {str(p) for p in (Path.home(), Path.cwd(), path.parent, tmp_path)}
    assert not ({"/", "/etc", "/proc", "/dev", tempfile.gettempdir()} | homes) & read
    assert (policy["devices"], policy["keep"]) == ([], [])
    assert all(Path(p).is_absolute() for p in read)


@whole
@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_computes_in_the_sandbox(
    path: Path, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver finds its devices and, where it compiles kernels, a temporary folder."""
    if why := next((f.reason for f in libraries() if f.name == gpu), "its library was not built"):
        pytest.skip(f"{gpu}: {why}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked: dict[str, Any] = {"slots": 2, "threads": 2, "context": 256, "device": gpu}
    with load(path, device="cpu") as here, load(path, device=gpu) as there:
        assert there.sandbox == here.sandbox != ""
        found = there.logits(PROMPT[:20])
    with Model.load(path, worker="thread", **asked) as outside:
        wanted = outside.logits(PROMPT[:20])
    assert np.abs(found - wanted).max() <= 0.001 * np.abs(wanted).max()
    assert list(tmp_path.iterdir()) == []


def test_a_policy_grants_packages_that_are_links(path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    store, site, other = tmp_path / "store", tmp_path / "site-packages", tmp_path / "project"
    for package in ("linked", "of_links"):
        (store / package).mkdir(parents=True)
        (store / package / "__init__.py").touch()
    (site / "of_links").mkdir(parents=True)
    (site / "linked").symlink_to(store / "linked")
    (site / "of_links" / "__init__.py").symlink_to(store / "of_links" / "__init__.py")
    (site / "broken").symlink_to(store / "missing")
    other.mkdir()
    (other / "private").symlink_to(tmp_path / "private")
    monkeypatch.setattr(
        policy_module, "module_path", lambda: [str(site), str(other), str(tmp_path / "no folder")]
    )
    read = set(policy_of([path], Options(device="cpu"))["read"])
    assert {str(site), str(store / "linked"), str(store / "of_links")} <= read
    assert not {str(store), str(tmp_path / "private")} & read


def test_a_policy_grants_packages_but_not_the_folder_above_a_clone(
    path: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """An editable install puts the folder that holds the clone on the module path."""
    home, site = tmp_path / "home", tmp_path / "site"
    (home / "clone" / "mine").mkdir(parents=True)
    (home / "clone" / "linked").mkdir()
    site.mkdir()
    (site / "linked").symlink_to(home / "clone" / "linked")
    for name, place in (("mine", home / "clone" / "mine"), ("linked", site / "linked")):
        module = ModuleType(f"satchel.{name}")
        module.__path__ = [str(place)]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(policy_module, "module_path", lambda: [str(home), str(site)])
    read = set(policy_of([path], Options(device="cpu"))["read"])
    assert {str(home / "clone" / "mine"), str(home / "clone" / "linked"), str(site)} <= read
    assert str(home) not in read


@whole
def test_adapters_and_a_draft_model(path: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a.gguf", factors(1, arch="qwen3"), arch="qwen3")
    draft = write_model(tmp_path / "draft.gguf")
    asked: dict[str, Any] = {"adapters": [adapter], "speculation": Speculation(draft_model=draft)}
    how: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "sampling": GREEDY}
    with Model.load(path, slots=2, threads=2, context=256, **asked) as here:
        wanted = here.generate(PROMPT, **how).read()
    with load(path, **asked) as there:
        assert there.generate(PROMPT, **how).read() == wanted
        assert there.save_state(tmp_path / "state.kv", PROMPT) > 0, "it reads the adapter again"
        assert "seccomp" in there.sandbox


@whole
@linux
def test_with_a_driver_its_devices_alone_can_be_written(path: Path, tmp_path: Path) -> None:
    """/dev/zero stands in for a device."""
    (tmp_path / "mine").write_text("x")
    policy = policy_of([path], Options(device="cpu"))
    policy |= {"devices": ["/dev/zero"], "keep": [str(tmp_path / "keep")]}
    (tmp_path / "keep").mkdir()
    given = {"path": sys.path, "sandbox": policy, "tries": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "done", "done", "EACCES", "EACCES", "EPERM"]
    assert (tmp_path / "mine").read_text() == "x"


DRIVER = """
import json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from satchel.runtime.sandbox.enter import close, enter
enter(given["sandbox"])
close()
import errno, os, threading
name, folder = f"/proc/self/task/{threading.get_native_id()}/comm", given["tries"]
MAKE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
opened = [("/dev/zero", os.O_RDWR), (name, MAKE), (f"{folder}/keep/x", MAKE), (f"{folder}/mine", os.O_RDWR)]
opened += [(f"{folder}/new", MAKE), (f"{folder}/keep", os.O_RDWR | os.O_TMPFILE)]
for path, flags in opened:
    try:
        os.close(os.open(path, flags, 0o600))
        print("done")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


HOOK = """
import json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from satchel import kernels
grid = lambda call: kernels.LaunchGrid((call.output.shape[0],), 1)
for source in (given["source"], "no C"):
    kernels.register("add", source, "mine", grid, devices=("cpu",), when=lambda call: False)
from satchel.runtime.sandbox.enter import close, enter
enter(given["sandbox"])
close()
from satchel.errors import DeviceError
from satchel.runtime.device.device import include
from satchel.runtime.kernels.native import compile_c
import ctypes
print(ctypes.CDLL(compile_c("mine", given["source"], (), include()).decode()).mine(None, 0, 1))
try:
    compile_c("mine", "no C", (), include())
except DeviceError as error:
    print(error)
"""


@whole
@linux
def test_kernels_of_a_start_up_hook_are_compiled_before_it_closes(path: Path, tmp_path: Path) -> None:
    if children.find_program("cc") is None:
        pytest.skip("no C compiler is installed")
    source = (
        '#include "call.h"\nint mine(const gpu_call *c, int64_t from, int64_t to) { return 41 + (int)to; }\n'
    )
    policy = policy_of([path], Options(device="cpu"))
    given = {"path": sys.path, "sandbox": policy, "source": source}
    command = [sys.executable, "-P", "-c", HOOK, json.dumps(given)]
    place = {"TMPDIR": str(tmp_path), "CC": "cc"}
    done = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "42"
    assert "kernel mine: cc cannot be started" in second
    assert not list(tmp_path.rglob("*.so")), "what was compiled is gone; its empty folder stays"


def test_a_saved_state_comes_and_goes_as_a_descriptor(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.kv"
    with load(path) as model:
        model.generate(PROMPT, max_tokens=1).read()
        saved = model.save_state(file, PROMPT)
        assert saved > 0 and file.stat().st_mode & 0o777 == 0o600
        assert model.restore_state(file).tokens == saved
        with pytest.raises(ModelError, match=r"none\.kv: can't be read: No such file"):
            model.restore_state(tmp_path / "none.kv")
        with pytest.raises(ModelError, match=r"test_sandbox\.py"):
            model.restore_state(EVIL)
        with pytest.raises(RequestError, match=r"other\.kv: there is nothing to save"):
            model.save_state(tmp_path / "other.kv", PROMPT, salt="another's")
        (tmp_path / "link.kv").symlink_to(file)
        assert model.save_state(tmp_path / "link.kv", PROMPT) == saved
        assert sorted(p.name for p in tmp_path.iterdir()) == ["link.kv", "state.kv"]
        folder = Path(f"/proc/{model.worker.pid}/fd")
        if folder.is_dir():
            for file in folder.iterdir():
                with suppress(FileNotFoundError):  # closed since
                    assert "state" not in str(file.readlink()), "none stays open"


@pytest.mark.nightly
def test_a_state_that_a_lost_worker_began_to_write(path: Path, tmp_path: Path) -> None:
    """The next one writes it from its beginning."""
    with load(path) as model:
        model.generate(PROMPT, max_tokens=1).read()
        saved = model.save_state(tmp_path / "a.kv", PROMPT)
        wanted = (tmp_path / "a.kv").read_bytes()
        os.kill(model.worker.pid, signal.SIGKILL)
        until(lambda: model.worker.restarts == 1, "another worker")
        assert model.restore_state(tmp_path / "a.kv").tokens == saved
        assert model.save_state(tmp_path / "b.kv", PROMPT) == saved
    assert (tmp_path / "b.kv").read_bytes() == wanted


# --- the filter, as the kernel would run it

ALLOW, EPERM, ENOSYS, KILL = "allow", "EPERM", "ENOSYS", "kill"


def run(program: bytes, architecture: int, number: int, *arguments: int) -> str:
    """A filter's result: interprets the instructions that seccomp.py uses, as the kernel documents them."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(a & (1 << 64) - 1 for a in given))
    rows = list(struct.iter_unpack("<HBBI", program))
    at = value = 0
    while True:
        code, yes, no, constant = rows[at]
        at += 1
        if code == seccomp.LOAD:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == seccomp.AND:
            value &= constant
        elif code == seccomp.RETURN:
            if constant & 0xFFFF0000 == seccomp.ERRNO:
                return errno.errorcode[constant & 0xFFFF]
            return {seccomp.ALLOW: ALLOW, seccomp.KILL: KILL}[constant]
        else:
            tests = {
                seccomp.JUMP_EQUAL: value == constant,
                seccomp.JUMP_FROM: value >= constant,
                seccomp.JUMP_BITS: bool(value & constant),
            }
            at += yes if tests[code] else no


OWN_PID = os.getpid()
CASES = [
    ("openat", (0, 0, 0o2000000), ALLOW),
    ("openat", (0, 0, os.O_WRONLY), EPERM),
    ("openat", (0, 0, os.O_RDWR | os.O_CREAT), EPERM),
    ("openat", (0, 0, 0o20000000), EPERM),
    ("clone", (0x3D0F00,), ALLOW),
    ("clone", (17,), EPERM),
    ("clone", (0x3D0F00 | 0x10000000,), EPERM),
    ("clone3", (), ENOSYS),
    ("ioctl", (0, 0x5401), ALLOW),
    ("ioctl", (0, 0x5412), EPERM),
    ("ioctl", (0, 0x5412 | 1 << 32), EPERM),
    ("fcntl", (0, 3), ALLOW),
    ("fcntl", (0, 8), EPERM),
    ("prctl", (15,), ALLOW),
    ("prctl", (1,), EPERM),
    ("kill", (OWN_PID,), ALLOW),
    ("kill", (0,), EPERM),
    ("kill", (-1,), EPERM),
    ("tgkill", (OWN_PID, 1, 6), ALLOW),
    ("tgkill", (1, 1, 6), EPERM),
    ("prlimit64", (0,), ALLOW),
    ("prlimit64", (1,), EPERM),
    ("setpriority", (0, 5), EPERM),
    ("sched_setaffinity", (1,), EPERM),
    ("futex", (), ALLOW),
]


@pytest.mark.parametrize("machine", sorted(calls.ARCHITECTURES))
def test_the_filter_on_both_architectures(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "machine", lambda: machine)
    monkeypatch.setattr(seccomp, "machine", lambda: machine)
    known = {**calls.numbers(calls.ALLOWED), **calls.numbers(calls.JUDGED), **calls.numbers(calls.REFUSED)}
    known |= {"clone3": calls.CLONE3, **calls.numbers(calls.REMOVING)}
    tables = (calls.ALLOWED, calls.JUDGED, calls.REFUSED, calls.REMOVING)
    assert len(known) == len(set(known.values())) == 1 + sum(len(calls.numbers(t)) for t in tables)
    program, code = seccomp.program(devices=False), calls.ARCHITECTURES[machine]
    for name, arguments, wanted in CASES:
        assert run(program, code, known[name], *arguments) == wanted, (name, arguments)
    for name, number in calls.numbers(calls.REFUSED).items():
        assert run(program, code, number) == EPERM, name
    for name, number in calls.numbers(calls.REMOVING).items():
        assert run(program, code, number) == EPERM, name
        assert run(seccomp.program(devices=False, files=True), code, number) == ALLOW, name
    assert run(program, code, 9999) == ENOSYS
    assert run(program, code, known["read"] | seccomp.X32) == ENOSYS
    other = next(c for c in calls.ARCHITECTURES.values() if c != code)
    assert run(program, other, known["read"]) == KILL
    drivers = seccomp.program(devices=True)
    assert run(drivers, code, known["openat"], 0, 0, os.O_RDWR) == ALLOW
    assert run(drivers, code, known["openat"], 0, 0, os.O_RDWR | os.O_CREAT) == EPERM
    named = seccomp.program(devices=True, files=True)
    assert run(named, code, known["openat"], 0, 0, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) == ALLOW
    assert run(named, code, known["openat"], 0, 0, os.O_RDWR | seccomp.O_TMPFILE) == EPERM
    assert run(drivers, code, known["ioctl"], 0, 0x4600) == ALLOW
    assert run(drivers, code, known["ioctl"], 0, 0x5412) == EPERM
    assert run(drivers, code, known["socket"]) == EPERM
