"""Can Mooncake use each device: its ports, its node, and its user-space library?"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EACCES, ENXIO, EPERM

from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    command,
    or_unjudged,
    passed,
    unknown_finding,
)
from checks.framework.fold import fold, join_names
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problems
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.rdma.devices import Port
from checks.rdma.facts import DEFAULT_PKEY_INDEX, Nic, RdmaFacts
from checks.rdma.per_device import judge_devices, judge_uses, rdma_launch
from checks.rdma.use import (
    Cause,
    Lost,
    Transport,
    Use,
    file_problem,
    port_of,
    port_problem,
    provider_problem,
    reach_problem,
    uses,
)
from checks.rdma.verbs import NODES, PROVIDER_CONFIGURATION, DeviceNode

CHECKS = Problems()
# Debian's and Ubuntu's names.
LIBRARY_PACKAGE, PROVIDERS_PACKAGE = "libibverbs1", "ibverbs-providers"
# config.cpp: the values of MC_MTU, and the default.
MTUS_BYTES = (512, 1024, 2048, 4096)
DEFAULT_MTU_BYTES = 4096
# Partition keys: bit 15 is full membership; the rest is the partition.
FULL_MEMBER = 0x8000
ANYBODY = 0o006  # everybody may read and write


@CHECKS("rdma.port-down")
def port_down(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the port that Mooncake opens on each device is active."""

    def problem(nic: Nic, use: Use) -> Lost | Unknown | None:
        if use.processes:
            reach = reach_problem(nic)
            if isinstance(reach, Unknown) or (reach and reach.cause is not Cause.PORT):
                return reach
        return port_problem(nic, use.environment)

    def describe(nic: Nic, lost: Lost | None, use: Use) -> Finding:
        """Describe a device's ports in a finding that passes; ``judge_devices`` sets its status.

        Args:
            lost: Why the launch loses the device, which adds the advice; None if it does not.
        """
        ports = () if isinstance(nic.ports, Unknown) else nic.ports
        folder = f"{RDMA_DEVICES}/{nic.name}/ports"
        states = [f"port {p.number} {_word(p.state)} ({_word(p.physical_state)})" for p in ports]
        evidence = (Evidence(f"{folder}/{p.number}/state", _word(p.state)) for p in ports)
        seen = "; ".join(states) or "no port"
        finding = passed(nic.name, seen, "ACTIVE", evidence=tuple(evidence))
        if lost is None:
            return finding
        advice, settings = _port_remedy(ports, use.environment.get("MC_IB_PORT", ""))
        text = f"Mooncake leaves it out: {lost.why}"
        return finding._replace(text=text, advice=advice, settings=settings)

    return judge_devices(rdma, needs, Cause.PORT, problem, describe)


def _word(fact: str | Unknown) -> str:
    return fact if isinstance(fact, str) else "unknown"


def _port_remedy(ports: tuple[Port, ...], now: str) -> tuple[str, tuple[Setting, ...]]:
    """Return ``(advice, settings)`` to get an active port: another port, the interface up, or the
    cable.

    Args:
        now: The value of MC_IB_PORT, "" if it is not set.
    """
    active = next((port.number for port in ports if port.state == "ACTIVE"), None)
    if active is not None:
        setting = Setting(Kind.ENVIRONMENT, "MC_IB_PORT", str(active), now)
        return f"set MC_IB_PORT={active}, whose link is up", (setting,)
    netdevs = sorted({name for port in ports for name in port.netdevs})
    disabled = [name for name in netdevs if any(p.physical_state == "Disabled" for p in ports)]
    if disabled:
        call = ("ip", "link", "set", "dev")
        ups = (command(*call, name, "up", now="down", as_root=True) for name in disabled)
        return f"bring {', '.join(disabled)} up (on the host)", tuple(ups)
    return "check the cable, the switch port and the module, or name the other devices", ()


