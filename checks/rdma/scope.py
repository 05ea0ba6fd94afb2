"""What the checks of RDMA share: whose devices are judged, and how a lost device is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from checks.base.check import the_launch
from checks.base.finding import Finding, Status, UnjudgedError, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds, Region
from checks.base.unknown import Unknown, known
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.use import Cause, Lost, Use, nics_of, uses
from checks.releases.mooncake import MooncakeRelease, release_of

NO_RDMA = "the launch does not use RDMA"
NO_DEVICE = "no device of this host is asked for (see rdma.no-device and rdma.device-missing)"


class Scope(NamedTuple):
    """Devices to judge: those that some processes would take, or all where no launch is given.

    names: those in use in the end; None without a launch.
    """

    who: str
    environment: Mapping[str, str]
    nics: tuple[Nic, ...]
    names: tuple[str, ...] | Unknown | None
    release: MooncakeRelease | None

    @property
    def lost_status(self) -> Status:
        """Tell how bad it is to lose one of the devices: nothing left is a failure."""
        return Status.FAIL if self.names == () else Status.WARN


def rdma_launch(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Take a launch that uses RDMA."""
    launch = the_launch(needs)
    if not launch.rdma_processes:
        raise UnjudgedError(skip(NO_RDMA, "launch"))
    return launch


def rdma_launch_or_host(needs: LaunchNeeds | None) -> LaunchNeeds | None:
    """Take the same, or the host alone."""
    return None if needs is None else rdma_launch(needs)


def scopes(rdma: RdmaFacts, needs: LaunchNeeds | None) -> list[Scope]:
    """Return whose devices to judge; empty where the launch does not use RDMA."""
    there = rdma.present
    if needs is None:
        return [Scope("host", {}, there, None, None)]
    release = release_of(needs.mooncake_version)
    found = []
    for use in uses(rdma, needs):
        wanted = tuple(nic for nic in there if nic.name in use.devices.candidates)
        found.append(Scope(use.who, use.environment, wanted, use.devices.names, release))
    return found


Problem = Callable[[Nic, Scope], Lost | Unknown | None]
Describe = Callable[[Nic, Lost | None, Scope], Finding]


def judge_devices(
    rdma: RdmaFacts,
    needs: LaunchNeeds | None,
    cause: Cause,
    problem_of: Problem,
    describe: Describe,
) -> Iterator[Finding]:
    """Yield one finding per device: the worst over the processes that would take it.

    A device that is lost to another cause is left to that cause's check.
    """
    known(rdma.nics)
    rdma_launch_or_host(needs)
    found: dict[str, Finding] = {}
    for scope in scopes(rdma, needs):
        for nic in scope.nics:
            finding = _judge_device(scope, nic, cause, problem_of, describe)
            found[nic.name] = worst(found.get(nic.name, finding), finding)
    yield from found.values() or [skip(NO_DEVICE)]


def _judge_device(
    scope: Scope, nic: Nic, cause: Cause, problem_of: Problem, describe: Describe
) -> Finding:
    problem = problem_of(nic, scope)
    if isinstance(problem, Unknown):
        return describe(nic, None, scope).unknown(problem.reason)
    if problem is None:
        return describe(nic, None, scope)
    if problem.cause is not cause:
        text = f"it is lost already: {problem.cause.value}: {problem.why}"
        return describe(nic, None, scope).skipped(text, have="")
    return describe(nic, problem, scope)._replace(status=scope.lost_status)


def worst(*findings: Finding) -> Finding:
    """Return the finding with the worst status, the first of several such."""
    return min(findings, key=lambda finding: list(Status).index(finding.status))


def users(found: Iterable[Use]) -> Iterator[tuple[Use, Finding | None]]:
    """Yield each use with why its devices cannot be judged, None where they can."""
    for use in found:
        names = use.devices.names
        if isinstance(names, Unknown):
            text = f"which devices it uses is not known: {names.reason}"
            yield use, unknown(use.who, text)
        elif not names:
            text = "no device is in use (see the other checks of rdma)"
            yield use, skip(text, use.who)
        else:
            yield use, None


def used_nics(rdma: RdmaFacts, needs: LaunchNeeds | None) -> tuple[list[Nic], list[Finding]]:
    """Return the devices in use, each once, and why those of some processes cannot be told.

    Without a launch: every device of the host.
    """
    if rdma_launch_or_host(needs) is None:
        known(rdma.nics)
        return list(rdma.present), [] if rdma.present else [skip(NO_DEVICE)]
    assert needs is not None
    found = uses(rdma, needs)
    nics = dict.fromkeys(nic.name for use in found for nic in nics_of(rdma, use))
    instead = [finding for _, finding in users(found) if finding is not None]
    there = {nic.name: nic for nic in rdma.present}
    return [there[name] for name in nics], instead


def judge_uses(
    rdma: RdmaFacts,
    needs: LaunchNeeds,
    judge: Callable[[Use, MooncakeRelease | None], Iterable[Finding]],
) -> list[Finding]:
    """Judge each use of devices, with Mooncake's release; why not, where none can be had."""
    release = release_of(needs.mooncake_version)
    found: list[Finding] = []
    for use, instead in users(uses(rdma, needs)):
        found += judge(use, release) if instead is None else [instead]
    return found


class Registered(NamedTuple):
    """One process's regions and the devices that each is registered with."""

    process: ProcessNeeds
    regions: tuple[Region, ...]
    nics: tuple[Nic, ...]
    environment: Mapping[str, str]
    release: MooncakeRelease | None


def judge_regions(
    rdma: RdmaFacts, needs: LaunchNeeds, judge: Callable[[Registered], Finding]
) -> list[Finding]:
    """Judge each process that registers memory; equal findings together."""

    def judge_use(use: Use, release: MooncakeRelease | None) -> Iterator[Finding]:
        nics = nics_of(rdma, use)
        for process in use.processes:
            regions = process.regions
            if isinstance(regions, Unknown):
                yield unknown(process.name, regions.reason)
            else:
                yield judge(Registered(process, regions, nics, use.environment, release))

    return fold(judge_uses(rdma, needs, judge_use))
