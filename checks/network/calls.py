"""What only the running machine tells about its network: addresses, and ports that can be bound."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

from checks.framework.root import LIMIT_SECONDS, error_name
from checks.rdma.calls import NETLINK_ROUTE, netlink_attributes, netlink_dump


def addresses() -> list[dict[str, Any]]:
    """Return every IP address of this network namespace: ``{interface, address, up}``."""
    import psutil

    up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        {"interface": name, "address": entry.address.partition("%")[0], "up": up.get(name, False)}
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    ]


def bind(port: int) -> dict[str, Any]:
    """Try to bind TCP ``port`` on all IPv4 addresses; return ``free``, ``errno`` if not free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            return {"free": False, "errno": error_name(error)}
    return {"free": True}


# Shares of the time limit. A service on the same network answers in milliseconds; a firewall that
# drops never does: then nothing else is asked. Mooncake's own client gives a dead master 4.3 s
# before it reports it (measured, 0.3.13.post1): a connection is tried 4.5 s by default.
CONNECT_SHARE, HTTP_SHARE, MASTER_SHARE = 0.45, 0.2, 0.8
_ANSWER_BYTES = 4096


def resolve(host: str) -> list[str]:
    """Return the addresses of a name, in the resolver's order, each once."""
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def connect(host: str, port: int) -> dict[str, Any]:
    """Try to connect by TCP, and return ``open``, with the error's name and text if it is False.

    ``timeout``: the seconds waited, if nothing refused the connection.
    """
    import errno

    limit = _seconds(CONNECT_SHARE)
    try:
        with socket.create_connection((host, port), limit):
            return {"open": True}
    except OSError as error:
        late = isinstance(error, TimeoutError)
        name = "timeout" if late else errno.errorcode.get(error.errno or 0, type(error).__name__)
        failure = {"open": False, "error": name, "text": error.strerror or str(error)}
        return {**failure, "timeout": limit} if late else failure


def http(host: str, port: int, path: str, most_bytes: int = _ANSWER_BYTES) -> dict[str, Any]:
    """Ask for ``GET path``, past any proxy, and return the status and the first ``most_bytes`` of
    the body.

    Without an answer: the seconds waited as ``timeout``, or ``error``.
    """
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=_seconds(HTTP_SHARE))
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return {"status": answer.status, "body": answer.read(most_bytes).decode("utf-8", "replace")}
    except TimeoutError:
        return {"timeout": _seconds(HTTP_SHARE)}
    except (OSError, HTTPException, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


def _seconds(share: float) -> float:
    """Return a share of the time limit in seconds, at least what a local network takes."""
    return max(0.2, LIMIT_SECONDS.get() * share)


def master(host: str, port: int) -> dict[str, Any]:
    """Ask a Mooncake master by Mooncake's own client in another process, and return the client's
    code.

    0: the master is ready. Without a code: the seconds waited as ``timeout``, or ``error``. By
    ``rpc_only`` the client returns before it joins: the master shows no client afterwards.
    """
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "print('code', MooncakeDistributedStore().setup("
        "'h:1', 'P2PHANDSHAKE', 0, 0, 'rpc_only', '', sys.argv[1]))\n"
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    limit = _seconds(MASTER_SHARE)
    try:
        arguments = [sys.executable, "-c", program, address]
        null = subprocess.DEVNULL
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=limit, stdin=null)
    except subprocess.TimeoutExpired:
        return {"timeout": limit}
    for line in done.stdout.splitlines():
        word, _, code = line.partition(" ")
        if word == "code" and code.lstrip("-").isdigit():
            return {"code": int(code)}
    return {"error": (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]}


# linux/rtnetlink.h
RTM_NEWROUTE, RTM_GETROUTE, RTM_NEWRULE, RTM_GETRULE = 24, 26, 32, 34
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_MULTIPATH, RTA_TABLE = 1, 4, 5, 9, 15
RTM_F_CLONED = 0x200
# linux/fib_rules.h
FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_GOTO, FRA_PRIORITY, FRA_FWMARK = 1, 2, 3, 4, 6, 10
FRA_SUPPRESS_PREFIX, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME = 14, 15, 16, 17
_READ = {FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_GOTO, FRA_PRIORITY, FRA_FWMARK}
_READ |= {FRA_SUPPRESS_PREFIX, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME}
FRA_SUPPRESS_GROUP, FRA_L3MDEV, FRA_PROTOCOL = 13, 19, 21
TOS = -1  # a field of the header, among the numbers of attributes
FIB_RULE_INVERT = 0x2
# What decides nothing: who made the rule (21), its flow, unused numbers.
_OF_NO_ACCOUNT = {0, 5, 7, 8, 9, 11, 18, FRA_PROTOCOL}
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
# A router has as many as the Internet; what is beyond is not read, and that is said.
MOST_ROUTES = 4096


def rules() -> list[dict[str, Any]]:
    """Read ``ip rule`` of both families, in the kernel's order: see ``RoutingRule``.

    action: of fib_rules.h. other: numbers (FRA_*, or TOS) of selectors that are none of the fields.
    """
    asked = ((family, _messages(family, RTM_GETRULE, RTM_NEWRULE)) for family in _FAMILIES)
    return [_decode_rule(family, body) for family, bodies in asked for body in bodies]


