"""``mooncake-preflight facts``: what was read of a host, before anybody judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.cli.commands import command
from preflight.cli.options import JSON, ROOT, TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


@command(
    "facts",
    "mooncake-preflight facts",
    "mooncake-preflight facts --json --root host.tar.gz",
)
@JSON
@TIMEOUT
@ROOT
@with_launch
def facts(*, as_json: bool, timeout_seconds: float, root: str, launch: LaunchWords) -> int:
    """Print what is read of this host, and why a fact is not known.

    With a launch, what it names is looked at too: its services, ports and paths.
    """
    from checks.base.unknown import Unknown
    from checks.capture.secrets import public
    from checks.run.facts import read_facts
    from preflight.base.output import columns, say, say_json
    from preflight.base.usage_error import UsageError
    from preflight.inputs.host_source import open_host, size_within
    from preflight.render.facts_text import facts_object, facts_text

    host = open_host(root, timeout_seconds)
    sized = size_within(launch, host, timeout_seconds)
    if isinstance(sized, Unknown):
        raise UsageError(sized.reason)
    found = read_facts(host.root, None if sized is None else sized.needs, timeout_seconds)
    if as_json:
        say_json(public(facts_object(found, root)))
    else:
        say(public(facts_text(found, columns())))
    return 0
