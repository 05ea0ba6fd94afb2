"""A plan as one JSON object, ``schemas/plan-v1.schema.json``."""

from __future__ import annotations

from typing import Any

from preflight.base.program_version import program_version
from preflight.base.shell import wanted_text
from preflight.render.plain_data import plain
from preflight.settings.records import Plan

SCHEMA = "mooncake-preflight/plan/v1"

Json = dict[str, Any]


def plan_object(plan: Plan, exit_code: int) -> Json:
    """Return the whole plan; values are text, as they are written where they are set.

    exit_code: of the process.
    """
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": "unknown" if plan.gaps else "known",
        "exit_code": exit_code,
        "source": plan.source,
        "changes": sum(setting.change for setting in plan.settings),
        "settings": [
            {
                "scope": setting.scope.value,
                "kind": setting.kind.value,
                "name": setting.setting.label,
                "now": setting.now,
                "wanted": wanted_text(setting.setting),
                "change": setting.change,
                "why": [{"check": why.check, "text": why.text} for why in setting.reasons],
                "survives_reboot": setting.lasts,
                "how": setting.how,
            }
            for setting in plan.settings
        ],
        "pools": [target.as_object() for target in plan.pools],
        "default_page_bytes": plain(plan.default_page_bytes),
        "unknown": [{"topic": gap.topic, "reason": gap.reason} for gap in plan.gaps],
        "conflicts": list(plan.conflicts),
        "left_out": list(plan.left_out),
        "impossible": list(plan.impossible),
        "undecided": list(plan.undecided),
        "unread": list(plan.unread),
    }
