"""A fleet as one JSON object, ``schemas/fleet-v1.schema.json``; and what every way out prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from preflight.base.program_version import program_version

if TYPE_CHECKING:
    from preflight.fleet.merge.records import Drift, Fleet, Pool, Said, Variant
    from preflight.fleet.reports.records import Unusable

SCHEMA = "mooncake-preflight/fleet/v1"

Json = dict[str, Any]


def fleet_object(fleet: Fleet) -> Json:
    """The whole fleet; every list of nodes is a node set, folded."""
    from preflight.fleet.merge.records import FAILING, PASSING
    from preflight.fleet.merge.words import verdict_text
    from preflight.fleet.reports.records import STATUSES

    sets = _Sets(fleet)
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
        "by_status": {status: sets.of(fleet.of(status)) for status in STATUSES},
        "passing": sets.of(fleet.of(*PASSING)),
        "failing": sets.of(fleet.of(*FAILING)),
        "without_facts": sets.of(fleet.without_facts),
        "findings": [_said(one, sets) for one in (*fleet.said, *fleet.waived, *fleet.passed)],
        "drift": [_drift(one, sets) for one in fleet.drift],
        "devices": [_variant(one, sets) for one in fleet.devices],
        "masters": [_variant(one, sets) for one in fleet.masters],
        "pool": None if fleet.pool is None else _pool(fleet.pool, sets),
        "unusable": [_unusable(one) for one in fleet.unusable],
        "repeats": dict(fleet.repeats),
    }


class _Sets:
    """Places as node sets; most of a fleet's lists are the same few."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._folded: dict[tuple[int, ...], str] = {}

    def of(self, places: Sequence[int]) -> Json:
        from preflight.fleet.merge.fleet import nodes_text

        key = tuple(places)
        if key not in self._folded:
            self._folded[key] = nodes_text(self._fleet, key)
        return {"count": len(key), "set": self._folded[key]}


def _said(one: Said, sets: _Sets) -> Json:
    finding = one.finding
    return {
        "id": finding.check,
        "status": finding.status,
        "ignored": finding.ignored,
        "of_fleet": one.of_fleet,
        "nodes": sets.of(one.nodes),
        "subject": finding.subject,
        "have": finding.have,
        "need": finding.need,
        "text": finding.text,
    }


def _drift(one: Drift, sets: _Sets) -> Json:
    return {
        "fact": one.fact,
        "facts": list(one.facts),
        "most": None if one.most is None else _variant(one.most, sets),
        "others": [_variant(other, sets) for other in one.others],
        "unread": sets.of(one.unread),
    }


def _variant(one: Variant, sets: _Sets) -> Json:
    return {"value": one.value, "nodes": sets.of(one.nodes)}


def _pool(pool: Pool, sets: _Sets) -> Json:
    return {
        "total_bytes": pool.total_bytes,
        "stores": pool.stores,
        "skew": pool.skew,
        "shares": [{"bytes": size, "nodes": sets.of(places)} for size, places in pool.shares],
        "unread": sets.of(pool.unread),
    }


def _unusable(one: Unusable) -> Json:
    return {
        "source": one.source,
        "line": one.line,
        "trouble": one.trouble.value,
        "reason": one.reason,
        "node": one.node,
        "count": one.times,
    }
