"""Check of versions: are Mooncake and SGLang here those that the launch was sized for?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Finding, Status, skip
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.run.facts import Facts
from checks.software.judging import OTHER_CONTAINER, elsewhere

CHECKS = CheckSet()

_SKEW = "software.version-skew"


@CHECKS.declare(_SKEW, "software", "system")
def version_skew(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_SKEW)
        return
    if needs.processes and all(elsewhere(facts, process) for process in needs.processes):
        yield skip(_SKEW, OTHER_CONTAINER)
        return
    engine = facts.software.engine
    if isinstance(engine, Unknown):
        yield Finding(_SKEW, Status.UNKNOWN, "host", text=engine.reason)
        return
    mooncake = engine.mooncake[0].version if engine is not None and engine.mooncake else ""
    sglang = engine.sglang.version if engine is not None and engine.sglang is not None else ""
    for name, wanted, have in (
        ("Mooncake", needs.mooncake_version, mooncake),
        ("SGLang", needs.sglang_version, sglang),
    ):
        if not wanted:
            yield skip(_SKEW, "the launch names no version of it", name)
        elif not have:
            yield skip(_SKEW, "it is not installed here", name)
        else:
            yield _judge_skew(name, wanted, have)


def _judge_skew(name: str, wanted: str, have: str) -> Finding:
    found = Finding(_SKEW, Status.PASS, name, f"{name} {have}", f"{name} {wanted}")
    # A local part names a build, not another release.
    if have.partition("+")[0] == wanted.partition("+")[0].removeprefix("v"):
        return found
    return found._replace(
        status=Status.WARN,
        text="what the launch needs was worked out for another release than runs here",
        advice=f"install {name} {wanted}, or give what is here: --{name.lower()}-version {have}",
    )
