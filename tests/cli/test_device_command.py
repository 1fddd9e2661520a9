"""`satchel device`, and `satchel doctor` of a device of another host."""

from __future__ import annotations

import signal
from pathlib import Path

import net_hosts
import pytest
from devices import needs

from satchel.cli.commands.doctor import FAIL, PASS, hosts
from satchel.cli.main import main
from satchel.runtime.net.key import read_key


def test_a_key_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.key"
    assert main(["device", "--make-key", str(path)]) == 0
    assert "a new key; copy it to each host" in capsys.readouterr().err
    assert read_key(path)
    assert main(["device", "--make-key", str(path)]) != 0
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([], "--key-file: it is required"),
        (["--key-file", "{folder}/none"], "the key file cannot be read: No such file"),
        (["--key-file", "{folder}/open"], "others can read or change this key (mode 644)"),
        (["--key-file", "{folder}/key", "--listen", "a b"], "expected HOST or HOST:PORT"),
        (["--key-file", "{folder}/key", "--models", "{folder}/none"], "is no folder"),
        (["--key-file", "{folder}/key", "-dev", "host2/cuda"], "expected devices of this host, one by one"),
        (["--key-file", "{folder}/key", "-dev", "nowhere"], "no such backend is installed"),
    ],
)
def test_nothing_is_listened_on_without_a_key_and_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], text: str
) -> None:
    net_hosts.key_in(tmp_path)
    (tmp_path / "open").write_text("k" * 40)
    (tmp_path / "open").chmod(0o644)
    assert main(["device", *(word.format(folder=tmp_path) for word in more)]) != 0
    assert text in capsys.readouterr().err


@needs("cpu")
def test_it_listens_on_loopback_until_it_is_told_to_end(tmp_path: Path) -> None:
    key = net_hosts.key_in(tmp_path)
    lent = net_hosts.HostProcess(key, device="cpu")
    try:
        (found,) = hosts(lent.name, str(key))
        assert found.result == PASS
        assert "there and back" in found.text
        lent.process.send_signal(signal.SIGTERM)
        assert lent.process.stderr is not None and "ended\n" in lent.process.stderr
        assert lent.process.wait(120) == 0
    finally:
        lent.close()
    (lost,) = hosts(lent.name, str(key))
    assert lost.result == FAIL
    assert "Connection refused" in lost.text
    assert lost.mend.startswith("on 127.0.0.1: satchel device --listen 127.0.0.1:")
