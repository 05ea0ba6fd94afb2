"""The rooms of preflight/fleet import in the order in which its docstring has them."""

from __future__ import annotations

import re
from pathlib import Path

import preflight.fleet
from tests.house.test_layers import imports

FOLDER = Path(preflight.fleet.__file__).parent


def test_a_room_imports_only_rooms_above_it() -> None:
    written = re.findall(r"^- (.+?):", preflight.fleet.__doc__ or "", re.MULTILINE)
    order = [re.findall(r"``(\w+)``", line) for line in written]
    place = {room: at for at, rooms in enumerate(order) for room in rooms}
    modules = [path for path in FOLDER.glob("*.py") if path.stem != "__init__"]
    packages = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert set(place) == packages | {path.stem for path in modules}
    for path in (*modules, *FOLDER.glob("*/*.py")):
        room = path.stem if path in modules else path.parent.name
        used = {name.split(".")[2] for name in imports(path) if name.startswith("preflight.fleet.")}
        assert all(other == room or place[other] < place[room] for other in used), path
