"""Checks of Mooncake's wheel: is it there for the interpreter that runs the launch, and once?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import ProcessNeeds
from checks.base.unknown import Unknown, known
from checks.software.facts import Environment, SoftwareFacts
from checks.software.judging import (
    OTHER_CONTAINER,
    elsewhere,
    pip,
    pip_install,
    using_mooncake,
)
from checks.system.facts import SystemFacts

CHECKS = CheckSet()
_MISSING_TEXT = (
    "Please install mooncake by following the instructions at "
    "https://kvcache-ai.github.io/Mooncake/getting_started/build.html "
    "to run SGLang with MooncakeConnector."
)


@CHECKS.check("software.mooncake-missing", using_mooncake)
def mooncake_missing(
    processes: list[ProcessNeeds], software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    yield from fold(_judge_missing(system, software, process) for process in processes)


def _judge_missing(system: SystemFacts, software: SoftwareFacts, process: ProcessNeeds) -> Finding:
    if elsewhere(system, process):
        return skip(OTHER_CONTAINER, process.name)
    environments = software.environments
    if isinstance(environments, Unknown):
        return unknown(process.name, environments.reason)
    engine = software.engine
    looked_at = ", ".join(environment.interpreter for environment in environments)
    need = "Mooncake installed"
    if not isinstance(engine, Environment):
        text = f"neither SGLang nor Mooncake is installed for {looked_at}"
        advice = "Run this check with the interpreter that runs the launch."
        return passed(process.name, need=need).unknown(text, advice=advice)
    found = passed(process.name, _have(engine), need)
    if engine.package is not None:
        return found._replace(evidence=(Evidence(engine.package, _have(engine)),))
    folders = ", ".join(engine.folders)
    return found.failed(
        f'it ends with "ImportError: {_MISSING_TEXT}"',
        f"Install mooncake-transfer-engine for {engine.interpreter}.",
        (pip_install(engine, "mooncake-transfer-engine"),),
        have="none",
        evidence=(Evidence(folders, "no folder mooncake with engine.so in it"),),
    )


def _have(engine: Environment) -> str:
    if engine.mooncake:
        return " and ".join(f"{one.name} {one.version}" for one in engine.mooncake)
    return "Mooncake without a wheel" if engine.package is not None else "none"


@CHECKS.check("software.mooncake-duplicate")
def mooncake_duplicate(software: SoftwareFacts) -> Iterator[Finding]:
    engine = known(software.engine)
    if engine is None:
        yield skip("neither SGLang nor Mooncake is installed here")
        return
    evidence = tuple(Evidence(one.folder, f"{one.name} {one.version}") for one in engine.mooncake)
    found = passed(engine.interpreter, _have(engine), evidence=evidence)
    if len(engine.mooncake) < 2:
        yield found
        return
    files = software.files
    wheels = {file.wheel for file in files if file.wheel} if isinstance(files, tuple) else set()
    on_disk = f"; the files on disk are of {' and '.join(sorted(wheels))}" if wheels else ""
    names = dict.fromkeys(one.name for one in engine.mooncake)
    keep = engine.mooncake[0]
    yield found.warned(
        f"they overwrite each other's files{on_disk}",
        "Uninstall all of them and install the one that is meant.",
        (
            pip(engine, "uninstall", "--yes", *names, name="uninstall Mooncake"),
            pip_install(engine, f"{keep.name}=={keep.version}"),
        ),
        need="one of them",
    )
