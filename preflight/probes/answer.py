"""What a probe of a device's registrable memory came to."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.base import exit_codes
from preflight.probes.child import Order
from preflight.probes.limits import Met
from preflight.probes.prediction import Ceiling, Need
from preflight.probes.run import Measurement
from preflight.probes.users import Users


class Answer(NamedTuple):
    """status: measured (no launch was given), fits, too little, unknown, refused."""

    status: str
    reason: str
    devices: tuple[str, ...] = ()
    order: Order | None = None
    predicted: tuple[Ceiling, ...] = ()
    measured: Measurement | None = None
    met: Met | None = None
    need: Need | Unknown | None = None
    users: tuple[Users, ...] = ()
    saved: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        codes = {
            "measured": exit_codes.PASS,
            "fits": exit_codes.PASS,
            "too little": exit_codes.FAIL,
        }
        return codes.get(self.status, exit_codes.UNKNOWN)
