"""Are the devices of a kind that Mooncake can connect? iWARP is not, nor eRDMA in its own mode."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
)
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.devices import DEVICES
from checks.rdma.facts import ERDMA_MODE, PCI, Nic
from checks.rdma.judging import judge_used
from checks.run.facts import Facts

CHECKS = CheckSet()
IWARP, UNSPECIFIED = "RNIC", "unspecified"
ERDMA = "erdma"
# Their devices have no reliable-connected queue pairs, which Mooncake makes for every peer.
WITHOUT_RC = ("efa",)


@CHECKS.declare(
    Check(
        id="rdma.node-type",
        asks="Can queue pairs of the devices be connected the way Mooncake does it?",
        consequence=Consequence.DIES_LATER,
        why="Mooncake exchanges queue pair numbers over TCP and brings each queue pair to RTS by "
        "itself. iWARP devices (node_type '4: RNIC') allow that only through the connection "
        "manager: the server starts, and the first transfer logs '[Handshake] Failed to modify "
        "QP to RTS: Invalid argument [22]' for every peer. Devices of node_type '7: unspecified' "
        "speak another transport altogether; EFA's have no reliable connections.",
        outcomes=(
            (Status.FAIL, "a device in use is iWARP, or of a driver without reliable connections"),
            (Status.WARN, "a device in use is of an unspecified type, or no launch is given"),
            (Status.PASS, "it is a channel adapter (CA)"),
            (Status.UNKNOWN, "the type could not be read, or which devices are used"),
            (Status.SKIP, "no RDMA, no device in use, or rdma.erdma-compat judges it"),
        ),
        remedy="Leave the device out: name the others, or list them in MC_MS_FILTERS.",
        source="Mooncake rdma_endpoint.cpp doSetupConnection; Mooncake #53, vLLM #44919",
        topics=("rdma",),
    )
)
def node_type(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.node-type"
    mode = facts.rdma.erdma.compat_mode

    def judge(nic: Nic) -> Finding:
        kind = nic.node_type
        finding = Finding(check, Status.PASS, nic.name, need="node type CA")
        if isinstance(kind, Unknown):
            return finding._replace(status=Status.UNKNOWN, text=kind.reason)
        evidence = (Evidence(f"{DEVICES}/{nic.name}/node_type", kind),)
        finding = finding._replace(have=f"node type {kind}", evidence=evidence)
        if nic.driver == ERDMA and kind in (IWARP, UNSPECIFIED):
            if isinstance(mode, str):
                return finding._replace(status=Status.SKIP, text="judged by rdma.erdma-compat")
            if not mode.absent:
                return finding._replace(status=Status.UNKNOWN, text=mode.reason)
        if kind == IWARP:
            text = "it is iWARP: the first transfer fails with 'Failed to modify QP to RTS'"
        elif nic.driver in WITHOUT_RC:
            text = f"the driver {nic.driver} has no reliable connections: no transfer succeeds"
        elif kind == UNSPECIFIED:
            text = "it is of no type that Mooncake was made for"
        else:
            return finding
        certain = needs is not None and (kind == IWARP or nic.driver in WITHOUT_RC)
        return finding._replace(
            status=Status.FAIL if certain else Status.WARN,
            text=text,
            advice="leave it out: name the other devices",
        )

    return judge_used(check, facts, needs, judge)


@CHECKS.declare(
    Check(
        id="rdma.erdma-compat",
        asks="Is Alibaba's eRDMA in the mode in which Mooncake can use it?",
        consequence=Consequence.DIES_LATER,
        why="The erdma driver has two modes. In the standard one connections are made by RDMA_CM "
        "alone; Mooncake connects queue pairs by itself, and every transfer fails with 'Failed to "
        "modify QP to RTS' or '... to INIT'. With compat_mode=Y the driver listens on TCP ports "
        "30608 to 30623 and makes it work. The parameter is read when the module is loaded.",
        outcomes=(
            (Status.FAIL, "compat_mode is N and the launch uses the device"),
            (Status.WARN, "compat_mode is N and no launch is given"),
            (Status.PASS, "compat_mode is Y, or the device is no iWARP one"),
            (Status.UNKNOWN, "the parameter, or which devices are used, could not be read"),
            (Status.SKIP, "no eRDMA device in use, or a driver without the parameter"),
        ),
        remedy="options erdma compat_mode=Y in /etc/modprobe.d, then load the module anew.",
        source="elastic-rdma-drivers erdma_compat.c; Mooncake #53",
        topics=("rdma",),
    )
)
def erdma_compat(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.erdma-compat"
    mode = facts.rdma.erdma.compat_mode
    if not any(nic.driver == ERDMA for nic in facts.rdma.present):
        return [Finding(check, Status.SKIP, "host", text="this host has no eRDMA device")]

    def judge(nic: Nic) -> Finding:
        if nic.driver != ERDMA:
            return Finding(check, Status.SKIP, nic.name, text="it is no eRDMA device")
        finding = Finding(check, Status.PASS, nic.name, need="compat_mode=Y")
        if isinstance(mode, Unknown):
            if mode.absent:
                text = "this driver has no compat_mode: see rdma.node-type"
                return finding._replace(status=Status.SKIP, text=text)
            return finding._replace(status=Status.UNKNOWN, text=mode.reason)
        evidence = (Evidence(ERDMA_MODE, mode),)
        finding = finding._replace(have=f"compat_mode={mode}", evidence=evidence)
        if mode in ("Y", "1"):
            return finding
        if isinstance(nic.node_type, Unknown):
            return finding._replace(status=Status.UNKNOWN, text=nic.node_type.reason)
        if nic.node_type not in (IWARP, UNSPECIFIED):
            return finding
        return finding._replace(
            status=Status.WARN if needs is None else Status.FAIL,
            text="standard mode connects through RDMA_CM alone, so every transfer of Mooncake "
            "fails with 'Failed to modify QP to RTS'",
            advice="set compat_mode=Y for the module erdma, and load it anew (on the host)",
            settings=(Setting(Kind.MODULE, "erdma", "compat_mode=Y", f"compat_mode={mode}"),),
        )

    return judge_used(check, facts, needs, judge)


@CHECKS.declare(
    Check(
        id="rdma.erdma-driver",
        asks="Has every eRDMA card a driver and an RDMA device?",
        consequence=Consequence.DEGRADED,
        why="Alibaba's elastic RDMA cards (PCI 1ded:107f, 1ded:5007) need the module erdma, which "
        "few distributions load by themselves. Without it the instance has paid for RDMA, and "
        "Mooncake finds 0 HCAs and uses TCP without a word.",
        outcomes=(
            (Status.FAIL, "the launch uses RDMA, a card has no driver, and there is no device"),
            (Status.WARN, "a card has no driver; other devices are there, or no launch is given"),
            (Status.PASS, "each card has its driver"),
            (Status.UNKNOWN, "the PCI functions could not be read"),
            (Status.SKIP, "this host has no such card"),
        ),
        remedy="Install Alibaba's eRDMA driver, or a kernel with erdma, and load the module.",
        source="elastic-rdma-drivers README; rdma-core providers/erdma",
        topics=("rdma",),
    )
)
def erdma_driver(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.erdma-driver"
    functions = facts.rdma.erdma.functions
    if isinstance(functions, Unknown):
        return [Finding(check, Status.UNKNOWN, "host", text=functions.reason)]
    if not functions:
        return [Finding(check, Status.SKIP, "host", text="this host has no eRDMA card")]
    asked = needs is not None and bool(needs.rdma_processes)
    worst = Status.FAIL if asked and not facts.rdma.present else Status.WARN
    found = []
    for address, driver in functions:
        evidence = (Evidence(f"{PCI}/{address}/driver", driver or "none"),)
        finding = Finding(check, Status.PASS, address, driver, "driver erdma", evidence=evidence)
        if driver != ERDMA:
            finding = finding._replace(
                status=worst,
                have=f"driver {driver}" if driver else "no driver",
                text="the eRDMA card has no RDMA device: Mooncake finds none and uses TCP",
                advice="load the module erdma on the host (install Alibaba's driver first if the "
                "kernel has none)",
                settings=(Setting(Kind.MODULE, "erdma", "compat_mode=Y"),),
            )
        found.append(finding)
    return found
