"""Runs ``mooncake-preflight capacity``."""

from __future__ import annotations

import sys
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.base.output import columns, painter, say, say_json
from preflight.base.usage_error import UsageError
from preflight.capacity.answer import Answer, Asked, answer
from preflight.capacity.deployment import Cluster
from preflight.capacity.workload import Wanted
from preflight.inputs.host_source import LaunchWords, launch_of, open_host, size_within

NAME = "mooncake-preflight capacity"
EXIT_UNKNOWN = 3


class CapacityRequest(NamedTuple):
    """What the command line asks for."""

    launch: LaunchWords
    root: str
    timeout_seconds: float
    as_json: bool
    wanted: Wanted
    nodes_in_cluster: int | None = None
    other_bytes: int = 0
    watermark: float | None = None
    color: str = "auto"
    plain: bool = False


def run_capacity(request: CapacityRequest) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    found = capacity_of(request)
    if isinstance(found, Unknown):
        if request.as_json:
            from preflight.base.error_object import error_object
            from preflight.capacity.to_json import SCHEMA

            say_json(error_object(SCHEMA, EXIT_UNKNOWN, found.reason))
        else:
            say(f"{NAME}: {found.reason}", err=True)
        return EXIT_UNKNOWN
    exit_code = exit_code_of(found)
    if request.as_json:
        from preflight.capacity.to_json import capacity_object

        say_json(capacity_object(found, exit_code))
    else:
        from preflight.capacity.to_text import capacity_text
        from preflight.pictures.bars import draws_blocks

        plain = request.plain or not draws_blocks(sys.stdout.encoding)
        say(capacity_text(found, columns(), painter(request.color), plain), color=True)
    return exit_code


def capacity_of(request: CapacityRequest) -> Answer | Unknown:
    """The answer; Unknown where the launch could not be read in time. Raises UsageError."""
    host = open_host(request.root)
    sized = size_within(request.launch, host, request.timeout_seconds)
    if isinstance(sized, Unknown):
        return sized
    launch = None if sized is None else launch_of(request.launch, host)
    if sized is None or launch is None:
        raise UsageError("capacity is about a launch: give a script, or a command after --")
    from checks.storage.facts import read_storage

    _, options = launch
    asked = Asked(
        Cluster(request.nodes_in_cluster, request.other_bytes), request.wanted, request.watermark
    )
    folders = read_storage(host.root, sized.needs).folders
    return answer(sized.sizing.inputs, options, host.root, asked, folders)


def exit_code_of(found: Answer) -> int:
    """3 where a tier, or the workload that was asked about, is not known."""
    tiers = [tier for server in found.servers for tier in server.capacity.tiers]
    missing = any(isinstance(tier.tokens, Unknown) for tier in tiers)
    return EXIT_UNKNOWN if missing or isinstance(found.workload, Unknown) else 0
