"""How much memory RDMA devices can register: what the table knows, and what was measured here.

No attribute tells how many pages a device can translate in all: device_table.toml has what users
and drivers' sources say. A result of the probe counts while PCI id, firmware and driver are equal.
"""

import os
from collections.abc import Mapping
from errno import ENOMEM
from functools import cache
from typing import Any, NamedTuple

from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.root import Root
from checks.framework.unknown import Unknown

# Linux's smallest page, by which drivers and users count a table's entries.
BASE_PAGE_BYTES = 4096


class DeviceRow(NamedTuple):
    """One type of device, and how many pages of registered memory one translates in all."""

    provider: str  # as ``verbs.PROVIDERS``
    name: str
    confidence: str  # how that is known: measured, read in the driver's source, reported by users
    evidence: tuple[str, ...]
    holds_entries: int = 0  # so many are vouched for; 0: its tables lie in host memory and grow
    worked_entries: int = 0  # the most that a user had working
    failed_entries: int = 0  # the least that failed for somebody, 0 if nobody said
    errno: int = ENOMEM  # of ``ibv_reg_mr`` above the sum, for most drivers


@cache
def device_rows() -> tuple[DeviceRow, ...]:
    """Read the table of devices from device_table.toml, once for this process."""
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with open(os.path.join(os.path.dirname(__file__), "device_table.toml"), "rb") as file:
        rows = tomllib.load(file)["device"]
    return tuple(DeviceRow(**{**row, "evidence": tuple(row["evidence"])}) for row in rows)


def device_row(provider: str) -> DeviceRow | None:
    """Return the table's row for the devices of ``provider``; None if the table has none."""
    return next((row for row in device_rows() if row.provider == provider), None)


RESULT_SCHEMA = "mooncake-preflight/registration/v1"
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"


class Identity(NamedTuple):
    """The key of a saved result: it counts for a device while all of this is the same.

    Attributes:
        hardware: ``1ded:107f``, or what sysfs calls the device.
    """

    hardware: str
    firmware: str
    driver: str
    driver_version: str


class Measured(NamedTuple):
    """A saved result of the probe that counts for a device of this host."""

    device: str  # its name now
    page_bytes: int  # of the memory behind the regions
    holds_bytes: int  # registered at once
    holds_regions: int
    met: str  # the limit that stopped the probe, "" if none did (it took all that was asked)
    file: str


# The limits that are the device's own. Others (RLIMIT_MEMLOCK, a cgroup) say what some process had.
DEVICE_TABLE, MEMORY_KEYS = "device table", "memory keys"
OF_DEVICE = (DEVICE_TABLE, MEMORY_KEYS)


def identity_of(root: Root, name: str, driver: str) -> Identity:
    """Return the key under which results of the device ``name`` are kept."""
    folder = f"{RDMA_DEVICES}/{name}"
    hardware = pci_id_of(root, name) or _word(root, f"{folder}/hca_type")
    version = _word(root, f"/sys/module/{driver}/version") or _word(root, KERNEL_RELEASE)
    return Identity(hardware, _word(root, f"{folder}/fw_ver"), driver, version)


def pci_id_of(root: Root, name: str) -> str | None:
    """Return the PCI id of a device's function, ``1ded:107f``; None if it cannot be read."""
    parts = [root.word(f"{RDMA_DEVICES}/{name}/device/{part}") for part in ("vendor", "device")]
    known = [part.removeprefix("0x") for part in parts if isinstance(part, str)]
    return ":".join(known) if len(known) == 2 else None


def _word(root: Root, name: str) -> str:
    content = root.word(name)
    return "" if isinstance(content, Unknown) else content


def read_measured(root: Root, drivers: Mapping[str, str]) -> tuple[Measured, ...]:
    """Return the probe's saved results for the devices of ``drivers`` (name -> driver)."""
    saved = root.call("registration.saved")
    if not isinstance(saved, list) or not saved:
        return ()
    identities = {name: identity_of(root, name, driver) for name, driver in drivers.items()}
    results = (_measured(*device, result) for device in identities.items() for result in saved)
    return tuple(measured for measured in results if measured is not None)


def _measured(name: str, identity: Identity, result: Any) -> Measured | None:
    """Read one saved result as one of the device ``name``.

    Returns:
        None if it is damaged, or was measured on another device, firmware or driver.
    """
    if not isinstance(result, dict) or result.get("schema") != RESULT_SCHEMA:
        return None
    if any(result.get(key) != value for key, value in identity._asdict().items()):
        return None
    keys = ("page_bytes", "holds_bytes", "holds_regions")
    page, size_bytes, regions = (n if isinstance(n := result.get(k), int) else -1 for k in keys)
    met = result.get("met")
    if page <= 0 or size_bytes < 0 or regions < 0 or not isinstance(met, str):
        return None
    return Measured(name, page, size_bytes, regions, met, str(result.get("file", "")))
