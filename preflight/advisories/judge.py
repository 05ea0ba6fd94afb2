"""Holds every record against a launch on a host, and says what affects it."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from checks.base.finding import Evidence, Finding, Status
from checks.base.unknown import Unknown
from preflight.advisories.facts import AdvisorySubject, clients_by_network, fact, may_give
from preflight.advisories.records import (
    PRODUCTS,
    SEVERITIES,
    Advisory,
    advisories,
    condition_text,
    holds,
    in_ranges,
    joined,
    program_of,
    range_text,
)
from preflight.inputs.host_source import Sized
from preflight.judging.judge_host import JudgedHost
from preflight.judging.pages import ADVISORIES
from preflight.processes.processes import LaunchProcess

# What the records ask of the host; a host whose topics were not all read is unknown in those.
TOPICS = ("system", "memory", "pci", "gpus", "rdma", "software")


class Verdict(NamedTuple):
    """A record held against one process.

    version: of the product that is affected, or why it is not known. holds: of the record's
    conditions and the version together. may_give: what may give the process flags, and is not
    known; None for nothing.
    """

    advisory: Advisory
    process: LaunchProcess
    product: str
    version: str | Unknown
    holds: bool | Unknown
    may_give: Unknown | None

    @property
    def hangs_on_words(self) -> bool:
        """Tell whether words of the launch decide that are not known, which it is told of apart."""
        return self.may_give is not None and self.holds is self.may_give


def verdicts(seen: JudgedHost) -> Iterator[Verdict]:
    """Yield a verdict on each record for each process that runs a product of the record."""
    sized = seen.launch
    if not isinstance(sized, Sized):
        return
    clients = clients_by_network(sized)
    subjects = [
        AdvisorySubject(process, sized, seen, may_give(process), clients)
        for process in sized.sizing.inputs.processes
    ]
    for record in advisories():
        for subject in subjects:
            yield _verdict(record, subject)


def _verdict(record: Advisory, subject: AdvisorySubject) -> Verdict:
    """Judge one record for one process: its conditions, then the releases of its products."""
    value = partial(fact, subject)
    product, unasked = record.affected[0].product, Unknown("not asked")
    verdict = Verdict(record, subject.process, product, unasked, False, subject.may_give)
    conditions = True if record.when is None else holds(record.when, value)
    if conditions is False:
        return verdict
    for each in record.affected:
        # Whose code does not run here is not asked for its release.
        product = program_of(each.product)
        asked = PRODUCTS[each.product][0] == "PyPI" and product != "nixl"
        user = value(f"uses.{product}") if asked else True
        if user is False:
            continue
        version = value(product)
        if version is None:
            continue
        within = version if isinstance(version, Unknown) else in_ranges(each, str(version))
        if within is False:
            continue
        if each.product != product:
            wheel = value("mooncake.wheel")
            ours = wheel if isinstance(wheel, Unknown) else each.product in wheel
            within = joined((within, ours), True)
        verdict = verdict._replace(
            product=product,
            version=version if isinstance(version, Unknown) else str(version),
            holds=joined((user, within, conditions), True),
        )
        if verdict.holds is True:
            return verdict
    return verdict


def advisory_findings(seen: JudgedHost) -> list[Finding]:
    """Judge the records for a launch on a host; [] without a launch.

    A record that affects the launch, or may, is a finding each; the others are one pass. Those
    that depend on a release that nobody named are one skip, which is no pass: every launch would
    be full of them. So are those of something that only happens later, and those that depend on
    words which are not known: ``launch.not-read`` names these.
    """
    if not isinstance(seen.launch, Sized):
        return []
    findings: list[Finding] = []
    open_: dict[tuple[str, str], set[str]] = {}
    judged: set[str] = set()
    later: set[str] = set()
    for verdict in verdicts(seen):
        record = verdict.advisory
        if record.covered_by:
            continue
        judged.add(record.check)
        if verdict.holds is False:
            continue
        if _is_later(verdict):
            later.add(record.check)
        elif verdict.holds is True:
            status = Status.FAIL if record.grave else Status.WARN
            findings.append(_finding(verdict, status, f"What is seen: {record.seen}"))
        elif isinstance(verdict.version, Unknown):
            why = (verdict.version.reason, verdict.version.advice)
            open_.setdefault(why, set()).add(record.check)
        elif verdict.hangs_on_words and verdict.may_give is not None:
            open_.setdefault((verdict.may_give.reason, ""), set()).add(record.check)
        else:
            status, open_fact = Status.UNKNOWN if record.grave else Status.WARN, verdict.holds
            text = f"It is where {condition_text(record.when)}; not known: {open_fact.reason}"
            findings.append(_finding(verdict, status, text)._replace(cause=open_fact.cause))
    named = {each.check for each in findings}.union(later, *open_.values())
    if later:
        text = f"{_count(later)} may arise while it runs, which nothing here decides: "
        text += "mooncake-preflight explain --advisories LAUNCH"
        findings.append(Finding(ADVISORIES.id, Status.SKIP, "launch", text=text))
    for (reason, advice), ids in open_.items():
        text = f"what decides {_count(ids)}. {advice}".rstrip()
        findings.append(Finding(ADVISORIES.id, Status.SKIP, reason, text=text))
    if judged - named:
        have = f"{_count(judged - named)}, none of them here"
        findings.append(Finding(ADVISORIES.id, Status.PASS, "launch", have=have))
    return findings


def may_arise(seen: JudgedHost) -> list[Verdict]:
    """Return the verdicts on something that happens only while the launch runs."""
    return [v for v in verdicts(seen) if not v.advisory.covered_by and _is_later(v)]


def _is_later(verdict: Verdict) -> bool:
    """Return whether only what happens later decides; what hangs on the release is open before."""
    if not verdict.advisory.arises or verdict.holds is False:
        return False
    return verdict.holds is True or not isinstance(verdict.version, Unknown)


def _count(ids: set[str]) -> str:
    return f"{len(ids)} known problem{'s' * (len(ids) != 1)}"


def _finding(verdict: Verdict, status: Status, after: str) -> Finding:
    """Return the finding of one record and one process: summary, release, then ``after``."""
    record = verdict.advisory
    ranges = "; ".join(map(range_text, record.affected))
    return Finding(
        record.check,
        status,
        verdict.process.name,
        text=f"{record.summary} ({verdict.product} {verdict.version}; affected: {ranges}). {after}",
        evidence=tuple(Evidence(url, reference.lower()) for reference, url in record.references),
        advice=record.remedy,
        consequence=SEVERITIES[record.severity],
    )
