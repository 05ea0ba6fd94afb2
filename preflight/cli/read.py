"""``mooncake-preflight read``: what was understood of a launch, and the keys that it stores by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from preflight.base.one_line import clean
from preflight.base.output import columns, painter, say
from preflight.base.usage_error import NoLaunchError
from preflight.base.within import within
from preflight.cli.commands import command, say_answer
from preflight.cli.options import COLOR, JSON, ROOT, TIMEOUT, with_launch, with_verbosity

if TYPE_CHECKING:
    from preflight.command_inputs.host_source import Host
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.needs.launch_sizing import LaunchSizing
    from preflight.verdict.store_keys import KeyMatch, StoreKeys

_COLOURS = {"equal": "green", "unknown": "magenta", "another store": "cyan"}


@command(
    "read",
    "mooncake-preflight read launch.sh",
    "mooncake-preflight read -v -- docker run --gpus all lmsysorg/sglang:v0.5.9 \\",
    "    python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B",
    "mooncake-preflight read --keys prefill.sh decode.sh",
)
@click.option(
    "--record", is_flag=True, help="Print the launch as it was read, for check on another host."
)
@click.option(
    "--keys",
    is_flag=True,
    help="The keys of what stores KV cache, and whether two processes, or two files, ever meet.",
)
@JSON
@TIMEOUT
@ROOT
@COLOR
@with_verbosity(
    "Every setting, with where it was written; -vv: the defaults too, also with --json."
)
@with_launch
def read(
    *,
    record: bool,
    keys: bool,
    as_json: bool,
    timeout_seconds: float,
    root: str,
    color: str,
    verbosity: int,
    launch: LaunchWords,
) -> int:
    """Say what a launch starts: every process, its settings, and what was not read.

    LAUNCH is what `check` takes, and it is read by the same code. Nothing of it is executed.

    With --record, what was understood of LAUNCH is printed as JSON, without secrets: a launch to
    every command, for a host that has not its files, or cannot read scripts. What it leaves open is
    that host's own.

    With --keys, every two processes of LAUNCH are compared; of two files, each process of one with
    each of the other. Their keys are equal, never equal, equal for different bytes, or this is not
    known; the reason is printed.

    Exit codes: 0 all of it was read; 3 something was not, and is named; 64 usage error; 70 a defect
    of this program. With --keys: 0 all keys are equal, or in stores of their own; 1 two never meet,
    or use one key for different bytes; 3 for two it is not known.
    """
    if record:
        from preflight.command_inputs.host_source import recorded_launch

        recorded = recorded_launch(launch)
        if recorded is None:
            why = "--record is about a launch: give a script, or a command after --"
            raise click.UsageError(why)
        say(recorded.decode())
        return 0
    if keys:
        return print_keys(launch, root, timeout_seconds, as_json, color)
    from checks.host_snapshot.secrets import public
    from preflight.command_inputs.host_source import open_host
    from preflight.command_inputs.reading.answer import reading_object, reading_text
    from preflight.command_inputs.reading.understood import read_whole

    host = open_host(root, timeout_seconds)
    name = launch.words[0] if len(launch.words) == 1 else "the launch, or a file that it names"
    reading = within(timeout_seconds, name, lambda: read_whole(launch, host))
    code = 3 if reading.unread else 0
    if as_json:
        unread = [f"{each.what}, {each.origin}: {each.why}" for each in reading.unread]
        body, word = public(reading_object(reading, verbosity > 1)), "unread" if unread else "read"
        of, first = (reading.name, reading.sentence), next(iter(unread), None)
        say_answer("launch", code, body, word=word, reason=first, launch=of)
    else:
        say(public(reading_text(reading, painter(color), columns(), verbosity)))
    return code


def print_keys(
    launch: LaunchWords, root: str, timeout_seconds: float, as_json: bool, color: str
) -> int:
    """Print the keys of every process that stores KV cache, and how the keys of each two relate.

    Two files are two launches: each process of one is compared with each of the other. Return 1 if
    the keys of two never meet or collide, else 3 if that is not known of two, else 0.
    """
    from checks.host_snapshot.secrets import public
    from preflight.command_inputs.host_source import open_host
    from preflight.command_inputs.reading.understood import sentence
    from preflight.needs.launch_needs import source_name
    from preflight.verdict.store_keys import Meeting, launch_keys, matches

    host = open_host(root, timeout_seconds)
    files = launch.words
    several = len(files) == 2 and not launch.is_command and all(map(os.path.isfile, files))
    each = [launch._replace(words=(file,)) for file in files] if several else [launch]
    sized = within(timeout_seconds, "the launch", lambda: [_sized(part, host) for part in each])
    sides = [launch_keys(each_sized) for each_sized in sized]
    pairs = list(matches(*sides))
    verdicts = {match.verdict for match in pairs}
    bad = verdicts & {Meeting.NEVER, Meeting.COLLIDE}
    code = 1 if bad else 3 * (Meeting.UNKNOWN in verdicts)
    bad = bad or {Meeting.UNKNOWN}
    if as_json:
        reasons = [match.reasons[0] for match in pairs if match.verdict in bad and match.reasons]
        summaries = (sentence(each_sized.inputs.processes) for each_sized in sized)
        launches = (" and ".join(map(source_name, sized)), "; ".join(summaries))
        why = next(iter(reasons), None)
        say_answer("keys", code, public(_object(sides, pairs)), launch=launches, reason=why)
    else:
        # A key's own text has a colon before an at sign, as a password in a URL has.
        say(_patterns(sides, columns()) + public(_text(pairs, painter(color), columns())))
    return code


def _sized(launch: LaunchWords, host: Host) -> LaunchSizing:
    """Return the sized launch.

    Raises:
        NoLaunchError: Without a launch.
    """
    from preflight.command_inputs.host_source import size_and_needs

    sized = size_and_needs(launch, host)
    if sized is None:
        raise NoLaunchError("--keys needs a launch: mooncake-preflight read --keys launch.sh")
    return sized.sizing


def _object(sides: Iterable[Iterable[StoreKeys]], pairs: Iterable[KeyMatch]) -> dict[str, Any]:
    """Return the keys of all processes, and how each two relate, for JSON."""
    return {
        "processes": [
            {
                "name": keys.process.name,
                "family": keys.family,
                "pattern": keys.pattern,
                "named": _texts(keys.named),
                "held": _texts(keys.content),
                "store": _texts(keys.store),
            }
            for side in sides
            for keys in side
        ],
        "pairs": [
            {
                "first": match.first.process.name,
                "second": match.second.process.name,
                "verdict": match.verdict.value,
                "reasons": list(match.reasons),
            }
            for match in pairs
        ],
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as a person writes it; an unknown one with its reason."""
    from checks.framework.unknown import Unknown

    return {
        name: f"unknown: {value.reason}" if isinstance(value, Unknown) else str(value)
        for name, value in values.items()
    }


