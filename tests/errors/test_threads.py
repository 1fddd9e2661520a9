"""A thread that the system refuses is one error; other errors pass through unchanged."""

import threading

import pytest

from satchel.errors import DeviceError
from satchel.errors.threads import SafeThreadPool, begin

REFUSED, MISUSED = "can't start new thread", "threads can only be started once"


@pytest.mark.parametrize(("text", "kind"), [(REFUSED, DeviceError), (MISUSED, RuntimeError)])
def test_a_thread_that_does_not_begin(
    text: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(kind, match="ulimit -u" if kind is DeviceError else text):
        begin(threading.Thread(target=print))
    with pytest.raises(kind), SafeThreadPool(1) as pool:
        pool.submit(print)
