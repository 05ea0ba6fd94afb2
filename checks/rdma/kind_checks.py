"""Are the devices of a kind that Mooncake can connect? iWARP is not, nor eRDMA in its own mode."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, any_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown, known
from checks.rdma.devices import DEVICES
from checks.rdma.facts import ERDMA_MODE, PCI, Nic, RdmaFacts
from checks.rdma.judging import judge_used

CHECKS = CheckSet()
IWARP, UNSPECIFIED = "RNIC", "unspecified"
ERDMA = "erdma"
# Their devices have no reliable-connected queue pairs, which Mooncake makes for every peer.
WITHOUT_RC = ("efa",)


@CHECKS.check("rdma.node-type", any_launch)
def node_type(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    mode = rdma.erdma.compat_mode

    def judge(nic: Nic) -> Finding:
        kind = nic.node_type
        finding = passed(nic.name, need="node type CA")
        if isinstance(kind, Unknown):
            return finding.unknown(kind.reason)
        evidence = (Evidence(f"{DEVICES}/{nic.name}/node_type", kind),)
        finding = finding._replace(have=f"node type {kind}", evidence=evidence)
        if nic.driver == ERDMA and kind in (IWARP, UNSPECIFIED):
            if isinstance(mode, str):
                return finding.skipped("judged by rdma.erdma-compat")
            if not mode.absent:
                return finding.unknown(mode.reason)
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

    return judge_used(rdma, needs, judge)


@CHECKS.check("rdma.erdma-compat", any_launch)
def erdma_compat(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    mode = rdma.erdma.compat_mode
    if not any(nic.driver == ERDMA for nic in rdma.present):
        return [skip("this host has no eRDMA device")]

    def judge(nic: Nic) -> Finding:
        if nic.driver != ERDMA:
            return skip("it is no eRDMA device", nic.name)
        finding = passed(nic.name, need="compat_mode=Y")
        if isinstance(mode, Unknown):
            if mode.absent:
                text = "this driver has no compat_mode: see rdma.node-type"
                return finding.skipped(text)
            return finding.unknown(mode.reason)
        evidence = (Evidence(ERDMA_MODE, mode),)
        finding = finding._replace(have=f"compat_mode={mode}", evidence=evidence)
        if mode in ("Y", "1"):
            return finding
        if isinstance(nic.node_type, Unknown):
            return finding.unknown(nic.node_type.reason)
        if nic.node_type not in (IWARP, UNSPECIFIED):
            return finding
        return finding._replace(
            status=Status.WARN if needs is None else Status.FAIL,
            text="standard mode connects through RDMA_CM alone, so every transfer of Mooncake "
            "fails with 'Failed to modify QP to RTS'",
            advice="set compat_mode=Y for the module erdma, and load it anew (on the host)",
            settings=(Setting(Kind.MODULE, "erdma", "compat_mode=Y", f"compat_mode={mode}"),),
        )

    return judge_used(rdma, needs, judge)


@CHECKS.check("rdma.erdma-driver", any_launch)
def erdma_driver(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    functions = known(rdma.erdma.functions)
    if not functions:
        return [skip("this host has no eRDMA card")]
    asked = needs is not None and bool(needs.rdma_processes)
    worst = Status.FAIL if asked and not rdma.present else Status.WARN
    found = []
    for address, driver in functions:
        evidence = (Evidence(f"{PCI}/{address}/driver", driver or "none"),)
        finding = passed(address, driver, "driver erdma", evidence=evidence)
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
