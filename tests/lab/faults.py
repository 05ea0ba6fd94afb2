"""What is broken in the guest, one thing at a time, and which checks must say so: faults.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MASTER_PORT, OTHER_MASTER_PORT, CLIENT_PORT, SERVICE_PORT = 5051, 6051, 5052, 5081
USER = 1000

# The client's own settings; each launch that runs for real starts its master too.
_CLIENT = (
    f"mooncake_client --host=10.0.0.1 --port={CLIENT_PORT} --protocol=rdma "
    f"--master_server_address=127.0.0.1:{MASTER_PORT} --metadata_server=P2PHANDSHAKE"
)
_MASTER = f"mooncake_master --rpc_port={MASTER_PORT} --metrics_port=5053 &\nsleep 1\n"
_HUGE = "export MC_STORE_USE_HUGEPAGE=1\n"
_SEGMENT = "--global_segment_size=80MB"
_SGLANG = (
    f"{_HUGE}export MOONCAKE_MASTER=127.0.0.1:{MASTER_PORT}\n"
    "export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE\n"
    "export MOONCAKE_LOCAL_HOSTNAME=${HERE:-10.0.0.1}\n"
    "export MOONCAKE_PROTOCOL=rdma MOONCAKE_GLOBAL_SEGMENT_SIZE=83886080\n"
    f"{_MASTER}"
    "python3 -m sglang.launch_server --model-path /run/lab/model --hicache-size 1 --page-size 64 "
    "--enable-hierarchical-cache --hicache-mem-layout page_first --port 3000 "
    "--hicache-storage-backend mooncake"
)
LAUNCHES: Mapping[str, str] = {
    "client": f"{_HUGE}{_MASTER}exec {_CLIENT} {_SEGMENT}\n",
    "client-one": f"{_HUGE}{_MASTER}exec {_CLIENT} {_SEGMENT} --device_names=rxe0\n",
    "client-named": (
        f"{_HUGE}{_MASTER}exec {_CLIENT} {_SEGMENT} --device_names=${{DEVICES:-rxe0}}\n"
    ),
    "client-odd": f"{_HUGE}{_MASTER}exec {_CLIENT} {_SEGMENT} --local_buffer_size=17MB\n",
    "client-arena": (
        f"{_HUGE}export MC_MMAP_ARENA_POOL_SIZE=200mb\n{_MASTER}exec {_CLIENT} {_SEGMENT}\n"
    ),
    "client-regular": f"{_MASTER}exec {_CLIENT} --global_segment_size=400MB\n",
    "client-offload": (
        f"{_HUGE}export MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/mnt/ssd/offload\n"
        "export MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=33554432\n"
        "export MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES="
        "${MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES:-33554432}\n"
        f"{_MASTER.replace(' &', ' --enable_offload=true &')}"
        f"exec {_CLIENT} {_SEGMENT} --enable_offload=true\n"
    ),
    "client-uring": (
        f"{_HUGE}export MOONCAKE_OFFLOAD_USE_URING=true\n"
        "export MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/mnt/ssd/offload\n"
        "export MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=33554432\n"
        "export MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=33554432\n"
        f"{_MASTER.replace(' &', ' --enable_offload=true &')}"
        f"exec {_CLIENT} {_SEGMENT} --enable_offload=true\n"
    ),
    "service": (
        f"{_HUGE}export MOONCAKE_MASTER=${{MASTER:-127.0.0.1:{OTHER_MASTER_PORT}}}\n"
        "export MOONCAKE_PROTOCOL=rdma MOONCAKE_LOCAL_HOSTNAME=10.0.0.1\n"
        "export MOONCAKE_TE_META_DATA_SERVER=${METADATA:-P2PHANDSHAKE}\n"
        "export MOONCAKE_GLOBAL_SEGMENT_SIZE=83886080 MOONCAKE_LOCAL_BUFFER_SIZE=16777216\n"
        f"exec python3 -m mooncake.mooncake_store_service --port={SERVICE_PORT}\n"
    ),
    "master": f"exec mooncake_master --rpc_port={MASTER_PORT} --metrics_port=5053\n",
    "sglang": f"{_SGLANG}\n",
    "sglang-two": f"{_SGLANG} --tp 2\n",
}

# What is started for real in the place of SGLang, which the guest does not have: the store on the
# same host, with the devices and the name of its own that the launch gives the store.
IN_PLACE_OF = {"sglang": "sglang-store", "sglang-two": "sglang-store"}
STARTED = {
    "sglang-store": (
        f"{_HUGE}{_MASTER}exec {_CLIENT.replace('10.0.0.1', '${HERE:-10.0.0.1}')} {_SEGMENT} "
        "${MOONCAKE_DEVICE:+--device_names=$MOONCAKE_DEVICE}\n"
    )
}
# The port that says that a launch has started.
PORTS = {"service": SERVICE_PORT, "master": MASTER_PORT}

# What a healthy host has. The sysctls are those that mooncake-preflight itself asks for.
OTHER_MASTER = (
    f"setsid mooncake_master --rpc_port={OTHER_MASTER_PORT} --metrics_port=6053 "
    "> /run/master.log 2>&1 &\n"
    "echo $! > /run/master.pid\n"
    f"until ss -ltn | grep -q :{OTHER_MASTER_PORT}; do sleep 0.2; done"
)
HEALTHY = f"""
rm -f /.dockerenv
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+memory +hugetlb +rdma +cpuset +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir -p /mnt/ssd /run/lab/model /etc/sysctl.d
mount -t tmpfs -o size=64M tmpfs /mnt/ssd
mkdir -m 777 /mnt/ssd/offload
sysctl -qw vm.max_map_count=262144 net.ipv6.conf.all.accept_ra=0 net.ipv6.conf.default.accept_ra=0
ip link set lo up
for number in 0 1; do
    sysctl -qw net.ipv6.conf.eth$number.accept_ra=0
    ip link set eth$number up
    ip address add 10.0.0.$((number + 1))/24 dev eth$number
    rdma link add rxe$number type rxe netdev eth$number
    echo 600 > /sys/devices/system/node/node$number/hugepages/hugepages-2048kB/nr_hugepages
