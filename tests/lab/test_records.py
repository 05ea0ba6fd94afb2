"""The records of the guests are of the experiments as they are declared now.

What is said of the next boot is what then was, on machines that restarted: two kernels of Debian
under GRUB, with systemd's own programs for sysctl.d (recorded in November 2026).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run
from tests.lab import engines, experiments, rehearsals
from tests.lab.faults import IN_PLACE_OF
from tests.lab.record import EVERY_FAULT
from tests.lab.results import capture, plain, recorded
from tests.rows import told

KINDS: dict[str, tuple[Any, ...]] = {
    "experiments": experiments.ALL,
    "rehearsals": rehearsals.ALL,
    "fittings": rehearsals.FITTINGS,
    "faults": EVERY_FAULT,
    "engines": engines.ALL,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_is_as_it_is_declared(kind: str) -> None:
    """Else: ``python -m tests.lab.record``, with the kind and the ids."""
    declared = {one.id: plain(one) for one in KINDS[kind]}
    rows = recorded(kind)
    assert [name for name, row in rows.items() if row["order"] != declared.get(name)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique(kind: str) -> None:
    assert len({one.id for one in KINDS[kind]}) == len(KINDS[kind])


def test_what_was_started_is_the_launch_itself() -> None:
    """But for SGLang, which no guest has: there it is the store on the same host."""
    faults = recorded("faults").values()
    others = {row["order"]["launch"] for row in faults if row["started"] != row["order"]["launch"]}
    assert others == set(IN_PLACE_OF)
    assert all(name.startswith("sglang") for name in others)


# Some pages: what of the next boot a launch asks for.
LAUNCH = (
    "MC_STORE_USE_HUGEPAGE=1 mooncake_client --protocol=rdma --device_names=rxe0 "
    "--global_segment_size=1GB\n"
)


@pytest.mark.parametrize("name", recorded("reboots"))
def test_the_huge_pages_of_the_next_boot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the check says of the capture that was made before the reboot."""
    file, path = tmp_path / "before.tar.gz", tmp_path / "launch.sh"
    file.write_bytes(capture(f"reboots/{name}"))
    path.write_text(LAUNCH)
    only = ("--only", "hugetlb.after-reboot")
    run(["check", "--json", "--root", str(file), "--mooncake-version", "0.3.14", *only, str(path)])
    rows = json.loads(capsys.readouterr().out)["findings"]
    (found,) = (one for one in rows if "2 MiB pages" in str(one["subjects"]))
    assert told(found, "have") == f"{recorded('reboots')[name]['then']['pages']} pages at boot"
    assert found["status"] == "warn"  # the launch takes more
