"""What workers of engines beside SGLang pin on two devices is what is predicted of their launch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab.core import recorded_and_live
from tests.lab.engines import ALL, Engine, predicted_bytes


@recorded_and_live("engine", ALL)
def test_what_is_pinned_is_what_is_predicted(
    engine: Engine, pinned: Mapping[str, Any], tmp_path: Path
) -> None:
    """Registered bytes are VmPin / 2, and no call was refused."""
    found = pinned[engine.id]
    assert set(found["said"]) == {0}, found
    assert found["pinned_bytes"] == predicted_bytes(engine, tmp_path)
