"""May the launch's processes set NUMA memory policies, or does a seccomp filter refuse them?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, passed, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import probes_numactl, splits_segment
from checks.numa.facts import MemoryPolicy, NumaFacts

CHECKS = CheckSet()
SYS_NICE = Setting(Kind.CAPABILITY, "SYS_NICE", "added")


@CHECKS.check("numa.policy-refused", the_launch)
def policy_refused(needs: LaunchNeeds, numa: NumaFacts) -> Iterable[Finding]:
    policy = numa.policy
    found = [_policy_of(process, policy, needs) for process in needs.processes]
    return fold(found) or [passed("launch", "no process binds memory")]


def _policy_of(
    process: ProcessNeeds, policy: MemoryPolicy | Unknown, needs: LaunchNeeds
) -> Finding:
    binds = process.program == "sglang" and process.node is not None
    splits = splits_segment(process)
    if isinstance(splits, Unknown):
        if isinstance(policy, Unknown) or policy.mbind:
            text = f"whether it splits a segment over NUMA nodes is not known: {splits.reason}"
            return unknown(process.name, text)
        splits = True  # it may, and it can
    if not binds and not splits:
        return passed(process.name, "binds no memory")
    need = " and ".join(["set_mempolicy"] * binds + ["mbind"] * splits)
    finding = passed(process.name, need=f"{need} permitted")
    if isinstance(policy, Unknown):
        return finding.unknown(f"whether {need} is permitted is not known: {policy.reason}")
    evidence = tuple(
        Evidence(f"{name}, tried in a child", _named(code))
        for name, code in zip(MemoryPolicy._fields, policy, strict=True)
    )
    refused = [
        f"{name} refused ({_named(code)})"
        for name, code, used in (
            ("set_mempolicy", policy.set_mempolicy, binds),
            ("mbind", policy.mbind, splits),
        )
        if used and code
    ]
    finding = finding._replace(have=", ".join(refused) or "permitted", evidence=evidence)
    if not refused:
        return _in_container(finding, process, need)
    finding = finding._replace(
        advice="give the container CAP_SYS_NICE, or a seccomp profile that permits "
        "get_mempolicy, set_mempolicy and mbind",
        settings=(SYS_NICE._replace(described_by=process.runtime),),
    )
    if splits and policy.mbind:
        text = (
            f"Mooncake cannot bind the shares of its segment: mbind fails with "
            f"{_named(policy.mbind)} and setup returns -600"
        )
        return finding.failed(text)
    probes = probes_numactl(needs.sglang_version)
    if isinstance(probes, Unknown):
        return finding.unknown(
            f"SGLang before 0.5.15 loses the rank here, newer ones do not: {probes.reason}"
        )
    if probes:
        text = "the rank binds its CPUs at most, and its memory may come to lie on any node"
        return finding.warned(text)
    if policy.get_mempolicy:
        # SGLang asks get_mempolicy first, and without it binds nothing unless --numa-node does.
        text = (
            "the rank runs unbound, its memory on any node; with --numa-node it ends with exit "
            "code 1 and no traceback"
        )
        return finding.warned(text)
    text = "numactl ends the rank with exit code 1, before Python starts, so without a traceback"
    return finding.failed(text)


def _in_container(finding: Finding, process: ProcessNeeds, need: str) -> Finding:
    """Permitted here; the container that the launch itself describes may still refuse."""
    limits = process.container
    if (
        limits is None
        or limits.runtime not in ("docker", "compose")
        or limits.privileged
        or "SYS_NICE" in limits.capabilities
        or "ALL" in limits.capabilities
        or any(option.startswith("seccomp") for option in limits.security_options)
    ):
        return finding
    return finding.warned(
        f"docker's default seccomp profile refuses {need} in the container of "
        f"{limits.origin}, which adds no CAP_SYS_NICE",
        "add CAP_SYS_NICE to the container",
        (SYS_NICE._replace(described_by=process.runtime),),
        have="permitted here",
    )


def _named(code: int) -> str:
    if not code:
        return "permitted"
    return f"{errno.errorcode.get(code, f'errno {code}')}: {os.strerror(code)}"
