"""Results of the probe that belong to this host's devices as they are now.

A result counts while the device's PCI id, firmware, driver and the driver's version are those that
it was measured with: any of them may change a table.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.device_nodes import RDMA_DEVICES
from checks.base.root import Root
from checks.base.unknown import Unknown

RESULT_SCHEMA = "mooncake-preflight/registration/v1"
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"


class Identity(NamedTuple):
    """What a result is kept under. hardware: ``1ded:107f``, or what sysfs calls the device."""

    hardware: str
    firmware: str
    driver: str
    driver_version: str


class Measured(NamedTuple):
    """What a device took. device: its name now. page_bytes: of the memory behind the regions.

    holds_bytes, holds_regions: so much was registered at once. met: the limit that stopped it
    there, "" where it was not met (``holds_bytes`` is then what was asked for).
    """

    device: str
    page_bytes: int
    holds_bytes: int
    holds_regions: int
    met: str
    file: str


# The limits that are the device's own. Others (RLIMIT_MEMLOCK, a cgroup) say what some process had.
DEVICE_TABLE, MEMORY_KEYS = "device table", "memory keys"
OF_DEVICE = (DEVICE_TABLE, MEMORY_KEYS)


def identity_of(root: Root, name: str, driver: str) -> Identity:
    """Return what results of the device ``name`` are kept under."""
    folder = f"{RDMA_DEVICES}/{name}"
    hardware = function_of(root, name) or _word(root, f"{folder}/hca_type")
    version = _word(root, f"/sys/module/{driver}/version") or _word(root, KERNEL_RELEASE)
    return Identity(hardware, _word(root, f"{folder}/fw_ver"), driver, version)


def function_of(root: Root, name: str) -> str | None:
    """Return the PCI id of a device's function, ``1ded:107f``.

    None where it has none, or hides it.
    """
    parts = [root.word(f"{RDMA_DEVICES}/{name}/device/{part}") for part in ("vendor", "device")]
    known = [part.removeprefix("0x") for part in parts if isinstance(part, str)]
    return ":".join(known) if len(known) == 2 else None


def _word(root: Root, name: str) -> str:
    content = root.word(name)
    return "" if isinstance(content, Unknown) else content


def read_measured(root: Root, drivers: Mapping[str, str]) -> tuple[Measured, ...]:
    """Return what was measured of devices, name -> driver. What is not there is no fact."""
    saved = root.call("registration.saved")
    if not isinstance(saved, list) or not saved:
        return ()
    found = []
    for name, driver in drivers.items():
        own = identity_of(root, name, driver)
        for result in saved:
            measured = _measured(name, own, result)
            if measured is not None:
                found.append(measured)
    return tuple(found)


def _measured(name: str, own: Identity, result: Any) -> Measured | None:
    if not isinstance(result, dict) or result.get("schema") != RESULT_SCHEMA:
        return None
    if any(result.get(key) != value for key, value in own._asdict().items()):
        return None
    page, held, regions, met = (
        result.get(key) for key in ("page_bytes", "holds_bytes", "holds_regions", "met")
    )
    if not isinstance(page, int) or not isinstance(held, int) or not isinstance(regions, int):
        return None
    if page <= 0 or held < 0 or regions < 0 or not isinstance(met, str):
        return None
    return Measured(name, page, held, regions, met, str(result.get("file", "")))
