"""What only the running machine can tell about its RDMA devices: each call returns plain data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from checks.framework.root import LIMIT_SECONDS, in_child

# linux/netlink.h
NETLINK_ROUTE, NETLINK_RDMA = 0, 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3

# rdma/rdma_netlink.h: commands of the client RDMA_NL_NLDEV (5), and attributes.
NLDEV = 5 << 10
CMD_SYS_GET, CMD_RES_GET, CMD_GET_CHARDEV = 6, 9, 15
DEV_INDEX, DEV_NAME = 1, 2
RES_SUMMARY, RES_SUMMARY_ENTRY, RES_NAME, RES_COUNT = 15, 16, 17, 18
NETNS_MODE, CHARDEV_TYPE, UVERBS_DRIVER_ID, COPY_ON_FORK = 66, 69, 73, 93
RES_PID, RES_MR_BYTES = 28, 45
# Of each kind of resource: the command that lists those of a device, and the table in its answer,
# whose entries have the next number.
RESOURCES = {"qp": (10, 19), "cq": (12, 35), "mr": (13, 40), "pd": (14, 46)}

RECEIVE_BYTES = 1 << 16
# A kernel answers at once; this only keeps a lost answer from waiting for ever.
ANSWER_LIMIT_SECONDS = 2.0
# Of the time limit, what one device may take: opening one takes milliseconds.
DEVICE_SHARE = 0.4


def device_node(path: str) -> dict[str, Any]:
    """Return a device file's mode, and whether it opens; if not, ``errno`` and ``error``.

    Raises FileNotFoundError.
    """
    answer: dict[str, Any] = {"mode": os.stat(path).st_mode, "open": True}
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        answer.update(open=False, errno=error.errno, error=error.strerror)
    return answer


def interfaces() -> dict[str, list[list[Any]]]:
    """Return the IP addresses of this network namespace: ``{interface: [[address, prefix
    length]]}``.

    /sys may show the interfaces of another namespace.
    """
    import socket

    import psutil

    result: dict[str, list[list[Any]]] = {}
    for label, entries in psutil.net_if_addrs().items():
        # eth0:1 is a label of eth0
        addresses = result.setdefault(label.partition(":")[0], [])
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                mask = socket.inet_pton(entry.family, entry.netmask)
                length = int.from_bytes(mask, "big").bit_count()
                addresses.append([entry.address.partition("%")[0], length])
    return result


def kernel() -> dict[str, Any]:
    """Ask the kernel, as ``rdma system`` and ``rdma resource`` do.

    Raises OSError.

    netns_mode: shared, exclusive or None. copy_on_fork: whether fork copies pinned pages. devices:
    by name, ``resources`` (the number in use of each kind) and ``driver_id`` (or None).
    """
    answer: dict[str, Any] = {"netns_mode": None, "copy_on_fork": None, "devices": {}}
    for attributes in _ask(CMD_SYS_GET, b"", dump=False):
        if NETNS_MODE in attributes:
            answer["netns_mode"] = "shared" if attributes[NETNS_MODE][0] else "exclusive"
        answer["copy_on_fork"] = attributes.get(COPY_ON_FORK, b"\0") != b"\0"
    for attributes in _ask(CMD_RES_GET, b"", dump=True):
        if DEV_NAME not in attributes or DEV_INDEX not in attributes:
            continue
        counts = {}
        for number, entry in netlink_attributes(attributes.get(RES_SUMMARY, b"")):
            if number == RES_SUMMARY_ENTRY:
                item = dict(netlink_attributes(entry))
                counts[_text(item[RES_NAME])] = int.from_bytes(item[RES_COUNT], "little")
        device = {"resources": counts, "driver_id": _driver_id(attributes[DEV_INDEX])}
        answer["devices"][_text(attributes[DEV_NAME])] = device
    return answer


def held() -> dict[str, dict[str, dict[str, int]]]:
    """Count the objects that each process has on each device: ``{device: {process id: {kind:
    count}}}``.

    The kind ``mr_bytes`` is the size of the memory regions. Objects of the kernel or of another pid
    namespace are left out (rdma/core/restrack.c). Needs no privilege. Raises OSError.
    """
    answer: dict[str, dict[str, dict[str, int]]] = {}
    for attributes in list(_ask(CMD_RES_GET, b"", dump=True)):
        processes = answer.setdefault(_text(attributes[DEV_NAME]), {})
        for what, (command, table) in RESOURCES.items():
            for entry in _entries(command, attributes[DEV_INDEX], table):
                if RES_PID not in entry:
                    continue  # the kernel's own
                counts = processes.setdefault(str(int.from_bytes(entry[RES_PID], "little")), {})
                counts[what] = counts.get(what, 0) + 1
                if RES_MR_BYTES in entry:
                    size = int.from_bytes(entry[RES_MR_BYTES], "little")
                    counts["mr_bytes"] = counts.get("mr_bytes", 0) + size
    return answer


def _entries(command: int, device: bytes, table: int) -> Iterator[dict[int, bytes]]:
    """Yield each resource of one kind that a device has, by attribute."""
    for attributes in _ask(command, _attribute(DEV_INDEX, device), dump=True):
        for _number, entry in netlink_attributes(attributes.get(table, b"")):
            yield dict(netlink_attributes(entry))


def verbs(name: str) -> dict[str, Any]:
    """Ask libibverbs for one device, as Mooncake does; see ``libibverbs.query`` for the answer.
    pyverbs holds Python's lock while it asks (rdma-core ``pyverbs/device.pyx``), so it asks in a
    child: a device that hangs must not hang this process.

    Raises:
        OSError: If the child does.
    """
    from checks.rdma.libibverbs import has_pyverbs, query

    if not has_pyverbs():
        return query(name)
    answer: dict[str, Any] = in_child(lambda: query(name), LIMIT_SECONDS.get() * DEVICE_SHARE)
    return answer


def _driver_id(index: bytes) -> int | None:
    """Return the kernel's number of the driver of the device ``index``; None if it is not told."""
    request = _attribute(DEV_INDEX, index) + _attribute(CHARDEV_TYPE, b"uverbs\0")
    try:
        for attributes in _ask(CMD_GET_CHARDEV, request, dump=False):
            if UVERBS_DRIVER_ID in attributes:
                return int.from_bytes(attributes[UVERBS_DRIVER_ID], "little")
    except OSError:
        pass  # ib_uverbs is not loaded, or the device belongs to another namespace
    return None


