"""Which address each RDMA port speaks from, and whether all ports can reach one another."""

from __future__ import annotations

from collections.abc import Iterable

from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.finding import Evidence, Finding, Kind, Setting, Status, or_unjudged, passed
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Problems
from checks.framework.unknown import Unknown, or_unknown, require
from checks.rdma.device_checks import names_setting
from checks.rdma.devices import EMPTY_TABLE, IB, ROCE_2, Gid, GidChoice, Port, asked_index
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.per_device import judge_devices, judge_uses, rdma_launch
from checks.rdma.use import (
    Cause,
    Lost,
    Use,
    gid_choice,
    gid_problem,
    port_of,
    port_problem,
    reach_problem,
)

CHECKS = Problems()
# config.cpp: with both, neither holds.
AFFINITY, PEER_AFFINITY = "MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_ENABLE_HCA_PEER_AFFINITY"


@CHECKS("rdma.gid")
def gid(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether Mooncake finds a GID on each device, and whether peers can answer it."""

    def describe(nic: Nic, lost: Lost | None, use: Use) -> Finding:
        """Make the finding about the GID of one device.

        Args:
            lost: Why no GID fits, or None.
        """
        finding = passed(nic.name, need="a RoCE v2 IPv4 or InfiniBand GID")
        choice = gid_choice(nic, use.environment, use.release)
        if isinstance(choice, Unknown) or (choice.gid is None and not use.has_host_gids):
            return finding
        folder = f"{RDMA_DEVICES}/{nic.name}/ports/{port_of(use.environment)}/gids"
        if choice.gid is None:
            advice, settings = _remedy(use, choice)
            unnamed = [nic for nic in rdma.present if nic not in use.candidate_nics]
            others = [nic.name for nic in unnamed if _gid_trouble(nic, use) is None]
            if use.devices.names == () and others and _index_for_all(use) is None:
                advice = f"name devices that have one in {use.devices.how}: {', '.join(others)}"
                settings = names_setting(use, others)
            return finding._replace(
                have="no usable GID",
                text=f"Mooncake drops it: {choice.how}",
                evidence=(Evidence(folder, choice.how),),
                advice=advice,
                settings=settings,
            )
        finding = finding._replace(
            have=f"{_gid_text(choice.gid)} ({choice.how})",
            evidence=(Evidence(f"{folder}/{choice.gid.number}", choice.gid.text),),
        )
        return finding if lost else _judge_choice(finding, rdma, nic, use, choice)

    return judge_devices(rdma, needs, Cause.GID, _gid_trouble, describe)


def _gid_trouble(nic: Nic, use: Use) -> Lost | Unknown | None:
    """Return why the processes of ``use`` do not get a GID of ``nic``: the device or its port
    cannot be used, or no GID fits.

    Returns:
        None if they get one.
    """
    reach = reach_problem(nic) if use.processes else None
    trouble = port_problem(nic, use.environment) if reach is None else reach
    if trouble is not None:
        return trouble
    return gid_problem(nic, use.environment, use.release, use.has_host_gids)


def _gid_text(gid: Gid) -> str:
    gid_type = gid.kind if isinstance(gid.kind, str) else "unknown type"
    netdev = gid.netdev if isinstance(gid.netdev, str) and gid.netdev else "no interface"
    return f"{gid.number}: {gid.text}, {gid_type}, {netdev}"


@or_unjudged
def _judge_choice(
    finding: Finding, rdma: RdmaFacts, nic: Nic, use: Use, choice: GidChoice
) -> Finding:
    """Judge the GID that Mooncake takes: its interface, its type and its reach."""
    gid = choice.gid
    assert gid is not None
    if finding.require(gid.kind) == IB:
        return finding
    interface = _judge_interface(finding, rdma, gid)
    if interface.status is Status.WARN:
        return interface
    if gid.kind != ROCE_2:
        text = "RoCE v1 does not cross a router, and peers on RoCE v2 do not answer it"
    elif gid.link_local:
        text = "a link-local address reaches peers of the same link alone"
    elif choice.automatic and not gid.ipv4 and _routable_gids(nic, use, True):
        text = "an IPv6 address is used though the port has an IPv4 one too, which peers may expect"
    else:
        return interface
    return finding.warned(text, *_remedy(use, choice))


def _judge_interface(finding: Finding, rdma: RdmaFacts, gid: Gid) -> Finding:
    """Judge whether this network namespace has the GID's interface, with its address if IPv4."""
    netdev = rdma.netdevs.get(finding.require(gid.netdev))
    if netdev is None:
        text = "no network interface of this host has this GID: it may belong to another network "
        return finding.warned(f"{text}namespace", "use the host's network")
    here = finding.require(netdev.here)
    addresses = () if isinstance(netdev.addresses, Unknown) else netdev.addresses
    if here and (not gid.ipv4 or any(gid.ipv4 == address for address, _ in addresses)):
        return finding
    seen = ", ".join(f"{address}/{prefix}" for address, prefix in addresses) or "no address"
    where = seen if here else "not in this network namespace"
    return finding.warned(
        f"its interface {gid.netdev} does not carry {gid.text} here ({where}): connections "
        "may fail with 'Failed to modify QP to RTR'",
        "run with the host's network (--network host, hostNetwork: true), or move the "
        "device into this namespace",
        evidence=(*finding.evidence, Evidence(f"interface {gid.netdev}", where)),
    )


def _routable_gids(nic: Nic, use: Use, ipv4: bool) -> set[int]:
    """Return the indices of the opened port's RoCE v2 GIDs with an interface, and an address that
    is IPv4, or else IPv6 and not link-local.
    """
    port = nic.port(port_of(use.environment))
    gids = port.gids if isinstance(port, Port) else ()
    usable = (
        ()
        if isinstance(gids, Unknown)
        else (gid for gid in gids if gid.kind == ROCE_2 and gid.netdev != "")
    )
    return {gid.number for gid in usable if (gid.ipv4 if ipv4 else not gid.link_local)}


def _index_for_all(use: Use) -> int | None:
    """Return the smallest index that is a RoCE v2 entry with an IPv4 address on every device that
    ``use`` would take; if none has IPv4, with a routable IPv6 one.

    Devices whose port is not active are left out.

    Returns:
        None if there is no such index.
    """
    nics = [nic for nic in use.candidate_nics if port_problem(nic, use.environment) is None]
    ipv4 = any(_routable_gids(nic, use, True) for nic in nics)
    common = [_routable_gids(nic, use, ipv4) for nic in nics]
    return min(set.intersection(*common), default=None) if common else None


def _remedy(use: Use, choice: GidChoice) -> tuple[str, tuple[Setting, ...]]:
    """Return ``(advice, settings)`` to get a GID: by one index for all devices if one exists."""
    environment, wanted = use.environment, _index_for_all(use)
    if wanted is not None:
        advice = f"set MC_GID_INDEX={wanted}: on every device this is a RoCE v2 entry with a "
        now = environment.get("MC_GID_INDEX", "")
        setting = Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", str(wanted), now)
        return f"{advice}routable address", (setting,)
    asked = asked_index(environment)
    settings: tuple[Setting, ...] = ()
    if not choice.automatic and asked is not None and asked[1] in environment:
        settings = (Setting(Kind.ENVIRONMENT, asked[1], "", environment[asked[1]]),)
    if choice.how == EMPTY_TABLE:
        advice = "give its network interface an IPv4 address, and bring it up: GIDs are made of it"
    elif choice.automatic:
        advice = (
            "no index has an IPv4 address on all devices: give each interface one IPv4 address "
        )
        advice += "and remove its other addresses, so that all GID tables are the same"
    else:
        advice = "unset MC_GID_INDEX, or give the index of an entry in use"
    return advice, settings


@CHECKS("rdma.subnets", needs=rdma_launch)
def subnets(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the NICs of one process are in one subnet, so that all pairs connect."""

    def judge_use(use: Use) -> list[Finding]:
        choices = {nic.name: gid_choice(nic, use.environment, use.release) for nic in use.nics}
        return [_judge_subnets(use, {name: _subnet(rdma, gid) for name, gid in choices.items()})]

    return judge_uses(rdma, needs, judge_use)


@or_unknown
def _subnet(rdma: RdmaFacts, choice: GidChoice | Unknown) -> str | Unknown:
    """Return a GID's subnet: its first 64 bits, or its interface's IPv4 network (``10.0.0.0/24``).

    Returns:
        Unknown if there is no GID, or its interface's address or prefix is not known.
    """
    gid = require(choice).gid
    if gid is None:
        return Unknown("no GID")
    if not gid.ipv4:
        return gid.raw[:8].hex(":", 2) + "::/64"
    netdev = rdma.netdevs.get(gid.netdev) if isinstance(gid.netdev, str) else None
    if netdev is None:
        return Unknown(f"the interface of {gid.text} is not seen here")
    addresses = require(netdev.addresses)
    prefix = next((prefix for address, prefix in addresses if address == gid.ipv4), None)
    if prefix is None or not 0 <= prefix <= 32:
        return Unknown(f"{netdev.name} does not carry {gid.text} here")
    network = int.from_bytes(gid.raw[12:], "big") >> (32 - prefix) << (32 - prefix)
    return ".".join(str(octet) for octet in network.to_bytes(4, "big")) + f"/{prefix}"


@or_unjudged
def _judge_subnets(use: Use, subnets: dict[str, str | Unknown]) -> Finding:
    """Judge the subnets of one use.

    Args:
        subnets: Device name -> subnet.
    """
    finding = passed(use.who, need=f"one subnet, or {AFFINITY}")
    if len(subnets) == 1:
        return finding._replace(have="1 NIC")
    if AFFINITY in use.environment and PEER_AFFINITY not in use.environment:
        return finding._replace(have=f"{AFFINITY} is set")
    known = {nic: subnet for nic, subnet in subnets.items() if isinstance(subnet, str)}
    seen = ", ".join(f"{nic} {subnet}" for nic, subnet in known.items())
    finding = finding._replace(
        have=seen, evidence=tuple(Evidence(f"GID of {nic}", text) for nic, text in known.items())
    )
    if len(set(known.values())) > 1:
        return finding.warned(
            "transfers between NICs of different subnets fail unless a router joins them",
            f"set {AFFINITY}=1 on all hosts, or name NICs of one subnet",
            tuple(
                Setting(Kind.ENVIRONMENT, name, wanted, use.environment.get(name, ""))
                for name, wanted in ((AFFINITY, "1"), (PEER_AFFINITY, ""))
                if wanted or name in use.environment
            ),
        )
    for subnet in subnets.values():
        finding.require(subnet)
    return finding
