"""RDMA devices as sysfs shows them, and which GID Mooncake takes on a port, replayed.

Source: rdma_context.cpp and rdma_gid_probe.h of the tags v0.3.8 to v0.3.12.post1 and of 2026-08-22.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.patterns import matched
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.releases.mooncake import MooncakeRelease

IB, ROCE_1, ROCE_2 = "IB", "RoCE v1", "RoCE v2"
# The kernel puts a new entry into the first free place, so the used ones stand together; tables
# have up to 1024 places (soft-RoCE), and reading each would take longer than all the rest.
LARGEST_GAP = 32
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


class Gid(NamedTuple):
    """One used entry of a port's GID table.

    Attributes:
        netdev: Its network interface, "" if it has none.
    """

    number: int
    raw: bytes
    kind: str | Unknown
    netdev: str | Unknown

    @property
    def ipv4(self) -> str | None:
        """Return ``10.0.0.1`` for ``::ffff:10.0.0.1``."""
        if self.raw[:12] != _IPV4_MAPPED:
            return None
        return ".".join(str(octet) for octet in self.raw[12:])

    @property
    def link_local(self) -> bool:
        """Whether the GID is in fe80::/10, which reaches peers of the same link alone."""
        return self.raw[0] == 0xFE and self.raw[1] & 0xC0 == 0x80

    @property
    def text(self) -> str:
        """The GID as a person writes it: the IPv4 address, or eight groups."""
        groups = [self.raw[at : at + 2].hex() for at in range(0, 16, 2)]
        return self.ipv4 or ":".join(groups)


class Port(NamedTuple):
    """One port.

    Attributes:
        state, physical_state: The kernel's word (ACTIVE, LinkUp).
    """

    number: int
    state: str | Unknown
    physical_state: str | Unknown
    link_layer: str | Unknown
    rate: str | Unknown  # as sysfs says it
    gids: tuple[Gid, ...] | Unknown  # the entries in use, of ``gid_table`` in all
    gid_table: int | Unknown
    pkeys: Mapping[int, int | Unknown]  # by index, those that were asked for

    @property
    def netdevs(self) -> set[str]:
        """The names of the interfaces behind the port's GIDs, as far as they could be read."""
        gids = () if isinstance(self.gids, Unknown) else self.gids
        return {gid.netdev for gid in gids if isinstance(gid.netdev, str) and gid.netdev}


class Netdev(NamedTuple):
    """A network interface that a GID names."""

    name: str
    here: bool | Unknown  # whether this network namespace has an interface of that name
    mtu_bytes: int | Unknown
    addresses: tuple[tuple[str, int], ...] | Unknown  # with prefix lengths, those it carries here


@or_unknown
def read_ports(
    root: Root, device: str, pkeys: Iterable[int], gids: Iterable[int]
) -> tuple[Port, ...] | Unknown:
    """Read every port of ``device``, its GIDs up to the first large gap in the table.

    Args:
        pkeys: Indices of the partition keys to read.
        gids: Indices to read behind that gap too.
    """
    folder = f"{RDMA_DEVICES}/{device}/ports"
    numbers = _numbers(require(root.names(folder)))
    keys, entries = sorted(set(pkeys)), set(gids)
    return tuple(_read_port(root, f"{folder}/{at}", at, keys, entries) for at in numbers)


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 6)


def _read_port(root: Root, folder: str, number: int, pkeys: list[int], wanted: set[int]) -> Port:
    """Read one port.

    Args:
        pkeys: Indices of the partition keys to read.
        wanted: See ``_read_gids``.
    """
    layer, indices = root.word(f"{folder}/link_layer"), root.entries(f"{folder}/gids")
    gids: tuple[Gid, ...] | Unknown
    table: int | Unknown
    if isinstance(indices, Unknown):
        gids = table = indices
    else:
        numbers = _numbers(indices)
        gids, table = _read_gids(root, folder, layer, numbers, wanted), len(numbers)
    return Port(
        number,
        numbered_word(root, f"{folder}/state"),
        numbered_word(root, f"{folder}/phys_state"),
        layer,
        root.word(f"{folder}/rate"),
        gids,
        table,
        {index: _hexadecimal(root, f"{folder}/pkeys/{index}") for index in pkeys},
    )


