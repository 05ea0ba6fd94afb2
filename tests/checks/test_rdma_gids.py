"""Which GID is taken: Mooncake's choice by release, and its reading of MC_GID_INDEX."""

from __future__ import annotations

import pytest

from checks.base.unknown import Unknown
from checks.base.written_numbers import leading_integer
from checks.rdma.devices import IB, ROCE_1, ROCE_2, Gid, GidChoice, Port, asked_index, choose_gid
from checks.releases.mooncake import MooncakeRelease, mooncake_release
from tests.tables import each_row

V4 = bytes(10) + b"\xff\xff"
PRIVATE, CARRIER, PUBLIC = V4 + b"\x0a\0\0\1", V4 + b"\x64\x40\0\1", V4 + b"\xc0\xa8\0\1"
FE80, FEC0 = b"\xfe\x80" + bytes(13) + b"\1", b"\xfe\xc0" + bytes(13) + b"\1"
NEWEST = mooncake_release("0.3.13.post1")


def port(*gids: Gid) -> Port:
    return Port(1, "ACTIVE", "LinkUp", "Ethernet", "", gids, 256, {})


def gid(number: int, raw: bytes, kind: str = ROCE_2, netdev: str = "eth0") -> Gid:
    return Gid(number, raw, kind, netdev)


def taken(
    *gids: Gid, release: MooncakeRelease = NEWEST, environment: dict[str, str] | None = None
) -> int | None:
    choice = choose_gid(port(*gids), environment or {}, release)
    assert isinstance(choice, GidChoice)
    return choice.gid.number if choice.gid else None


@each_row(
    ("gids", "number"),
    [
        # Measured on soft-RoCE with 0.3.13.post1: a site-local address of a router's advertisement
        # wins over the fabric's own 10.0.0.1.
        ((gid(0, FE80), gid(1, PRIVATE), gid(2, FEC0)), 2),
        # Also measured: without another address the link-local one is taken.
        ((gid(0, FE80),), 0),
        ((gid(0, FE80), gid(1, PRIVATE)), 1),
        # 192.168 counts as routable, so the lower index decides between it and IPv6.
        ((gid(0, FE80), gid(1, PUBLIC), gid(2, FEC0)), 1),
        # An overlay's interface loses to anything on a real one but link-local, by index.
        ((gid(0, PUBLIC, netdev="docker0"), gid(1, PRIVATE)), 1),
        ((gid(0, PUBLIC, netdev="tunl0"), gid(1, FE80)), 0),
        ((gid(0, PUBLIC, netdev="tunl01"), gid(1, PRIVATE)), 0),
        # No interface behind it: after a routable one that has one, before a private one.
        ((gid(0, FEC0, netdev=""), gid(1, PRIVATE)), 0),
        ((gid(0, FEC0, netdev=""), gid(3, PUBLIC)), 3),
        ((gid(0, PRIVATE, netdev=""), gid(1, FE80)), 1),
        ((gid(0, CARRIER), gid(1, PUBLIC)), 1),
        # RoCE v1 only where there is nothing else.
        ((gid(0, PUBLIC, ROCE_1), gid(1, FE80)), 1),
        ((gid(0, FE80, ROCE_1), gid(1, PUBLIC, ROCE_1)), 0),
        ((gid(0, FE80, IB, ""),), 0),
        ((), None),
    ],
)
def test_the_own_choice_of_releases_since_0_3_12(gids: tuple[Gid, ...], number: int | None) -> None:
    assert taken(*gids) == number


@pytest.mark.parametrize(
    ("release", "number"),
    [
        (mooncake_release("0.3.7.post2"), 0),
        (mooncake_release("0.3.8"), 1),
        (mooncake_release("0.3.11.post1"), 1),
        (mooncake_release("0.3.12"), 2),
    ],
)
def test_older_releases_took_the_first_ipv4_or_entry_0(
    release: MooncakeRelease, number: int
) -> None:
    """The same table, the lab's: what was index 1 became 2 with the ranks of 0.3.12."""
    assert taken(gid(0, FE80), gid(1, PRIVATE), gid(2, FEC0), release=release) == number


def test_before_0_3_12_ipv6_alone_is_no_gid() -> None:
    assert taken(gid(0, FE80), gid(1, FEC0), release=mooncake_release("0.3.11")) is None


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({}, None),
        ({"MC_GID_INDEX": "3"}, 3),
        ({"MC_GID_INDEX": " 3x"}, 3),
        ({"MC_GID_INDEX": "abc"}, 0),  # measured: the library says "default 3" and uses 0
        ({"MC_GID_INDEX": ""}, 0),
        ({"MC_GID_INDEX": "256"}, None),
        ({"MC_GID_INDEX": "-1"}, None),
        ({"NCCL_IB_GID_INDEX": "5"}, 5),
        ({"MC_GID_INDEX": "2", "NCCL_IB_GID_INDEX": "5"}, 2),
    ],
)
def test_the_index_as_mooncake_reads_it(environment: dict[str, str], index: int | None) -> None:
    asked = asked_index(environment)
    assert (asked[0] if asked else None) == index


@pytest.mark.parametrize(
    ("release", "number"),
    [(mooncake_release("0.3.9"), None), (mooncake_release("0.3.10"), 1), (NEWEST, 1)],
)
def test_an_index_without_an_interface_disabled_old_releases(
    release: MooncakeRelease, number: int | None
) -> None:
    table = (gid(0, PUBLIC), gid(1, PRIVATE, netdev=""))
    assert taken(*table, release=release, environment={"MC_GID_INDEX": "1"}) == number


def test_an_empty_entry_disables_the_device() -> None:
    """Measured: 'GID is NULL, please check your GID index', and 'Disable device'."""
    assert taken(gid(0, PRIVATE), environment={"MC_GID_INDEX": "7"}) is None


def test_a_table_that_could_not_be_read_is_no_choice() -> None:
    unread = port()._replace(gids=Unknown("no"))
    assert isinstance(choose_gid(unread, {}, NEWEST), Unknown)
    untyped = port(Gid(0, PRIVATE, Unknown("no"), "eth0"))
    assert isinstance(choose_gid(untyped, {}, NEWEST), Unknown)


@each_row(
    ("text", "value"),
    [("12", 12), ("+7", 7), ("\t-3 ", -3), ("4GB", 4), ("", None), ("x1", None), ("٣", None)],
)
def test_numbers_as_c_reads_them(text: str, value: int | None) -> None:
    assert leading_integer(text) == value
