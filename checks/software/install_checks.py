"""Checks of Mooncake's wheel: is it there for the interpreter that runs the launch, and once?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.run.facts import Facts
from checks.software.facts import Environment
from checks.software.judging import (
    OTHER_CONTAINER,
    elsewhere,
    none_to_judge,
    pip,
    pip_install,
    users,
)

CHECKS = CheckSet()
_MISSING_TEXT = (
    "Please install mooncake by following the instructions at "
    "https://kvcache-ai.github.io/Mooncake/getting_started/build.html "
    "to run SGLang with MooncakeConnector."
)


_MISSING = "software.mooncake-missing"


@CHECKS.declare(_MISSING, "software", "system")
def mooncake_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    nobody = none_to_judge(_MISSING, needs)
    if nobody is not None or needs is None:
        yield nobody or skip(_MISSING)
        return
    yield from fold(_judge_missing(facts, process) for process in users(needs))


def _judge_missing(facts: Facts, process: ProcessNeeds) -> Finding:
    if elsewhere(facts, process):
        return skip(_MISSING, OTHER_CONTAINER, process.name)
    environments = facts.software.environments
    if isinstance(environments, Unknown):
        return Finding(_MISSING, Status.UNKNOWN, process.name, text=environments.reason)
    engine = facts.software.engine
    looked_at = ", ".join(environment.interpreter for environment in environments)
    need = "Mooncake installed"
    if not isinstance(engine, Environment):
        text = f"neither SGLang nor Mooncake is installed for {looked_at}"
        advice = "Run this check with the interpreter that runs the launch."
        return Finding(_MISSING, Status.UNKNOWN, process.name, need=need, text=text, advice=advice)
    found = Finding(_MISSING, Status.PASS, process.name, _have(engine), need)
    if engine.package is not None:
        return found._replace(evidence=(Evidence(engine.package, _have(engine)),))
    folders = ", ".join(engine.folders)
    return found._replace(
        status=Status.FAIL,
        have="none",
        text=f'it ends with "ImportError: {_MISSING_TEXT}"',
        evidence=(Evidence(folders, "no folder mooncake with engine.so in it"),),
        advice=f"Install mooncake-transfer-engine for {engine.interpreter}.",
        settings=(pip_install(engine, "mooncake-transfer-engine"),),
    )


def _have(engine: Environment) -> str:
    if engine.mooncake:
        return " and ".join(f"{one.name} {one.version}" for one in engine.mooncake)
    return "Mooncake without a wheel" if engine.package is not None else "none"


_DUPLICATE = "software.mooncake-duplicate"


@CHECKS.declare(_DUPLICATE, "software")
def mooncake_duplicate(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    engine = facts.software.engine
    if isinstance(engine, Unknown):
        yield Finding(_DUPLICATE, Status.UNKNOWN, "host", text=engine.reason)
        return
    if engine is None:
        yield skip(_DUPLICATE, "neither SGLang nor Mooncake is installed here")
        return
    evidence = tuple(Evidence(one.folder, f"{one.name} {one.version}") for one in engine.mooncake)
    found = Finding(_DUPLICATE, Status.PASS, engine.interpreter, _have(engine), evidence=evidence)
    if len(engine.mooncake) < 2:
        yield found
        return
    files = facts.software.files
    wheels = {file.wheel for file in files if file.wheel} if isinstance(files, tuple) else set()
    on_disk = f"; the files on disk are of {' and '.join(sorted(wheels))}" if wheels else ""
    names = dict.fromkeys(one.name for one in engine.mooncake)
    keep = engine.mooncake[0]
    yield found._replace(
        status=Status.WARN,
        need="one of them",
        text=f"they overwrite each other's files{on_disk}",
        advice="Uninstall all of them and install the one that is meant.",
        settings=(
            pip(engine, "uninstall", "--yes", *names, name="uninstall Mooncake"),
            pip_install(engine, f"{keep.name}=={keep.version}"),
        ),
    )