def _patterns(sides: Iterable[Iterable[StoreKeys]], width: int) -> str:
    """Return the pattern of each process's keys as wrapped lines."""
    from preflight.base.text import wrapped

    texts = (f"{keys.process.name}, {keys.family}: {keys.pattern}" for s in sides for keys in s)
    lines = [line for text in texts for line in wrapped(clean(text), width)]
    return "\n".join(lines or ["No process of it stores KV cache in Mooncake."])


def _text(pairs: list[KeyMatch], paint: Callable[[str, str], str], width: int) -> str:
    """Return for each pair of processes the verdict, the parts of their keys side by side, and the
    reasons.

    Parts are left out for different engines or stores.
    """
    from preflight.base.text import wrapped

    lines = [""]
    for match in pairs:
        verdict = match.verdict.value
        first, second = (
            _texts({**keys.store, **keys.named, **keys.content})
            for keys in (match.first, match.second)
        )
        # Keys of two engines, or of two stores, have nothing to hold side by side.
        alike = match.first.family == match.second.family and verdict != "another store"
        head = f"{match.first.process.name} and {match.second.process.name}: "
        lines += ["", clean(head) + paint(verdict, _COLOURS.get(verdict, "red"))]
        for name in dict.fromkeys((*first, *second)) if alike else ():
            left, right = first.get(name, "-"), second.get(name, "-")
            mark = " " if left == right else "*"
            lines += wrapped(clean(f" {mark} {name}: {left} | {right}"), width)
        for reason in match.reasons:
            lines += wrapped(clean(f"  because {reason}"), width)
    return "\n".join(lines)
