"""Each binding of libibverbs makes the same objects on a real soft-RoCE device, errors included."""

from __future__ import annotations

import errno
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lab.guest import run_in_guest, why_not

pytestmark = pytest.mark.lab

LIMIT_SECONDS = 280
# Where Debian puts pyverbs, for its own Python: seen by this one where it is the same release.
DISTRIBUTION = "/usr/lib/python3/dist-packages"
INVALID_ACCESS = 10  # enum ibv_wc_status: IBV_WC_REM_ACCESS_ERR
SCRIPT = """\
ip link set lo up
card=$(ls /sys/class/net | grep -v lo | head -1)
ip link set $card up
ip addr add 10.9.9.1/24 dev $card
rdma link add rxe0 type rxe netdev $card
sleep 1
export PYTHONPATH={tree}:{distribution} PYTHONDONTWRITEBYTECODE=1
{python} -m tests.lab.verbs_runner {libraries}
"""


def libraries() -> list[str]:
    """The bindings that are installed here."""
    found = ["ctypes_objects"]
    found += ["ibverbs_objects"] if find_spec("ibverbs") else []
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    there = any(tag in path.name for path in Path(DISTRIBUTION, "pyverbs").glob("*.so"))
    return [*found, "pyverbs_objects"] if there else found


def test_every_binding_says_the_same_of_a_device(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    script = SCRIPT.format(
        tree=Path(__file__).parents[2],
        distribution=DISTRIBUTION,
        python=sys.executable,
        libraries=" ".join(libraries()),
    )
    said = [json.loads(line) for line in run_in_guest(script, tmp_path, LIMIT_SECONDS)]
    assert [one.pop("library") for one in said] == libraries()
    kinds = {one.pop("kind") for one in said}
    assert len(kinds) == len(said)
    for one in said:
        assert one == {
            "mtu_bytes": 1024,
            "statuses": [0, 0],
            "arrived_bytes": 64 * 1024,
            "wrong key": INVALID_ACCESS,
            "absent": ["ibv_get_device_list", errno.ENODEV],
            "largest": True,
            "regions": 1,
            "refused": ["ibv_reg_mr", errno.EFAULT],
        }
