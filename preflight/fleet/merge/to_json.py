"""A fleet as one JSON object, ``schemas/fleet-v1.schema.json``; and what every way out prints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from preflight.base.program_version import program_version

if TYPE_CHECKING:
    from preflight.fleet.merge.records import Fleet, Variant

SCHEMA = "mooncake-preflight/fleet/v1"

Json = dict[str, Any]


def fleet_object(fleet: Fleet) -> Json:
    """The whole fleet; every list of nodes is a node set, folded."""
    from preflight.fleet.merge.fleet import nodes_text
    from preflight.fleet.merge.records import FAILING, PASSING
    from preflight.fleet.merge.words import verdict_text
    from preflight.fleet.reports.records import STATUSES

    @cache  # most of a fleet's lists are the same few
    def folded(places: tuple[int, ...]) -> str:
        return nodes_text(fleet, places)

    def nodes(places: Sequence[int]) -> Json:
        return {"count": len(places), "set": folded(tuple(places))}

    def variant(one: Variant) -> Json:
        return {"value": one.value, "nodes": nodes(one.nodes)}

    pool = fleet.pool
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": fleet.verdict,
        "exit_code": fleet.exit_code,
        "reason": verdict_text(fleet),
        "nodes": len(fleet.nodes),
        "expected": fleet.expected,
        "reports": {
            "read": fleet.reports,
            "not_usable": sum(one.times for one in fleet.unusable),
            "repeated": sum(fleet.repeats.values()),
        },
        "by_status": {status: nodes(fleet.of(status)) for status in STATUSES},
        "passing": nodes(fleet.of(*PASSING)),
        "failing": nodes(fleet.of(*FAILING)),
        "without_facts": nodes(fleet.without_facts),
        "findings": [
            {
                "id": one.finding.check,
                "status": one.finding.status,
                "ignored": one.finding.ignored,
                "of_fleet": one.of_fleet,
                "nodes": nodes(one.nodes),
                "subject": one.finding.subject,
                "have": one.finding.have,
                "need": one.finding.need,
                "text": one.finding.text,
            }
            for one in (*fleet.said, *fleet.waived, *fleet.passed)
        ],
        "drift": [
            {
                "fact": one.fact,
                "facts": list(one.facts),
                "most": None if one.most is None else variant(one.most),
                "others": [variant(other) for other in one.others],
                "unread": nodes(one.unread),
            }
            for one in fleet.drift
        ],
        "devices": [variant(one) for one in fleet.devices],
        "masters": [variant(one) for one in fleet.masters],
        "pool": None
        if pool is None
        else {
            "total_bytes": pool.total_bytes,
            "stores": pool.stores,
            "skew": pool.skew,
            "shares": [{"bytes": size, "nodes": nodes(places)} for size, places in pool.shares],
            "unread": nodes(pool.unread),
        },
        "unusable": [
            {
                "source": one.source,
                "line": one.line,
                "trouble": one.trouble.value,
                "reason": one.reason,
                "node": one.node,
                "count": one.times,
            }
            for one in fleet.unusable
        ],
        "repeats": dict(fleet.repeats),
    }
