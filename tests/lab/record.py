"""Records captures of the guest for ``tests/data/lab``: ``python -m tests.lab.record``, as root.

Paths of the machine that records are replaced by those that a host would have.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from checks.base.archive import archive_bytes
from tests.lab.fault_guest import IN_FULL, run_faults
from tests.lab.faults import FAULTS
from tests.real.conftest import Wheel, install

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "lab"
# File -> the fault that it shows.
RECORDED = {
    "pool-on-the-wrong-node": "pool on the wrong node",
    "memlock-for-one-nic": "memlock that holds for one NIC and not for two",
    "both-ports-down": "both ports down",
    "hugetlb-cgroup-limit": "hugetlb cgroup limit",
}
RELEASE = "0.3.13.post1"


def main() -> None:
    wheel = Wheel(RELEASE, install("mooncake-transfer-engine-non-cuda", RELEASE))
    by_id = {fault.id: fault for fault in FAULTS}
    shown = {"healthy": replace(IN_FULL, starts="")}
    for name, fault in RECORDED.items():
        shown[name] = replace(
            by_id[fault], captured=True, in_full=True, starts="", again=False, mends=False
        )
    with tempfile.TemporaryDirectory() as folder:
        seen = run_faults(shown.values(), wheel, Path(folder), 600)
        places = {
            str(wheel.folder): "/opt/mooncake",
            folder: "/run/lab",
            sys.prefix: "/opt/mooncake-preflight",
            sys.base_prefix: "/usr/local",
            str(HERE.parents[1]): "/opt/source",
        }
    DATA.mkdir(parents=True, exist_ok=True)
    for name, fault_shown in shown.items():
        found = seen[fault_shown.id]
        assert found.capture, fault_shown
        assert not found.defect, found.defect
        (DATA / f"{name}.tar.gz").write_bytes(moved(found.capture, places))


def moved(capture: bytes, places: dict[str, str]) -> bytes:
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(capture)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                content = file.read()
                for here, there in places.items():
                    content = content.replace(here.encode(), there.encode())
                files[member.name] = content
    return archive_bytes(files)


if __name__ == "__main__":
    main()
