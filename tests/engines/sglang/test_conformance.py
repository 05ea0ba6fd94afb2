"""What SGLang's own releases do: host pools to the byte, arguments as their parsers read them, and
the words in which they refuse values."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from sglang_wheels import unpacked

from checks.releases.sglang import parse_version, sglang_release
from preflight.engines.programs.sglang_refusals import refusal_rows
from preflight.engines.sglang.admission_gate import FreeMemory, gate
from preflight.engines.sglang.host_pool_records import HostPool, HostPools
from preflight.engines.sglang.host_pools import host_pools
from tests.engines.sglang.argument_tables import VERSIONS as EVERY_VERSION
from tests.engines.sglang.argument_tables import differences
from tests.engines.sglang.cases import CASES, VERSIONS, Case
from tests.engines.sglang.rerun import RECORDED, run_all
from tests.tables import each_row

PAIRS = [(version, case) for version in VERSIONS for case in CASES if case.runs_on(version)]


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
    return results


def real_bytes(pool: HostPool, version: str) -> list[int]:
    """A pool's tensors. CPU torch cannot pin, so it shows none of the rounding of pinned ones."""
    if sglang_release(version).pinned_power_of_two:
        return [pool.bytes]
    return list(pool.allocations_bytes)


def outcome(version: str, case: Case) -> str | HostPools:
    """What is predicted: the pools, or the words with which SGLang stops. The runner maps nothing
    that it does not touch: as on huge pages, memory stays available."""
    pools = host_pools(case.request(version))
    if not isinstance(pools, HostPools):
        return getattr(pools, "reason", "")
    memory = FreeMemory(case.available_bytes)
    for answer in gate(pools.pools, memory, 1, sglang_release(version), on_hugepages=True):
        if answer.message is not None:
            return f"ValueError: {answer.message}"
    return pools


@each_row(("version", "case"), PAIRS)
def test_recorded(version: str, case: Case, recorded: dict[str, dict[str, Any]]) -> None:
    assert_predicted(version, case, recorded[version][case.id])


def assert_predicted(version: str, case: Case, real: dict[str, Any]) -> None:
    predicted = outcome(version, case)
    if isinstance(predicted, str):
        assert predicted.startswith(real["error"])
        return
    assert "error" not in real
    pools = predicted.pools
    assert [size for pool in pools for size in real_bytes(pool, version)] == real[
        "allocations_bytes"
    ]
    # To 0.5.10 one object holds the rows and the index keys.
    assert [pool.tokens for pool in pools][: len(real["tokens"])] == real["tokens"]
    assert pools[-1].pages == real["pages"][-1]


def test_enough_is_recorded(recorded: dict[str, dict[str, Any]]) -> None:
    assert set(recorded) == set(VERSIONS)
    assert sum("error" not in row for rows in recorded.values() for row in rows.values()) >= 30
    assert {(version, case.id) for version, case in PAIRS} == {
        (version, name) for version, rows in recorded.items() for name in rows
    }


@pytest.mark.sglang
@pytest.mark.parametrize("version", VERSIONS)
def test_rerun(version: str, recorded: dict[str, dict[str, Any]]) -> None:
    assert run_all(version) == recorded[version]


@pytest.mark.sglang
@pytest.mark.parametrize("version", os.environ.get("MOONCAKE_PREFLIGHT_RELEASE", "").split())
def test_asked_release(version: str) -> None:
    """A release that ``tools/add_release.py`` adds: every case, on its real classes."""
    results = run_all(version)
    assert results
    for case in CASES:
        if case.id in results:
            assert_predicted(version, case, results[case.id])


@pytest.mark.sglang
@pytest.mark.parametrize("version", EVERY_VERSION)
def test_arguments_as_the_real_parser(version: str) -> None:
    """Some 4,000 to 10,000 lines for each release: each argument, with values of every kind."""
    assert differences(version) == []


# The first and the last release of most rows, and the ones beside them.
REFUSING = ("0.5.2", "0.5.9", "0.5.14", "0.5.15", "0.5.18", "0.5.19", "0.5.21", "0.5.22", "0.5.23")
NAME = re.compile(r"\{[^}]*\}")


@pytest.mark.sglang
@pytest.mark.parametrize("version", REFUSING)
def test_messages_stand_in_the_sources(version: str) -> None:
    """What each row of refused values quotes: in its releases, and in no other."""
    folder = unpacked(version) / "sglang" / "srt"
    files = [folder / "server_args.py", *folder.glob("arg_groups/*.py")]
    files += folder.glob("mem_cache/*host*.py")
    joined = "".join(re.sub(r'"\s+f?"', "", file.read_text()) for file in files)
    source = NAME.sub("{}", joined)
    for row in refusal_rows():
        kind, quoted, says = row.says.partition("Error: ")
        if not quoted or kind.startswith("torch") or " == 0, with" in says:
            continue  # of no words of its own
        since, until = row.since or version, row.until or version
        holds = parse_version(since) <= parse_version(version) <= parse_version(until)
        assert (NAME.sub("{}", says) in source) == holds, says
