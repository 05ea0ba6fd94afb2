"""Runs ``mooncake-preflight fleet node``: this node judged, and its report on one line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from checks.base.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.node.records import Json
from preflight.fleet.node.report import HOST_NAME, error_object, node_object, one_line
from preflight.inputs.host_source import Host
from preflight.inputs.launch_words import LaunchWords


def run_node(
    launch: LaunchWords, root: str, timeout_seconds: float, node: str, ignore: Sequence[str]
) -> int:
    """Print the report; returns the exit code of its verdict. Raises UsageError."""
    try:
        found = node_report(launch, root, timeout_seconds, node, ignore)
    except UsageError as error:
        say(one_line(error_object(node, exit_codes.USAGE, str(error))))
        raise
    say(one_line(found))
    return int(found["exit_code"])


def node_report(
    launch: LaunchWords, root: str, timeout_seconds: float, node: str, ignore: Sequence[str] = ()
) -> Json:
    """Return the report as data; ``node`` is the name it goes by, "" for its own.

    Raises UsageError for what is no launch or no host.
    """
    from checks.run.runner import every_check
    from preflight.check.report import Findings, consequences, report
    from preflight.judging.judge_host import judge_host
    from preflight.judging.launch_checks import LAUNCH_CHECKS

    checks = list(every_check())
    waivers = waivers_of(ignore)
    seen = judge_host(launch, root, timeout_seconds, checks)
    declared = [*(check for check, _ in checks), *LAUNCH_CHECKS]
    # What mends a finding is for the one node that somebody looks at: check says it there.
    found = Findings(seen.findings, consequences(declared), lambda _: ())
    judged_so = report(found, waivers, seen.needs, seen.host.name)
    return node_object(judged_so, seen, node, _host_name(seen.host), int(time.time()))


def waivers_of(ignore: Sequence[str]) -> Mapping[str, str]:
    """``ID=REASON`` by id. Raises UsageError where there is no such check."""
    if not ignore:
        return {}
    from checks.run.runner import every_check
    from preflight.check.answer import select
    from preflight.judging.launch_checks import LAUNCH_CHECKS
    from preflight.rules.launch_rules import RULES

    declared = [*(check.id for check, _ in every_check()), *(check.id for check in LAUNCH_CHECKS)]
    return select((), (), ignore, [*declared, *RULES]).ignore


def _host_name(host: Host) -> str:
    """What the node calls itself; a folder or capture that does not say goes by its own name."""
    name = host.root.word(HOST_NAME)
    if not isinstance(name, Unknown) and name:
        return name
    file = host.name.rstrip("/").rpartition("/")[2]
    return file.partition(".tar")[0]
