"""What observe says of real clients in a guest: two NUMA nodes, and a soft-RoCE device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.guest import run_in_guest
from tests.real.conftest import install_release

RELEASE = "0.3.13.post1"
# Emulated, a start of Python takes most of a minute beside other guests.
LIMIT_SECONDS = 1800
NODE_1 = "numactl --cpunodebind=1 --membind=1"


class Situation(NamedTuple):
    """One client. pages: of 2 MiB that the guest's two nodes have. front: stands before it. meant:
    what stands before it in the launch that it is held against; None for no launch."""

    pages: tuple[int, int]
    front: str = ""
    meant: str | None = None


SITUATIONS = {
    "as meant": Situation((40, 40), meant=""),
    "bound to node 1": Situation((40, 40), NODE_1, meant=NODE_1),
    "on the wrong node": Situation((0, 40), meant="numactl --membind=0"),
    "without the right to lock": Situation((40, 40), "setpriv --bounding-set=-ipc_lock"),
}
SCRIPT = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={tree}
ip link set lo up
ip link set eth0 up; ip addr add 10.9.0.1/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
sleep 1
pools() {{
  echo $1 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
  echo $2 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
}}
listens() {{
  for n in $(seq 300); do
    ss -ltn | grep -q ":$1 " && return
    sleep 1
  done
  cat /run/log; exit 1
}}
export MASTER_FLAGS="--rpc_port=50051 --metrics_port=9003"
env {library} {wheel}/mooncake/mooncake_master $MASTER_FLAGS > /run/master 2>&1 &
listens 50051
"""
CLIENT = """\
pools {pages[0]} {pages[1]}
ulimit -l unlimited
cat > /run/launch.sh <<END
{launch}
END
cat > /run/start.sh <<END
ulimit -l 34816
exec {front} {client}
END
env {library} MC_STORE_USE_HUGEPAGE=1 sh /run/start.sh > /run/log 2>&1 &
client=$!
listens 50052
{python} -m preflight observe --json --timeout 300 {words} | tr -d '\\n'; echo
rdma -j resource show mr | tr -d '\\n'; echo
kill -9 $client
wait $client || true
"""
FLAGS = (
    "--host=10.9.0.1 --port=50052 --metadata_server=P2PHANDSHAKE --protocol=rdma "
    "--device_names=rxe0 --master_server_address=10.9.0.1:50051 --global_segment_size=32MB"
)


class Observed(NamedTuple):
    """The answer of observe, and what ``rdma resource show mr`` lists of every process."""

    answer: dict[str, Any]
    regions: list[dict[str, Any]]

    def finding(self, check: str) -> dict[str, Any]:
        (finding,) = (each for each in self.answer["findings"] if each["check"] == check)
        return dict(finding)


def run_observes(folder: Path) -> dict[str, Observed]:
    """Return what is observed in each situation."""
    wheel = install_release(RELEASE)
    paths = ":".join(map(str, wheel.libraries))
    library = f"LD_LIBRARY_PATH={paths} " if paths else ""
    names = {"wheel": wheel.folder, "library": library}
    script = SCRIPT.format(tree=Path(__file__).parents[2], **names)
    client = f"{wheel.folder}/mooncake/mooncake_client {FLAGS}"
    for situation in SITUATIONS.values():
        meant = situation.meant
        script += CLIENT.format(
            python=sys.executable,
            client=client,
            launch=f"export MC_STORE_USE_HUGEPAGE=1\n{meant} mooncake_client {FLAGS}",
            words="--pid $client" if meant is None else "/run/launch.sh",
            **names,
            **situation._asdict(),
        )
    lines = [line for line in run_in_guest(script, folder, LIMIT_SECONDS) if line[:1] in ("{", "[")]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    found = [Observed(json.loads(answer), json.loads(regions)) for answer, regions in pairs]
    return dict(zip(SITUATIONS, found, strict=True))
