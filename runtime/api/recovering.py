"""A model goes on without a device that is lost: what was under way fails with one error, and the next
request finds the model placed anew on what is left, from its file. Model has its service from here.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from satchel.errors import RequestError, SatchelError
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.engine.request_handle import Requests
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.watchdog import Pulse
from satchel.runtime.log import LOG
from satchel.runtime.placement.options import PlacementOptions

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model


class Recovering:
    """placement_options: those of the load, less the lost devices."""

    placement_options: PlacementOptions
    _service: Requests | None = None
    _stuck: SatchelError | None = None  # why the model cannot be placed anew

    @property
    def service(self) -> Requests:
        """The thread that runs requests: begun with the first one, it alone uses the engine from then on. A
        new one where a device was lost, as soon as the model is placed anew; the error where it cannot be.
        """
        model = cast("Model", self)
        with model._starting:
            if model._closed:
                raise RequestError(f"{model.path}: the model was closed: load it again")
            old = self._service if isinstance(self._service, Service) else None
            if old and old.gone:
                self._place_anew(old)
            if self._service is None or (old and old.gone):
                self._service = model._start(old)
                weakref.finalize(self, self._service.close)
            return self._service

    @property
    def trouble(self) -> str:
        """Why the model cannot answer now; "" where it can, or does as soon as it is asked. Does not wait."""
        if self._stuck:
            return str(self._stuck)
        return self._service.trouble if self._service is not None else ""

    @property
    def pulse(self) -> Pulse | None:
        """What the engine's thread is doing, without waiting for it; None where there is none."""
        return self._service.pulse if isinstance(self._service, Service) else None

    def serve_engine(self, old: Service | None) -> Service:
        """A service of the engine at hand. old: the one that it goes on for."""
        model, lose = cast("Model", self), weakref.WeakMethod(self._lose)

        def on_lost(error: DeviceLost) -> SatchelError:
            told = lose()  # the model may be gone, for its service alone keeps it
            return told(error) if told else error

        return Service(
            model.engine, model.options.served, speculator=model._speculator, on_lost=on_lost, after=old
        )

    def _lose(self, error: DeviceLost) -> SatchelError:
        """In the engine's thread: notes the loss, begins to place anew in a thread of its own, and gives the
        error of the requests under way.
        """
        model = cast("Model", self)
        self.placement_options = self.placement_options.without(error.device)
        LOG.error("%s: %s", model.path.name, error)
        threading.Thread(
            target=self._recover, args=(self._service,), name="satchel-recover", daemon=True
        ).start()
        return DeviceLost(error.device, f"{error.reason}; ask again: the next request runs without it")

    def _recover(self, lost: Requests) -> None:
        if isinstance(lost, Service):
            lost.join()
        with suppress(SatchelError):  # the next request gets the error
            _ = self.service

    def _place_anew(self, old: Service) -> None:
        """Frees what there was and opens the model again. The lock is held."""
        if self._stuck:
            raise self._stuck
        model = cast("Model", self)
        old.join()
        model._free()
        model._speculator = model._draft_file = model.measured_bandwidth = model._progress = None
        # The context is what requests were told; what else was chosen by what was free is chosen again.
        model.options = replace(model.options, context=model.context)
        while True:
            try:
                model._open()
                break
            except DeviceLost as error:
                LOG.error("%s: %s", model.path.name, error)
                self.placement_options = self.placement_options.without(error.device)
            except SatchelError as error:
                lost = ", ".join(self.placement_options.lost)
                line = (
                    f"{model.path}: {lost} was lost, and the model cannot be placed on what is left: {error}"
                )
                self._stuck = type(error)(line)
                LOG.error("%s", line)
                raise self._stuck from None
        used = ", ".join(device.name for device in model.devices)
        LOG.warning(
            "%s: placed anew without %s: on %s", model.path.name, ", ".join(self.placement_options.lost), used
        )