@or_unknown
def _read_gids(
    root: Root, folder: str, layer: str | Unknown, numbers: list[int], wanted: set[int]
) -> tuple[Gid, ...] | Unknown:
    """Read the used entries of a GID table, ascending.

    An entry more than LARGEST_GAP behind the last used one is read only if its index is in
    ``wanted``.

    Args:
        numbers: All indices of the table.
        layer: The port's link layer.
    """
    used: list[Gid] = []
    last_used = -1
    for number in numbers:
        if number > last_used + LARGEST_GAP and number not in wanted:
            continue
        content = require(root.word(f"{folder}/gids/{number}"))
        try:
            raw = bytes.fromhex(content.replace(":", ""))
        except ValueError:
            raw = b""
        if len(raw) != 16:
            return Unknown(f"{folder}/gids/{number}: not a GID: {content[:40]!r}")
        if not any(raw):
            continue
        last_used = number
        netdev = none_if_absent(root.word(f"{folder}/gid_attrs/ndevs/{number}"), "")
        # The kernel answers with EINVAL where no interface is behind it.
        if isinstance(netdev, Unknown) and netdev.code == "EINVAL":
            netdev = ""
        gid_type = _gid_type(root.word(f"{folder}/gid_attrs/types/{number}"), layer)
        used.append(Gid(number, raw, gid_type, netdev))
    return tuple(used)


@or_unknown
def _gid_type(content: str | Unknown, layer: str | Unknown) -> str | Unknown:
    """Return the GID type as Mooncake sees it: "IB/RoCE v1" is RoCE v1 on Ethernet, else IB."""
    content = require(content)
    if content == "RoCE v2":
        return ROCE_2
    if content != "IB/RoCE v1":
        return Unknown(f"not a GID type: {content[:40]!r}")
    return ROCE_1 if require(layer) == "Ethernet" else IB


def numbered_word(root: Root, name: str) -> str | Unknown:
    """Read a file such as ``4: ACTIVE``, as the kernel writes states; return the word."""
    state = r"\A\s*[0-9]+:\s*(\S.*?)\s*\Z"
    return matched(root.text(name), state, str, f"{name}: not a number and a word:")


def _hexadecimal(root: Root, name: str) -> int | Unknown:
    digits, wrong = r"\A\s*((?:0x)?[0-9a-fA-F]{1,16})\s*\Z", "not a hexadecimal number:"
    return matched(root.text(name), digits, lambda text: int(text, 16), f"{name}: {wrong}")


def read_netdevs(root: Root, names: Iterable[str]) -> dict[str, Netdev]:
    """Read the interfaces ``names``, as this network namespace sees them."""
    wanted = sorted(set(names))
    addresses = root.call("rdma.interfaces") if wanted else {}
    if not isinstance(addresses, dict | Unknown):
        addresses = Unknown("rdma.interfaces: the recorded answer is damaged")
    return {name: _read_netdev(root, name, addresses) for name in wanted}


def _read_netdev(root: Root, name: str, by_interface: dict[str, Any] | Unknown) -> Netdev:
    """Read one interface: its MTU, and its addresses in this network namespace.

    Args:
        by_interface: The answer of the call ``rdma.interfaces``.
    """
    mtu = root.integer(f"/sys/class/net/{name}/mtu")
    if isinstance(by_interface, Unknown):
        return Netdev(name, by_interface, mtu, by_interface)
    rows = by_interface.get(name, [])
    addresses = tuple(
        (row[0], row[1])
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, list) and [type(part) for part in row] == [str, int]
    )
    return Netdev(name, name in by_interface, mtu, addresses)


LARGEST_INDEX = 255  # Mooncake's own bound on the variable: ibv_query_gid takes any index
_OVERLAYS = ("flannel", "cni", "calico", "vxlan", "docker")
EMPTY_TABLE = "the GID table is empty"


class GidChoice(NamedTuple):
    """Which entry of a GID table Mooncake takes."""

    gid: Gid | None  # the entry taken, None if the device is disabled
    automatic: bool  # no index was given
    how: str  # in words: by which rank it won, or what is wrong


def asked_index(environment: Mapping[str, str]) -> tuple[int, str] | None:
    """Return ``(index, variable)`` of the GID index that MC_GID_INDEX sets, else NCCL_IB_GID_INDEX.

    Returns:
        None if neither is set or the number is out of range; text without a number is 0.
    """
    for name in ("MC_GID_INDEX", "NCCL_IB_GID_INDEX"):
        if name in environment:
            index = leading_integer(environment[name]) or 0
            return (index, name) if 0 <= index <= LARGEST_INDEX else None
    return None


