"""What the checks of RDMA share: whose devices are judged, and how a lost device is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from checks.framework.finding import (
    Consequence,
    Finding,
    Status,
    UnjudgedError,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import Region
from checks.framework.problem import the_launch
from checks.framework.unknown import Unknown, require
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.use import Cause, DevicesInUse, Lost, Transport, Use, uses

NO_RDMA = "the launch does not use RDMA"
NO_DEVICE = "no device of this host is asked for (see rdma.no-device and rdma.device-missing)"


def rdma_launch(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Return the launch.

    Raises:
        UnjudgedError: If none is given or it uses no RDMA.
    """
    launch = the_launch(needs)
    if not launch.rdma_processes:
        raise UnjudgedError(skip(NO_RDMA, "launch"))
    return launch


def rdma_launch_or_host(needs: LaunchNeeds | None) -> LaunchNeeds | None:
    """Return the launch, as ``rdma_launch`` does; None without one: the host alone is judged."""
    return None if needs is None else rdma_launch(needs)


Problem = Callable[[Nic, Use], Lost | Unknown | None]
Describe = Callable[[Nic, Lost | None, Use], Finding]


def judge_devices(
    rdma: RdmaFacts,
    needs: LaunchNeeds | None,
    cause: Cause,
    problem_of: Problem,
    describe: Describe,
) -> Iterator[Finding]:
    """Yield one finding for each device that the launch would take: the worst of all its processes.

    The only finding is a skip if the launch would take none. Without a launch, all devices of the
    host are judged.

    Args:
        cause: What the check is about; a device that is lost for another cause is skipped.
        problem_of: Returns why a use loses a device, None if it does not.
        describe: Makes the finding; gets the loss of this cause, or None.
    """
    require(rdma.nics)
    launch = rdma_launch_or_host(needs)
    host = Use((), DevicesInUse((), (), (), Transport.NOT_ASKED, ""), rdma.present, None)
    by_device: dict[str, list[Finding]] = {}
    for use in [host] if launch is None else uses(rdma, launch):
        for nic in use.candidate_nics:
            finding = _judge_device(use, nic, cause, problem_of, describe)
            by_device.setdefault(nic.name, []).append(finding)
    worst_first = list(Status)
    for findings in by_device.values():
        yield min(findings, key=lambda finding: worst_first.index(finding.status))
    if not by_device:
        yield skip(NO_DEVICE)


def _judge_device(
    use: Use, nic: Nic, cause: Cause, problem_of: Problem, describe: Describe
) -> Finding:
    """Judge one device for one use; see ``judge_devices`` for ``cause``, ``problem_of`` and
    ``describe``.

    A loss is a failure if it leaves processes no device, else a warning.
    """
    problem = problem_of(nic, use)
    if isinstance(problem, Unknown):
        return describe(nic, None, use).undecided(problem)
    if problem is None:
        return describe(nic, None, use)
    if problem.cause is not cause:
        text = f"it is lost already: {problem.cause.value}: {problem.why}"
        return describe(nic, None, use).skipped(text, have="")
    # With none left to a process it fails; without a launch nobody is known to need it.
    nothing_left = bool(use.processes) and use.devices.names == ()
    status = Status.FAIL if nothing_left else Status.WARN
    judged = describe(nic, problem, use)._replace(status=status)
    return ends_at_start(judged, use) if nothing_left else judged


def ends_at_start(finding: Finding, use: Use) -> Finding:
    """Add to a failure that the start ends, if the processes are left without any transport."""
    if use.devices.transport is not Transport.NONE:
        return finding
    text = f"{finding.text}; without a device the start ends: No available RNIC, setup returns -1"
    return finding._replace(text=text, consequence=Consequence.WILL_NOT_START)


def whichever_is_used(
    launch_uses: Sequence[Use], judge: Callable[[Sequence[Use]], list[Finding]]
) -> list[Finding]:
    """Return the findings of ``judge`` about the uses, and one finding for each use that has no
    device or whose devices are not known.

    If only GIDs make a use's devices unknown, it is first judged with all the devices that it may
    use. If every finding then passes or is skipped, fewer devices pass too: nothing is unknown.
    """
    instead = [
        unknown_finding(use.who, names.of("which devices it uses is not known: "))
        if isinstance(names := use.devices.names, Unknown)
        else skip("no device is in use (see the other checks of rdma)", use.who)
        for use in launch_uses
        if not use.nics
    ]
    widest = [
        use._replace(devices=use.devices._replace(names=use.devices.at_most))
        if isinstance(use.devices.names, Unknown) and use.devices.at_most
        else use
        for use in launch_uses
    ]
    if launch_uses != widest and all(not isinstance(use.devices.names, Unknown) for use in widest):
        wide = judge(widest)
        if all(finding.status in (Status.PASS, Status.SKIP) for finding in wide):
            return [*(why for why in instead if why.status is Status.SKIP), *wide]
    return [*instead, *judge(launch_uses)]


def judge_nics(
    rdma: RdmaFacts, needs: LaunchNeeds | None, judge: Callable[[Nic, Sequence[Use]], Finding]
) -> list[Finding]:
    """Judge the devices in use, each once; without a launch every device of the host.

    Args:
        judge: Gets a device and all uses of the launch, () without a launch.
    """
    launch = rdma_launch_or_host(needs)
    if launch is None:
        require(rdma.nics)
        return [judge(nic, ()) for nic in rdma.present] or [skip(NO_DEVICE)]

    def judge_those(launch_uses: Sequence[Use]) -> list[Finding]:
        nics = {nic.name: nic for use in launch_uses for nic in use.nics}
        return [judge(nic, launch_uses) for nic in nics.values()]

    return whichever_is_used(uses(rdma, launch), judge_those)


def judge_uses(
    rdma: RdmaFacts, needs: LaunchNeeds, judge: Callable[[Use], Iterable[Finding]]
) -> list[Finding]:
    """Judge each use of devices; a use without known devices gets a finding that says why."""

    def judge_those(launch_uses: Sequence[Use]) -> list[Finding]:
        return [finding for use in launch_uses if use.nics for finding in judge(use)]

    return whichever_is_used(uses(rdma, needs), judge_those)


def judge_regions(
    rdma: RdmaFacts, needs: LaunchNeeds, judge: Callable[[str, tuple[Region, ...], Use], Finding]
) -> list[Finding]:
    """Judge each process that registers memory, and join equal findings.

    Args:
        judge: Gets the process's name, its regions and its use. A process whose regions are not
            known gets an unknown finding.
    """

    def judge_use(use: Use) -> Iterator[Finding]:
        for process in use.processes:
            if isinstance(process.regions, Unknown):
                yield unknown_finding(process.name, process.regions)
            else:
                yield judge(process.name, process.regions, use)

    return fold(judge_uses(rdma, needs, judge_use))
