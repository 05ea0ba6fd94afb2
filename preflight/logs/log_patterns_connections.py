"""Known lines of Mooncake about queue pairs, handshakes and transfers over RDMA.

Wording: Mooncake 0.3.8 to 0.3.14 (rdma_endpoint.cpp, rdma_context.cpp, worker_pool.cpp,
nvlink_transport.cpp) and the texts of ibv_wc_status_str.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Printer, Reading, Seen, Stage

_DEVICE = r"(?P<name>[\w.-]{1,64})"
_ERROR = r"(?P<error>[^\n\[]{1,80})(?:\[(?P<errno>\d{1,4})\])?"
_SPOKEN = r"[^\n]{0,500}?: " + _ERROR + r"$"
_REACH = ("rdma.gid", "rdma.subnets", "rdma.port-mtu")
_GID_REMEDY = "set MC_GID_INDEX to the index of a RoCE v2 IPv4 GID of this network namespace"


def _read_rts(groups: Groups, seen: Seen) -> Reading:
    if any(id_.startswith("kernel.erdma") for id_ in seen):
        return Reading(decided="the kernel log of this host has eRDMA lines: it is its mode.")
    return Reading()


def _read_rtr(groups: Groups, seen: Seen) -> Reading:
    error = groups.get("error", "")
    if "timed out" in error:
        return Reading(
            decided="timed out: the peer's address was not resolved, so it is the GID "
            "or the way to the peer."
        )
    if "Invalid argument" in error:
        return Reading(decided="invalid argument: the two ends do not fit, GID type or MTU.")
    if "No such device" in error or "unreachable" in error:
        return Reading(decided="the GID's own network interface is gone or has no route.")
    return Reading()


def _read_qp(groups: Groups, seen: Seen) -> Reading:
    if groups.get("errno") == "12":
        return Reading(decided="errno 12: queue pairs (or memlock, which they take a little of).")
    if groups.get("errno") == "11":
        return Reading(
            decided="errno 11: the rdma cgroup's hca_object, or the NIC's own objects.",
            checks=("rdma.cgroup-limit", "rdma.resources"),
        )
    return Reading()


_line = Printer(Layer.MOONCAKE).line


PATTERNS = (
    _line(
        "mooncake.qp-rtr",
        Stage.CAUSE,
        "Failed to modify QP to RTR",
        rf"Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num{_SPOKEN}|"
        r"Failed to modify QP to RTR",
        _REACH,
        "this NIC cannot address the peer's: GID of the wrong kind or namespace, a rail without "
        "a way to the other, or an MTU that differs",
        f"{_GID_REMEDY} on both ends; set MC_ENABLE_DEST_DEVICE_AFFINITY=1 where rails do not "
        "reach each other; MC_MTU=1024 on both where MTUs differ",
        "ping from interface to interface of the two NICs; compare active_mtu and GID types",
    )._replace(read=_read_rtr),
    _line(
        "mooncake.qp-rts",
        Stage.CAUSE,
        "Failed to modify QP to RTS",
        rf"Failed to modify QP to RTS: {_ERROR}$|Failed to modify QP to RTS",
        ("rdma.erdma-compat", "rdma.node-type"),
        "the device takes no connection made by hand: Alibaba's eRDMA in standard mode, or "
        "another iWARP device",
        "options erdma compat_mode=Y in /etc/modprobe.d, then reload erdma",
        "cat /sys/module/erdma/parameters/compat_mode; the device's node_type in "
        "/sys/class/infiniband is 4 for iWARP",
    )._replace(read=_read_rts),
    _line(
        "mooncake.qp-init",
        Stage.CAUSE,
        "Failed to modify QP to INIT",
        rf"Failed to modify QP to INIT, check local context port num{_SPOKEN}|"
        r"Failed to modify QP to INIT",
        ("rdma.pkey", "rdma.port-down", "rdma.erdma-compat"),
        "the port or the partition key index is refused",
        "see MC_IB_PORT and MC_PKEY_INDEX; on eRDMA turn compat_mode on",
    ),
    _line(
        "mooncake.qp-create",
        Stage.CAUSE,
        "Failed to create QP",
        rf"Failed to create QP(?:: {_ERROR})?",
        ("rdma.resources", "rdma.cgroup-limit", "memlock.limit"),
        "the NIC has no queue pair left, or memlock none for its rings: every NIC makes some for "
        "every NIC of every peer",
        "set MC_ENABLE_DEST_DEVICE_AFFINITY=1, lower MC_NUM_QP_PER_EP, upgrade Mooncake (older "
        "ones leak them on failures)",
        "`rdma resource show` counts them against max_qp of ibv_devinfo -v",
    )._replace(read=_read_qp),
    _line(
        "mooncake.cq-create",
        Stage.CAUSE,
        "Failed to create completion",
        rf"Failed to create completion (?:queue|channel)(?: on device {_DEVICE})?(?:: {_ERROR})?",
        ("rdma.resources", "rdma.cgroup-limit", "memlock.limit", "limits.nofile"),
        "the NIC or the rdma cgroup gives no completion queue",
        "end the processes that hold the NIC's objects; see rdma.max; raise memlock",
        "`rdma resource show` and rdma.current in /sys/fs/cgroup",
    )._replace(read=_read_qp),
    _line(
        "mooncake.pd-create",
        Stage.CAUSE,
        "Failed to allocate new protection domain",
        rf"Failed to allocate new protection domain on device {_DEVICE}(?:: {_ERROR})?",
        ("rdma.cgroup-limit", "rdma.resources"),
        "{name} gives no protection domain",
        "see rdma.max in /sys/fs/cgroup, and the NIC's objects in `rdma resource show`",
    )._replace(read=_read_qp),
    Pattern(
        "rdma.remote-access",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("remote access error", "IBV_WC_REM_ACCESS_ERR"),
        r"remote access error|IBV_WC_REM_ACCESS_ERR",
        ("rdma.region-too-large", "software.version-skew"),
        "the peer's NIC refuses the address: it lies beyond what was registered there (a region "
        "cut to max_mr_size), or the peer restarted meanwhile",
        "upgrade Mooncake on all peers, or keep regions below max_mr_size",
        "always the same addresses: a region that was cut; all at once: a peer that restarted",
    ),
    Pattern(
        "rdma.retry-exceeded",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("transport retry counter exceeded", "IBV_WC_RETRY_EXC_ERR"),
        r"transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR",
        ("rdma.subnets", "rdma.gid", "rdma.port-mtu", "rdma.port-down"),
        "the peer's NIC does not answer: the two rails do not reach each other, the peer is gone, "
        "or packets of this size are dropped",
        "set MC_ENABLE_DEST_DEVICE_AFFINITY=1 on all peers with the same device list; check the "
        "peer's process and link",
        "which pairs of NICs fail: all to one peer means the peer, some pairs mean rails",
    ),
    Pattern(
        "rdma.mtu-mismatch",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("remote invalid request", "local length error"),
        r"remote invalid request(?: error)?|local length error",
        ("rdma.port-mtu",),
        "the two ends have different MTUs, which Mooncake does not negotiate",
        "set MC_MTU=1024 on both ends, or give all ports the same MTU",
        "cat active_mtu of both ends with ibv_devinfo",
    ),
    Pattern(
        "rdma.local-protection",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("local protection error", "local access error"),
        r"local (?:protection|access) error",
        ("rdma.region-too-large", "rdma.fork-safe"),
        "the local memory is not registered as used: a region that was cut, unmapped, or forked",
        "upgrade Mooncake; see whether a registration failed at the start",
    ),
    Pattern(
        "rdma.flushed",
        Layer.MOONCAKE,
        Stage.CONSEQUENCE,
        ("Work Request Flushed Error",),
        r"Work Request Flushed Error",
        _REACH,
        "requests of a connection that had failed before",
        "see the first error of that connection",
    ),
    _line(
        "mooncake.not-registered",
        Stage.SYMPTOM,
        "Memory region not registered by any active device",
        r"Memory region not registered by any active device",
        ("memlock.limit", "rdma.region-too-large", "gpu.peer-memory"),
        "memory is used that no NIC has registered: a registration failed before, or the "
        "device that had it is down",
        "see the start of the log for a registration that failed",
    ),
    _line(
        "mooncake.address-not-found",
        Stage.CAUSE,
        "Requested address ",
        r"Requested address (?P<address>\S{1,24}) to [^\n]{0,80}not found",
        ("gpu.imex", "rdma.no-device"),
        "data was to go over NVLink, where the peer's memory is not shared: no RDMA device was "
        "seen, or there is no IMEX channel",
        "make the RDMA devices visible in the container, or give it /dev/nvidia-caps-imex-channels",
        "a line 'Using .. transport (.. no HCA detected)' at the start",
    ),
    _line(
        "mooncake.handshake",
        Stage.SYMPTOM,
        "andshake RPC failed",
        r"[Hh]andshake RPC failed",
        ("service.reachable", "network.advertised-address", *_REACH),
        "the peer was not reached for a connection, or refused it",
        "see which address it advertises, and the peer's own log of that time",
    ),
    _line(
        "mooncake.handshake-rejected",
        Stage.SYMPTOM,
        "ejected by ",
        r"(?:Handshake|Notify|ACK) rejected by (?P<name>[^\s]{1,80}?): ?(?P<error>[^\n]{0,160})",
        (*_REACH, "software.version-skew"),
        "the peer {name} refused the connection ({error})",
        "see the peer's own log of that time",
    ),
)