def choose_gid(
    port: Port, environment: Mapping[str, str], release: MooncakeRelease | None
) -> GidChoice | Unknown:
    """Return the GID of ``port`` that Mooncake uses; the choice's GID is None if no entry will do.

    Args:
        release: Mooncake's, None for the newest known.

    Returns:
        Unknown if a needed fact could not be read.
    """
    if isinstance(port.gids, Unknown):
        return port.gids
    asked = asked_index(environment)
    if asked is None and release is not None and not release.chooses_gid:
        asked = (0, "the default of this release")
    if asked is not None:
        return _choose_at_index(port.gids, asked, release)
    for gid in port.gids:
        for fact in (gid.kind, gid.netdev):
            if isinstance(fact, Unknown):
                return fact
    if not port.gids:
        return GidChoice(None, True, EMPTY_TABLE)
    if release is not None and not release.ranks_gids:
        return _choose_first(port.gids, release.takes_ipv6_gids)
    ranked = min(port.gids, key=lambda gid: (_rank(gid), gid.number))
    return GidChoice(ranked, True, _RANKS[_rank(ranked)])


def _choose_at_index(
    gids: tuple[Gid, ...], index_and_name: tuple[int, str], release: MooncakeRelease | None
) -> GidChoice:
    """Choose the GID at a stated index; no GID if that entry is empty or Mooncake's release refuses
    it.

    Args:
        index_and_name: The index, and the variable or default that it is from.
    """
    index, name = index_and_name
    gid = next((gid for gid in gids if gid.number == index), None)
    if gid is None:
        return GidChoice(None, False, f"{name}: entry {index} of the GID table is empty")
    if release is not None and not release.takes_any_gid and gid.netdev == "":
        return GidChoice(None, False, f"{name}: entry {index} has no network interface")
    return GidChoice(gid, False, f"{name}={index}")


def _choose_first(gids: tuple[Gid, ...], takes_ipv6: bool) -> GidChoice:
    """Choose as the releases do that rank no GIDs.

    Args:
        takes_ipv6: IPv6 and IB entries come after all with IPv4, and no entry behind an empty one
            is looked at (0.3.10 to 0.3.11.post1).
    """
    if takes_ipv6:
        gids = tuple(gid for place, gid in enumerate(gids) if gid.number == place)
    usable = [gid for gid in gids if gid.kind in (IB, ROCE_2)]
    ipv4 = [gid for gid in usable if gid.kind == ROCE_2 and gid.ipv4]
    older = [gid for gid in usable if gid.kind == IB or gid.ipv4]
    fit = (ipv4 or usable) if takes_ipv6 else older
    how = "IB or RoCE v2" if takes_ipv6 else "IB, or RoCE v2 with an IPv4 address"
    chosen = next((gid for gid in fit if gid.netdev), fit[0] if fit else None)
    return GidChoice(chosen, True, f"{'no entry' if chosen is None else 'the first that'} is {how}")


_RANKS = (
    "routable, on a network interface",
    "routable, on no network interface",
    "a private IPv4 address",
    "link-local, or on an overlay network",
    "a private IPv4 address, on no network interface",
    "link-local, on no network interface",
    "only RoCE v1 is there",
)


def _rank(gid: Gid) -> int:
    """Rank a GID as Mooncake's autoGidCandidateClassPriority does: 0 is best; see ``_RANKS``.

    192.168/16 is ranked as routable.
    """
    if gid.kind not in (IB, ROCE_2):
        return 6
    netdev = gid.netdev if isinstance(gid.netdev, str) else ""
    overlay = netdev.startswith(_OVERLAYS) or netdev == "tunl0"
    if gid.kind == ROCE_2 and (overlay or gid.link_local):
        return 3 if netdev else 5
    first, second = gid.raw[12:14]
    private = first == 10 or (first, second & 0xF0) == (172, 16)  # 10/8, 172.16/12, 100.64/10
    private = private or (first, second & 0xC0) == (100, 64)
    if gid.kind == ROCE_2 and gid.ipv4 and private:
        return 2 if netdev else 4
    return 0 if netdev else 1
