"""``mooncake-preflight list`` and ``explain``: what there is to find, and what a log shows."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from preflight.cli.options import COLOR, JSON, command


@command("list")
def list_checks() -> int:
    """Print the id of every check, and what it asks."""
    from preflight.base.output import say

    say(list_text())
    return 0


@command(
    "explain",
    "mooncake-preflight explain memlock.limit",
    "mooncake-preflight explain --log server.log",
    "journalctl -u sglang | mooncake-preflight explain",
)
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--log", metavar="FILE", help="A server's log; - is standard input.")
@JSON
@COLOR
def explain(id_: str | None, log: str | None, as_json: bool, color: str) -> int:
    """Say what a check or a rule is about; or, given a log, what ended the server.

    explain ID prints the page of a check or rule. explain --log FILE, or explain < server.log,
    finds the lines of SGLang, Mooncake and the kernel that are known, the likeliest cause first.
    Exit codes with a log: 0 nothing known in it; 1 warnings alone; 2 the cause of a failure.
    """
    if (id_ is None) is (log is None) and (id_ is not None or sys.stdin.isatty()):
        raise click.UsageError("give the ID of a check (list prints them), or a log: --log FILE")
    if id_ is None:
        return explain_log_file(log or "-", as_json, color)
    if as_json:
        raise click.UsageError("--json is for a log; the page of an ID is text")
    from preflight.base.output import say

    say(explain_text(id_))
    return 0


def list_text() -> str:
    """Return every id with its question or finding, one a line: host, launch, fleet, rules."""
    from preflight.check.catalogue import catalogue

    every = catalogue()
    lines = [(check.id, check.page.asks) for check in every.checks.values()]
    lines += [(rule.id, f"finds {rule.finds}") for rule in every.rules]
    width = max(len(id_) for id_, _ in lines)
    return "\n".join(f"{id_:<{width}}  {asks}" for id_, asks in lines)


def explain_text(id_: str) -> str:
    """Return the page of a check or rule. Raises UsageError for an id that there is not."""
    from preflight.base.output import columns
    from preflight.base.usage_error import UsageError
    from preflight.check.catalogue import catalogue
    from preflight.check.page_text import as_text, check_page, rule_page
    from preflight.check.selection import nearest

    every = catalogue()
    if id_ in every.checks:
        return as_text(check_page(every.checks[id_]), columns())
    for rule in every.rules:
        if rule.id == id_:
            return as_text(rule_page(rule), columns())
    raise UsageError(f"{id_}: no check or rule has this id{nearest(id_, every.ids)}")


def explain_log_file(path: str, as_json: bool, color: str) -> int:
    """Print what is known of a log; returns 0, 1 or 2. Raises UsageError where it is not there."""
    from preflight.base.output import columns, painter, say, say_json
    from preflight.base.usage_error import UsageError
    from preflight.logs.explain import (
        LogReading,
        explanations_object,
        explanations_text,
        read_log,
    )
    from preflight.logs.patterns import Stage
    from preflight.logs.text import Bounded, read_blocks, why_no_log

    def read(stream: BinaryIO) -> LogReading:
        why = why_no_log(stream.fileno())
        if why:
            raise UsageError(f"{'standard input' if path == '-' else f'--log {path}'}: {why}")
        bounded = Bounded(stream)
        return read_log(read_blocks(bounded))._replace(whole=not bounded.cut)

    try:
        if path == "-":
            reading = read(sys.stdin.buffer)
        else:
            with open(path, "rb") as file:
                reading = read(file)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--log {path}: {reason}") from None
    stages = {each.stage for each in reading.explanations}
    code = 2 if stages - {Stage.WARNING} else len(stages)
    if as_json:
        say_json(explanations_object(reading, code))
    else:
        say(explanations_text(reading, painter(color), columns()), color=True)
    return code
