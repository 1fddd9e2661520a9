"""Really runs what is packed: a root filesystem's `satchel` in a chroot, without rights, on loopback.

    asked(root, settings)    starts an image's entry point as its user, and gives the answer to one question

The process gets what a careful container runtime gives: namespaces of its own for mounts and processes, a
read-only root, a small /tmp without programs, no capabilities, no new privileges. It ends with the process
that started it. That takes root's rights and Linux's `unshare`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 300
# Mounts, then the last steps as another user, in a child: a change of user clears the signal that ends a
# process with its parent, so the first process of the namespace stays root's.
ENTER = """
import ctypes, os, subprocess, sys
root, user, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def mount(*options):
    subprocess.run(["mount", *options], check=True)
mount("--make-rprivate", "/")
mount("--bind", root, root)
mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root + "/dev")
for name in ("null", "zero", "full", "random", "urandom"):
    open(root + "/dev/" + name, "w").close()
    mount("--bind", "/dev/" + name, root + "/dev/" + name)
mount("-t", "proc", "proc", root + "/proc")
mount("-t", "tmpfs", "-o", "mode=1777,noexec,nosuid,nodev,size=64m", "tmpfs", root + "/tmp")
mount("-o", "remount,bind,ro", root)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
os.chroot(root)
os.chdir("/")
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
os.execvpe(words[0], words, os.environ)
"""


def able() -> str:
    """Why nothing can be tried here; "": it can."""
    if not sys.platform.startswith("linux"):
        return f"a chroot is tried on Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "entering a root filesystem needs root's rights"
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"unshare is not allowed here: {done.stderr.strip()}"


def started(
    root: Path, words: Sequence[str], variables: Mapping[str, str], user: int = 0, **options: Any
) -> subprocess.Popen[str]:
    """Starts a program in the root; the program and all that it starts end with its `unshare`."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, "-c", ENTER]
    # PATH is the root's; mount(8) and Python are found before it is needed.
    where = os.pathsep.join([*variables.get("PATH", "/usr/bin").split(os.pathsep), "/usr/bin", "/usr/sbin"])
    environment = {"PATH": where, "LC_ALL": "C.UTF-8", **{k: v for k, v in variables.items() if k != "PATH"}}
    return subprocess.Popen([*command, str(root), str(user), *words], env=environment, text=True, **options)


def printed(
    root: Path, words: Sequence[str], variables: Mapping[str, str] | None = None, user: int = 0
) -> str:
    """What a program in the root prints. RuntimeError with its errors where it fails."""
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
    }
    with started(root, words, variables or {}, user, **options) as child:
        out, err = child.communicate(timeout=SECONDS)
    if child.returncode:
        raise RuntimeError(f"{' '.join(words)}: failed ({child.returncode}): {err.strip()[-2000:]}")
    return str(out)


def asked(root: Path, settings: Mapping[str, Any], question: str = "Who are you?") -> str:
    """The answer of a server that an image's settings start, on a free port of loopback."""
    key = secrets.token_hex(16)
    variables = dict(one.partition("=")[::2] for one in settings["Env"]) | {"SATCHEL_API_KEY": key}
    words = [*settings["Entrypoint"], *settings.get("Cmd", ()), "--host", "127.0.0.1", "--port", "0"]
    user = int(str(settings["User"]).partition(":")[0])
    child = started(root, words, variables, user, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    lines: list[str] = []
    patience = threading.Timer(SECONDS, child.kill)  # a server that says nothing
    patience.start()
    try:
        assert child.stderr is not None
        for line in child.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                threading.Thread(target=lines.extend, args=(child.stderr,), daemon=True).start()
                return chat(found[0], key, question)
        raise RuntimeError(f"{' '.join(words)}: ended before it listened: {''.join(lines)[-2000:]}")
    finally:
        patience.cancel()
        child.kill()
        child.wait()


def chat(address: str, key: str, question: str) -> str:
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 20, "temperature": 0}
    head = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), head)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=SECONDS) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])
