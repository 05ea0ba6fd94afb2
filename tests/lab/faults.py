"""What is broken in the guest, one thing at a time, and which checks must say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    ),
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
ALL_POOLS = f"for n in 0 1; do echo 600 > {POOL.format('$n')}; done"
GROUP = "/sys/fs/cgroup/lab"
ENTER_GROUP = f"mkdir -p {GROUP}; echo $LAUNCH_SHELL > {GROUP}/cgroup.procs"
LEAVE_GROUP = f"for i in 1 2 3 4 5; do rmdir {GROUP} && break; sleep 0.2; done"
INNER = f"{GROUP}/inner"
ENTER_INNER = f"mkdir -p {INNER}; echo $LAUNCH_SHELL > {INNER}/cgroup.procs"
LEAVE_INNER = f"for i in 1 2 3 4 5; do rmdir {INNER} {GROUP} && break; sleep 0.2; done"
UVERBS_NODES = (
    "for n in 0 1; do rm -f /dev/infiniband/uverbs$n; mknod -m 666 /dev/infiniband/uverbs$n c "
    "$(tr : ' ' < /sys/class/infiniband_verbs/uverbs$n/dev); done"
)
RXE = (
    "for n in 0 1; do rdma link show rxe$n/1 > /run/found 2>&1 || "
    "rdma link add rxe$n type rxe netdev eth$n; done; chmod 666 /dev/infiniband/uverbs*; sleep 1"
)
OFFLOAD_FOLDER = "rm -rf /mnt/ssd/offload; mkdir -m 777 /mnt/ssd/offload"
NODES = ("--nic-numa-nodes", "0,1")
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


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    expect: the checks that get worse, and what they turn to; no other may. inject, undo: run by
    root. before: run in the shell that the launch would be started from, as ``user``.
    applied: mended by ``mooncake-preflight apply``, twice, in place of the printed commands.
    possible: succeeds in guests whose kernel has what is to be broken. refuse: system calls that
    the launch's shell is refused, see ``fault_runner.REFUSED``.
    by_hand, in_the_shell: what the advice says to do where no command can say it, by root and in
    the launch's shell. mends: False where nothing of that is possible in the guest.
    starts: whether the real launch then "fails" or comes up ("ok"); empty: not tried. says: what
    its log, with how it ended in the last line, then matches. Once mended it is started as well.
    then: by root after the remedy; what it has to succeed with before the check looks again.
    captured: keep a capture of the guest as it is then. in_full: check what is installed too.
    """

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


