"""RDMA devices as registering memory meets them: the records and the reader of device_table.toml.

A driver's attributes tell the longest region and the number of memory keys. What they do not tell
is how many pages a device can translate in all: that is in the table, as users ran into it and as
the drivers' sources have it.
"""

import os
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

# Linux's smallest page, by which drivers and users count a table's entries.
BASE_PAGE_BYTES = 4096


class TableBound(Enum):
    """What is known of the sum that a device can translate."""

    HOST_MEMORY = "its tables lie in host memory and grow with what is registered"
    ENTRIES = "it has so many table entries"
    UNTOLD = "it has a limit, and nobody has published it"


class Confidence(Enum):
    MEASURED = "measured"
    READ = "read in the driver's source"
    REPORTED = "reported by users"


class Table(NamedTuple):
    """How many pages of registered memory a device translates, all regions and processes together.

    holds_entries: so many are vouched for. worked_entries: the most that a user had working.
    failed_entries: the least that failed for somebody, 0 where nobody said.
    """

    bound: TableBound
    holds_entries: int = 0
    worked_entries: int = 0
    failed_entries: int = 0


# The errno that most drivers give where a device cannot take a registration.
ENOMEM = 12


class DeviceRow(NamedTuple):
    """One kind of device. provider: as ``verbs.PROVIDERS``. functions: the PCI ids that it is
    about, () for all of the provider.

    max_mr_size_counts: whether ibv_query_device's max_mr_size is a real bound. page_effect: what
    the backing pages change. errno: what ``ibv_reg_mr`` gives over the sum.
    kernel_log: words of the kernel's log that go with it. mode, gid: what Mooncake needs of it.
    """

    provider: str
    name: str
    table: Table
    confidence: Confidence
    evidence: tuple[str, ...]
    max_mr_size_counts: bool = False
    page_effect: str = "none"
    errno: int = ENOMEM
    kernel_log: tuple[str, ...] = ()
    mode: str = "none"
    gid: str = "a RoCE v2 entry with an IPv4 address"
    functions: tuple[str, ...] = ()


@cache
def device_rows() -> tuple[DeviceRow, ...]:
    """Read the table that lies beside this module."""
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with open(os.path.join(os.path.dirname(__file__), "device_table.toml"), "rb") as file:
        rows = tomllib.load(file)["device"]
    return tuple(_row(row) for row in rows)


def _row(row: dict[str, Any]) -> DeviceRow:
    held = {key: row.pop(key) for key in Table._fields[1:] if key in row}
    table, confidence = (
        Table(TableBound[row.pop("bound")], **held),
        Confidence[row.pop("confidence")],
    )
    said: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return DeviceRow(table=table, confidence=confidence, **said)


def device_row(provider: str, function: str | None) -> DeviceRow | None:
    """Return the row of a device, None where it is no known one. function: its PCI id, 1ded:107f.

    A function that no row names takes the first of its provider: the driver is the same.
    """
    rows = [row for row in device_rows() if row.provider == provider]
    exact = [row for row in rows if function in row.functions]
    return next(iter(exact or rows), None)
