"""A variable that nothing sets is asked for where the shell that reads it finds it."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from checks.framework.unknown import Inside, OpenVariable
from preflight.launches.source import give_variables
from tests.tables import each_row


@each_row("kind", get_args(get_type_hints(Inside)["kind"]))
def test_every_kind_of_place_has_its_sentence(kind: Any) -> None:
    assert "TP" in give_variables([OpenVariable("TP", Inside(kind, "there"))])