FAULTS = (
    Fault(
        "pool short",
        {"hugetlb.shortage": "fail"},
        inject="sysctl -qw vm.nr_hugepages=20",
        undo=ALL_POOLS,
        starts="fails",
        says="Failed to allocate|mmap.*failed|Cannot allocate memory",
    ),
    Fault(
        "pool on the wrong node",
        {"hugetlb.node-shortage": "fail"},
        inject=f"echo 0 > {POOL.format(1)}; echo 100 > {POOL.format(0)}",
        undo=ALL_POOLS,
        arguments=NODES,
        before="export LD_PRELOAD=$NIC_NODES_LIBRARY",
        starts="fails",
        says="exit 135",
    ),
    Fault(
        "pool short, mended by apply",
        {"hugetlb.shortage": "fail"},
        inject="sysctl -qw vm.nr_hugepages=20",
        undo=ALL_POOLS,
        applied=True,
    ),
    Fault(
        "pool on the wrong node, mended by apply",
        {"hugetlb.node-shortage": "fail"},
        inject=f"echo 0 > {POOL.format(1)}; echo 100 > {POOL.format(0)}",
        undo=ALL_POOLS,
        arguments=NODES,
        before="export LD_PRELOAD=$NIC_NODES_LIBRARY",
        applied=True,
    ),
    Fault(
        "pages held by another process",
        {"hugetlb.shortage": "fail"},
        inject=f"sysctl -qw vm.nr_hugepages=60; {HOLD_PAGES.format(40)}",
        undo=ALL_POOLS,
        starts="fails",
        says="Failed to allocate|mmap.*failed|Cannot allocate memory",
    ),
    Fault(
        "memlock below one NIC's share",
        {"memlock.limit": "fail"},
        launch="client-one",
        before="ulimit -l 65536",
        user=USER,
        starts="fails",
        says=r"Failed to register memory.*Cannot allocate memory \[12\]",
    ),
    Fault(
        "memlock that holds for one NIC and not for two",
        {"memlock.limit": "fail"},
        before="ulimit -l 153600",
        user=USER,
        starts="fails",
        says=r"Failed to register memory.*Cannot allocate memory \[12\]",
    ),
    Fault(
        "no permission for any uverbs node",
        {"rdma.uverbs-permission": "fail"},
        inject="chmod 600 /dev/infiniband/uverbs*",
        undo="chmod 666 /dev/infiniband/uverbs*",
        user=USER,
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "no permission for one uverbs node",
        {"rdma.uverbs-permission": "warn"},
        inject="chmod 600 /dev/infiniband/uverbs1",
        undo="chmod 666 /dev/infiniband/uverbs*",
        user=USER,
    ),
    Fault(
        "one port down",
        {"rdma.port-down": "warn"},
        inject="ip link set eth1 down",
        undo="ip link set eth1 up",
        starts="ok",
        user=USER,
    ),
    Fault(
        "both ports down",
        {"network.advertised-address": "fail", "rdma.port-down": "fail"},
        inject="ip link set eth0 down; ip link set eth1 down",
        undo="ip link set eth0 up; ip link set eth1 up",
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "the only named device's port down",
        {"network.advertised-address": "fail", "rdma.port-down": "fail"},
        launch="client-one",
        inject="ip link set eth0 down",
        undo="ip link set eth0 up",
    ),
    Fault(
        "wrong device name",
        {"rdma.device-missing": "fail"},
        launch="sglang",
        before="export MOONCAKE_DEVICE=mlx5_9",
    ),
    Fault(
        "wrong device name of a client",
        {"rdma.device-missing": "fail"},
        launch="client-named",
        before="export DEVICES=mlx5_9",
        in_the_shell="export DEVICES=rxe0",
        starts="fails",
        says="No available RNIC",
        notes="the name stands in the launch's own text, which no command changes",
    ),
    Fault(
        "one of two device names wrong",
        {"rdma.device-missing": "warn"},
        launch="sglang",
        before="export MOONCAKE_DEVICE=rxe0,mlx5_9",
    ),
    Fault(
        "a filter that leaves no device",
        {"rdma.no-device": "fail"},
        before="export MC_TE_FILTERS=mlx5_0",
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "TCP forced",
        {"rdma.no-device": "warn", "force-tcp-is-presence": "warn"},
        before="export MC_FORCE_TCP=0",
    ),
    Fault(
        "addresses gone from the GID tables",
        {"network.advertised-address": "fail", "rdma.gid": "warn"},
        inject="for n in 0 1; do ip -4 address flush dev eth$n; done",
        by_hand="for n in 0 1; do ip address add 10.0.0.$((n + 1))/24 dev eth$n; done",
        undo="for n in 0 1; do ip address replace 10.0.0.$((n + 1))/24 dev eth$n; done",
    ),
    Fault(
        "an index behind the GID tables' last entry",
        {"rdma.gid": "fail"},
        before="export MC_GID_INDEX=40",
    ),
    Fault(
        "a stray IPv6 address",
        {"rdma.gid": "warn"},
        inject="ip address add fec0::5/64 dev eth0; ip address add fec0::6/64 dev eth1; sleep 2",
        undo="ip address del fec0::5/64 dev eth0; ip address del fec0::6/64 dev eth1",
    ),
    Fault(
        "rails on two subnets",
        {"rdma.subnets": "warn"},
        inject="ip -4 address flush dev eth1; ip address add 10.1.0.2/24 dev eth1",
        undo="ip -4 address flush dev eth1; ip address add 10.0.0.2/24 dev eth1",
    ),
    Fault(
        "MTU unequal",
        {"rdma.port-mtu": "warn"},
        inject="ip link set eth1 mtu 9000",
        undo="ip link set eth1 mtu 1500",
        possible="ip link set eth1 mtu 9000 && ip link set eth1 mtu 1500",
    ),
    Fault(
        "a partition key that does not exist",
        {"rdma.pkey": "fail"},
        before="export MC_PKEY_INDEX=5",
    ),
    Fault(
        "no provider library for the devices",
        {"rdma.provider-missing": "fail"},
        inject="mv /etc/libibverbs.d/rxe.driver /run",
        by_hand="mv /run/rxe.driver /etc/libibverbs.d",
        undo="test ! -e /run/rxe.driver || mv /run/rxe.driver /etc/libibverbs.d",
        notes="the remedy installs a package, and the guest reaches no archive",
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "rdma cgroup limit",
        {"rdma.cgroup-limit": "fail"},
        inject=f"{ENTER_GROUP}; echo rxe0 hca_handle=0 > {GROUP}/rdma.max; "
        f"echo rxe1 hca_handle=0 > {GROUP}/rdma.max",
        undo=LEAVE_GROUP,
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "rdma cgroup limit, devices named",
        {"rdma.cgroup-limit": "fail"},
        launch="client-one",
        inject=f"{ENTER_GROUP}; echo rxe0 hca_handle=0 > {GROUP}/rdma.max",
        undo=LEAVE_GROUP,
        starts="fails",
        says="No available RNIC",
    ),
    Fault(
        "memory cgroup limit",
        {"memory.cgroup": "fail"},
        launch="client-regular",
        inject=f"{ENTER_GROUP}; echo 256M > {GROUP}/memory.max",
        undo=LEAVE_GROUP,
    ),
    Fault(
        "hugetlb cgroup limit",
        {"hugetlb.cgroup-limit": "fail"},
        inject=f"{ENTER_GROUP}; echo 20M > {GROUP}/hugetlb.2MB.max",
        undo=LEAVE_GROUP,
        starts="fails",
        says="exit 135",
    ),
    Fault(
        "hugetlb cgroup limit on reservations",
        {"hugetlb.cgroup-limit": "fail"},
        inject=f"{ENTER_GROUP}; echo 20M > {GROUP}/hugetlb.2MB.rsvd.max",
        undo=LEAVE_GROUP,
        starts="fails",
        says="Failed to allocate|mmap.*failed|Cannot allocate memory",
    ),
    Fault(
        "cpuset without the node of a rank",
        {"numa.cpuset-excludes": "warn", "hugetlb.node-shortage": "fail"},
        launch="sglang",
        arguments=("--rank-numa-nodes", "1"),
        inject=f"{ENTER_GROUP}; echo 0 > {GROUP}/cpuset.mems",
        undo=LEAVE_GROUP,
    ),
    Fault(
        "memory policies refused",
        {"numa.policy-refused": "fail"},
        arguments=NODES,
        refuse="policies",
        notes="the remedy is another security profile, which a running process cannot get",
    ),
    Fault(
        "an L2 pool that ends within a huge page, with rdma-core before 51",
        {"rdma.fork-safe": "fail"},
        launch="sglang",
        before="unset RDMAV_HUGEPAGES_SAFE",
    ),
    Fault(
        "a buffer that ends within a huge page, with rdma-core before 51",
        {"rdma.fork-safe": "fail"},
        launch="client-odd",
        before="unset RDMAV_HUGEPAGES_SAFE",
        starts="fails",
        says=r"Failed to register memory.*Invalid argument \[22\]",
    ),
    Fault(
        "/dev/shm small",
        {"shm.space": "warn"},
        launch="sglang-two",
        inject="mount -o remount,size=32M /dev/shm",
        undo="mount -o remount,size=1G /dev/shm",
    ),
    Fault(
        "max_map_count low",
        {"memory.max-map-count": "warn"},
        inject="sysctl -qw vm.max_map_count=65530",
        undo="sysctl -qw vm.max_map_count=262144",
    ),
    Fault(
        "overcommit refused",
        {"memory.overcommit": "fail"},
        launch="client-regular",
        inject="sysctl -qw vm.overcommit_memory=2 vm.overcommit_kbytes=$(awk "
        "'/Committed_AS/ {print $2 + 300000}' /proc/meminfo)",
        undo="sysctl -qw vm.overcommit_memory=0 vm.overcommit_ratio=50",
    ),
    Fault(
        "open files limited",
        {"limits.nofile": "warn"},
        launch="sglang",
        before="ulimit -n 1024",
        user=USER,
    ),
    Fault(
        "port taken",
        {"network.port-taken": "fail"},
        inject=LISTEN.format(CLIENT_PORT, "time.sleep(999)"),
        by_hand="kill -9 $!; wait",
    ),
    Fault(
        "port in the range that the kernel gives out",
        {"network.port-range": "warn"},
        inject="sysctl -qw net.ipv4.ip_local_port_range='5000 60999'",
        undo="sysctl -qw net.ipv4.ip_local_port_range='32768 60999' "
        "net.ipv4.ip_local_reserved_ports=",
    ),
    Fault(
        "master down",
        {"service.reachable": "fail"},
        launch="service",
        inject=END_OTHER_MASTER,
        by_hand=OTHER_MASTER,
    ),
    Fault(
        "not a master",
        {"service.reachable": "fail"},
        launch="service",
        before="export MASTER=127.0.0.1:7051",
        inject=LISTEN.format(
            7051, 'exec("while 1:\\n c = s.accept()[0]; c.sendall(b\\"SSH-2.0\\"); c.close()")'
        ),
        in_the_shell="unset MASTER",
    ),
    Fault(
        "no metadata server",
        {"service.reachable": "fail"},
        launch="service",
        before=f"export METADATA={METADATA}",
        by_hand=f"{END_OTHER_MASTER}; {WITH_METADATA}",
        undo=f"{END_OTHER_MASTER}; {OTHER_MASTER}",
        starts="fails",
    ),
    Fault(
        "another web server in the metadata server's place",
        {"service.reachable": "fail"},
        launch="service",
        before=f"export METADATA={METADATA}",
        inject="python3 -m http.server 8080 > /run/web.log 2>&1 & "
        "until ss -ltn | grep -q :8080; do sleep 0.2; done",
        by_hand=f"kill -9 $!; wait; {END_OTHER_MASTER}; {WITH_METADATA}",
        undo=f"{END_OTHER_MASTER}; {OTHER_MASTER}",
    ),
    Fault(
        "a master's name that does not resolve",
        {"service.address": "fail", "service.reachable": "unknown"},
        launch="service",
        before=f"export MASTER=store-master:{OTHER_MASTER_PORT}",
        inject=NO_DNS,
        by_hand="echo 127.0.0.1 store-master >> /etc/hosts",
        undo=DNS_AS_BEFORE,
    ),
    Fault(
        "a name of its own that does not resolve",
        {"network.advertised-address": "fail"},
        launch="sglang",
        before="export HERE=store-node",
        inject=NO_DNS,
        by_hand="echo 10.0.0.1 store-node >> /etc/hosts",
        undo=DNS_AS_BEFORE,
    ),
    Fault(
        "a master's address without its port",
        {"service.reachable": "fail", "master-without-port": "fail"},
        launch="service",
        before="export MASTER=127.0.0.1",
        in_the_shell="unset MASTER",
    ),
    Fault(
        "a master's address at which another host refuses",
        {"service.reachable": "fail"},
        launch="service",
        before=f"export MASTER=10.0.0.9:{OTHER_MASTER_PORT}",
        inject="ip neigh replace 10.0.0.9 lladdr 52:54:00:00:00:99 dev eth0 nud permanent",
        in_the_shell="unset MASTER",
        undo="ip neigh del 10.0.0.9 dev eth0",
        starts="fails",
    ),
    Fault(
        "a master that listens and does not answer",
        {"service.reachable": "fail"},
        launch="service",
        inject="kill -STOP $(cat /run/master.pid)",
        by_hand="kill -CONT $(cat /run/master.pid)",
        undo="kill -CONT $(cat /run/master.pid)",
    ),
    Fault(
        "proxy set",
        {"proxy-in-the-way": "warn"},
        launch="sglang",
        before="export http_proxy=http://10.9.9.9:3128",
        in_the_shell="unset http_proxy",
    ),
    Fault(
        "hostname of another machine",
        {"network.advertised-address": "fail"},
        launch="sglang",
        before="export HERE=10.7.7.7",
        in_the_shell="unset HERE",
    ),
    Fault(
        "io_uring refused by a seccomp profile",
        {"io-uring.unavailable": "fail"},
        launch="client-uring",
        refuse="io_uring",
        notes="the remedy is another security profile, which a running process cannot get",
    ),
    Fault(
        "io_uring disabled",
        {"io-uring.unavailable": "fail"},
        launch="client-uring",
        possible="test -e /proc/sys/kernel/io_uring_disabled",
        inject="sysctl -qw kernel.io_uring_disabled=2",
        undo="sysctl -qw kernel.io_uring_disabled=0",
    ),
    Fault(
        "offload folder missing",
        {"storage.offload-path": "fail", "storage.offload-space": "unknown"},
        launch="client-offload",
        inject="rmdir /mnt/ssd/offload",
        undo="mkdir -p -m 777 /mnt/ssd/offload",
        notes="the space of a folder that is not there cannot be known",
    ),
    Fault(
        "offload folder of another user",
        {"storage.offload-path": "fail"},
        launch="client-offload",
        inject="chmod 755 /mnt/ssd/offload",
        undo="chown 0 /mnt/ssd/offload; chmod 777 /mnt/ssd/offload",
        user=USER,
    ),
    Fault(
        "offload folder read-only",
        {"storage.offload-path": "fail"},
        launch="client-offload",
        inject="mount -o remount,ro /mnt/ssd",
        by_hand="mount -o remount,rw /mnt/ssd",
        undo="mount -o remount,rw /mnt/ssd",
    ),
    Fault(
        "offload folder full",
        {"storage.offload-space": "warn"},
        launch="client-offload",
        inject="dd if=/dev/zero of=/mnt/ssd/other bs=1M count=50 status=none",
        undo="rm -f /mnt/ssd/other",
    ),
    # What a boot sets: each remedy is followed by what a boot does with the files.
    Fault(
        "nothing sets the pool at boot",
        {"hugetlb.after-reboot": "warn"},
        inject=f"rm {OURS}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "the pool is set under the drop-in's older name, to less",
        {"hugetlb.after-reboot": "warn"},
        inject=f"rm {OURS}; echo vm.nr_hugepages = 7 > {SYSCTL_D}/90-mooncake-hugepages.conf",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "the drop-in's line has a dash and a slash",
        {"hugetlb.after-reboot": "warn"},
        inject=f"printf %s '-vm/nr_hugepages = 7' > {OURS}",
        undo=AS_BEFORE,
        then=REBOOT,
        notes="and no end",
    ),
    Fault(
        "a later file of sysctl.d sets less",
        {"hugetlb.after-reboot": "warn"},
        inject=f"echo vm.nr_hugepages = 7 > {SYSCTL_D}/{LATER}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "a package's file sets less",
        {"hugetlb.after-reboot": "warn"},
        inject=f"echo vm.nr_hugepages = 7 > /usr/lib/sysctl.d/{LATER}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "a file of /run sets less, and masks a package's",
        {"hugetlb.after-reboot": "warn"},
        inject=f"mkdir /run/sysctl.d; echo vm.nr_hugepages = 7 > /run/sysctl.d/{LATER}; "
        f"echo vm.nr_hugepages = 1200 > /usr/lib/sysctl.d/{LATER}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "sysctl.conf sets less",
        {"hugetlb.after-reboot": "warn"},
        inject="printf 'vm.nr_hugepages = 7' >> /etc/sysctl.conf",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "the drop-in is masked",
        {"hugetlb.after-reboot": "warn"},
        inject=f"ln -sf /dev/null {OURS}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "the pool that sets enough is masked in another folder",
        {"hugetlb.after-reboot": "warn"},
        inject=f"rm {OURS}; ln -s /dev/null {SYSCTL_D}/{LATER}; "
        f"echo vm.nr_hugepages = 1200 > /usr/lib/sysctl.d/{LATER}",
        undo=AS_BEFORE,
        then=REBOOT,
    ),
    Fault(
        "TuneD sets less",
        {"hugetlb.after-reboot": "warn"},
        inject="mkdir -p /etc/tuned/lab; echo lab > /etc/tuned/active_profile; "
        "printf '[sysctl]\\nvm.nr_hugepages = 7\\n' > /etc/tuned/lab/tuned.conf",
        by_hand="sed -i s/7/1200/ /etc/tuned/lab/tuned.conf",
        undo="rm -r /etc/tuned/lab /etc/tuned/active_profile",
    ),
    Fault(
        "a unit of this host sets less",
        {"hugetlb.after-reboot": "warn"},
        inject="mkdir -p /etc/systemd/system; printf '[Service]\\n"
        "ExecStart=/sbin/sysctl -w vm.nr_hugepages=7\\n' > /etc/systemd/system/pages.service",
        by_hand="sed -i s/=7/=1200/ /etc/systemd/system/pages.service",
        undo="rm /etc/systemd/system/pages.service",
    ),
    # Pages and limits.
    Fault(
        "SGLang's pool short",
        {"hugetlb.shortage": "fail"},
        launch="sglang",
        inject="sysctl -qw vm.nr_hugepages=100",
        undo=ALL_POOLS,
    ),
    Fault(
        "a page size that Mooncake does not take",
        {"launch.misread": "warn"},
        before="export MC_STORE_HUGEPAGE_SIZE=16MB",
        in_the_shell="unset MC_STORE_HUGEPAGE_SIZE",
        starts="ok",
    ),
    Fault(
        "hugetlb cgroup limit of the group above",
        {"hugetlb.cgroup-limit": "fail"},
        inject=f"{ENTER_INNER}; echo 20M > {GROUP}/hugetlb.2MB.max",
        undo=LEAVE_INNER,
        starts="fails",
        says="exit 135",
    ),
    Fault(
        "memory cgroup limit of the group above",
        {"memory.cgroup": "fail"},
        launch="client-regular",
        inject=f"{ENTER_INNER}; echo 256M > {GROUP}/memory.max",
        undo=LEAVE_INNER,
    ),
    Fault(
        "memlock of SGLang below what it registers",
        {"memlock.limit": "fail"},
        launch="sglang",
        before="ulimit -l 65536",
        user=USER,
    ),
    Fault(
        "threads limited by a cgroup",
        {"limits.threads": "fail"},
        inject=f"{ENTER_GROUP}; echo 40 > {GROUP}/pids.max",
        undo=LEAVE_GROUP,
        starts="fails",
        says="Resource temporarily unavailable|terminate called",
    ),
    Fault(
        "processes of the user limited",
        {"limits.threads": "fail"},
        before="ulimit -u 40",
        user=USER,
        starts="fails",
        says="Resource temporarily unavailable|terminate called",
    ),
    Fault(
        "bytes of data limited",
        {"limits.memory": "fail"},
        launch="client-regular",
        before="ulimit -d 300000",
        in_the_shell="ulimit -d unlimited",
        starts="fails",
        says="Failed to|terminate called|Cannot allocate|bad_alloc",
    ),
    Fault(
        "address space limited",
        {"limits.memory": "fail"},
        launch="client-regular",
        before="ulimit -v 300000",
        in_the_shell="ulimit -v unlimited",
        starts="fails",
        says="failed to reserve page summary memory",  # the wheel's Go runtime
    ),
    # Devices, their nodes and addresses.
    Fault(
        "one uverbs node is gone",
        {"rdma.uverbs-permission": "warn"},
        inject="rm /dev/infiniband/uverbs1",
        undo=UVERBS_NODES,
        user=USER,
    ),
    Fault(
        "all uverbs nodes are gone",
        {"rdma.uverbs-permission": "fail"},
        inject="rm /dev/infiniband/uverbs*",
        undo=UVERBS_NODES,
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "no RDMA device",
        {"rdma.no-device": "fail"},
        inject="rdma link delete rxe0; rdma link delete rxe1",
        by_hand=RXE,
        undo=RXE,
        starts="ok",
        says="Found 0 HCAs",
    ),
    Fault(
        "one of two named devices is gone",
        {"rdma.device-missing": "warn"},
        launch="client-named",
        before="export DEVICES=rxe0,rxe1",
        inject="rdma link delete rxe1",
        by_hand=RXE,
        undo=RXE,
    ),
    Fault(
        "an index of a link-local address",
        {"rdma.gid": "warn"},
        before="export MC_GID_INDEX=0",
    ),
    Fault(
        "rdma cgroup limit of objects",
        {"rdma.cgroup-limit": "fail"},
        launch="client-one",
        inject=f"{ENTER_GROUP}; echo rxe0 hca_object=1 > {GROUP}/rdma.max",
        undo=LEAVE_GROUP,
        starts="fails",
    ),
    # Ports, services and addresses.
    Fault(
        "the master's port taken",
        {"network.port-taken": "fail"},
        inject=LISTEN.format(MASTER_PORT, "time.sleep(999)"),
        by_hand="kill -9 $!; wait",
    ),
    Fault(
        "the master's metrics port taken",
        {"network.port-taken": "fail"},
        inject=LISTEN.format(5053, "time.sleep(999)"),
        by_hand="kill -9 $!; wait",
    ),
    Fault(
        "SGLang's port taken",
        {"network.port-taken": "fail"},
        launch="sglang",
        inject=LISTEN.format(3000, "time.sleep(999)"),
        by_hand="kill -9 $!; wait",
    ),
    Fault(
        "the interface of the advertised address down",
        {"network.advertised-address": "fail", "rdma.port-down": "warn"},
        launch="sglang",
        inject="ip link set eth0 down",
        undo="ip link set eth0 up",
    ),
    Fault(
        "a loopback address advertised",
        {"network.advertised-address": "warn"},
        launch="sglang",
        before="export HERE=127.0.0.1",
        in_the_shell="unset HERE",
    ),
    # Storage.
    Fault(
        "a file in the offload folder's place",
        {"storage.offload-path": "fail"},
        launch="client-offload",
        inject="rmdir /mnt/ssd/offload; touch /mnt/ssd/offload",
        by_hand=OFFLOAD_FOLDER,
        undo=OFFLOAD_FOLDER,
    ),
    Fault(
        "a link in the offload folder's place",
        {"storage.offload-path": "fail"},
        launch="client-offload",
        inject="mv /mnt/ssd/offload /mnt/ssd/other; ln -s other /mnt/ssd/offload",
        by_hand=f"{OFFLOAD_FOLDER}; rm -r /mnt/ssd/other",
        undo=f"{OFFLOAD_FOLDER}; rm -rf /mnt/ssd/other",
    ),
)
