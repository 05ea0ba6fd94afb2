"""What is measured in a guest: two soft-RoCE devices, each in a network of its own, and three that
a bridge joins, of which ``tc`` slows one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lab.guest import run_in_guest
from tests.lab.rehearse_guest import FIRST_RELEASE
from tests.real.conftest import install_release
from tests.real.rehearse_launches import store

# Emulated, and beside other guests, the library takes most of a minute to load.
LIMIT_SECONDS, BUDGET = 2700, "4m"
LAUNCHES = {
    "healthy": store(MOONCAKE_DEVICE="rxe0"),
    "wrong GID": store(MOONCAKE_DEVICE="rxe0", MC_GID_INDEX="9"),
    "TCP forced": store(MOONCAKE_DEVICE="rxe0", MC_FORCE_TCP="1"),
    "rails apart": store(MOONCAKE_DEVICE="rxe0,rxe1"),
}
SCRIPT = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={tree}:{wheel}
ip link set lo up
for n in 0 1; do
  ip link set eth$n up; ip addr add 10.9.$n.1/24 dev eth$n
  rdma link add rxe$n type rxe netdev eth$n
done
sleep 1
"""


# Bytes to an address of this machine stay in it: rules send what leaves by one NIC through the
# bridge. A retry of soft-RoCE after its 67 ms fails transfers of the library, so few are on their
# way at a time: in full frames, two pieces of 64 KiB, that the delay holds up for half of that.
BRIDGE = """\
ip link add bridge type bridge; ip link set bridge up
number=1
for nic in fast slow peer; do
  ip link add $nic mtu 9000 type veth peer name of-$nic mtu 9000
  ip link set of-$nic master bridge; ip link set of-$nic up; ip link set $nic up
  ip addr add 10.8.0.$number/24 dev $nic
  ip rule add pref 1 iif $nic lookup local; ip rule add pref 2 oif $nic lookup $number
  ip route add 10.8.0.0/24 dev $nic table $number
  cd /proc/sys/net/ipv4/conf/$nic; echo 1 > accept_local; echo 0 > rp_filter
  echo 1 > arp_ignore; echo 2 > arp_announce; cd /
  rdma link add $nic type rxe netdev $nic
  number=$((number + 1))
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
ip rule add pref 3 lookup local; ip rule del pref 0
{python} -m preflight measure --serve --address 127.0.0.1 --spend 64mb --budget 20m {peer} \\
  > /run/served 2>&1 &
until where=$(grep -m 1 -o '127.0.0.1:[0-9]*' /run/served); do sleep 1; done
{measure} --to $where {pair} | tr -d '\\n'; echo
tc qdisc add dev slow root netem delay 30ms limit 20000
{measure} --to $where {pair} | tr -d '\\n'; echo
"""
FEW = {"MC_MAX_WR": "2", "MC_NUM_QP_PER_EP": "1"}
BRIDGED = {"peer": store(MOONCAKE_DEVICE="peer", **FEW)}
BRIDGED["pair"] = store(MOONCAKE_DEVICE="fast,slow", **FEW)


def run_measures(folder: Path) -> dict[str, Any]:
    """Return the answer of each launch's transfers, and of the bridged pair's: "bridged", and
    "slowed" once ``tc`` slows one."""
    wheel = install_release(FIRST_RELEASE)
    script = SCRIPT.format(tree=Path(__file__).parents[2], wheel=wheel.folder)
    words = f"{sys.executable} -m preflight measure --json --only transfer --spend 64mb"
    words += " --timeout 300 --budget"
    files = {}
    for name, text in {**LAUNCHES, **BRIDGED}.items():
        files[name] = folder / f"{name.replace(' ', '-')}.sh"
        files[name].write_text(text)
    for name in LAUNCHES:
        script += f"{words} {BUDGET} {files[name]} | tr -d '\\n'; echo\n"
    bridged = {name: files[name] for name in BRIDGED}
    script += BRIDGE.format(python=sys.executable, measure=f"{words} 6m", **bridged)
    lines = run_in_guest(script, folder, LIMIT_SECONDS)
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    return dict(zip((*LAUNCHES, "bridged", "slowed"), answers, strict=True))
