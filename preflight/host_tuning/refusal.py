"""Whether pages may be taken for a launch: one judgement for all that print or apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.root import Root
from checks.hugetlb.targets import FIT, RESERVATION, grows_pool

if TYPE_CHECKING:
    from preflight.needs.launch_sizing import LaunchSizing

# Where one of these is unknown, no page is taken.
MEMORY = "memory.host"
_DECISIVE = (RESERVATION, "hugetlb.cgroup-limit", MEMORY, "launch.sizes")
# Rules of launches whose sizes are a default's, not those that were meant, or that have none.
REFUSED = ("arguments-refused", "values-refused", "host-pools-refused")
# No page mends these, with which the server ends at start: it checks memory and GPUs itself.
_GATE = "sglang.admission-gate"
_GPUS = "gpu.count"
# What a launch shows by itself that may refuse a setting of the host.
REFUSING = ("launch.sizes", _GATE, *REFUSED)


class PoolRefusal(NamedTuple):
    """Why pools may not grow.

    Attributes:
        impossible: Memory that is missing now.
        undecided: Facts not known.
        ends: Why the launch ends whatever pages the host has, now or after a boot; these are in
            impossible too.
    """

    impossible: tuple[str, ...]
    undecided: tuple[str, ...]
    ends: tuple[str, ...] = ()


def refusal_of(findings: Iterable[Finding]) -> PoolRefusal:
    """Return why the findings keep every pool from growing; empty if they do not."""
    findings = list(findings)
    impossible, undecided, ends = [], list(refused_sizes(findings)), []
    for each in findings:
        fails = each.status is Status.FAIL
        if each.check == RESERVATION and fails:
            impossible.append(f"{each.subject}: have {each.have}, need {each.need}: {each.text}")
        elif each.check == _GATE and fails:
            ends.append(_correct(each, f"{each.check}: need {each.need}"))
        elif each.check == _GPUS and fails and getattr(each.have, "value", False):
            # A host without any GPU is not the one that is planned for.
            ends.append(_correct(each, f"{each.check}: have {each.have}, need {each.need}"))
        elif each.check in _DECISIVE and each.status is Status.UNKNOWN:
            undecided.append(f"{each.check}, {each.subject}: {each.text or 'not known'}")
    each_once = (tuple(dict.fromkeys(why)) for why in ((*ends, *impossible), undecided, ends))
    return PoolRefusal(*each_once)


def with_withheld(sizing: LaunchSizing, root: Root) -> LaunchSizing:
    """Return the sizing with ``withheld``: why the launch ends even if its pages are reserved, ""
    if it does not end.

    A launch ends if the host has too few GPUs, or if SGLang's own check of memory refuses a server.
    The sizing is unchanged if no pages would be reserved, or the available pages were stated.
    """
    from checks.gpu.judge import CHECKS
    from checks.hugetlb.targets import reserve_targets
    from checks.run_checks.facts import read_facts
    from checks.run_checks.runner import judge
    from preflight.needs.launch_needs import launch_needs
    from preflight.needs.launch_sizing import Admission

    shown = sizing.shown
    if shown is None or shown.inputs.available_bytes is not None:
        return sizing
    if not reserve_targets(shown.host.hugetlb, shown.verdict.needs):
        return sizing
    needs = launch_needs(sizing)
    counting = [each for each in CHECKS.problems if each.id == _GPUS]
    findings = judge(read_facts(root, needs, topics=("gpus",)), needs, counting)
    known = [each for each in sizing.admissions if isinstance(each, Admission) and each.refused]
    gate = [f"correct the launch first: {each.origin}: {each.refused}" for each in known]
    why = "".join([*refusal_of(findings).ends, *gate][:1])
    return sizing._replace(
        least=sizing.least and sizing.least._replace(withheld=why),
        most=sizing.most and sizing.most._replace(withheld=why),
    )


def refused_sizes(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield why the launch's sizes may not be the ones that its author meant."""
    for finding in findings:
        if finding.check in REFUSED and finding.status is Status.FAIL:
            yield _correct(finding, finding.text)


def _correct(finding: Finding, why: str) -> str:
    where = "" if finding.subject == "launch" else f"{finding.subject}: "
    return f"correct the launch first: {where}{why}"


def without_refused(findings: Iterable[Finding], beside: Iterable[Finding] = ()) -> list[Finding]:
    """Return the findings, with a sentence in place of each setting that is refused.

    Args:
        beside: Further findings that may be a reason to refuse; they are not returned.
    """
    kept = list(findings)
    refusal = refusal_of((*kept, *beside))
    reasons = (*refusal.impossible, *refusal.undecided)
    if refusal.ends:
        kept = [_explained(finding, grows_pool, refusal.ends[0]) for finding in kept]
    elif reasons:
        advice = f"cannot be reserved now ({reasons[0]})"
        kept = [_explained(finding, grows_pool, advice, FIT) for finding in kept]
    for short in kept:
        if short.check == MEMORY and short.status is Status.FAIL:
            # /dev/shm is not made larger for a launch that the host's memory cannot hold.
            advice = f"correct {MEMORY} first: have {short.have}, need {short.need}"
            return [_explained(f, lambda s: s.kind is Kind.SHM_SIZE, advice) for f in kept]
    return kept


def _explained(
    finding: Finding, refused: Callable[[Setting], bool], advice: str, asks: str = ""
) -> Finding:
    """Return the finding with ``advice`` and ``asks`` in place of its ``refused`` settings;
    unchanged if no setting is refused.
    """
    kept = tuple(setting for setting in finding.settings if not refused(setting))
    if kept == finding.settings:
        return finding
    return finding._replace(settings=kept, advice=advice, asks=asks)
