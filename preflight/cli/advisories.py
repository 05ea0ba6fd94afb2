"""``mooncake-preflight advisories``: known-bad combinations, and which of them a launch is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from preflight.base.usage_error import UsageError
from preflight.cli.commands import command
from preflight.cli.options import COLOR, JSON, ROOT, TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.advisories.judge import Verdict
    from preflight.advisories.records import Advisory
    from preflight.inputs.launch_words import LaunchWords

SCHEMA = "mooncake-preflight/advisories/v1"
_NO_LAUNCH_GIVEN = "there is no launch: give a script, or a command after --"


@command(
    "advisories",
    "mooncake-preflight advisories",
    "mooncake-preflight advisories --affecting launch.sh",
    "mooncake-preflight advisories --osv > advisories.json",
)
@click.option(
    "--affecting", is_flag=True, help="Print those that affect LAUNCH, or may (the default)."
)
@click.option(
    "--all", "every", is_flag=True, help="Print all, and say of each whether it affects LAUNCH."
)
@JSON
@click.option("--osv", is_flag=True, help="The records as OSV: one JSON array.")
@click.option(
    "--osv-zip",
    metavar="FILE",
    help="Write a .zip for scanners: the records that depend on a wheel's release alone.",
)
@ROOT
@TIMEOUT
@COLOR
@with_launch
def advisories(
    *,
    affecting: bool,
    every: bool,
    as_json: bool,
    osv: bool,
    osv_zip: str | None,
    root: str,
    timeout_seconds: float,
    color: str,
    launch: LaunchWords,
) -> int:
    """Print known-bad combinations of releases, flags, kernels and drivers.

    Without LAUNCH, prints all of them. With LAUNCH, prints those that affect it on this host, those
    where that cannot be known, and those that can appear while it runs. What `check` already judges
    is not repeated.

    Exit codes: 0 none affects LAUNCH, or none was given; 1 one does, or may. What may only arise
    while it runs is shown and does not count, whether it is known or not.
    """
    if affecting and not launch.words and root == "/":
        raise UsageError(_NO_LAUNCH_GIVEN)
    if osv_zip is not None:
        return _write_zip(osv_zip)
    if osv:
        return _print_osv()
    if launch.words or affecting or root != "/":
        return _of_launch(launch, root, timeout_seconds, every, as_json, color)
    from preflight.advisories.records import advisories as records
    from preflight.base.output import columns, painter, say, say_json

    if as_json:
        rows = [_object(one) | _NO_LAUNCH for one in records()]
        say_json({"schema": SCHEMA, "exit_code": 0, "launch": None, "advisories": rows})
    else:
        say("\n".join(_row(one, "", painter(color), columns()) for one in records()))
    return 0


def _of_launch(
    launch: LaunchWords, root: str, timeout_seconds: float, every: bool, as_json: bool, color: str
) -> int:
    from checks.base.unknown import Unknown
    from checks.capture.secrets import public
    from preflight.advisories.judge import TOPICS, verdicts
    from preflight.base.output import columns, painter, say, say_json
    from preflight.judging.judge_host import judge_host

    seen = judge_host(launch, root, timeout_seconds, [], TOPICS)
    if seen.launch is None:
        raise UsageError(_NO_LAUNCH_GIVEN)
    if isinstance(seen.launch, Unknown):
        raise UsageError(seen.launch.reason)
    worst: dict[str, Verdict] = {}
    for verdict in verdicts(seen):
        held = worst.get(verdict.advisory.id)
        if held is None or _weight(verdict) > _weight(held):
            worst[verdict.advisory.id] = verdict
    shown = [one for one in worst.values() if every or _counts(one)]
    code = int(any(_counts(one) and not one.advisory.arises for one in worst.values()))
    if as_json:
        rows = [_object(one.advisory) | _verdict_object(one) for one in shown]
        source = None if seen.needs is None else seen.needs.source
        answer = {"schema": SCHEMA, "exit_code": code, "launch": source, "advisories": rows}
        from preflight.reading.understood import about

        processes = seen.launch.sizing.inputs.processes
        say_json(public(answer), launch=about(source or "", processes))
        return code
    paint, width = painter(color), columns()
    lines = [_row(one.advisory, _said(one), paint, width) for one in shown]
    say(public("\n".join(lines) or "none of the known problems affects this launch"))
    return code


def _weight(verdict: Verdict) -> int:
    return 2 if verdict.holds is True else 0 if verdict.holds is False else 1


def _counts(verdict: Verdict) -> bool:
    """Return whether to tell of a record: what a check judges by more facts, that check tells."""
    return verdict.holds is not False and not verdict.advisory.covered_by


def _said(verdict: Verdict) -> str:
    """Return what a record is to a launch, in a few words."""
    one = verdict.advisory
    if verdict.holds is False:
        return "not affected"
    if verdict.holds is not True:
        return f"not known: {verdict.holds.reason}"
    if one.covered_by:
        return f"may be: judged by {', '.join(one.covered_by)}"
    if one.arises:
        return f"may arise: {one.arises}"
    return f"affected: {verdict.process.name}, {verdict.product} {verdict.version}"


def _verdict_object(verdict: Verdict) -> dict[str, Any]:
    return {
        "affected": verdict.holds,
        "said": _said(verdict),
        "process": verdict.process.name,
    }


_NO_LAUNCH = {"affected": None, "said": "", "process": ""}


def _object(one: Advisory) -> dict[str, Any]:
    from preflight.advisories.records import condition_text, range_text

    return {
        "id": one.id,
        "check": one.check,
        "summary": one.summary,
        "severity": one.severity,
        "affected_ranges": [range_text(each) for each in one.affected],
        "condition": condition_text(one.when),
        "arises": one.arises,
        "seen": one.seen,
        "remedy": one.remedy,
        "evidence": list(one.evidence),
        "judged_by": list(one.covered_by or (one.check,)),
        "references": [url for _, url in one.references],
    }


def _row(one: Advisory, said: str, paint: Any, width: int) -> str:
    from preflight.advisories.records import range_text
    from preflight.render.text import wrapped

    ranges = "; ".join(map(range_text, one.affected))
    colour = "red" if one.grave else "yellow"
    text = f"{one.id}  {one.severity}: {one.summary} ({ranges})"
    head = "\n".join(wrapped(text, width, 14)).replace(one.severity, paint(one.severity, colour), 1)
    if not said:
        return head
    more = f"{said}. {one.remedy[:1].upper()}{one.remedy[1:]}."
    return "\n".join([head, *("              " + line for line in wrapped(more, width - 14, 0))])


def _print_osv() -> int:
    import json

    from preflight.advisories.records import advisories as records
    from preflight.advisories.records import as_osv
    from preflight.base.output import say

    say(json.dumps([as_osv(one) for one in records()], indent=2))
    return 0


def _write_zip(path: str) -> int:
    """Write what osv-scanner calls ``all.zip`` of an ecosystem: one JSON file a record."""
    import io
    import json
    import zipfile

    from preflight.advisories.records import advisories as records
    from preflight.advisories.records import as_osv, for_scanners
    from preflight.base.output import say
    from preflight.base.within import limit_seconds, save

    wanted = [as_osv(one) for one in records() if for_scanners(one)]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as made:
        for each in wanted:
            made.writestr(f"{each['id']}.json", json.dumps(each))
    save(f"--osv-zip {path}", path, content.getvalue(), 0o644, limit_seconds())
    say(f"{len(wanted)} records in {path}")
    return 0
