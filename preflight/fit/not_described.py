"""What nobody described of a host is not known: no check may find it absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.base.check import Check, Judge
from checks.base.finding import Finding, Status
from checks.base.needs import LaunchNeeds
from checks.run.facts import Facts

# What findings of this kind have; no host's fact is spelt so.
NOT_DESCRIBED = "not described"
Checks = Iterable[tuple[Check, Judge]]


def tolerant(
    checks: Checks, gates: Iterable[str], gpus: bool, nics: bool
) -> list[tuple[Check, Judge]]:
    """``checks`` with a failure for a device that is not there unknown, where none is described.

    gpus, nics: whether they are described. gates: checks that hold a size against the host, which
    need no device to fail.
    """
    kept = frozenset(gates)
    missing = {"gpus": "--gpus, as 8xH800"} if not gpus else {}
    missing |= {"rdma": "--nics, as 8xmlx5"} if not nics else {}
    return [(check, _judge(check, judge, missing, kept)) for check, judge in checks]


def _judge(check: Check, judge: Judge, missing: dict[str, str], gates: frozenset[str]) -> Judge:
    options = [option for topic, option in missing.items() if topic in check.topics]
    if not options or check.id in gates:
        return judge

    def judged(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
        for found in judge(facts, needs):
            if found.status is Status.FAIL:
                text = f"nobody described it, so it is not judged: give {' and '.join(options)}"
                yield Finding(
                    found.check, Status.UNKNOWN, found.subject, NOT_DESCRIBED, found.need, text=text
                )
            else:
                yield found

    return judged


def is_not_described(finding: Finding) -> bool:
    return finding.status is Status.UNKNOWN and finding.have == NOT_DESCRIBED
