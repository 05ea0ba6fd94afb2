"""Parts of an answer that launches hardly tell apart, each by the function that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from checks.framework.installed import Installed
from checks.framework.needs import Service
from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import open_root
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.replay import replay_endless
from preflight.engines.programs.memory_records import (
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.engines.sglang.admission_gate import FeasiblePages
from preflight.launches.shell_script import read_script
from preflight.needs.chosen_releases import choose_mooncake, installed_there
from preflight.needs.launch_needs import _segment_nodes
from preflight.needs.launch_sizing import Admission
from preflight.needs.process_shares import bound_nodes
from preflight.needs.shown_needs import _service
from preflight.needs.sizing import _unused_by
from preflight.needs.sizing_json import _admission
from tests.tables import each_row

WHEEL = ("mooncake-transfer-engine", "0.3.12")
OTHER = ("mooncake-transfer-engine-cuda13", "0.3.14")
SAME = (OTHER[0], WHEEL[1])


@each_row(
    ("stated", "installed", "version", "assumed", "notes"),
    [
        ("0.3.13", (WHEEL,), "0.3.13", False, []),
        (None, (WHEEL,), "0.3.12", False, []),
        (None, (WHEEL, SAME), "0.3.12", False, []),
        (None, (WHEEL, OTHER), "0.3.12", False, ["mooncake-installed-twice"]),
        (None, (("x", "0"),), "0.3.13.post1", True, ["mooncake-version-unread"]),
        (None, (), "0.3.13.post1", True, []),
    ],
)
def test_which_mooncake_a_launch_is_sized_for(
    stated: str | None,
    installed: tuple[tuple[str, str], ...],
    version: str,
    assumed: bool,
    notes: list[str],
) -> None:
    _, taken, said = choose_mooncake(stated, Installed(installed, None))
    assert (taken.value, taken.assumed, [note.id for note in said]) == (version, assumed, notes)


@each_row(
    ("host", "port", "shown"),
    [
        ("10.0.0.1", 50051, "10.0.0.1:50051/m"),
        ("10.0.0.1", None, "10.0.0.1/m"),
        (Unknown("$HOST is not set"), 50051, "$HOST is not set"),
    ],
)
def test_a_service_is_shown_by_its_address(
    host: str | Unknown, port: int | None, shown: str
) -> None:
    need = _service(Service("metadata-http", host, port, "/m", "rank 0", "run.sh:1", own=False))
    assert (need.what, need.owner, need.value) == ("metadata http", "rank 0", shown)


@each_row(
    ("refused", "late", "most", "admitted", "message", "feasible"),
    [
        (None, None, None, True, None, True),
        (None, None, 10, True, None, True),
        (None, "late", 9, True, "late", False),
        ("refused", "late", -1, False, "refused", False),
    ],
)
def test_an_admission_as_json(
    refused: str | None,
    late: str | None,
    most: int | None,
    admitted: bool,
    message: str | None,
    feasible: bool,
) -> None:
    pages = FeasiblePages(2 << 20, 10, most, "why")
    told = _admission(Admission("run.sh:1", refused, late, pages))
    assert (told["admitted"], told["message"]) == (admitted, message)
    assert told["hugepages"]["feasible"] is feasible
    assert told["hugepages"]["most_pages"] == (most if most is None else max(0, most))
    assert _admission(Admission("run.sh:1", refused, late, None))["hugepages"] is None
    assert _admission(Unknown("no size"))["admitted"] is None


@each_row(
    ("words", "nodes"),
    [
        ("mooncake_client", None),
        ("numactl --membind=0-1 mooncake_client", {0, 1}),
        ("numactl -m 1 mooncake_client", {1}),
        ("numactl --preferred=1 mooncake_client", None),  # takes pages of other nodes too
        ("docker run --cpuset-mems 0,1 img numactl -m 1 mooncake_client", {1}),
        ("docker run --cpuset-mems 0 img numactl -m 1 mooncake_client", None),
        ("docker run --cpuset-mems 2 img mooncake_client", {2}),
    ],
)
def test_nodes_that_a_command_is_bound_to(words: str, nodes: set[int] | None) -> None:
    command = read_script(f"{words}\n", "run.sh", {}).commands[-1]
    assert bound_nodes(command) == nodes


@each_row(("words", "told"), [("vllm serve m", True), ("docker run x/vllm:1 vllm serve m", False)])
def test_what_is_installed_tells_nothing_of_an_image(words: str, told: bool) -> None:
    installed = installed_there(read_script(f"{words}\n", "a", {}), open_root("demo:h800"))
    assert (installed is not None) is told


@each_row(
    ("version", "changes", "said"),
    [
        ("0.3.14", {}, ""),
        ("0.3.14", {"arena_bytes": None, "arena_disabled": True}, ""),
        ("0.3.14", {"arena_disabled": True}, "MC_DISABLE_MMAP_ARENA turns it off"),
        ("0.3.14", {"hugepages": False}, "without MC_STORE_USE_HUGEPAGE"),
        ("0.3.10", {}, "it came with 0.3.11"),
    ],
)
def test_why_an_arena_is_never_created(version: str, changes: dict[str, Any], said: str) -> None:
    settings = StoreSettings(hugepages=True, hugepage_bytes=2 * MIB, arena_bytes=64 * MIB)
    clients = (StoreClient(0, 16 * MIB, Protocol.TCP),)
    process = MappedProcess("a", settings._replace(**changes), clients=clients)
    release = mooncake_release(version)
    (asked,) = replay_endless(Launch((process,), release))
    notes = [note for note in _unused_by(asked, release, version) if "arena" in note.id]
    assert [said in note.text for note in notes] == [True] * bool(said)


@each_row(("numa_node", "nodes"), [(None, (0, 1)), (0, ())])
def test_a_segment_of_one_mapping_is_split_over_no_nodes(
    numa_node: int | None, nodes: tuple[int, ...]
) -> None:
    """Since 0.3.14 a bound process has its segment on its own node, whole."""
    settings = StoreSettings(hugepages=True, hugepage_bytes=2 * MIB)
    clients = (StoreClient(64 * MIB, 0, Protocol.RDMA),)
    process = MappedProcess("a", settings, clients=clients, node=numa_node)
    (asked,) = replay_endless(Launch((process,), mooncake_release("0.3.14"), (0, 1)))
    assert _segment_nodes(asked) == nodes


def test_a_version_that_cannot_be_read_is_refused_where_it_is_stated() -> None:
    with pytest.raises(ValueError, match="--mooncake-version 'latest'"):
        choose_mooncake("latest")