def _ask(command: int, request: bytes, dump: bool) -> Iterator[dict[int, bytes]]:
    """Yield the attributes of each message in the kernel's answer.

    Raises OSError.
    """
    flags = NLM_F_DUMP if dump else 0
    for _kind, body in netlink_dump(NETLINK_RDMA, NLDEV + command, request, flags):
        yield dict(netlink_attributes(body))


def netlink_dump(
    protocol: int, message_type: int, body: bytes, flags: int = NLM_F_DUMP
) -> Iterator[tuple[int, bytes]]:
    """Send one netlink request, and yield the messages of the answer, each as ``(type, body)``.

    Args:
        body: The request's, without header. If ``flags`` is 0, only the first message is yielded.

    Raises:
        OSError: If the kernel answers with an error, or not in time.
    """
    import socket
    import struct

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
        link.settimeout(ANSWER_LIMIT_SECONDS)
        link.bind((0, 0))
        header = struct.pack("=IHHII", 16 + len(body), message_type, NLM_F_REQUEST | flags, 1, 0)
        link.send(header + body)
        while True:
            data = link.recv(RECEIVE_BYTES)
            while len(data) >= 16:
                length, answer, _flags, _sequence, _port = struct.unpack_from("=IHHII", data)
                content = data[16:length]
                if answer == NLMSG_DONE:
                    return
                if answer == NLMSG_ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    if number:
                        raise OSError(number, os.strerror(number))
                    return
                yield answer, content
                if not flags:
                    return
                data = data[(max(length, 16) + 3) & ~3 :]


def netlink_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield netlink attributes as ``(number, value)``; a nested value consists of attributes."""
    while len(data) >= 4:
        length = int.from_bytes(data[:2], "little")
        number = int.from_bytes(data[2:4], "little") & 0x3FFF
        if length < 4:
            return
        yield number, data[4:length]
        data = data[(length + 3) & ~3 :]


def _attribute(number: int, value: bytes) -> bytes:
    head = (4 + len(value)).to_bytes(2, "little") + number.to_bytes(2, "little")
    return head + value + b"\0" * (-len(value) % 4)


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


# The system's folder, which root writes, and below a user's own state folder.
SYSTEM_FOLDER = "/var/lib/mooncake-preflight"
SUBFOLDER = "registration"
# One result for each device and page size; more is not ours.
MOST_FILES = 256
LARGEST_FILE_BYTES = 1 << 16


def state_folders() -> list[str]:
    """Return the folders of saved results: the system's, then this user's if a home is set."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.environ.get("HOME", ""), ".local/state")
    user = os.path.join(base, "mooncake-preflight")
    folders = [SYSTEM_FOLDER] + ([user] if user.startswith("/") else [])
    return [os.path.join(folder, SUBFOLDER) for folder in folders]


def saved() -> list[dict[str, Any]]:
    """Read the saved results, each with its path as ``file``.

    Left out: unreadable files, and in each folder the files after the first 256 by name.
    """
    import json

    results = []
    for folder in state_folders():
        try:
            names = sorted(os.listdir(folder))[:MOST_FILES]
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".json"):
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    content = json.loads(file.read(LARGEST_FILE_BYTES))
            except (OSError, ValueError, RecursionError):
                continue  # a result that cannot be read is none: the table is asked instead
            if isinstance(content, dict):
                results.append({**content, "file": path})
    return results
