"""A device with what is registered with it, in the probe's child process alone."""

from __future__ import annotations

from preflight.verbs.libraries import open_device
from preflight.verbs.objects import Region


class OpenDevice:
    """A device with a protection domain, and what is registered with it."""

    def __init__(self, name: str) -> None:
        """Raises VerbsError; OSError where libibverbs cannot be loaded."""
        self.name = name
        self._regions: list[Region] = []
        self._device = open_device(name)

    @property
    def largest_bytes(self) -> int:
        """max_mr_size, as the device tells it."""
        return self._device.largest_bytes

    @property
    def regions(self) -> int:
        return len(self._regions)

    def register(self, address: int, size: int) -> None:
        """Raises VerbsError, and then nothing is registered."""
        self._regions.append(self._device.register(address, size))

    def take_back(self) -> None:
        """Deregister what was registered last."""
        self._regions[-1].close()
        self._regions.pop()

    def close(self) -> None:
        """Give everything back; the end of the process would do as well."""
        while self._regions:
            self.take_back()
        self._device.close()
