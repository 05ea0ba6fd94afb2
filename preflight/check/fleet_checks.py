"""Every finding of the ``fleet`` commands: what it means, when it is given, and what to do.

These have no judge of their own: they come of holding reports together, or stand for a node that
gave none. A pass is never said of them; what is not said was not found.
"""

from __future__ import annotations

from checks.base.finding import Check
from preflight.check.fleet_checks_launch import FLEET_LAUNCH_CHECKS
from preflight.check.fleet_checks_nodes import NODE_CHECKS
from preflight.check.fleet_checks_rails import RAIL_CHECKS
from preflight.check.fleet_checks_reports import REPORT_CHECKS

# title -> the checks of one page's section, in the order in which they are listed.
FLEET_SECTIONS: dict[str, tuple[Check, ...]] = {
    "What `mooncake-preflight fleet merge` finds between nodes": FLEET_LAUNCH_CHECKS,
    "What it finds between their NICs, and `fleet rails`": RAIL_CHECKS,
    "What it says of the reports themselves": REPORT_CHECKS,
    "What stands for a node that gave no report": NODE_CHECKS,
}
FLEET_CHECKS: tuple[Check, ...] = tuple(
    check for checks in FLEET_SECTIONS.values() for check in checks
)
