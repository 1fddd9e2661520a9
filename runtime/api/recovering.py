"""Recovery from a lost device: the model is placed on the remaining devices, loaded again from its file, and
requests go on there with the tokens that they have. Calls that were running fail with one error.

A device of another host is tried again first, because its server may be started again or the network come
back.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from satchel.errors import DeviceError, RequestError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.device.device import Device
from satchel.runtime.device.lost import DeviceLost, DeviceUnreachable, LinkLost
from satchel.runtime.engine.request_handle import End, Requests
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.watchdog import Pulse
from satchel.runtime.log import LOG
from satchel.runtime.placement.options import PlacementOptions

RECONNECT_NAME = "SATCHEL_DEVICE_RECONNECT_S"
RECONNECT = 10.0  # seconds for which the host of a lost device is tried
PAUSE = 0.2  # seconds between two tries

_services: weakref.WeakSet[Requests] = weakref.WeakSet()  # each is kept alive by its own thread


def reconnecting() -> Iterator[bool]:
    """Gives True for each time that the host of a lost device is to be tried again, pausing between them.
    SATCHEL_DEVICE_RECONNECT_S: for how many seconds.
    """
    until = time.monotonic() + float(os.environ.get(RECONNECT_NAME, RECONNECT))
    while time.monotonic() < until:
        yield True
        time.sleep(PAUSE)


class Recovering(ABC):
    """Base of Model: owns the service of its engine, and makes both anew after the loss of a device.

    leave: called when the connection to a device's host is lost, where this process can make no other: it is
    to end the process.
    """

    leave: Callable[[LinkLost], None] | None = None

    path: Path
    devices: Sequence[Device]
    placement_options: PlacementOptions  # those of the load, without the lost devices

    def __init__(self) -> None:
        self._service: Requests | None = None
        self._dropped: weakref.finalize[..., Recovering] | None = None  # closes the service if nobody does
        self._stuck: SatchelError | None = None  # why the model cannot be placed again
        self._closed, self._starting = False, threading.Lock()

    @abstractmethod
    def _open(self) -> None:
        """Creates the engine."""

    @abstractmethod
    def _release(self) -> None:
        """Frees the engine, in whose place _open() is to create another."""

    @abstractmethod
    def _start(self, old: Service | None) -> Requests:
        """A service of the engine. old: the one that it replaces, whose counts it takes."""

    @property
    def service(self) -> Requests:
        """The service, whose thread alone uses the engine. The first request starts it. After the loss of a
        device it is a new one, as soon as the model is placed again; raises the error if it cannot be.
        """
        with self._starting:
            if self._closed:
                raise RequestError(f"{self.path}: the model was closed: load it again")
            old = self._service if isinstance(self._service, Service) else None
            if old and old.gone:
                self._place_anew(old)
            if self._service is None or (old and old.gone):
                self._service = self._start(old)
                _services.add(self._service)
                if self._dropped is not None:  # of a service whose device was lost, which has ended
                    self._dropped.detach()
                self._dropped = weakref.finalize(self, close_apart, self._service)
                self._dropped.atexit = False
            return self._service

    def _close_service(self) -> None:
        """Refuses requests from here on, cancels those in flight and waits for the service's end."""
        with self._starting:
            self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        if self._service is not None:
            self._service.close()

    @property
    def trouble(self) -> str:
        """Why the model cannot answer; "" if it can, possibly after being placed again. Does not wait."""
        if self._stuck:
            return str(self._stuck)
        return self._service.trouble if self._service is not None else ""

    @property
    def pulse(self) -> Pulse | None:
        """Activity of the engine's thread; None without one. Does not wait."""
        return self._service.pulse if isinstance(self._service, Service) else None

    def _on_lost(self) -> Callable[[DeviceLost], SatchelError]:
        """_lose() for a service, which must not keep the model alive."""
        lose = weakref.WeakMethod(self._lose)

        def on_lost(error: DeviceLost) -> SatchelError:
            told = lose()
            return told(error) if told else error

        return on_lost

    def _lose(self, error: DeviceLost) -> SatchelError:
        """On the engine's thread: records the loss, starts the new placement in a thread of its own, and
        gives the error of running calls.
        """
        LOG.error("%s: %s", self.path.name, error)
        again = isinstance(error, LinkLost)
        if isinstance(error, LinkLost) and self.leave is not None:
            self.leave(error)
        if not again:
            self.placement_options = self.placement_options.without(error.device)
        threading.Thread(
            target=self._recover, args=(self._service,), name="satchel-recover", daemon=True
        ).start()
        then = "when the host is reached again, or without it" if again else "without it"
        return type(error)(error.device, f"{error.reason}; ask again: the next request runs {then}")

    def _recover(self, lost: Requests) -> None:
        if isinstance(lost, Service):
            lost.join()
        with suppress(SatchelError):  # the next request gets the error
            _ = self.service

    def _place_anew(self, old: Service) -> None:
        """Frees everything and opens the model again. The lock is held."""
        if self._stuck:
            raise self._stuck
        old.join()
        self._release()
        tries = reconnecting()
        while True:
            try:
                self._open()
                break
            except (DeviceLost, DeviceUnreachable) as error:
                if isinstance(error, LinkLost | DeviceUnreachable) and next(tries, False):
                    continue
                LOG.error("%s: %s", self.path.name, error)
                self.placement_options = self.placement_options.without(error.device)
            except SatchelError as error:
                lost = ", ".join(self.placement_options.lost) or "a device"
                line = (
                    f"{self.path}: {lost} was lost, and the model cannot be placed on what is left: {error}"
                )
                self._stuck = type(error)(line)
                LOG.error("%s", line)
                old.abandon(End("error", self._stuck))
                raise self._stuck from None
        used, gone = ", ".join(device.name for device in self.devices), self.placement_options.lost
        without = f" without {', '.join(gone)}" if gone else ""
        LOG.warning("%s: placed anew%s: on %s", self.path.name, without, used)


def close_apart(service: Requests) -> None:
    """Closes the service of a model that nobody closed, in a thread of its own: close() waits for a step, and
    any thread may collect garbage, an event loop's too.
    """
    try:
        begin(threading.Thread(target=service.close, name="satchel-close", daemon=True))
    except DeviceError:  # no thread is left
        service.close()


@atexit.register
def _close_all() -> None:
    """No thread may be in a kernel when the interpreter ends."""
    for service in list(_services):
        service.close()
