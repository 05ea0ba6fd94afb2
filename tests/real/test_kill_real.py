"""``measure --kill`` with the real library over TCP: what is said is what happens, each time.

Each takes the seconds after which a master drops a client, or in which a call gives up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight.benchmark.measuring.kills import OBJECTS, Survival
from tests.real.conftest import Store, Wheel
from tests.real.measures import measure

pytestmark = pytest.mark.real

MASTER = "mooncake_master --client_ttl=2"
HTTP = "http://127.0.0.1:8080/metadata"
CLIENT = (
    "mooncake_client --host=127.0.0.1 --global_segment_size=64MB --protocol=tcp "
    "--metadata_server={} --master_server_address=127.0.0.1:50051"
)


def killed(
    wheel: Wheel, folder: Path, who: str, metadata: str, *master_words: str
) -> tuple[Survival, list[str]]:
    launch = folder / "launch.sh"
    launch.write_text(f"{' '.join((MASTER, *master_words))} &\n{CLIENT.format(metadata)}\n")
    code, answer = measure(wheel, "--kill", who, str(launch))
    said: dict[str, Any] = answer["answer"]["killed"]
    statements, objects = said.pop("statements"), said.pop("objects")
    found = Survival(**said)
    assert (code, objects) == (1, OBJECTS)
    return found, statements


def test_a_killed_clients_objects_are_lost_and_nothing_else(
    wheel_0_3_13: Wheel, tmp_path: Path
) -> None:
    """And a store that runs beside it is left alone."""
    beside = Store(wheel_0_3_13, tmp_path)
    try:
        found, statements = killed(wheel_0_3_13, tmp_path, "client", "P2PHANDSHAKE")
        assert beside._processes[0].poll() is None
    finally:
        beside.stop()
    assert found.lost is not None
    assert found.dropped_seconds is not None
    assert 0 < found.lost < OBJECTS
    assert 1 < found.dropped_seconds < 20
    assert found.gone_gets_failed > 0
    assert (found.newcomer, found.by_hand) == (OBJECTS, "nothing")
    assert f"{found.lost} of {OBJECTS} objects were lost" in statements
    assert any("tcp_transport" in line for line in found.messages)


def test_a_killed_master_takes_all_objects_with_it(wheel_0_3_13: Wheel, tmp_path: Path) -> None:
    """The clients join again by themselves."""
    found, _ = killed(wheel_0_3_13, tmp_path, "master", "P2PHANDSHAKE")
    assert found.gone_puts_failed == found.gone_puts > 0
    assert found.gone_gets_failed == found.gone_gets
    assert found.slowest_seconds > 1
    assert (found.lost, found.newcomer, found.by_hand) == (OBJECTS, OBJECTS, "nothing")
    assert found.back_seconds is not None


def test_names_in_a_killed_metadata_server_do_not_come_back(
    wheel_0_3_13: Wheel, tmp_path: Path
) -> None:
    """Those who know each other go on; who joins later does not find them."""
    found, _ = killed(wheel_0_3_13, tmp_path, "metadata", HTTP)
    assert (found.gone_puts_failed, found.gone_gets_failed, found.lost) == (0, 0, 0)
    assert found.join_refused.startswith("setup returns -600")
    assert found.newcomer == 0
    assert "start the clients again" in found.by_hand


def test_a_killed_clients_name_stays_in_the_metadata_server(
    wheel_0_3_13: Wheel, tmp_path: Path
) -> None:
    """It cannot start there before the name is deleted, and then the other does not find it."""
    switch = "--enable_http_metadata_server=true"
    found, statements = killed(wheel_0_3_13, tmp_path, "client", HTTP, switch)
    assert found.restart_refused.startswith("setup returns -600")
    assert "Failed to set location" in found.restart_refused
    assert found.mended_by.startswith("DELETE mooncake/rpc_meta/HOST:PORT")
    assert found.mended_by in statements[-1]
    assert found.back_seconds is None


@pytest.mark.parametrize(
    ("metadata", "words", "why"),
    [
        ("P2PHANDSHAKE", (), "has no metadata server"),
        (HTTP, ("--enable_http_metadata_server=true",), "--kill master"),
    ],
)
def test_a_metadata_server_that_is_none_is_not_killed(
    wheel_0_3_13: Wheel, tmp_path: Path, metadata: str, words: tuple[str, ...], why: str
) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text(f"{' '.join((MASTER, *words))} &\n{CLIENT.format(metadata)}\n")
    code, answer = measure(wheel_0_3_13, "--kill", "metadata", str(launch))
    assert code == 64
    assert why in answer["reason"]
