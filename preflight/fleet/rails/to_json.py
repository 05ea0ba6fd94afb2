"""The rails of a fleet as one JSON object, ``schemas/rails-v1.schema.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from preflight.base.program_version import program_version
from preflight.fleet.base.node_sets import fold
from preflight.fleet.rails.answer import RailAnswer
from preflight.fleet.rails.rails import Lane
from preflight.render.plain_data import plain

SCHEMA = "mooncake-preflight/rails/v1"

Json = dict[str, Any]


def rails_object(answer: RailAnswer) -> Json:
    """kinds are numbered from 0; a meeting's ``ways`` are [NIC of one][NIC of the other]."""
    matrix = answer.matrix

    def nodes(places: Sequence[int]) -> Json:
        return {"count": len(places), "set": fold(answer.names[at] for at in places)}

    numbers = {id(group): at for at, group in enumerate(matrix.groups)}
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": answer.status,
        "exit_code": answer.exit_code,
        "reason": answer.reason,
        "not_usable": sum(one.times for one in answer.unusable),
        "findings": [
            {
                "id": one.check,
                "status": one.status,
                "nodes": nodes(places),
                "subject": one.subject,
                "have": one.have,
                "need": one.need,
                "text": one.text,
            }
            for one, places in answer.findings
        ],
        "kinds": [
            {
                "nodes": nodes(group.nodes),
                "affinity": group.affinity or None,
                "lanes": [_lane(lane) for lane in group.lanes],
            }
            for group in matrix.groups
        ],
        "kinds_compared": matrix.compared,
        "meetings": [
            {"kinds": [numbers[id(one.one)], numbers[id(one.other)]], "ways": plain(one.ways)}
            for one in matrix.meetings
        ],
    }


def _lane(lane: Lane) -> Json:
    return {
        "device": lane.device,
        "port": lane.port,
        "link_layer": lane.link_layer,
        "gid_type": lane.gid_type,
        "network": plain(lane.network),
        "routes": list(lane.exits),
        "doubt": lane.doubt or None,
    }
