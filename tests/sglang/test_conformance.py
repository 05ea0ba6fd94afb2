"""The predicted host pools are those of SGLang's real classes, to the byte."""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import pytest

from checks.base.unknown import known
from checks.releases.sglang import sglang_release
from preflight.sglang.admission_gate import FreeMemory, gate
from preflight.sglang.host_pool_records import (
    HostPool,
    HostPools,
    PoolRequest,
    Refusal,
    stage_rows,
)
from preflight.sglang.host_pools import host_pools
from preflight.sglang.model_geometry import (
    AttentionKind,
    Heads,
    LayerKind,
    LinearState,
    ModelGeometry,
)
from tests.builders.examples import seeded
from tests.sglang.cases import CASES, VERSIONS, Case
from tests.sglang.rerun import RECORDED, run, run_all

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
    """What is predicted: the pools, or the words with which SGLang stops.

    The runner maps nothing that it does not touch: as on huge pages, memory stays available.
    """
    pools = host_pools(case.request(version))
    if not isinstance(pools, HostPools):
        return getattr(pools, "reason", "")
    memory = FreeMemory(case.available_bytes)
    for answer in gate(pools.pools, memory, 1, sglang_release(version), on_hugepages=True):
        if answer.message is not None:
            return f"ValueError: {answer.message}"
    return pools


@pytest.mark.parametrize(("version", "case"), PAIRS, ids=lambda part: getattr(part, "id", part))
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


def drawn(random: Random, case: Case, number: int) -> Case:
    """A case of the same kind with other numbers."""
    found = case._replace(
        id=f"{number}: {case.id}",
        page_tokens=random.choice((1, 16, 32, 64, 128)),
        device_tokens=random.choice((1024, 2048, 4992, 16384)),
    )
    if not (case.shared_index or case.packed_drafts):
        found = found._replace(layers=random.randint(1, 60))
    if case.head_dim:
        width = random.choice((64, 80, 128, 192))
        other = width if case.v_head_dim == case.head_dim else case.v_head_dim
        heads = random.choice((1, 2, 4, 8))
        found = found._replace(kv_heads=heads, head_dim=width, v_head_dim=other)
    if case.size_gb:
        return found._replace(size_gb=random.randint(1, 40))
    return found._replace(ratio=random.choice((1.1, 1.5, 2.0, 3.3)))


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.16", "0.5.20", "0.5.23"])
def test_random_geometries(version: str) -> None:
    """Eighty, on the real classes of each release; PREFLIGHT_SEED draws others."""
    random = seeded()
    known = [case for case in CASES if case.runs_on(version)]
    cases = [drawn(random, random.choice(known), number) for number in range(80)]
    real = run(version, [case.as_json() for case in cases])
    for case in cases:
        assert_predicted(version, case, real[case.id])


def windowed(random: Random, number: int) -> Case:
    """A geometry of full and sliding-window layers: gpt-oss and its kin, with other numbers."""
    width = random.choice((64, 80, 128, 192))
    found = Case(
        f"{number}: window",
        layers=random.randint(1, 40),
        kv_heads=random.choice((1, 2, 4, 8)),
        head_dim=width,
        v_head_dim=width,
        window_layers=random.randint(1, 40),
        window_heads=random.choice((1, 2, 4, 8)),
        item_bytes=random.choice((1, 2)),
        page_tokens=random.choice((1, 16, 32, 64, 128)),
        device_tokens=random.choice((1024, 2048, 4992, 16384, 1_234_432)),
        # The layouts by page stop with an IndexError where a pool has fewer pages than layers.
        layout=random.choice(("layer_first", "page_first")),
    )
    if random.random() < 0.7:
        return found._replace(size_gb=random.randint(1, 60))
    return found._replace(ratio=random.choice((0.5, 1.1, 1.5, 2.0, 3.3)))


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.16", "0.5.18", "0.5.23"])
def test_random_sliding_windows(version: str) -> None:
    """Sixty of both pools, split by the release's own function where it has one."""
    random = seeded()
    cases = [windowed(random, number) for number in range(60)]
    real = run(version, [case.as_json() for case in cases])
    for case in cases:
        assert_predicted(version, case, real[case.id])


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.16", "0.5.18", "0.5.23"])
def test_random_linear_states(version: str) -> None:
    """Bytes of a slot, the slots of a size, and the layouts that stop the server."""
    random = seeded()
    cases, requests = [], []
    for number in range(60):
        key_heads, layers = random.choice((4, 8, 16)), random.randint(1, 40)
        state = LinearState(
            key_heads,
            key_heads * random.choice((1, 2)),
            random.choice((64, 128)),
            random.choice((64, 128)),
            random.choice((3, 4)),
            random.choice((2, 4)),
        )
        size, tp = random.randint(1, 40), random.choice((1, 2, 4))
        layout = random.choice(("layer_first", "page_first", "page_first_direct", "page_head"))
        kinds = (LayerKind.FULL,) + (LayerKind.LINEAR,) * layers
        model = ModelGeometry("m", AttentionKind.MHA, kinds, 2, Heads(4, 128, 128), linear=state)
        release = sglang_release(version)
        requests.append(PoolRequest(model, release, 64, layout, size_gb=size, tp=tp))
        shape = {
            "key_heads": key_heads,
            "value_heads": state.value_heads,
            "key_dim": state.key_dim,
            "value_dim": state.value_dim,
            "kernel": state.conv_kernel,
            "tp": tp,
            "temporal_item_bytes": state.temporal_item_bytes,
            "linear_layers": layers,
        }
        of_pool = {"slots": 4, "ratio": 2.0, "size_gb": size, "layout": layout}
        cases.append({"id": str(number), "window_layers": 0, **shape, **of_pool})
    real = run(version, cases)
    for case, request in zip(cases, requests, strict=True):
        found, answer = real[str(case["id"])], host_pools(request)
        if "error" in found:
            assert isinstance(answer, Refusal), (case, found)
            assert answer.reason.startswith(found["error"]), (answer.reason, found)
            continue
        assert not isinstance(answer, Refusal), (case, answer)
        (row,) = stage_rows(request)
        slot_bytes = known(row.linear)
        slots = int(request.size_gb * 1e9 // slot_bytes) + 1  # the first slot holds nothing
        assert (found["slot_bytes"], found["slots"]) == (slot_bytes, slots), case
        assert found["bytes"] == slots * slot_bytes, case