def _decode_rule(family: int, body: bytes) -> dict[str, Any]:
    """Decode one routing rule of a netlink message into a dict with the fields of ``RoutingRule``,
    as ``rules()`` lists them.

    Args:
        body: The message without its netlink header.
    """
    header = struct.unpack_from("=BBBBBBBBI", body)
    _, to_length, from_length, tos, table, _, _, action, flags = header
    attributes = dict(netlink_attributes(body[12:]))
    mark, mask = (_number(attributes.get(number)) for number in (FRA_FWMARK, FRA_FWMASK))
    others = sorted(attributes.keys() - _OF_NO_ACCOUNT - _READ)
    for number, unset in ((FRA_L3MDEV, b"\0"), (FRA_SUPPRESS_GROUP, b"\xff" * 4)):
        if attributes.get(number) == unset:
            others.remove(number)
    if tos:
        others.append(TOS)
    suppress = _number(attributes.get(FRA_SUPPRESS_PREFIX))
    return {
        "family": _version(family),
        "priority": _number(attributes.get(FRA_PRIORITY)) or 0,
        "action": action,
        "table": _number(attributes.get(FRA_TABLE)) or table,
        "invert": bool(flags & FIB_RULE_INVERT),
        "from": _prefix(family, attributes.get(FRA_SRC), from_length),
        "to": _prefix(family, attributes.get(FRA_DST), to_length),
        "iif": _name(attributes.get(FRA_IIFNAME)),
        "oif": _name(attributes.get(FRA_OIFNAME)),
        "mark": None if mark is None else [mark, 0xFFFFFFFF if mask is None else mask],
        "goto": _number(attributes.get(FRA_GOTO)),
        "suppress_prefix": None if suppress in (None, 0xFFFFFFFF) else suppress,
        "other": others,
    }


def routes() -> list[list[Any]]:
    """Return ``[family, table, type, destination, gateway, interface]`` for each next hop of each
    route.

    type: RTN_* of rtnetlink.h. A family with more than ``MOST_ROUTES`` rows is cut, and ends with
    ``[family, -1, 0, "", "", ""]``.
    """
    names = dict(socket.if_nameindex())
    rows: list[list[Any]] = []
    for family in _FAMILIES:
        family_rows: list[list[Any]] = []
        for body in _messages(family, RTM_GETROUTE, RTM_NEWROUTE):
            hop_rows = _decode_route(family, body, names)
            if len(family_rows) + len(hop_rows) > MOST_ROUTES:
                family_rows.append([_version(family), -1, 0, "", "", ""])
                break
            family_rows += hop_rows
        rows += family_rows
    return rows


def _messages(family: int, request_type: int, wanted_type: int) -> Iterator[bytes]:
    """Ask the kernel for all rules or routes of one family; yield the body of each."""
    request = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 0, 0, 0, 0, 0)
    for message_type, body in netlink_dump(NETLINK_ROUTE, request_type, request):
        if message_type == wanted_type and len(body) >= 12:
            yield body


def _version(family: int) -> int:
    return 4 if family == socket.AF_INET else 6


def _decode_route(family: int, body: bytes, names: dict[int, str]) -> list[list[Any]]:
    """Decode one route of a netlink message into rows of ``routes``, one for each next hop; [] for
    a cached route.

    Args:
        names: Interface names by index.
    """
    _, length, _, _, table, _, _, type_, flags = struct.unpack_from("=BBBBBBBBI", body)
    if flags & RTM_F_CLONED:
        return []
    attributes = dict(netlink_attributes(body[12:]))
    table = _number(attributes.get(RTA_TABLE)) or table
    written = _prefix(family, attributes.get(RTA_DST), length)
    written = written or ("0.0.0.0/0" if family == socket.AF_INET else "::/0")
    rows = []
    for index, hop in _hops(attributes):
        via = hop.get(RTA_GATEWAY)  # one of the other family is not read: nothing asks for it
        gateway = "" if via is None else socket.inet_ntop(family, via)
        rows.append([_version(family), table, type_, written, gateway, names.get(index, "")])
    return rows


def _hops(attributes: dict[int, bytes]) -> list[tuple[int, dict[int, bytes]]]:
    """Return ``(interface's index or 0, attributes)`` of each next hop of a route."""
    data = attributes.get(RTA_MULTIPATH)
    if data is None:
        return [(_number(attributes.get(RTA_OIF)) or 0, attributes)]
    hops = []
    while len(data) >= 8:
        length, _, _, index = struct.unpack_from("=HBBi", data)
        if length < 8:
            break
        hops.append((index, dict(netlink_attributes(data[8:length]))))
        data = data[(length + 3) & ~3 :]
    return hops


def _prefix(family: int, raw: bytes | None, length: int) -> str:
    return "" if raw is None else f"{socket.inet_ntop(family, raw)}/{length}"


def _number(raw: bytes | None) -> int | None:
    return None if raw is None or len(raw) < 4 else int(struct.unpack_from("=I", raw)[0])


def _name(raw: bytes | None) -> str:
    return "" if raw is None else raw.rstrip(b"\0").decode(errors="replace")
