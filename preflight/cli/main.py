"""``mooncake-preflight``: is this machine able to run this launch?"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import click

from preflight.base.command_frame import own_words, run_command
from preflight.base.output import say, say_json
from preflight.base.program_version import program_version
from preflight.cli.options import CONTEXT, LazyGroup

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
    "capacity": "mooncake-preflight/capacity/v1",
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


@click.group(cls=LazyGroup, later=LATER, context_settings=CONTEXT)
@click.version_option(program_version(), "--version")
def command() -> None:
    """Know before the launch whether a host can run SGLang HiCache with Mooncake."""


def main() -> None:
    """The console script: every way out has its exit code, and no traceback."""
    # A process that lives this short has nothing to collect, and looking costs a tenth of it.
    gc.disable()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run with ``arguments``; returns the exit code."""

    def refused(exit_code: int, message: str) -> int:
        return refuse(arguments, exit_code, message)

    return run_command(command, NAME, arguments, refused)


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """The object, the line and the exit code that were asked for, where there is no answer."""
    from preflight.check.forms import PROTOCOLS, refusal_code, refusal_line

    words = own_words(arguments)
    asked = _value(words, "--exit-protocol")
    protocol = asked if asked in PROTOCOLS else "native"
    code = refusal_code(exit_code, protocol)
    if "--json" in words or (words[:1] == ("plan",) and _value(words, "--format") == "json"):
        own = SCHEMAS.get(next(iter(words), ""))
        if own is not None:
            from preflight.base.error_object import error_object as own_error

            say_json(own_error(own, exit_code, message))
            return exit_code
        from preflight.check.forms import error_object

        say_json(error_object(protocol, code, message))
        return code
    line = refusal_line(message, protocol)
    if line is not None:
        say(line)
    return code


def _value(words: Sequence[str], option: str) -> str:
    """What ``option`` was given, "" for nothing: the rest of the command line cannot be read."""
    found = ""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else next(iter(words[number + 1 :]), "")
    return found


if __name__ == "__main__":
    main()
