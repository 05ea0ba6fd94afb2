"""Which GID Mooncake takes on a port: its own choice, replayed, and MC_GID_INDEX as it reads it.

Source: rdma_context.cpp and rdma_gid_probe.h of the tags v0.3.8 to v0.3.12.post1 and of 2026-08-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.unknown import Unknown
from checks.rdma.devices import IB, ROCE_2, Gid, Port
from checks.releases.mooncake import MooncakeRelease

# ibv_query_gid takes any index; Mooncake's own bound on the variable.
LARGEST_INDEX = 255
_OVERLAYS = ("flannel", "cni", "calico", "vxlan", "docker")


class GidChoice(NamedTuple):
    """gid: the entry taken, None where the device is disabled. automatic: no index was given.

    how: in words, of the rank that it won by, or of what is wrong.
    """

    gid: Gid | None
    automatic: bool
    how: str


def asked_index(environment: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the GID index of a process's environment and the variable's name; None for its own
    choice.

    ``atoi``: text that starts with no number is 0. Out of 0 to 255 it is ignored.
    """
    for name in ("MC_GID_INDEX", "NCCL_IB_GID_INDEX"):
        if name in environment:
            index = leading_integer(environment[name]) or 0
            return (index, name) if 0 <= index <= LARGEST_INDEX else None
    return None


def choose_gid(
    port: Port, environment: Mapping[str, str], release: MooncakeRelease | None
) -> GidChoice | Unknown:
    """Return the GID of ``port`` that Mooncake uses; ``release`` None: as the newest known does."""
    if isinstance(port.gids, Unknown):
        return port.gids
    asked = asked_index(environment)
    if asked is None and release is not None and not release.chooses_gid:
        asked = (0, "the default of this release")
    if asked is not None:
        return _given(port.gids, asked, release)
    for gid in port.gids:
        for fact in (gid.kind, gid.netdev):
            if isinstance(fact, Unknown):
                return fact
    if not port.gids:
        return GidChoice(None, True, "the GID table is empty")
    if release is not None and not release.ranks_gids:
        return _first(port.gids)
    ranked = min(port.gids, key=lambda gid: (_rank(gid), gid.number))
    return GidChoice(ranked, True, _RANKS[_rank(ranked)])


def _given(
    gids: tuple[Gid, ...], asked: tuple[int, str], release: MooncakeRelease | None
) -> GidChoice:
    index, name = asked
    gid = next((gid for gid in gids if gid.number == index), None)
    if gid is None:
        return GidChoice(None, False, f"{name}: entry {index} of the GID table is empty")
    strict = release is not None and not release.takes_any_gid
    if strict and gid.netdev == "":
        return GidChoice(None, False, f"{name}: entry {index} has no network interface")
    return GidChoice(gid, False, f"{name}={index}")


def _first(gids: tuple[Gid, ...]) -> GidChoice:
    fit = [gid for gid in gids if gid.kind == IB or (gid.kind == ROCE_2 and gid.ipv4)]
    chosen = next((gid for gid in fit if gid.netdev), fit[0] if fit else None)
    if chosen is None:
        return GidChoice(None, True, "no entry is IB, or RoCE v2 with an IPv4 address")
    return GidChoice(chosen, True, "the first that is IB, or RoCE v2 with an IPv4 address")


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
    """Return the rank as autoGidCandidateClassPriority does: lower is taken first.

    192.168.0.0/16 counts as routable, and so does every IPv6 address but fe80::/10: fec0:: too.
    """
    if gid.kind not in (IB, ROCE_2):
        return 6
    netdev = gid.netdev if isinstance(gid.netdev, str) else ""
    overlay = netdev.startswith(_OVERLAYS) or netdev == "tunl0"
    if gid.kind == ROCE_2 and (overlay or gid.link_local):
        return 3 if netdev else 5
    if gid.kind == ROCE_2 and gid.ipv4 and _private(gid.raw[12], gid.raw[13]):
        return 2 if netdev else 4
    return 0 if netdev else 1


def _private(first: int, second: int) -> bool:
    """Return whether an address is in 10/8, 172.16/12 or 100.64/10."""
    return first == 10 or (first, second & 0xF0) == (172, 16) or (first, second & 0xC0) == (100, 64)
