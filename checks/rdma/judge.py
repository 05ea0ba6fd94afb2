"""Does the launch reach the RDMA devices that it asks for, or will it fall back without a word?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, any_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip, unknown
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.rdma.devices import DEVICES
from checks.rdma.facts import RdmaFacts
from checks.rdma.judging import NO_RDMA, rdma_launch
from checks.rdma.problems import Cause, reach_problem
from checks.rdma.use import ChosenBy, DevicesInUse, Transport, Use, uses

CHECKS = CheckSet()


@CHECKS.check("rdma.device-missing", rdma_launch)
def device_missing(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return [_judge_names(rdma, use) for use in uses(rdma, needs)]


def _judge_names(rdma: RdmaFacts, use: Use) -> Finding:
    process, devices = use.processes[0], use.devices
    assert process.rdma is not None
    for fact in (rdma.nics, process.rdma.devices):
        if isinstance(fact, Unknown):
            return unknown(use.who, fact.reason)
    if not process.rdma.devices and devices.chosen is not ChosenBy.FILTERS:
        text = "it names no device: Mooncake looks for them itself"
        return skip(text, use.who)
    there = tuple(nic.name for nic in rdma.present)
    named = devices.candidates
    if not named:
        why = devices.names.reason if isinstance(devices.names, Unknown) else devices.how
        return skip(f"no name to look up: {why}", use.who)
    missing = [name for name in named if name not in there]
    finding = passed(
        use.who,
        ", ".join(there) or "no RDMA device",
        ", ".join(named),
        devices.how,
        evidence=(Evidence(DEVICES, " ".join(there)),),
    )
    if not missing:
        return finding
    gone = ", ".join(missing)
    left = [name for name in named if name in there]
    good = [nic.name for nic in rdma.present if reach_problem(nic) is None]
    advice = f"name devices of this host in {devices.how}: {', '.join(good)}"
    if not good:
        advice = "make the devices visible here (host's driver, container's /dev/infiniband)"
    text = f"{gone}: no such device here, so it runs on {', '.join(left)} alone"
    if not left:
        text = (
            f"{gone}: no such device here; the store's setup fails, and SGLang's own engine "
            "uses TCP without a word"
        )
    return finding._replace(
        status=Status.WARN if left else Status.FAIL,
        text=text,
        advice=advice,
        settings=_names_setting(process, devices, left or good),
    )


def _names_setting(
    process: ProcessNeeds, devices: DevicesInUse, names: list[str]
) -> tuple[Setting, ...]:
    """Where the names stand, as far as that is one variable or flag."""
    wanted = ",".join(names)
    if not wanted:
        return ()
    variable = "MC_MS_FILTERS" if devices.chosen is ChosenBy.FILTERS else "MOONCAKE_DEVICE"
    if variable in process.environment and variable in devices.how:
        return (Setting(Kind.ENVIRONMENT, variable, wanted, process.environment[variable]),)
    for flag in ("--disaggregation-ib-device", "--mooncake-ib-device"):
        if flag in devices.how:
            return (Setting(Kind.FLAG, flag, wanted),)
    return ()


@CHECKS.check("rdma.no-device", any_launch)
def no_device(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    if needs is None or not needs.rdma_processes:
        there = ", ".join(nic.name for nic in rdma.present) or "no RDMA device"
        nothing = skip() if needs is None else skip(NO_RDMA, "launch")
        return [nothing._replace(have=there)]
    return [_judge_left(rdma, use) for use in uses(rdma, needs)]


def _judge_left(rdma: RdmaFacts, use: Use) -> Finding:
    devices = use.devices
    finding = passed(use.who, need="at least 1 device", formula=devices.how)
    if isinstance(devices.names, Unknown):
        return finding.unknown(devices.names.reason)
    if devices.names:
        return finding._replace(have=", ".join(devices.names))
    finding = finding._replace(have="0 devices")
    becomes = (
        "setup returns 0 and everything goes over TCP, without a word"
        if devices.transport is Transport.TCP
        else "setup returns an error"
    )
    if devices.chosen is ChosenBy.FORCED_TCP:
        return finding.warned(
            "MC_FORCE_TCP is set, whatever its value: everything goes over TCP",
            "take MC_FORCE_TCP away, or say protocol tcp",
            (_unset(use, "MC_FORCE_TCP"),),
        )
    if any(lost.cause is not Cause.FILTERED for lost in devices.lost):
        why = "; ".join(f"{lost.name}: {lost.why}" for lost in devices.lost)
        return finding.skipped(f"judged by the cause's own check: {why}")
    finding = finding._replace(status=Status.FAIL, evidence=(Evidence(DEVICES, ""),))
    if not rdma.present:
        return _judge_empty_host(finding, rdma, becomes)
    there = ", ".join(nic.name for nic in rdma.present)
    settings = tuple(
        _unset(use, name)
        for name in ("MC_MS_FILTERS", "MC_TE_FILTERS", "MC_MS_AUTO_DISC", "MC_CUSTOM_TOPO_JSON")
        if name in use.environment
    )
    return finding._replace(
        text=f"{', '.join(s.name for s in settings) or devices.how} leaves none of {there}: "
        f"{becomes}",
        advice=f"take it away, or name some of {there} in it",
        evidence=tuple(Evidence(s.name, s.now) for s in settings),
        settings=settings,
    )


def _judge_empty_host(finding: Finding, rdma: RdmaFacts, becomes: str) -> Finding:
    functions = rdma.erdma.functions
    if not isinstance(functions, Unknown) and functions:
        return finding.skipped("judged by rdma.erdma-driver: an eRDMA card without a device")
    return finding._replace(
        text=f"this host (or container) has no RDMA device: {becomes}",
        advice="load the NIC's driver, give the container the host's devices, or say protocol tcp",
    )


def _unset(use: Use, name: str) -> Setting:
    return Setting(Kind.ENVIRONMENT, name, "", use.environment.get(name, ""))
