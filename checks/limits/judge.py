"""Checks of the files that a launch may open, and of the user that runs it."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip
from checks.base.fold import fold
from checks.base.needs import ContainerLimits, LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.limits.facts import LIMITS, STATUS
from checks.limits.runtimes import DAEMON_OF_UNIT, Limit
from checks.memlock.demand import UNLIMITED, is_root, runtime_units
from checks.run.facts import Facts

CHECKS = CheckSet()

# SGLang utils/common.py set_ulimit(target_soft_limit=65535), the same from 0.5.2 to 0.5.23.
SGLANG_FILES = 65535


_FILES = "limits.nofile"


@CHECKS.declare(_FILES, "limits", "system")
def open_files(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_FILES)
        return
    servers = [process for process in needs.processes if process.program == "sglang"]
    if not servers:
        yield skip(_FILES, "the launch has no SGLang on this host")
        return
    yield from fold(_judge_files(facts, process) for process in servers)


def _judge_files(facts: Facts, process: ProcessNeeds) -> Finding:
    limit, source = _files_of(facts, process.container)
    need = f"{SGLANG_FILES} files"
    if isinstance(limit, Unknown):
        return Finding(_FILES, Status.UNKNOWN, process.name, need=need, text=limit.reason)
    soft, hard = ("unlimited" if part is None else str(part) for part in limit)
    have = f"{hard} files" if soft == hard else f"{soft} files soft, {hard} hard"
    evidence = (Evidence(source, f"Max open files: {soft} {hard}"),)
    found = Finding(_FILES, Status.PASS, process.name, have, need, evidence=evidence)
    if limit.hard is None or limit.hard >= SGLANG_FILES:
        return found
    return found._replace(
        status=Status.WARN,
        text="SGLang cannot raise its limit, and runs out of descriptors under load",
        advice="Raise the limit of open files where the process is started.",
        settings=(
            Setting(Kind.ULIMIT, "nofile", str(SGLANG_FILES), hard, described_by=process.runtime),
        ),
    )


def _files_of(facts: Facts, container: ContainerLimits | None) -> tuple[Limit | Unknown, str]:
    if container is None:
        return facts.limits.nofile, LIMITS
    if container.nofile is not None:
        own = None if container.nofile == UNLIMITED else container.nofile
        return Limit(own, own), container.origin
    if facts.system.container.kind != "none":
        return facts.limits.nofile, LIMITS
    for name in runtime_units(container.runtime):
        unit = facts.limits.runtimes.unit(name)
        if unit is not None and unit.running is not None:
            return unit.running.nofile, f"{DAEMON_OF_UNIT.get(name, name)}, running"
    return Unknown("the launch sets no nofile, and no daemon is seen that would hand one on"), ""


_RUN_AS = "limits.run-as"


@CHECKS.declare(_RUN_AS, "limits", "system")
def run_as(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_RUN_AS)
        return
    yield from fold(_judge_user(facts, process) for process in needs.processes)
    if not needs.processes:
        yield skip(_RUN_AS, "the launch has no process on this host")


def _judge_user(facts: Facts, process: ProcessNeeds) -> Finding:
    euid, sudo_uid = facts.limits.euid, facts.limits.sudo_uid
    container = process.container
    if container is not None and facts.system.container.kind == "none":
        text = "the launch runs in a container, and is judged by that container's settings"
        return skip(_RUN_AS, text, process.name)
    if isinstance(euid, Unknown):
        return Finding(_RUN_AS, Status.UNKNOWN, process.name, text=euid.reason)
    evidence = (Evidence(STATUS, f"Uid: {euid}"),)
    found = Finding(_RUN_AS, Status.PASS, process.name, f"user {euid}", evidence=evidence)
    other = ""
    user = container.user if container is not None else None
    if user is not None:
        uid = 0 if is_root(user) else user.partition(":")[0]
        # A name cannot be told from a number here; that it is not root can.
        named = not str(uid).isdecimal()
        if (named and euid == 0) or (not named and int(uid) != euid):
            other = f"user {user}"
    elif container is None and euid == 0 and isinstance(sudo_uid, int) and sudo_uid != 0:
        other = f"user {sudo_uid}, who called sudo"
    if not other:
        return found
    return found._replace(
        status=Status.WARN,
        need=other,
        text="limits and permissions seen here are not those that the server will have",
        advice="Run this check as that user.",
    )
