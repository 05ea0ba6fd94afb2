"""What the checks read of a host, recorded for another machine to judge."""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from checks.framework.recording import Answers
from checks.framework.unknown import Unknown
from checks.host_snapshot.anonymise import without_secrets
from checks.host_snapshot.capture import json_of
from checks.run_checks.facts import read_facts
from preflight.base.program import program_version
from preflight.base.usage_error import UsageError
from preflight.base.within import within
from preflight.command_inputs.host_source import Host, Sized, captured_installed, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.processes.processes import LaunchOptions

# A launch that asks a host for everything that reading a launch can ask for: the capture is then
# good for other launches too. It is only sized; nothing that it names is contacted.
WIDEST_LAUNCH = (
    "MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL=rdma "
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp-size 8 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"
).split()


class CaptureContent(NamedTuple):
    """What goes into a capture: the host's answers, and beside them the launch and the releases.

    Attributes:
        hosts: Names of other hosts that the launch talks to.
        sized: The launch's sizing; None without one.
    """

    answers: Answers
    extras: dict[str, Any]
    hosts: tuple[str, ...] = ()
    sized: Sized | None = None


def record(launch: LaunchWords, host: Host, timeout_seconds: float) -> CaptureContent:
    """Ask the host everything that checks ask, with the given launch and without a launch, and
    return the answers.

    Args:
        timeout_seconds: For each step.

    Raises:
        CaptureError: Before the host is asked, for a launch too large for a capture.
        UsageError: For a launch that cannot be read in time.
    """
    from preflight.command_inputs.launch_record import (
        environment_record,
        launch_from,
        launch_record,
    )
    from preflight.needs.launch_needs import launch_needs

    extras: dict[str, Any] = {
        "program": program_version(),
        "environment": environment_record(host.environment),
        "mooncake_version": launch.mooncake_version or host.extras.get("mooncake_version"),
        "installed": _installed(host),
        "launch": None,
    }
    files: dict[str, str | Unknown] = {}

    def size_the_widest() -> None:
        with suppress(UsageError):  # what it would have read stays unread: unknown for the others
            launch = read_launch(tuple(WIDEST_LAUNCH), (), {}, host.root)
            size_written(launch, LaunchOptions(), host.root)

    within(timeout_seconds, f"--root {host.name}", size_the_widest)
    name = launch.words[0] if len(launch.words) == 1 else "the launch, or a file that it names"
    sized = within(timeout_seconds, name, lambda: size_and_needs(launch, host, files))
    hosts: tuple[str, ...] = ()
    if sized is not None:
        extras["launch"] = launch_record(sized.launch, sized.options, files)
        json_of(extras)
    read_facts(host.root, None, timeout_seconds)
    if sized is not None:
        # As its record says it: that is what the host is asked for where the capture is read.
        again, _ = launch_from(extras["launch"], host.root.text)
        needs = launch_needs(size_written(again, sized.options, host.root))
        read_facts(host.root, needs, timeout_seconds)
        services = needs.services
        hosts = tuple(service.host for service in services if not isinstance(service.host, Unknown))
    return CaptureContent(without_secrets(host.root.answers), extras, hosts, sized)


def _installed(host: Host) -> dict[str, Any] | None:
    """Return the releases installed on the host, as plain data, for a launch that names none.

    The releases are those of the capture, else of the engine found on the host, else beside this
    program.

    Returns:
        None for a capture without releases.
    """
    from checks.framework import installed as here
    from checks.software.facts import installed_engine

    installed = captured_installed(host)
    if installed is None and host.capture is not None:
        return None
    if (installed := installed or installed_engine(host.root)) is None:
        both = here.installed_mooncake(), here.installed_sglang()
        installed = here.Installed(*both, others=here.installed_others())
    others = {"others": [list(pair) for pair in installed.others]} if installed.others else {}
    mooncake = [list(pair) for pair in installed.mooncake]
    return {"mooncake": mooncake, "sglang": installed.sglang, **others}


def own_names(host: Host) -> tuple[Iterable[str], Iterable[str]]:
    """Return (names of this machine, names of its users), which a capture replaces."""
    hosts = [os.uname().nodename] if host.root.live else []
    variables = ("HOSTNAME", "SLURMD_NODENAME", "NODE_NAME")
    hosts += [host.environment[name] for name in variables if host.environment.get(name)]
    shorts = [name.partition(".")[0] for name in hosts]
    users = [host.environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
    return [*hosts, *shorts], users
