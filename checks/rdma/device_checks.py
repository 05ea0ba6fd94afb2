"""Does the host have the devices that the launch asks for, of a sort that Mooncake can connect?

Without them it falls back to TCP without a message; it connects neither iWARP, nor eRDMA in eRDMA's
mode.
"""

from __future__ import annotations

from collections.abc import Iterable

from checks.framework.device_nodes import PCI_DEVICES, RDMA_DEVICES
from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold_names, join_names
from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.problem import Problems
from checks.framework.unknown import Unknown, require
from checks.rdma.facts import ERDMA_MODE, Nic, RdmaFacts
from checks.rdma.per_device import NO_RDMA, ends_at_start, judge_nics, rdma_launch
from checks.rdma.use import EFA, Cause, ChosenBy, Transport, Use, reach_problem, uses
from checks.rdma.verbs import NODES

CHECKS = Problems()


@CHECKS("rdma.device-missing", needs=rdma_launch)
def device_missing(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether every device that the launch names is on this host."""
    others: dict[RdmaUse, list[ProcessNeeds]] = {}
    for process in needs.processes:
        lookup = process.looked_up
        if lookup is not None and lookup.devices != () and not _looks_up_all(process):
            others.setdefault(lookup, []).append(process)
    return [
        *(_judge_names(rdma, use) for use in uses(rdma, needs)),
        *(_judge_looked_up(rdma, use, processes) for use, processes in others.items()),
    ]


LOOKED_UP = (
    "no such device here; SGLang looks its own engine's devices up as it starts, and ends: "
    "ValueError: Invalid IB devices specified"
)


def _looks_up_all(process: ProcessNeeds) -> bool:
    """Tell whether SGLang's engine looks up the very devices that the process names for a store."""
    lookup, used = process.looked_up, process.rdma
    return lookup is not None and used is not None and lookup.devices == used.devices


@or_unjudged
def _judge_looked_up(rdma: RdmaFacts, use: RdmaUse, processes: list[ProcessNeeds]) -> Finding:
    """Judge whether the host has the devices that SGLang's own engine looks up (``use``), if a
    store uses other devices.

    Args:
        processes: Those whose engine looks them up.
    """
    require(rdma.nics)
    there = [nic.name for nic in rdma.present]
    who = fold_names([process.name for process in processes])
    named = passed(who).require(use.devices)
    finding = passed(who, join_names(there) or "no RDMA device", join_names(named), use.origin)
    gone = ", ".join(name for name in named if name not in there)
    advice = _names_advice(rdma, use.origin, there)
    return _fail(finding, gone, advice) if gone else finding


def _names_advice(rdma: RdmaFacts, where: str, good: list[str]) -> str:
    """Return the advice on a name that no device here has.

    Args:
        good: The devices that would do.
    """
    if good:
        return f"name devices of this host in {where}: {', '.join(good)}"
    if rdma.present and all(nic.driver == EFA for nic in rdma.present):
        return _GO_BY_EFA
    return "make the devices visible here (host's driver, container's /dev/infiniband)"


def _fail(finding: Finding, gone: str, advice: str, settings: tuple[Setting, ...] = ()) -> Finding:
    """Return a failure: SGLang ends at its start.

    Args:
        gone: Names of the devices that are missing.
    """
    ending = Consequence.WILL_NOT_START
    return finding.failed(f"{gone}: {LOOKED_UP}", advice, settings, consequence=ending)


@or_unjudged
def _judge_names(rdma: RdmaFacts, use: Use) -> Finding:
    """Judge whether the host has the devices named for Mooncake; a skip if no device is named."""
    process, devices = use.processes[0], use.devices
    assert process.rdma is not None
    unread = unknown_finding(use.who, "")
    unread.require(rdma.nics)
    if not unread.require(process.rdma.devices) and devices.chosen is not ChosenBy.FILTERS:
        return skip("it names no device: Mooncake looks for them itself", use.who)
    there = tuple(nic.name for nic in rdma.present)
    named = devices.candidates
    if not named:
        why = devices.names.reason if isinstance(devices.names, Unknown) else devices.how
        return skip(f"no name to look up: {why}", use.who)
    evidence = (_device_listing(rdma),)
    have, need = join_names(there) or "no RDMA device", join_names(named)
    finding = passed(use.who, have, need, devices.how, evidence=evidence)
    left = [name for name in named if name in there]
    if len(left) == len(named):
        return finding
    gone = ", ".join(name for name in named if name not in there)
    reached = (nic for nic in rdma.present if reach_problem(nic) is None)
    good = [nic.name for nic in reached if nic.driver != EFA]
    where = process.rdma.origin if process.rdma.devices == AUTO else devices.how
    advice = _names_advice(rdma, where, good)
    settings = names_setting(use, left or good)
    if _looks_up_all(process):
        return _fail(finding, gone, advice, settings)
    if left:
        text = f"{gone}: no such device here, so it runs on {', '.join(left)} alone"
        return finding.warned(text, advice, settings)
    if process.rdma.by_engine:
        text = f"{gone}: no such device here; SGLang's own engine uses TCP without a message"
        return finding.failed(text, advice, settings)
    return ends_at_start(finding.failed(f"{gone}: no such device here", advice, settings), use)


def _device_listing(rdma: RdmaFacts) -> Evidence:
    """Return the devices that the kernel lists, as evidence."""
    names = " ".join(nic.name for nic in rdma.present)
    return Evidence(RDMA_DEVICES, names if rdma.class_exists else "no such folder")


# The device of SGLang up to 0.5.3 that makes it set MC_MS_FILTERS itself.
AUTO = ("auto",)


def names_setting(use: Use, names: list[str]) -> tuple[Setting, ...]:
    """Return the setting that makes the launch name the devices ``names``.

    Returns:
        () if no single variable or flag names the launch's devices, or ``names`` is empty.
    """
    process, devices = use.processes[0], use.devices
    assert process.rdma is not None
    holder, wanted = process.rdma.written_as, ",".join(names)
    if devices.chosen is ChosenBy.FILTERS:
        holder = holder if process.rdma.devices == AUTO else "MC_MS_FILTERS"
    elif devices.chosen is not ChosenBy.LAUNCH:
        return ()
    if wanted and holder in process.environment:
        return (Setting(Kind.ENVIRONMENT, holder, wanted, process.environment[holder]),)
    if wanted and holder.startswith("--"):
        return (Setting(Kind.FLAG, holder, wanted),)
    return ()


@CHECKS("rdma.no-device")
def no_device(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether each RDMA process has a device left to use; a skip if no process uses RDMA."""
    if needs is None or not needs.rdma_processes:
        there = ", ".join(nic.name for nic in rdma.present)
        if not isinstance(rdma.nics, Unknown):
            there = there or "no RDMA device"
        nothing = skip() if needs is None else skip(NO_RDMA, "launch")
        return [nothing._replace(have=there)]
    return [_judge_devices_left(rdma, use) for use in uses(rdma, needs)]


@or_unjudged
def _judge_devices_left(rdma: RdmaFacts, use: Use) -> Finding:
    """Judge the devices that are left to one use, and name the settings that leave none."""
    devices = use.devices
    finding = passed(use.who, need="at least 1 device", formula=devices.how)
    names = finding.require(devices.names)
    finding = finding._replace(have=", ".join(names) or "0 devices")
    if names:
        return finding
    if devices.chosen is ChosenBy.FORCED_TCP:
        return finding.warned(
            "MC_FORCE_TCP is set, and any value counts: everything goes over TCP",
            "unset MC_FORCE_TCP, or set protocol tcp",
            (_unset(use, "MC_FORCE_TCP"),),
        )
    if any(lost.cause is not Cause.FILTERED for lost in devices.lost):
        why = "; ".join(f"{lost.name}: {lost.why}" for lost in devices.lost)
        return finding.skipped(f"see the check of the cause: {why}")
    becomes = ""
    if devices.transport is Transport.TCP:
        becomes = ": setup returns 0 and everything goes over TCP, without a message"
    if not rdma.present:
        functions = rdma.erdma.functions
        finding = finding._replace(evidence=(_device_listing(rdma),))
        if not isinstance(functions, Unknown) and functions:
            return finding.skipped("judged by rdma.erdma-driver: an eRDMA card without a device")
        advice = "load the NIC's driver, give the container the host's devices, or set protocol tcp"
        if rdma.nodes_alone:
            advice = (
                f"{NODES} has {join_names(rdma.nodes_alone)}: the nodes are given, and "
                f"{RDMA_DEVICES}, in which devices are looked for, shows none: run in the host's "
                "network namespace (--network host), or share RDMA devices (rdma system set netns "
                "shared)"
            )
        text = f"this host (or container) has no RDMA device{becomes}"
        return ends_at_start(finding.failed(text, advice), use)
    there = ", ".join(nic.name for nic in rdma.present)
    settings = tuple(
        _unset(use, name)
        for name in ("MC_MS_FILTERS", "MC_TE_FILTERS", "MC_MS_AUTO_DISC", "MC_CUSTOM_TOPO_JSON")
        if name in use.environment
    )
    culprits = ", ".join(setting.name for setting in settings) or devices.how
    failed = finding.failed(
        f"{culprits} leaves none of {there}{becomes}",
        f"remove it, or name some of {there} in it",
        settings,
        evidence=tuple(Evidence(setting.name, setting.now) for setting in settings),
    )
    return ends_at_start(failed, use)


def _unset(use: Use, name: str) -> Setting:
    return Setting(Kind.ENVIRONMENT, name, "", use.environment.get(name, ""))


IWARP, UNSPECIFIED = "RNIC", "unspecified"
ERDMA = "erdma"
_GO_BY_EFA = (
    "go by Mooncake's transport efa: the wheel mooncake-transfer-engine-efa (-efa-cuda13), and "
    "MOONCAKE_PROTOCOL=efa with SGLang 0.5.13 or newer"
)


@CHECKS("rdma.node-type")
def node_type(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether each device is of a type that Mooncake can connect: neither iWARP nor EFA."""
    mode = rdma.erdma.compat_mode

    @or_unjudged
    def judge(nic: Nic) -> Finding:
        """Judge the type of one device; an eRDMA device is left to rdma.erdma-compat."""
        finding = passed(nic.name, need="node type CA")
        node_type = finding.require(nic.node_type)
        evidence = (Evidence(f"{RDMA_DEVICES}/{nic.name}/node_type", node_type),)
        finding = finding._replace(have=f"node type {node_type}", evidence=evidence)
        if nic.driver == ERDMA and node_type in (IWARP, UNSPECIFIED):
            if isinstance(mode, str):
                return finding.skipped("judged by rdma.erdma-compat")
            if not mode.absent:
                return finding.undecided(mode)
        if node_type == IWARP:
            text = "it is iWARP: the first transfer fails with 'Failed to modify QP to RTS'"
        elif nic.driver == EFA:
            text = f"the driver {nic.driver} has no reliable connections: no transfer succeeds"
        elif node_type == UNSPECIFIED:
            text = "Mooncake was not made for this type of device"
        else:
            return finding
        certain = needs is not None and (node_type == IWARP or nic.driver == EFA)
        judged = finding.failed if certain else finding.warned
        advice = "leave it out: name the other devices"
        if nic.driver == EFA:
            rest = any(other.driver != EFA for other in rdma.present)
            advice = f"{advice}, or {_GO_BY_EFA}" if rest else _GO_BY_EFA
        return judged(text, advice)

    require(rdma.nics)
    return judge_nics(rdma, needs, lambda nic, _: judge(nic))


@CHECKS("rdma.erdma-compat")
def erdma_compat(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether Alibaba's eRDMA devices run in the mode that Mooncake can connect."""
    mode = rdma.erdma.compat_mode
    if not any(nic.driver == ERDMA for nic in require(rdma.nics)):
        return [skip("this host has no eRDMA device")]

    @or_unjudged
    def judge(nic: Nic) -> Finding:
        """Judge the mode of one eRDMA device; other devices are skipped."""
        if nic.driver != ERDMA:
            return skip("it is not an eRDMA device", nic.name)
        finding = passed(nic.name, need="compat_mode=Y")
        if isinstance(mode, Unknown) and mode.absent:
            return finding.skipped("this driver has no compat_mode: see rdma.node-type")
        word = finding.require(mode)
        evidence = (Evidence(ERDMA_MODE, word),)
        finding = finding._replace(have=f"compat_mode={word}", evidence=evidence)
        if word in ("Y", "1") or finding.require(nic.node_type) not in (IWARP, UNSPECIFIED):
            return finding
        judged = finding.warned if needs is None else finding.failed
        return judged(
            "standard mode connects through RDMA_CM alone, so every transfer of Mooncake "
            "fails with 'Failed to modify QP to RTS'",
            "set compat_mode=Y for the module erdma, and reload it (on the host)",
            (Setting(Kind.MODULE, "erdma", "compat_mode=Y", f"compat_mode={word}"),),
        )

    return judge_nics(rdma, needs, lambda nic, _: judge(nic))


@CHECKS("rdma.erdma-driver")
def erdma_driver(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether each eRDMA card has the driver that makes an RDMA device."""
    functions = require(rdma.erdma.functions)
    if not functions:
        return [skip("this host has no eRDMA card")]
    asked = needs is not None and bool(needs.rdma_processes)
    findings = []
    for address, driver in functions:
        evidence = (Evidence(f"{PCI_DEVICES}/{address}/driver", driver or "none"),)
        finding = passed(address, driver, "driver erdma", evidence=evidence)
        if driver != ERDMA:
            finding = (finding.failed if asked and not rdma.present else finding.warned)(
                "the eRDMA card has no RDMA device: Mooncake finds none and uses TCP",
                "load the module erdma on the host (install Alibaba's driver first if the "
                "kernel has none)",
                (Setting(Kind.MODULE, "erdma", "compat_mode=Y"),),
                have=f"driver {driver}" if driver else "no driver",
            )
        findings.append(finding)
    return findings
