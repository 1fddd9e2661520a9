"""packaging/: systemd rates the unit as documented, and the unit grants what the server needs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
EXPOSED = 20  # of 100, by `systemd-analyze security`: 14, and 18 with a GPU
SERVER = "/opt/satchel/venv/bin/satchel"


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze; skips where it is missing or too old."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ["systemd-analyze", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip(f"this systemd is too old: {done.stderr.strip()}")
    return done


@pytest.fixture(params=[False, True], ids=["cpu", "gpu"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with an existing program, with and without the GPU settings."""
    text = (PACKAGING / "satchel.service").read_text(encoding="utf-8")
    assert SERVER in text
    path = tmp_path / "satchel.service"
    there = sys.executable.replace("%", "%%")  # its folder may have a space in its name, too
    path.write_text(text.replace(SERVER, f'"{there}"'), encoding="utf-8")
    if request.param:
        (tmp_path / "satchel.service.d").mkdir()
        shutil.copy(PACKAGING / "gpu.conf", tmp_path / "satchel.service.d")
    return path


def test_systemd_takes_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    told = [line for line in done.stderr.splitlines() if "satchel" in line or "gpu.conf" in line]
    assert done.returncode == 0 and not told, done.stderr


def test_systemd_finds_little_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSED}", unit)
    assert done.returncode == 0, done.stdout + done.stderr


def expanded(name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The system calls of a filter's entry, as this systemd defines it."""
    if not name.startswith("@"):
        yield name
    elif name not in seen:
        done = analyze("syscall-filter", name)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        for line in done.stdout.splitlines()[1:]:
            if (word := line.strip()) and not word.startswith("#"):
                yield from expanded(word, seen | {name})


def granted() -> set[str]:
    """The system calls that the unit allows: lines add to them, lines with ~ subtract."""
    found: set[str] = set()
    for line in (PACKAGING / "satchel.service").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "SystemCallFilter":
            names = {call for entry in value.lstrip("~").split() for call in expanded(entry)}
            found = found - names if value.startswith("~") else found | names
    return found


def test_the_filter_grants_the_sandbox_and_no_way_around_it() -> None:
    calls = granted()
    needed = ("seccomp", "landlock_restrict_self", "prctl", "clone", "execve", "mprotect", "futex", "accept4")
    assert calls.issuperset(needed)
    denied = ["mount", "ptrace", "init_module", "reboot", "swapon", "bpf", "setuid", "chroot", "kexec_load"]
    assert not calls & set(denied)


@pytest.mark.nightly
@pytest.mark.model
def test_every_call_of_the_server_is_granted(bundled_model: Path, tmp_path: Path) -> None:
    """The unit allows every system call of a server that loads a model in a worker, answers and stops."""
    httpx = pytest.importorskip("httpx")
    from waiting import ready, until

    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    allowed, log, trace = granted(), tmp_path / "log", tmp_path / "trace"
    serve = [sys.executable, "-m", "satchel", "serve", str(bundled_model), "--port", "0"]
    with log.open("w") as told:
        child = subprocess.Popen(["strace", "-f", "-qq", "-o", str(trace), *serve], stderr=told)
    try:
        until(lambda: "http://" in log.read_text() or child.poll() is not None, "the server's address", 300)
        found = re.search(r"http://[\w.:]+", log.read_text())
        if found is None:
            pytest.skip(f"strace cannot trace here: {log.read_text()[-300:]}")
        ready(found[0], 300)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        assert httpx.post(f"{found[0]}/v1/chat/completions", json=body, timeout=300).status_code == 200
    finally:
        pids = {int(line.split()[0]) for line in trace.read_text(errors="replace").splitlines()[:1]}
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        child.wait(120)
    used = set(
        re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)", trace.read_text(errors="replace"), re.M)
    )
    assert {"mmap", "accept4"} <= used and not used - allowed, sorted(used - allowed)
