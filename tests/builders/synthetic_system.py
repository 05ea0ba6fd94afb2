"""The rest of synthetic hosts: kernel, memory, this process, its cgroup, software, services."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any

from tests.builders.synthetic_devices import Tree

if TYPE_CHECKING:
    from tests.builders.synthetic import SyntheticHost

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
CGROUP = "/system.slice/launch.service"
# Outside of a container every user's bounding set is full.
ALL_CAPABILITIES = 0x1FFFFFFFFFF
SITE = "/usr/local/lib/python3.11/dist-packages"
METADATA_BODY = "metadata not found"


# Tables and actions of linux/rtnetlink.h and linux/fib_rules.h, as every kernel begins.
LOCAL, MAIN, DEFAULT = 255, 254, 253
TO_TABLE, UNICAST, LOCAL_ROUTE = 1, 1, 2


def _routing(host: SyntheticHost) -> dict[str, Any]:
    """The rules that every kernel has, the gateway of eth0, and the subnets of the NICs."""
    unset = {"invert": False, "from": "", "to": "", "iif": "", "oif": "", "mark": None}
    unset |= {"goto": None, "suppress_prefix": None, "other": []}
    rules = [
        {"family": 4, "priority": priority, "action": TO_TABLE, "table": table, **unset}
        for priority, table in ((0, LOCAL), (32766, MAIN), (32767, DEFAULT))
    ]
    routes = [
        [4, LOCAL, LOCAL_ROUTE, "127.0.0.0/8", "", "lo"],
        [4, MAIN, UNICAST, "0.0.0.0/0", "192.168.0.1", "eth0"],
        [4, MAIN, UNICAST, "192.168.0.0/24", "", "eth0"],
    ]
    for nic in host.nics:
        subnet = str(ip_interface(f"{nic.ipv4}/24").network)
        routes.append([4, LOCAL, LOCAL_ROUTE, f"{nic.ipv4}/32", "", nic.interface])
        routes.append([4, MAIN, UNICAST, subnet, "", nic.interface])
    return {"routing.rules": rules, "routing.routes": routes}


def add_system(tree: Tree, host: SyntheticHost) -> None:
    cpus = host.nodes * host.cpus_per_node
    modules = "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in host.modules)
    tree.files |= {
        "/proc/cmdline": host.command_line,
        "/proc/modules": modules,
        "/proc/version": f"Linux version {host.kernel} (builder@host) (gcc 12.3.0) #1 SMP",
        "/proc/sys/kernel/osrelease": host.kernel,
        "/proc/sys/kernel/numa_balancing": "0",
        "/proc/sys/kernel/threads-max": "4000000",
        "/proc/sys/kernel/pid_max": "4194304",
        "/proc/loadavg": "0.50 0.40 0.30 2/1800 4242",
        "/proc/sys/kernel/io_uring_disabled": "0",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
        "/proc/net/sockstat": "sockets: used 290\nTCP: inuse 5 orphan 0 tw 3 alloc 7 mem 1\n",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "",
        "/sys/devices/system/cpu/online": f"0-{cpus - 1}",
        "/etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"',
        "/sys/class/dmi/id/sys_vendor": host.hypervisor.rpartition(" ")[0] or "Supermicro",
        "/sys/class/dmi/id/product_name": host.hypervisor.rpartition(" ")[2] or "SYS-821GE",
        "/sys/class/net/lo/mtu": "65536",
        "/sys/bus/pci/drivers_autoprobe": "1",
        "/dev/null": "",
        "/dev/shm/.keep": "",
    }
    for name in host.modules:
        tree.files[f"/sys/module/{name}/refcnt"] = "0"
    tree.calls |= {
        "system.machine": {
            "architecture": "x86_64",
            "page_bytes": 4096,
            "pid_namespace": "pid:[4026533333]" if host.container else "pid:[4026531836]",
            "kubernetes": host.container == "kubernetes",
            "container": "",
            "libc": "glibc 2.39",
        },
        "system.io_uring": host.io_uring_errno,
        "memory.space /dev/shm": {"size_bytes": host.shm_bytes, "available_bytes": host.shm_bytes},
        "numa.memory_policy": dict(
            zip(("get_mempolicy", "set_mempolicy", "mbind"), host.policy, strict=True)
        ),
        "network.addresses": [
            {"interface": name, "address": address, "up": True}
            for name, address in (
                ("lo", "127.0.0.1"),
                ("eth0", "192.168.0.10"),
                *((nic.interface, nic.ipv4) for nic in host.nics),
            )
        ],
        **{f"network.bind {port}": {"free": True} for port in host.ports},
        **_routing(host),
    }
    _software(tree, host)
    _services(tree, host)
    for path, free_bytes in host.storage.items():
        tree.calls[f"storage.folder {path}"] = {
            "link": False,
            "folder": True,
            "writable": True,
            "read_only": False,
            "size_bytes": 2 * free_bytes,
            "available_bytes": free_bytes,
        }
        tree.calls[f"storage.direct {path}"] = {"direct": True}


def _software(tree: Tree, host: SyntheticHost) -> None:
    tree.calls["software.search"] = {
        "interpreter": "/usr/bin/python3",
        "folders": [SITE],
        "on_path": {
            "python3": "/usr/bin/python3",
            "numactl": "/usr/bin/numactl",
            "mooncake_master": "/usr/local/bin/mooncake_master" if host.packages else None,
        },
    }
    for name, version in {"pip": "25.0", **host.packages}.items():
        tree.files[f"{SITE}/{name}-{version}.dist-info/METADATA"] = f"Name: {name}"
    tree.calls["software.program /usr/local/bin/mooncake_master"] = {"script": "/usr/bin/python3"}
    tree.calls[f"software.records {SITE}"] = [
        {"info": f"{name.replace('-', '_')}-{version}.dist-info", "listed": 72, "changed": []}
        for name, version in host.packages.items()
        if name.startswith("mooncake")
    ]
    if any(name.startswith("mooncake") for name in host.packages):
        tree.files[f"{SITE}/mooncake/engine.cpython-311-x86_64-linux-gnu.so"] = ""
        tree.files[f"{SITE}/mooncake/store.cpython-311-x86_64-linux-gnu.so"] = ""
        tree.calls[f"software.libraries {SITE}/mooncake"] = [
            {"file": name, "missing": [], "rpath": ["$ORIGIN"]}
            for name in ("engine.so", "store.so", "mooncake_master")
        ]
        tree.calls[f"software.parts {SITE}/mooncake"] = []
        tree.calls[f"software.transports {SITE}/mooncake"] = []


def _services(tree: Tree, host: SyntheticHost) -> None:
    for name in ("127.0.0.1", "localhost", "0.0.0.0"):
        tree.calls[f"services.resolve {name}"] = ["127.0.0.1"]
    for (name, port), kind in host.services.items():
        tree.calls[f"services.resolve {name}"] = [name if name[:1].isdigit() else "192.168.0.20"]
        closed = {"open": False, "error": "ECONNREFUSED", "text": "Connection refused"}
        tree.calls[f"services.connect {name} {port}"] = {"open": True} if kind else closed
        tree.calls[f"services.master {name} {port}"] = {"code": 0}
        tree.calls[f"services.http {name} {port} /health"] = {"status": 200, "body": "OK"}
        missing = {"status": 404, "body": METADATA_BODY}
        tree.calls[f"services.http {name} {port} /metadata"] = missing


def add_memory(tree: Tree, host: SyntheticHost) -> None:
    pool_bytes = sum(size * pages for size, pages in host.pools.items())
    free = host.node_free_bytes
    if free is None:
        # A twentieth is in use: page cache, slab, the system's own processes.
        free = host.node_bytes - pool_bytes - host.node_bytes // 20
    cache = host.node_bytes // 40
    rows = {
        "MemTotal": host.node_bytes * host.nodes,
        "MemFree": free * host.nodes,
        "MemAvailable": (free + cache) * host.nodes,
        "SwapTotal": host.swap_free_bytes,
        "SwapFree": host.swap_free_bytes,
        "CommitLimit": host.node_bytes * host.nodes,
        "Committed_AS": host.node_bytes // 20,
    }
    small = host.pools.get(2 * MIB, 0) * host.nodes
    meminfo = "".join(f"{name}: {size // KIB} kB\n" for name, size in rows.items())
    tree.files["/proc/meminfo"] = meminfo + (
        f"HugePages_Total: {small}\nHugePages_Free: {small}\nHugePages_Rsvd: 0\n"
        "HugePages_Surp: 0\nHugepagesize: 2048 kB\n"
    )
    listed = f"0-{host.nodes - 1}" if host.nodes > 1 else "0"
    folder = "/sys/devices/system/node"
    tree.files |= {
        f"{folder}/online": listed,
        f"{folder}/possible": listed,
        f"{folder}/has_memory": listed,
        f"{folder}/has_cpu": listed,
        "/proc/sys/vm/max_map_count": "1048576",
        "/proc/sys/vm/overcommit_memory": "0",
        "/proc/sys/vm/swappiness": "60",
        "/proc/sys/vm/zone_reclaim_mode": "0",
        "/proc/sys/vm/nr_overcommit_hugepages": "0",
        "/proc/sys/vm/nr_hugepages": str(small),
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never]",
    }
    buddies = []
    for node in range(host.nodes):
        first = node * host.cpus_per_node
        table = {
            "MemTotal": host.node_bytes,
            "MemFree": free,
            "Active(file)": cache // 2,
            "Inactive(file)": cache // 4,
            "SReclaimable": cache // 4,
        }
        own = f"{folder}/node{node}"
        tree.files |= {
            f"{own}/cpulist": f"{first}-{first + host.cpus_per_node - 1}",
            f"{own}/meminfo": "".join(
                f"Node {node} {name}: {size // KIB} kB\n" for name, size in table.items()
            ),
        }
        # All free memory in the largest blocks (order 10, 4 MiB).
        counts = "      0 " * 10 + f"{max(0, free) // (4 * MIB):6}"
        buddies.append(f"Node {node}, zone   Normal {counts}")
    tree.files["/proc/buddyinfo"] = "\n".join(buddies)
    for size, pages in host.pools.items():
        _pool(tree, host, size, pages)


def _pool(tree: Tree, host: SyntheticHost, size: int, pages: int) -> None:
    name = f"hugepages-{size // KIB}kB"
    total = pages * host.nodes
    folders = {f"/sys/kernel/mm/hugepages/{name}": total}
    for node in range(host.nodes):
        folders[f"/sys/devices/system/node/node{node}/hugepages/{name}"] = pages
    for folder, count in folders.items():
        tree.files |= {
            f"{folder}/nr_hugepages": str(count),
            f"{folder}/free_hugepages": str(count),
            f"{folder}/surplus_hugepages": "0",
        }
    tree.files |= {
        f"/sys/kernel/mm/hugepages/{name}/resv_hugepages": "0",
        f"/sys/kernel/mm/hugepages/{name}/nr_overcommit_hugepages": "0",
    }


def add_process(tree: Tree, host: SyntheticHost) -> None:
    mems = host.mems_allowed or (f"0-{host.nodes - 1}" if host.nodes > 1 else "0")
    cpus = host.cgroup.get("cpuset.cpus.effective", f"0-{host.nodes * host.cpus_per_node - 1}")
    uid = host.uid
    bounding = host.capabilities if host.container else ALL_CAPABILITIES
    tree.files |= {
        "/proc/self/status": (
            f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"CapInh:\t{0:016x}\nCapPrm:\t{host.capabilities:016x}\n"
            f"CapEff:\t{host.capabilities:016x}\nCapBnd:\t{bounding:016x}\n"
            f"CapAmb:\t{0:016x}\nNoNewPrivs:\t0\nSeccomp:\t{2 if host.container else 0}\n"
            f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}\n"
        ),
        "/proc/self/uid_map": "         0          0 4294967295",
        "/proc/self/limits": limits_file(host.memlock, host.nofile),
        "/proc/1/limits": limits_file(host.memlock, host.nofile),
        "/proc/1/cgroup": "0::/",
    }
    if host.container == "docker":
        tree.files["/.dockerenv"] = ""
    tree.calls |= {
        "limits.identity": {
            "user_namespace": "user:[4026531837]",
            "sudo_uid": None,
            "root_names": ["root"],
        },
        "limits.processes": {"pinned": [], "daemons": [], "user_threads": 20, "complete": True},
    }


def limits_file(memlock: tuple[str, str], nofile: tuple[str, str]) -> str:
    rows = [f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} {'Units':<10}"]
    for name, (soft, hard), unit in (
        ("Max processes", ("unlimited", "unlimited"), "processes"),
        ("Max open files", nofile, "files"),
        ("Max locked memory", memlock, "bytes"),
        ("Max address space", ("unlimited", "unlimited"), "bytes"),
        ("Max data size", ("unlimited", "unlimited"), "bytes"),
        ("Max file size", ("unlimited", "unlimited"), "bytes"),
        ("Max stack size", ("8388608", "unlimited"), "bytes"),
        ("Max cpu time", ("unlimited", "unlimited"), "seconds"),
    ):
        rows.append(f"{name:<25} {soft:<20} {hard:<20} {unit:<10}")
    return "\n".join(rows)


def add_cgroup(tree: Tree, host: SyntheticHost) -> None:
    """Version 2; a container sees its own as the root of the hierarchy."""
    path = "/" if host.container else CGROUP
    folder = "/sys/fs/cgroup" + ("" if host.container else CGROUP)
    system = "overlay overlay rw" if host.container else "ext4 /dev/sda1 rw"
    tree.files |= {
        "/proc/self/cgroup": f"0::{path}",
        "/proc/self/mountinfo": (
            f"21 1 8:1 / / rw,relatime - {system}\n"
            "22 21 0:20 / /proc rw,nosuid - proc proc rw\n"
            "23 21 0:21 / /sys rw,nosuid - sysfs sysfs rw\n"
            "24 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
            "25 21 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n"
        ),
        f"{folder}/cgroup.procs": "1",
    }
    cpus = f"0-{host.nodes * host.cpus_per_node - 1}"
    mems = f"0-{host.nodes - 1}" if host.nodes > 1 else "0"
    defaults = {
        "memory.max": "max",
        "memory.high": "max",
        "memory.current": str(GIB),
        "memory.stat": "active_file 0\ninactive_file 0",
        "memory.min": "0",
        "cpuset.cpus.effective": cpus,
        "cpuset.mems.effective": mems,
        "rdma.max": "",
        "pids.max": "max",
        "pids.current": "20",
    }
    for size in host.pools:
        name = f"{size // GIB}GB" if size >= GIB else f"{size // MIB}MB"
        defaults |= {
            f"hugetlb.{name}.max": "max",
            f"hugetlb.{name}.current": "0",
            f"hugetlb.{name}.rsvd.max": "max",
            f"hugetlb.{name}.rsvd.current": "0",
        }
    for name, content in {**defaults, **host.cgroup}.items():
        tree.files[f"{folder}/{name}"] = content
