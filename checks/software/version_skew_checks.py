"""Check of versions: are Mooncake and SGLang here those that the launch was sized for?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Finding, passed, skip
from checks.base.needs import LaunchNeeds
from checks.base.unknown import known
from checks.software.facts import SoftwareFacts
from checks.software.judging import OTHER_CONTAINER, elsewhere
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("software.version-skew", the_launch)
def version_skew(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    if needs.processes and all(elsewhere(system, process) for process in needs.processes):
        yield skip(OTHER_CONTAINER)
        return
    engine = known(software.engine)
    mooncake = engine.mooncake[0].version if engine is not None and engine.mooncake else ""
    sglang = engine.sglang.version if engine is not None and engine.sglang is not None else ""
    for name, wanted, have in (
        ("Mooncake", needs.mooncake_version, mooncake),
        ("SGLang", needs.sglang_version, sglang),
    ):
        if not wanted:
            yield skip("the launch names no version of it", name)
        elif not have:
            yield skip("it is not installed here", name)
        else:
            yield _judge_skew(name, wanted, have)


def _judge_skew(name: str, wanted: str, have: str) -> Finding:
    found = passed(name, f"{name} {have}", f"{name} {wanted}")
    # A local part names a build, not another release.
    if have.partition("+")[0] == wanted.partition("+")[0].removeprefix("v"):
        return found
    return found.warned(
        "what the launch needs was worked out for another release than runs here",
        f"install {name} {wanted}, or give what is here: --{name.lower()}-version {have}",
    )
