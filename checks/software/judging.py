"""What the checks of software share: whom Mooncake is judged for, where, and how pip adds to it."""

from __future__ import annotations

from checks.base.finding import Finding, Setting, command, skip
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.run.facts import Facts
from checks.software.facts import Environment

OTHER_CONTAINER = "the launch runs in a container, and this is not it"
# The compiled files that each program loads or is, without their endings.
FILES_OF = {
    "sglang": ("engine", "store", "_store"),
    "store_service": ("store", "_store"),
    "mooncake_client": ("mooncake_client",),
    "mooncake_master": ("mooncake_master",),
}


def users(needs: LaunchNeeds) -> list[ProcessNeeds]:
    """The processes of the launch that load or run Mooncake's compiled files."""
    stored = any(service.kind in ("master", "client") for service in needs.services)
    return [
        process
        for process in needs.processes
        if process.program in FILES_OF
        and (process.program != "sglang" or stored or process.rdma is not None)
    ]


def elsewhere(facts: Facts, process: ProcessNeeds) -> bool:
    """Whether the process runs in a container that this check does not run in."""
    return process.container is not None and facts.system.container.kind == "none"


def none_to_judge(check: str, needs: LaunchNeeds | None) -> Finding | None:
    """The answer where there is no user of Mooncake to judge."""
    if needs is None:
        return skip(check)
    return None if users(needs) else skip(check, "no process of the launch uses Mooncake")


def pip_install(engine: Environment, *words: str) -> Setting:
    """Return the command that installs into the engine's environment."""
    return pip(engine, "install", *words, name=f"install {' '.join(words)}")


def pip(engine: Environment, *words: str, name: str) -> Setting:
    return command(engine.interpreter, "-m", "pip", *words, name=name)
