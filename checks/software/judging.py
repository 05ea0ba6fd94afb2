"""What the checks of software share: whom Mooncake is judged for, where, and how pip adds to it."""

from __future__ import annotations

from checks.base.check import the_launch
from checks.base.finding import Setting, UnjudgedError, command, skip
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.software.facts import Environment
from checks.system.facts import SystemFacts

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


def elsewhere(system: SystemFacts, process: ProcessNeeds) -> bool:
    """Whether the process runs in a container that this check does not run in."""
    return process.container is not None and system.container.kind == "none"


def using_mooncake(needs: LaunchNeeds | None) -> list[ProcessNeeds]:
    """Take the users of Mooncake in a launch."""
    found = users(the_launch(needs))
    if not found:
        raise UnjudgedError(skip("no process of the launch uses Mooncake"))
    return found


def pip_install(engine: Environment, *words: str) -> Setting:
    """Return the command that installs into the engine's environment."""
    return pip(engine, "install", *words, name=f"install {' '.join(words)}")


def pip(engine: Environment, *words: str, name: str) -> Setting:
    return command(engine.interpreter, "-m", "pip", *words, name=name)
