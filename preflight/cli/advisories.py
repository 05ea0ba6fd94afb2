"""``mooncake-preflight explain --advisories``: known-bad combinations, and which a launch is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight.base.output import columns, painter, say
from preflight.base.usage_error import UsageError
from preflight.cli.commands import say_answer

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.launch_problems.advisories.judge import Verdict
    from preflight.launch_problems.advisories.records import Advisory


def print_advisories(
    launch: LaunchWords | None,
    root: str,
    timeout_seconds: float,
    *,
    every: bool,
    as_json: bool,
    color: str,
) -> int:
    """Print the known-bad combinations: all, or those that affect the launch on a host, or may.

    Args:
        launch: None prints all records.
        every: All records too, each with its relation to the launch. Return the exit code: 1 if a
            record affects the launch or may, else 0. Records that only arise while the launch runs,
            or that a check judges, give 0.

    Raises:
        UsageError: For a wrong launch.
    """
    from preflight.launch_problems.advisories.records import advisories as records

    paint, width = painter(color), columns()
    if launch is None:
        without_launch = {"affected": None, "text": "", "process": ""}
        if as_json:
            rows = [_object(record) | without_launch for record in records()]
            say_answer("advisories", 0, {"advisories": rows}, host="/")
        else:
            say("\n".join(_record_text(record, "", paint, width) for record in records()))
        return 0
    from checks.framework.unknown import Unknown
    from checks.host_snapshot.secrets import public
    from preflight.launch_problems.advisories.judge import TOPICS, verdicts
    from preflight.verdict.judge_host import judge_host

    judged_host = judge_host(launch, root, timeout_seconds, [], TOPICS)
    if judged_host.launch is None:
        raise UsageError("there is no launch: give a script, or a command after --")
    if isinstance(judged_host.launch, Unknown):
        raise UsageError(judged_host.launch.reason)
    worst: dict[str, Verdict] = {}
    root_read = judged_host.host.root
    for verdict in verdicts(judged_host.launch, judged_host.facts, root_read):
        before = worst.get(verdict.advisory.id)
        if before is None or _weight(verdict) > _weight(before):
            worst[verdict.advisory.id] = verdict
    shown = [each for each in worst.values() if every or _counts(each)]
    code = int(any(_counts(each) and not each.advisory.arises for each in worst.values()))
    if as_json:
        rows = [
            _object(each.advisory)
            | {"affected": each.holds, "text": _relation(each), "process": each.process.name}
            for each in shown
        ]
        source = "" if judged_host.needs is None else judged_host.needs.source
        started = source, judged_host.launch.sizing.inputs.processes
        answer = public({"advisories": rows})
        count = sum(map(_counts, worst.values()))
        reason = f"{count} known problems affect this launch, or may" if code else None
        say_answer("advisories", code, answer, reason=reason, started=started, host=root)
        return code
    lines = [_record_text(each.advisory, _relation(each), paint, width) for each in shown]
    say(public("\n".join(lines) or "none of the known problems affects this launch"))
    return code


def _weight(verdict: Verdict) -> int:
    return 2 if verdict.holds is True else 0 if verdict.holds is False else 1


def _counts(verdict: Verdict) -> bool:
    """Tell whether a record counts: it affects the launch or may, and no check judges the same."""
    return verdict.holds is not False and not verdict.advisory.covered_by


def _relation(verdict: Verdict) -> str:
    """Return the relation of a record to a launch, in a few words."""
    record = verdict.advisory
    if verdict.holds is False:
        return "not affected"
    if verdict.holds is not True:
        return f"not known: {verdict.holds.reason}"
    if record.covered_by:
        return f"may be: judged by {', '.join(record.covered_by)}"
    if record.arises:
        return f"may arise: {record.arises}"
    return f"affected: {verdict.process.name}, {verdict.product} {verdict.version}"


def _object(record: Advisory) -> dict[str, Any]:
    """Return a record for JSON."""
    from preflight.launch_problems.advisories.records import condition_text, range_text

    return {
        "advisory": record.id,
        "check": record.check,
        "summary": record.summary,
        "severity": record.severity,
        "affected_ranges": [range_text(each) for each in record.affected],
        "condition": condition_text(record.when),
        "arises": record.arises,
        "seen": record.seen,
        "advice": record.remedy,
        "evidence": list(record.evidence),
        "judged_by": list(record.covered_by or (record.check,)),
        "references": [url for _, url in record.references],
    }


def _record_text(record: Advisory, relation: str, paint: Any, width: int) -> str:
    """Return a record as wrapped lines.

    Args:
        relation: Of the record to the launch; "" leaves out the relation and the remedy.
    """
    from preflight.base.text import wrapped
    from preflight.launch_problems.advisories.records import range_text

    ranges = "; ".join(map(range_text, record.affected))
    text = f"{record.id}  {record.severity}: {record.summary} ({ranges})"
    severity = paint(record.severity, "red" if record.grave else "yellow")
    head = "\n".join(wrapped(text, width, 14)).replace(record.severity, severity, 1)
    if not relation:
        return head
    more = f"{relation}. {record.remedy[:1].upper()}{record.remedy[1:]}."
    return "\n".join([head, *("              " + line for line in wrapped(more, width - 14, 0))])


def print_osv(zip_path: str | None) -> int:
    """Print all records as OSV; return 0.

    With ``zip_path``, write that .zip instead, with only the records for which a wheel's release is
    enough to judge.
    """
    import json

    from preflight.launch_problems.advisories.records import advisories as records
    from preflight.launch_problems.advisories.records import as_osv, for_scanners

    if zip_path is None:
        say(json.dumps([as_osv(record) for record in records()], indent=2))
        return 0
    import io
    import zipfile

    from preflight.base.within import limit_seconds, save

    wanted = [as_osv(record) for record in records() if for_scanners(record)]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as made:
        for each in wanted:
            made.writestr(f"{each['id']}.json", json.dumps(each))
    save(f"--osv-zip {zip_path}", zip_path, content.getvalue(), 0o644, limit_seconds())
    say(f"{len(wanted)} records in {zip_path}")
    return 0
