"""What one node reports to its fleet: one object on one line, ``schemas/node-v1.schema.json``.

The contract between whoever asks the nodes (ssh, Slurm, Kubernetes) and ``fleet merge``. The keys
of a report, all of which every report has (the last is for errors alone):

- ``schema``, ``version``: of the format, of the program that wrote it.
- ``node``: the name by which the node was asked for, its own host name where it was not asked by
  one. ``host``: what the node calls itself. ``boot``: the kernel's boot id, "" where it is not
  known: two names with one boot id are one machine.
- ``made_unix_seconds``: when, by the node's own clock; 0 where nothing was read.
- ``status``: pass, warn, fail, unknown; ``error`` where the node gave no verdict. ``exit_code``: of
  that verdict. ``reason``: one sentence. ``counts``: findings by status, before folding, and
  ``ignored``.
- ``findings``: what did not pass, the worst first, equal ones folded: ``{check, status, subjects,
  have, need, text}``, each a text but ``subjects``, a list; an ignored one also has ``ignored``,
  the reason. What was skipped is left out. ``launch.sh:7 rank 0`` is a subject as any other.
- ``passes``: ``[check, subject, have]``, the subject folded (``mlx5_0-7``), each cut at 80
  characters.
- ``facts``: what like nodes share, flat: name -> text, whole number or boolean (see
  ``node_facts``). ``unknown_facts``: name -> why it could not be read. A name in neither: the node
  has no such thing.
- ``rails``: the RDMA ports with their addresses and ways out (see ``node_rails.Rail``), or
  ``{"unknown": reason}``. ``routes``: rows of the main IPv4 and IPv6 routing tables that lead out
  of an interface: ``[destination/prefix, gateway or "", interface]``, or ``{"unknown": reason}``.
- ``launch``: what the launch does on this node (see ``node_launch``); None without one.
- ``error``: with status ``error`` alone: why there is no verdict.

A node that gave no report at all has one made for it by ``absent``: status unknown, one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from preflight.base.program_version import program_version

if TYPE_CHECKING:
    from checks.base.unknown import Unknown
    from preflight.check.judged_host import Judged
    from preflight.check.report import Report, Row

SCHEMA = "mooncake-preflight/node/v1"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"
# What passed is shown by its beginning.
LONGEST_PASS = 80
# What stands between a verdict and its words when nobody got through: as of finding.Status.
UNKNOWN_EXIT_CODE = 3

Json = dict[str, Any]


def node_object(report: Report, seen: Judged, node: str, host: str, now_unix_seconds: int) -> Json:
    """The report of a node that was judged. ``node`` "": it goes by its own name."""
    from checks.base.finding import Status
    from checks.base.unknown import Unknown
    from preflight.check.verdict import verdict_reason
    from preflight.fleet.node.facts import node_facts
    from preflight.fleet.node.launch import node_launch
    from preflight.fleet.node.rails import rails, routes
    from preflight.render.plain_data import plain

    ports = rails(seen.facts, seen.needs)
    shared = () if isinstance(ports, Unknown) else ports
    known, unknown = node_facts(seen.facts, shared, seen.needs, seen.host.root)
    wanting = [row for row in report.rows if row.finding.status not in (Status.PASS, Status.SKIP)]
    boot = seen.host.root.word(BOOT_ID)
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "node": node or host,
        "host": host,
        "boot": "" if isinstance(boot, Unknown) else boot,
        "made_unix_seconds": now_unix_seconds,
        "status": report.verdict.value,
        "exit_code": report.exit_code,
        "reason": verdict_reason(report),
        "counts": dict(report.counts),
        "findings": [_finding(row) for row in wanting],
        "passes": _passes(report.of(Status.PASS)),
        "facts": known,
        "unknown_facts": unknown,
        "rails": plain(ports),
        "routes": _rows(routes(seen.host.root)),
        "launch": None if seen.needs is None else node_launch(seen),
    }


def _passes(rows: Iterable[Row]) -> list[list[str]]:
    """One row for all subjects of which a check says the same: most of a report, so kept short."""
    from preflight.check.report import fold

    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        alike.setdefault((row.finding.check, row.finding.have), []).append(row.finding.subject)
    return [
        [check, _short(fold(subjects)), _short(have)] for (check, have), subjects in alike.items()
    ]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_PASS else f"{text[: LONGEST_PASS - 3]}..."


def _rows(found: Sequence[tuple[str, ...]] | Unknown) -> Any:
    from checks.base.unknown import Unknown

    if isinstance(found, Unknown):
        return {"unknown": found.reason}
    return [list(row) for row in found]


def _finding(row: Row) -> Json:
    finding = row.finding
    found: Json = {
        "check": finding.check,
        "status": finding.status.value,
        "subjects": list(row.subjects),
        "have": finding.have,
        "need": finding.need,
        "text": finding.text,
    }
    return found if row.ignored is None else {**found, "ignored": row.ignored}


def absent(node: str, check: str, text: str, have: str = "", need: str = "") -> Json:
    """The report that stands for a node which gave none. text: what stood in the way."""
    finding = {
        "check": check,
        "status": "unknown",
        "subjects": [node],
        "have": have,
        "need": need,
        "text": text,
    }
    return {
        **_empty(node),
        "status": "unknown",
        "exit_code": UNKNOWN_EXIT_CODE,
        "reason": f"{node}: {text}",
        "counts": {**_no_counts(), "unknown": 1},
        "findings": [finding],
    }


def error_object(node: str, exit_code: int, message: str) -> Json:
    """The report of a node on which the program ended without a verdict."""
    return {
        **_empty(node),
        "status": "error",
        "exit_code": exit_code,
        "reason": message,
        "counts": _no_counts(),
        "error": message,
    }


def _empty(node: str) -> Json:
    """Every key, in the order of a report that has something to say."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "node": node,
        "host": "",
        "boot": "",
        "made_unix_seconds": 0,
        "status": "",
        "exit_code": 0,
        "reason": "",
        "counts": {},
        "findings": [],
        "passes": [],
        "facts": {},
        "unknown_facts": {},
        "rails": {"unknown": "not read"},
        "routes": {"unknown": "not read"},
        "launch": None,
    }


def _no_counts() -> dict[str, int]:
    return dict.fromkeys(("fail", "unknown", "warn", "pass", "skip", "ignored"), 0)


def one_line(report: Json) -> str:
    """The report as it travels: compact, ASCII, no line feed in it."""
    import json

    return json.dumps(report, separators=(",", ":"))


def required_keys() -> Sequence[str]:
    """The keys without which a text is no report."""
    return tuple(_empty(""))
