"""A pair of nodes as one JSON object, ``schemas/pair-v1.schema.json``."""

from __future__ import annotations

from typing import Any

from preflight.fleet.fleet_records import EXIT_CODES
from preflight.fleet.pairs_cause import failure_text
from preflight.fleet.pairs_records import PROTOCOL, PairAnswer
from preflight.program_version import program_version

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
        "pairs": [
            {
                "here": one.here._asdict(),
                "there": one.there._asdict(),
                "facts": {"reach": one.facts.reach.value, "reason": one.facts.reason},
                "small_seconds": one.small_seconds,
                "large_seconds": one.large_seconds,
                "failure": None
                if one.failure is None
                else {**one.failure._asdict(), "text": failure_text(one.failure)},
                "cause": one.cause,
            }
            for one in answer.tried
        ],
        "ports": [one._asdict() for one in answer.ports],
    }