done
echo vm.nr_hugepages = 1200 > /etc/sysctl.d/90-mooncake.conf
echo '{{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
  "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
  "torch_dtype": "bfloat16", "max_position_embeddings": 4096, "vocab_size": 1000}}' \\
  > /run/lab/model/config.json
{OTHER_MASTER}
"""

SYSCTL_D = "/etc/sysctl.d"
OURS, LATER = f"{SYSCTL_D}/90-mooncake.conf", "99-other.conf"
# What a boot does with the files of sysctl.d, by either program that does it, on pools of nobody.
REBOOT = """(for apply in 'sysctl -q --system' /lib/systemd/systemd-sysctl; do
    command -v ${apply%% *} > /run/found || continue
    sysctl -qw vm.nr_hugepages=0; $apply
    test $(cat /proc/sys/vm/nr_hugepages) -ge 40 || exit 1
done)"""
AS_BEFORE = f"""
rm -f {OURS} {SYSCTL_D}/{LATER} {SYSCTL_D}/90-mooncake-hugepages.conf /usr/lib/sysctl.d/{LATER}
rm -rf /run/sysctl.d; sed -i /nr_hugepages/d /etc/sysctl.conf
echo vm.nr_hugepages = 1200 > {OURS}
for n in 0 1; do echo 600 > /sys/devices/system/node/node$n/hugepages/hugepages-2048kB/nr_hugepages
done"""

METADATA = "http://127.0.0.1:8080/metadata"
END_OTHER_MASTER = (
    "kill -9 $(cat /run/master.pid); "
    f"while ss -ltn | grep -q :{OTHER_MASTER_PORT}; do sleep 0.2; done"
)
WITH_METADATA = OTHER_MASTER.replace(" > ", " --enable_http_metadata_server=true > ", 1)
# The guest reaches no name server: without this a name is not known not to resolve.
NO_DNS = "cp /etc/hosts /etc/nsswitch.conf /run; echo hosts: files > /etc/nsswitch.conf"
DNS_AS_BEFORE = "cp /run/hosts /run/nsswitch.conf /etc"

POOL = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
POOL_0, POOL_1 = POOL.format(0), POOL.format(1)
ALL_POOLS = f"for n in 0 1; do echo 600 > {POOL.format('$n')}; done"
GROUP = "/sys/fs/cgroup/lab"
ENTER_GROUP = f"mkdir -p {GROUP}; echo $LAUNCH_SHELL > {GROUP}/cgroup.procs"
LEAVE_GROUP = f"for i in 1 2 3 4 5; do rmdir {GROUP} && break; sleep 0.2; done"
INNER = f"{GROUP}/inner"
ENTER_INNER = f"mkdir -p {INNER}; echo $LAUNCH_SHELL > {INNER}/cgroup.procs"
LEAVE_INNER = f"for i in 1 2 3 4 5; do rmdir {INNER} {GROUP} && break; sleep 0.2; done"
# A controller is version 1's where version 2 hands it to no group, and that takes a while.
VERSION_1 = (
    "echo -{0} > /sys/fs/cgroup/cgroup.subtree_control; mkdir -p /run/v1/{0}; "
    "for i in 1 2 3 4 5 6 7 8 9; do mount -t cgroup -o {0} cgroup /run/v1/{0} && break; sleep 1; "
    "done; mountpoint -q /run/v1/{0} && mkdir /run/v1/{0}/lab && "
    "echo $LAUNCH_SHELL > /run/v1/{0}/lab/cgroup.procs"
)
VERSION_2 = (
    "for i in 1 2 3 4 5; do rmdir /run/v1/{0}/lab && break; sleep 0.2; done; "
    "umount /run/v1/{0}; echo +{0} > /sys/fs/cgroup/cgroup.subtree_control"
)
HUGETLB_1, MEMORY_1 = VERSION_1.format("hugetlb"), VERSION_1.format("memory")
HUGETLB_2, MEMORY_2 = VERSION_2.format("hugetlb"), VERSION_2.format("memory")
UVERBS_NODES = (
    "for n in 0 1; do rm -f /dev/infiniband/uverbs$n; mknod -m 666 /dev/infiniband/uverbs$n c "
    "$(tr : ' ' < /sys/class/infiniband_verbs/uverbs$n/dev); done"
)
RXE = (
    "for n in 0 1; do rdma link show rxe$n/1 > /run/found 2>&1 || "
    "rdma link add rxe$n type rxe netdev eth$n; done; chmod 666 /dev/infiniband/uverbs*; sleep 1"
)
OFFLOAD_FOLDER = "rm -rf /mnt/ssd/offload; mkdir -m 777 /mnt/ssd/offload"
HOLD_PAGES = (
    "python3 -c 'import mmap, time; m = mmap.mmap(-1, {} << 21, flags=0x40022); "
    'm[:] = bytes(len(m)); print("held", flush=True); time.sleep(999)\' > /run/held & '
    "until grep -q held /run/held; do sleep 0.1; done"
)
LISTEN = (
    'python3 -c \'import socket, time; s = socket.create_server(("", {})); '
    'print("listening", flush=True); {}\' > /run/listening & '
    "until grep -q listening /run/listening; do sleep 0.1; done"
)
HOLD_40_PAGES = HOLD_PAGES.format(40)
CLIENT_PORT_TAKEN = LISTEN.format(CLIENT_PORT, "time.sleep(999)")
MASTER_PORT_TAKEN = LISTEN.format(MASTER_PORT, "time.sleep(999)")
METRICS_PORT_TAKEN = LISTEN.format(5053, "time.sleep(999)")
SERVER_PORT_TAKEN = LISTEN.format(3000, "time.sleep(999)")
NO_MASTER = LISTEN.format(
    7051, 'exec("while 1:\\n c = s.accept()[0]; c.sendall(b\\"SSH-2.0\\"); c.close()")'
)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    expect: the checks that get worse, and what they turn to; no other may. inject, undo: run by
    root. before: run in the shell that the launch would be started from, as ``user``. applied:
    mended by ``mooncake-preflight apply``, twice, in place of the printed commands. possible:
    succeeds in guests whose kernel has what is to be broken. refuse: system calls that the launch's
    shell is refused, see ``fault_runner.REFUSED``. by_hand, in_the_shell: what the advice says to
    do where no command can say it, by root and in the launch's shell. mends: False where nothing of
    that is possible in the guest. starts: whether the real launch then "fails" or comes up ("ok");
    empty: not tried. says: what its log, with how it ended in the last line, then matches. Once
    mended it is started as well. then: by root after the remedy; what it has to succeed with before
    the check looks again. captured: keep a capture of the guest as it is then. in_full: check what
    is installed too."""

    id: str
    expect: Mapping[str, str] = field(hash=False)
    launch: str = "client"
    inject: str = ""
    before: str = ""
    undo: str = ""
    by_hand: str = ""
    in_the_shell: str = ""
    then: str = ""
    applied: bool = False
    possible: str = ""
    refuse: str = ""
    user: int = 0
    arguments: tuple[str, ...] = ()
    starts: str = ""
    says: str = ""
    mends: bool = True
    captured: bool = False
    in_full: bool = False
    notes: str = ""


def _filled(value: Any) -> Any:
    """Return a value of the table with the constants that it names."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str):
        return re.sub(r"@([A-Z_0-9]+)@", lambda name: str(globals()[name[1]]), value)
    return value


FAULTS = tuple(
    Fault(**{name: _filled(value) for name, value in row.items()})
    for row in tomllib.loads(Path(__file__).with_name("faults.toml").read_text())["fault"]
)
