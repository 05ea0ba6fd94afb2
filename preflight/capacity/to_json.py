"""The answer of ``capacity`` as one JSON object, ``schemas/capacity-v1.schema.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight.base.program_version import program_version
from preflight.render.plain_data import plain

if TYPE_CHECKING:
    from preflight.capacity.answer import Answer, ServerAnswer
    from preflight.capacity.records import Round, Tier

SCHEMA = "mooncake-preflight/capacity/v1"

Json = dict[str, Any]


def capacity_object(found: Answer, exit_code: int) -> Json:
    """All of the answer; numbers in bytes, tokens and parts of one."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": "known" if exit_code == 0 else "unknown",
        "exit_code": exit_code,
        "workload": None if found.workload is None else plain(found.workload),
        "servers": [_server(server, found) for server in found.servers],
        "notes": list(found.notes),
    }


def _server(server: ServerAnswer, found: Answer) -> Json:
    from preflight.capacity.conclusions import conclusions

    capacity = server.capacity
    return {
        "subject": server.subject,
        "model": server.model,
        "page_tokens": server.page_tokens,
        "bytes_per_token": plain(capacity.bytes_per_token),
        "tiers": [_tier(tier) for tier in capacity.tiers],
        "keys": plain(capacity.keys),
        "rounds": [_round(each) for each in capacity.rounds],
        "conclusions": list(conclusions(server, found.workload)),
        "notes": list(server.notes),
    }


def _tier(tier: Tier) -> Json:
    return {
        "name": tier.name,
        "what": tier.what,
        "bytes": plain(tier.bytes),
        "tokens": plain(tier.tokens),
        "conversations": plain(tier.conversations),
        "formula": tier.formula,
    }


def _round(each: Round) -> Json:
    likely = dict(each.likely)
    return {
        "number": each.number,
        "held_tokens": each.held_tokens,
        "reusable_tokens": each.reusable_tokens,
        "hits": [
            {"up_to": name, "least": least, "most": most, "likely": likely.get(name)}
            for name, least, most in each.hits
        ],
        "evicting": list(each.evicting),
        "may_evict": list(each.may_evict),
    }
