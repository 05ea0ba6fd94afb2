"""Everything that can be found, by id: by ``check`` (host, launch, rules), and by ``fleet``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from checks.base.check import Check, Judge
from preflight.rules.rules import Rule


class Catalogue(NamedTuple):
    """host: with their judges, in the order of ``list``. launch: made by reading the launch.

    fleet: made by holding nodes' reports together; ``check`` of one host never finds these.
    """

    host: tuple[tuple[Check, Judge], ...]
    launch: tuple[Check, ...]
    fleet: tuple[Check, ...]
    rules: tuple[Rule, ...]

    @property
    def checks(self) -> dict[str, Check]:
        every = [*(check for check, _ in self.host), *self.launch, *self.fleet]
        return {check.id: check for check in every}

    @property
    def ids(self) -> Sequence[str]:
        return [*self.checks, *(rule.id for rule in self.rules)]


def catalogue() -> Catalogue:
    """All of it; imports every module that declares something."""
    from checks.run.runner import every_check
    from preflight.judging.fleet_checks import FLEET_CHECKS
    from preflight.judging.launch_checks import LAUNCH_CHECKS
    from preflight.rules.launch_rules import RULES

    return Catalogue(
        tuple(every_check()), tuple(LAUNCH_CHECKS), FLEET_CHECKS, tuple(RULES.values())
    )
