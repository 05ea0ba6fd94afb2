"""A pair of nodes as one JSON object, ``schemas/pair-v1.schema.json``."""

from __future__ import annotations

from typing import Any

from preflight.base.program_version import program_version
from preflight.fleet.pairs.cause import failure_text, fate, reasons
from preflight.fleet.pairs.records import PROTOCOL, Flow, PairAnswer, Tried
from preflight.fleet.reports.records import EXIT_CODES

Json = dict[str, Any]


def pair_object(answer: PairAnswer) -> Json:
    """Times in seconds, None where nothing was acknowledged."""
    return {
        "schema": PROTOCOL,
        "version": program_version(),
        "status": answer.status,
        "exit_code": EXIT_CODES[answer.status],
        "peer": answer.peer,
        "connect_seconds": answer.connect_seconds,
        "error": answer.error,
        "over": answer.over,
        "pairs": [_pair(one) for one in answer.tried],
        "ports": [one._asdict() for one in answer.ports],
    }


def _pair(one: Tried) -> Json:
    return {
        "here": one.here._asdict(),
        "there": one.there._asdict(),
        "facts": {"reach": one.facts.reach.value, "reason": one.facts.reason},
        **_flow(one.out),
        "back": None if one.back is None else _flow(one.back),
        "broken": [{"way": way, "why": why} for way, why in reasons(one).items()],
        "cause": one.cause,
    }


def _flow(flow: Flow) -> Json:
    failure = flow.failure
    return {
        "small_seconds": flow.small_seconds,
        "large_seconds": flow.large_seconds,
        "failure": None
        if failure is None
        else {**failure._asdict(), "text": failure_text(failure)},
        "arrived_bytes": flow.arrived_bytes,
        "fate": fate(flow).value,
    }