@CHECKS("rdma.port-mtu", needs=rdma_launch)
def port_mtu(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_uses(rdma, needs, lambda use: [_judge_mtus(use)])


@or_unjudged
def _judge_mtus(use: Use) -> Finding:
    """Judge whether all ports of one use end up with the same path MTU."""
    asked = leading_integer(use.environment.get("MC_MTU", ""))
    bound = asked if asked in MTUS_BYTES else DEFAULT_MTU_BYTES
    number = port_of(use.environment)
    unread = unknown_finding(use.who, "")
    active = {nic.name: unread.require(_active_mtu(nic, number)) for nic in use.nics}
    paths = {name: min(mtu, bound) for name, mtu in active.items()}
    smallest = min(paths.values())
    rows = active.items()
    finding = passed(
        use.who,
        ", ".join(f"{name} {mtu} B" for name, mtu in rows),
        f"{smallest} B each",
        f"min(active MTU, MC_MTU {bound} B) of each port",
        evidence=tuple(Evidence(f"ibv_query_port {nic}", f"active_mtu {mtu}") for nic, mtu in rows),
    )
    if len(set(paths.values())) == 1:
        return finding
    return finding.warned(
        "queue pairs between unequal ports fail with 'local length error' under load",
        f"set MC_MTU={smallest} on all hosts, or give all interfaces the same MTU",
        (Setting(Kind.ENVIRONMENT, "MC_MTU", str(smallest), use.environment.get("MC_MTU", "")),),
    )


@or_unknown
def _active_mtu(nic: Nic, number: int) -> int | Unknown:
    port = require(nic.verbs.ports).get(number)
    if port is None:
        return Unknown(f"libibverbs shows no port {number} of {nic.name}")
    return port.active_mtu_bytes


@CHECKS("rdma.pkey", needs=rdma_launch)
def pkey(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    by_use = judge_uses(rdma, needs, lambda use: [_judge_pkey(nic, use) for nic in use.nics])
    return list(dict.fromkeys(by_use))


def _judge_pkey(nic: Nic, use: Use) -> Finding:
    """Judge whether the partition key that Mooncake takes on a device is a full member's."""
    asked = leading_integer(use.environment.get("MC_PKEY_INDEX", ""))
    index = asked if asked is not None and 0 <= asked < 1 << 16 else DEFAULT_PKEY_INDEX
    number = port_of(use.environment)
    finding = passed(nic.name, need=f"a full member at index {index}")
    port = nic.port(number)
    key = port.pkeys.get(index, Unknown("not read")) if isinstance(port, Port) else Unknown("")
    source = f"{RDMA_DEVICES}/{nic.name}/ports/{number}/pkeys/{index}"
    now = use.environment.get("MC_PKEY_INDEX", "")
    if isinstance(key, Unknown):
        if not key.absent:
            return finding.undecided(key)
        return finding.failed(
            "the first transfer fails with 'Failed to modify QP to INIT'",
            "unset MC_PKEY_INDEX, or give an index that the table has",
            (Setting(Kind.ENVIRONMENT, "MC_PKEY_INDEX", "", now),) if now else (),
            have=f"no key at index {index}",
            evidence=(Evidence(source, "no such file"),),
        )
    finding = finding._replace(have=f"{key:#06x}", evidence=(Evidence(source, f"{key:#06x}"),))
    if key & FULL_MEMBER:
        return finding
    return finding.warned(
        "a limited member cannot talk to another one of its partition"
        if key
        else "the key is empty",
        "set MC_PKEY_INDEX to the index of a full member, or ask the fabric's "
        "administrator for full membership",
    )


@CHECKS("rdma.uverbs-permission")
def uverbs_permission(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether processes can open each device's file below /dev/infiniband.

    Also judges whether the launch's containers are given these files.
    """

    def describe(nic: Nic, lost: Lost | None, _use: object) -> Finding:
        """Make the finding about one device's file.

        Args:
            lost: Why it cannot be opened, or None.
        """
        file = nic.uverbs_node
        path = f"/dev/infiniband/{nic.uverbs}" if nic.uverbs else "/dev/infiniband"
        finding = passed(nic.name, need=f"{path} opens for read and write")
        if isinstance(file, DeviceNode):
            seen = f"mode {file.permissions:04o}{'' if file.opens else ', ' + file.why_not}"
            finding = finding._replace(have="it opens", evidence=(Evidence(path, seen),))
        if lost is None:
            return finding
        advice, settings = _node_remedy(nic, _exclusive_netns(rdma))
        text = f"Mooncake leaves it out: {lost.why}"
        return finding._replace(have=lost.why, text=text, advice=advice, settings=settings)

    findings = judge_devices(rdma, needs, Cause.UVERBS, lambda nic, _: file_problem(nic), describe)
    contained = (
        _judge_container(process, use, rdma)
        for use in ([] if needs is None else uses(rdma, needs))
        for process in use.processes
        if process.container is not None and use.nics
    )
    return [*findings, *fold(contained)]


def _exclusive_netns(rdma: RdmaFacts) -> bool:
    """Tell whether each RDMA device belongs to one network namespace alone."""
    return not isinstance(rdma.kernel, Unknown) and rdma.kernel.netns_mode == "exclusive"


def _judge_container(process: ProcessNeeds, use: Use, rdma: RdmaFacts) -> Finding:
    """Judge whether a process's container is given the RDMA devices that the process would use, by
    its network namespace and its device nodes.
    """
    container = process.container
    assert container is not None
    wanted = [f"{NODES}/{nic.uverbs}" for nic in use.nics if nic.uverbs is not None]
    finding = passed(process.name, need=f"{join_names(wanted)} in its container")
    if _exclusive_netns(rdma) and not container.host_network:
        finding = finding._replace(
            need="the host's network: RDMA devices are exclusive to a network namespace here",
            evidence=(Evidence("rdma system", "netns exclusive"),),
            advice=_SHARE,
            settings=(_shared_devices(),),
        )
        if container.own_network:
            text = "a container with a network of its own sees no RDMA device, whatever it is given"
            return finding._replace(status=Status.FAIL, text=text, have="a network of its own")
        return finding.undecided("whether a device is moved into the container's network")
    given_nodes = container.verbs_nodes
    # NVIDIA's gives the nodes where the image (NVIDIA_MOFED) or its own configuration asks for it.
    runtime = rdma.docker_runtime
    if given_nodes == () and isinstance(runtime, Unknown):
        given_nodes = runtime
    elif given_nodes == () and runtime not in ("", "runc"):
        given_nodes = Unknown(f"whether {runtime}, Docker's default runtime, gives it {NODES}")
    settings = tuple(
        Setting(Kind.DEVICE, path, path, described_by=container.runtime) for path in wanted
    )
    advice = "give the container the devices of its NICs (--device)"
    if container.runtime == "compose":
        advice = f"give the service the devices: {NODES} under devices"
    elif container.runtime == "kubernetes":
        advice = "ask for the resource of the RDMA device plugin under resources.limits"
        settings = (Setting(Kind.DEVICE, NODES, NODES, described_by="kubernetes"),)
    if isinstance(given_nodes, Unknown):
        return finding.undecided(Unknown(given_nodes.reason, advice=advice), settings=settings)
    places = [f"{place.rstrip('/')}/" for place in given_nodes]
    lost = [path for path in wanted if not f"{path}/".startswith(tuple(places))]
    shown = join_names([path for path in wanted if path not in lost]) or "no device"
    evidence = (Evidence(container.origin, join_names(given_nodes) or "no device of RDMA"),)
    finding = finding._replace(have=f"{shown} given", evidence=evidence)
    if not lost:
        return finding
    settings = tuple(setting for setting in settings if setting.name in lost)
    if len(lost) < len(wanted):
        text = f"Mooncake leaves out what it cannot open: {join_names(lost)}"
        return finding.warned(text, advice, settings)
    end = "Mooncake finds none and ends with an error"
    if use.devices.without is Transport.TCP:
        end = "Mooncake goes on with TCP, without a message"
    text = f"no RDMA device reaches the container, whatever the host has: {end}"
    return finding.failed(text, advice, settings)


_SHARE = (
    "run in the host's network namespace, or share RDMA devices between namespaces (on the host, "
    "as root)"
)


def _shared_devices() -> Setting:
    return command("rdma", "system", "set", "netns", "shared", now="exclusive", as_root=True)


def _node_remedy(nic: Nic, exclusive: bool) -> tuple[str, tuple[Setting, ...]]:
    """Return ``(advice, settings)`` to let this process open the device file of ``nic``.

    Args:
        exclusive: Each RDMA device is in one network namespace alone.
    """
    if nic.uverbs is None:
        return "load the module ib_uverbs on the host", (Setting(Kind.MODULE, "ib_uverbs", ""),)
    file, path = nic.uverbs_node, f"/dev/infiniband/{nic.uverbs}"
    device = Setting(Kind.DEVICE, path, path)
    stale = not isinstance(file, Unknown) and not file.opens and file.errno == ENXIO
    if isinstance(file, Unknown) or stale:
        if not isinstance(nic.uverbs_number, str):
            return f"give the container {path}", (device,)
        mknod = ("mknod", "-m", "666", path, "c", *nic.uverbs_number.split(":"))
        advice = f"make {path} again (the kernel has the device), or give it to the container"
        old = (command("rm", path, as_root=True),) * stale
        return advice, (*old, device._replace(words=mknod))
    if file.opens:
        return "read the kernel's log (dmesg): the device file opens, but the driver refuses", ()
    if file.errno == EACCES and file.permissions & ANYBODY == ANYBODY:
        advice = f"its mode lets everybody in: the file system that {path} is on is mounted nodev "
        advice += f"(findmnt -T {path}), or a security module refuses; use the host's /dev, "
        return f"{advice}or --device", ()
    if file.errno != EPERM:
        advice = f"let this user read and write {path} (rdma-core's udev rules give it mode 0666)"
        return advice, (device._replace(now=f"mode {file.permissions:04o}"),)
    if exclusive:
        return _SHARE, (_shared_devices(),)
    return f"give the container {path}", (device,)


@CHECKS("rdma.provider-missing")
def provider_missing(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether libibverbs has the user-space library of each device."""
    libraries = rdma.libraries
    packages = [LIBRARY_PACKAGE] * isinstance(libraries.file, Unknown) + [PROVIDERS_PACKAGE]

    def problem(nic: Nic, _use: object) -> Lost | Unknown | None:
        lost = file_problem(nic)
        return provider_problem(nic) if lost is None else lost

    def describe(nic: Nic, lost: Lost | None, _use: object) -> Finding:
        """Make the finding about one device's provider.

        Args:
            lost: Why it is not found, or None.
        """
        name = nic.provider if isinstance(nic.provider, str) else "the device's"
        finding = passed(nic.name, "listed by libibverbs", f"provider {name}")
        if lost is None:
            return finding
        known = libraries.providers
        seen = "unknown" if isinstance(known, Unknown) else " ".join(sorted(known))
        return finding._replace(
            have="not listed by libibverbs",
            text=f"Mooncake does not see it: {nic.verbs.error}",
            evidence=(Evidence(PROVIDER_CONFIGURATION, seen or "no provider"),),
            advice=f"install the provider {name} in this image",
            settings=tuple(Setting(Kind.PACKAGE, package, package) for package in packages),
        )

    return judge_devices(rdma, needs, Cause.PROVIDER, problem, describe)
