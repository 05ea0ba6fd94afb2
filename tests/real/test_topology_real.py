"""Mooncake's rule as it is foretold, against the rule as it is compiled.

The real library looks at hosts that the tests wrote: their ``/sys`` is mounted over this machine's
in a namespace of its own, and a preloaded library stands in for libibverbs and the CUDA runtime.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks.framework.needs import RdmaUse
from checks.placement.mooncake_topology import (
    ANY_PROCESS,
    View,
    differences,
    parse_locations,
    predict_view,
)
from checks.releases.mooncake import release_of
from checks.run_checks.facts import Facts
from tests.builders.synthetic import SyntheticHost, erdma_host, gpu_host, read_host
from tests.builders.topology_hosts import NAMED, random_host
from tests.real.conftest import Wheel, install

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
RANDOM_HOSTS = 12
# The rule as it is, the one before nodes were looked at, and a build without CUDA.
NEWEST, OLDEST, NO_CUDA = RELEASES = ("0.3.14", "0.3.7.post2", "0.3.13.post1")


class Asked(NamedTuple):
    """One host and one question; ``host`` is written below a folder of that name."""

    name: str
    host: SyntheticHost
    release: str
    devices: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


HOSTS = {
    **{name: make() for name, make in NAMED.items()},
    "2 GPUs and 2 eRDMA": erdma_host(),
    "no NIC": replace(gpu_host(), nics=()),
    **{f"random {seed}": random_host(seed) for seed in range(RANDOM_HOSTS)},
}
DEVICES = ("mlx5_6", "mlx5_1")
ASKED = [
    *(
        Asked(f"{name}, {release}", host, release)
        for release in RELEASES
        for name, host in HOSTS.items()
    ),
    *(Asked(f"named, {release}", gpu_host(), release, DEVICES) for release in RELEASES),
    Asked("filtered", gpu_host(), NEWEST, (), {"MC_TE_FILTERS": " mlx5_2, mlx5_3"}),
]


@pytest.fixture(scope="module")
def libraries(wheel_0_3_14: Wheel, wheel_0_3_13: Wheel) -> dict[str, Wheel]:
    if shutil.which("gcc") is None or shutil.which("unshare") is None:
        pytest.skip("needs gcc and unshare (apt-get install gcc libc6-dev util-linux)")
    oldest = install("mooncake-transfer-engine", OLDEST, "nvidia-cuda-runtime-cu12")
    runtime = tuple(path.parent for path in oldest.rglob("libcudart.so.12"))
    return {NEWEST: wheel_0_3_14, OLDEST: Wheel(OLDEST, oldest, runtime), NO_CUDA: wheel_0_3_13}


class Seen(NamedTuple):
    facts: Facts
    answer: Any


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, libraries: Mapping[str, Wheel]
) -> dict[str, Seen]:
    """The facts of each host, and what the real library says of it, by the question's name."""
    folder = tmp_path_factory.mktemp("hosts")
    preload = folder / "devices.so"
    source = HERE / "topology_devices.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", preload, source], check=True)
    facts: dict[str, Facts] = {}
    answers: dict[str, Any] = {}
    for release, wheel in libraries.items():
        orders = []
        for asked in ASKED:
            if asked.release == release:
                root = folder / f"{len(facts)}"
                facts[asked.name] = read_host(root, asked.host)
                orders.append(order(asked, root))
        file = folder / f"orders-{release}"
        file.write_text(json.dumps(orders))
        runner = [sys.executable, str(HERE / "topology_runner.py"), str(file)]
        environment = wheel.environment({"LD_PRELOAD": str(preload)})
        done = subprocess.run(
            ["unshare", "--mount", *runner],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if "unshare failed" in done.stderr or "mount:" in done.stderr:
            pytest.skip(f"mount namespaces are not permitted here: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr[-3000:]
        answers |= {row["id"]: row["answer"] for row in map(json.loads, done.stdout.splitlines())}
    return {name: Seen(facts[name], answers[name]) for name in answers}


def order(asked: Asked, root: Path) -> dict[str, Any]:
    rows = [f"nic {nic.name} uverbs{nic.number}" for nic in asked.host.nics]
    rows += [f"gpu {gpu.address.upper()}" for gpu in asked.host.gpus]
    (root / "stand-in").write_text("\n".join([*rows, ""]))
    return {
        "id": asked.name,
        "root": str(root),
        "devices": list(asked.devices),
        "variables": dict(asked.variables),
    }


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_the_library_says_what_was_foretold(asked: Asked, seen: Mapping[str, Seen]) -> None:
    """Every location, and which NICs are preferred there, to the name."""
    facts, answer = seen[asked.name]
    found = parse_locations(answer)
    assert isinstance(found, tuple), answer
    process = ANY_PROCESS._replace(
        environment=asked.variables, rdma=RdmaUse(asked.devices, "--device")
    )
    view = predict_view(
        facts.numa,
        facts.pci,
        facts.gpus,
        facts.rdma,
        process,
        release_of(asked.release),
        asked.release != NO_CUDA,
    )
    assert isinstance(view, View)
    assert differences(view.locations, found) == ()
    gpus = 0 if asked.release == NO_CUDA else len(asked.host.gpus)
    assert len(found) == asked.host.nodes + gpus


def test_the_hosts_tell_the_rules_apart(seen: Mapping[str, Seen]) -> None:
    """Else the two releases would prove no more than one."""
    apart = [name for name in HOSTS if _rows(seen, name, NEWEST) != _rows(seen, name, OLDEST)]
    assert len(apart) >= 3


def _rows(seen: Mapping[str, Seen], name: str, release: str) -> dict[str, list[set[str]]]:
    rows = seen[f"{name}, {release}"].answer
    return {place: [set(half) for half in halves] for place, halves in rows.items()}
