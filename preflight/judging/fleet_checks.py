"""Every finding of the ``fleet`` commands, in the order in which ``explain`` lists them.

Their pages are in ``pages/``. These have no judge of their own: they come of holding reports
together, or stand for a node that gave none. A pass is never said of them; what is not said was not
found.
"""

from __future__ import annotations

from checks.base.check import Check
from preflight.judging.pages import PAGES

# What is found -> the ids.
_SECTIONS = {
    "What `mooncake-preflight fleet merge` finds between nodes": (
        "fleet.master",
        "fleet.metadata",
        "fleet.mooncake-version",
        "fleet.same-machine",
    ),
    "What it finds between their NICs, and `fleet rails`": (
        "fleet.path-mtu",
        "fleet.rail-apart",
        "fleet.rail-same",
        "fleet.rail-unknown",
    ),
    "What it says of the reports themselves": (
        "fleet.report",
        "fleet.no-verdict",
        "fleet.several-reports",
        "fleet.old-report",
        "fleet.unexpected",
        "fleet.unusable",
    ),
    "What stands for a node that gave no report": (
        "fleet.ssh",
        "fleet.timeout",
        "fleet.tool",
        "fleet.python",
        "fleet.interrupted",
    ),
}
FLEET_CHECKS = tuple(Check(id_, (), PAGES) for ids in _SECTIONS.values() for id_ in ids)
