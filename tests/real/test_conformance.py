"""The model against the real library: the same pages, to the page, and the same failures.

Each case runs in a process of its own, over TCP, on real HugeTLB pages, with a real master.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.cases import MORE, RECORDED, Case
from tests.real.conftest import HugePages, Wheel, free_port, start_master, stop
from tests.real.prediction import predict

WORKER = Path(__file__).with_name("worker.py")
CASES = RECORDED + MORE

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def master(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    wheel = request.getfixturevalue("wheel_0_3_13")
    process, address = start_master(wheel, tmp_path_factory.mktemp("master") / "log")
    yield address
    stop(process)


def run_worker(case: Case, wheel: Wheel, master: str) -> dict[str, object]:
    """What the library said and took; a signal counts as what it said."""
    clients = [vars(client) for client in case.clients]
    order = {
        "host_pools_bytes": case.host_pools_bytes,
        "clients": clients,
        "master": master,
        "port": free_port(),
    }
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MC_", "MOONCAKE_"))
    }
    environment |= {**wheel.environment, **case.environment}
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    # The library logs to standard output as well.
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"said"')]
    if not answers:
        return {"said": f"exit {done.returncode}: {done.stderr[-2000:]}", "pages": {}}
    answer: dict[str, object] = json.loads(answers[-1])
    return answer


def assert_conforms(case: Case, wheel: Wheel, master: str, huge_pages: HugePages) -> None:
    refused = huge_pages.set(case.pages_2m, case.pages_1g, case.overcommit_2m)
    if refused:
        pytest.skip(refused)
    predicted = predict(case, wheel.version)
    answer = run_worker(case, wheel, master)
    pages = answer["pages"]
    assert isinstance(pages, dict)
    said = str(answer["said"])
    assert (pages.get("2048kB", 0), pages.get("1048576kB", 0), said == "ok") == (
        predicted.pages_2m,
        predicted.pages_1g,
        not predicted.error,
    ), said
    # "RuntimeError: ..." and "setup returns -600: ..." both carry what the library itself says.
    if "returns" in predicted.error:
        assert said == predicted.error.split()[2].rstrip(":")
    else:
        assert predicted.error.removeprefix("setup raises ") in ("", said)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_pages_taken_are_pages_predicted(
    case: Case, wheel_0_3_13: Wheel, master: str, huge_pages: HugePages
) -> None:
    assert_conforms(case, wheel_0_3_13, master, huge_pages)


@pytest.mark.real_newest
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_newest_release(
    case: Case, wheel_0_3_14: Wheel, master: str, huge_pages: HugePages
) -> None:
    assert_conforms(case, wheel_0_3_14, master, huge_pages)
