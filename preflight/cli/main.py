"""``mooncake-preflight``: is this machine able to run this launch?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from mooncake_preflight import answering
from preflight.base.command_frame import asked_version, own_words, run_command, value_of
from preflight.base.output import json_version, say, say_json
from preflight.base.program_version import program_version
from preflight.cli.commands import CONTEXT, LazyGroup, examples_text

NAME = "mooncake-preflight"

# Each is a module of its own: --help of one must not pay for the others.
LATER = {
    "Start here": {
        "read": "preflight.cli.read:read",
        "check": "preflight.cli.check:check",
        "explain": "preflight.cli.explain:explain",
        "fit": "preflight.cli.fit:fit",
    },
    "Set this host, and start the server": {
        "plan": "preflight.cli.plan:plan",
        "apply": "preflight.cli.apply:apply",
        "exec": "preflight.cli.exec:exec_",
    },
    "Look closer": {
        "capacity": "preflight.cli.capacity:capacity",
        "trace": "preflight.cli.trace:trace",
        "keys": "preflight.cli.keys:keys",
        "topology": "preflight.cli.topology:topology",
        "advisories": "preflight.cli.advisories:advisories",
        "diff": "preflight.cli.diff:diff",
        "rehearse": "preflight.cli.rehearse:rehearse",
        "probe": "preflight.cli.probe:probe",
        "facts": "preflight.cli.facts:facts",
        "list": "preflight.cli.explain:list_checks",
        "schema": "preflight.cli.schema:schema",
    },
    "Other machines": {
        "fleet": "preflight.cli.fleet:fleet",
        "capture": "preflight.cli.capture:capture",
        "bundle": "preflight.cli.bundle:bundle",
    },
    "Your shell": {"completion": "preflight.cli.completion:completion"},
}
# Those whose JSON is of a schema of its own, on every way out; the others speak as check does.
SCHEMAS = {
    "advisories": "mooncake-preflight/advisories/v1",
    "apply": "mooncake-preflight/apply/v1",
    "capacity": "mooncake-preflight/capacity/v1",
    "capture": "mooncake-preflight/capture/v1",
    "diff": "mooncake-preflight/diff/v1",
    "explain": "mooncake-preflight/explain-log/v1",
    "facts": "mooncake-preflight/facts/v1",
    "fit": "mooncake-preflight/fit/v1",
    "fleet": "mooncake-preflight/fleet/v1",
    "keys": "mooncake-preflight/keys/v1",
    "list": "mooncake-preflight/list/v1",
    "plan": "mooncake-preflight/plan/v1",
    "probe": "mooncake-preflight/probe-registration/v1",
    "read": "mooncake-preflight/launch/v1",
    "rehearse": "mooncake-preflight/rehearse/v1",
    "topology": "mooncake-preflight/topology/v1",
    "trace": "mooncake-preflight/trace/v1",
}


@click.group(
    cls=LazyGroup,
    later=LATER,
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight check launch.sh",
        "mooncake-preflight check --root demo:h800",
        "mooncake-preflight explain 'Failed to register memory'",
    ),
)
@click.version_option(program_version(), "--version")
def command() -> None:
    """Know before the launch whether a host can run SGLang HiCache with Mooncake."""


def main() -> None:
    """Run the console script: every way out has its exit code, and no traceback."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run with ``arguments``; returns the exit code."""

    def refused(exit_code: int, message: str) -> int:
        return refuse(arguments, exit_code, message)

    return run_command(command, NAME, arguments, refused)


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """Print the object or line that was asked for, where there is no answer.

    Returns the exit code.
    """
    from preflight.check.forms import PROTOCOLS, refusal_code, refusal_line

    words = own_words(arguments)
    asked = value_of(words, "--exit-protocol")
    protocol = asked if asked in PROTOCOLS else "native"
    code = refusal_code(exit_code, protocol)
    version = asked_version(words)
    if version is None and words[:1] == ("plan",) and value_of(words, "--format") == "json":
        version = json_version()
    if version is not None:
        own = SCHEMAS.get(next(iter(words), ""))
        if own is not None:
            from preflight.base.error_object import error_object as own_error

            say_json(own_error(own, exit_code, message), version=version, command=_path(words))
            return exit_code
        from preflight.check.forms import error_object

        found = error_object(protocol, code, message)
        say_json(found, version=version, command=_path(words))
        return code
    line = refusal_line(message, protocol)
    if line is not None:
        answering()
        say(line)
    return code


def _path(words: Sequence[str]) -> str:
    """Return the command that ``words`` begin with; the program's own name where they do not."""
    found: click.Command | None = command
    for count, word in enumerate(words):
        if isinstance(found, click.Group):
            found = found.get_command(click.Context(found), word)
        if not isinstance(found, click.Group):
            return " ".join(words[: count + (found is not None)]) or NAME
    return " ".join(words) or NAME


if __name__ == "__main__":
    main()
