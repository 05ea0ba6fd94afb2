"""Known lines about RDMA devices, their ports and their addresses.

Wording: Mooncake 0.3.8 to 0.3.14 (topology.cpp, rdma_context.cpp, transfer_engine_impl.cpp),
SGLang 0.5.23
(arg_groups/validation_hook.py). Devices that are missing were provoked with the real library.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Printer, Reading, Seen, Stage

_DEVICE = r"(?P<name>[\w.-]{1,64})"
_ERROR = r"(?P<error>[^\n\[]{1,80})(?:\[(?P<errno>\d{1,4})\])?"


def _read_no_devices(groups: Groups, seen: Seen) -> Reading:
    if "mooncake.no-rnic" in seen:
        return Reading(decided="a device was named, so Mooncake gave up here.", stage=Stage.CAUSE)
    if "library.provider" in seen:
        return Reading(decided="libibverbs says that the NIC's library is missing.")
    return Reading(decided="nothing in this log failed for it: transfers went over TCP.")


def _read_no_match(groups: Groups, seen: Seen) -> Reading:
    if "mooncake.port-inactive" in seen:
        return Reading(
            decided="a port that is not active was logged before: the device is there, its link "
            "is not.",
            checks=("rdma.port-down",),
        )
    return Reading()


_line = Printer(Layer.MOONCAKE).line


_GID_REMEDY = "set MC_GID_INDEX to the index of a RoCE v2 IPv4 GID of this network namespace"

DEVICES = (
    Pattern(
        "mooncake.no-rdma-devices",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("No RDMA devices found",),
        r"No RDMA devices found",
        ("rdma.no-device", "rdma.uverbs-permission", "rdma.provider-missing"),
        "libibverbs sees no RDMA device: with automatic discovery Mooncake goes on over TCP "
        "without another word, even with protocol rdma",
        "give the container /dev/infiniband (docker --device=/dev/infiniband) and install "
        "ibverbs-providers in the image",
        "ls /sys/class/infiniband: devices there mean that only the container lacks them",
        _read_no_devices,
    ),
    _line(
        "mooncake.fallback-transport",
        Stage.WARNING,
        "no HCA detected)",
        r"Using (?P<name>[\w /-]{1,60}?) transport[^\n]{0,40}no HCA detected\)",
        ("rdma.no-device", "gpu.imex", "tcp-takes-rdma"),
        "no RDMA device was found, so data goes over {name}",
        "nothing, if that is meant; else make the devices visible in the container",
        "SGLang's own log still says rdma: it does not look",
    ),
    _line(
        "mooncake.zero-hcas",
        Stage.WARNING,
        "ound 0 HCAs",
        r"ound 0 HCAs",
        ("rdma.no-device", "rdma.uverbs-permission"),
        "discovery found no RDMA device",
        "nothing, if TCP is meant; else make the devices visible in the container",
    ),
    _line(
        "mooncake.no-rnic",
        Stage.SYMPTOM,
        "No available RNIC",
        r"No available RNIC",
        ("rdma.no-device", "rdma.device-missing", "rdma.port-down"),
        "none of the devices that were named or found can be used",
        "see the line about each device before it",
        "the reason stands with each device: not there, not opened, port not active, no GID",
    ),
    _line(
        "mooncake.device-missing",
        Stage.CAUSE,
        "No matched device found",
        rf"No matched device found: {_DEVICE}",
        ("rdma.device-missing", "device-name-syntax"),
        "there is no RDMA device {name} here",
        "write the names as in /sys/class/infiniband, without port or quotes",
        "the same line follows when the device is there and its port is down",
    )._replace(read=_read_no_match),
    _line(
        "mooncake.port-inactive",
        Stage.CAUSE,
        "port not active",
        rf"Device {_DEVICE} port not active",
        ("rdma.port-down",),
        "the port of {name} that Mooncake opens has no link",
        "bring the link up, name another port in MC_IB_PORT, or leave the device out",
        "cat /sys/class/infiniband/{name}/ports/1/state",
    ),
    _line(
        "mooncake.no-active-port",
        Stage.WARNING,
        "has no active ports",
        rf"Device {_DEVICE} has no active ports",
        ("rdma.port-down",),
        "{name} has no active port and is left out",
        "bring its link up; nothing, if it is not cabled",
    ),
    _line(
        "mooncake.uverbs",
        Stage.CAUSE,
        "uverbs",
        r"(?:Device |Device path |path )(?P<name>/dev/infiniband/uverbs\d+)[^\n]{0,20} (?:is not "
        r"accessible for read/write|is not a character device|does not exist)",
        ("rdma.uverbs-permission",),
        "{name} is not there, or this user may not open it, so its device is left out",
        "give the container the node (docker --device=/dev/infiniband) and the user access to it",
        "ls -l /dev/infiniband in the container",
    ),
    _line(
        "mooncake.device-skipped",
        Stage.WARNING,
        "Skipping unavailable device",
        rf"Skipping unavailable device: {_DEVICE}",
        ("rdma.uverbs-permission", "rdma.port-down", "rdma.gid"),
        "{name} cannot be used and is left out",
        "see the line about it just before",
    ),
    _line(
        "mooncake.device-open",
        Stage.CAUSE,
        "Failed to open device ",
        rf"Failed to open device {_DEVICE}: {_ERROR}",
        ("rdma.uverbs-permission", "rdma.provider-missing", "rdma.cgroup-limit"),
        "{name} was not opened ({error})",
        "give the user access to /dev/infiniband/uverbs*; the rdma cgroup's hca_handle counts too",
        "EACCES and EPERM: the node's mode or the device cgroup; EAGAIN: the rdma cgroup",
    ),
    _line(
        "mooncake.context",
        Stage.SYMPTOM,
        "with GID ",
        rf"Failed to open device {_DEVICE} on port (?P<port>\d+) with GID (?P<gid>-?\d+)",
        ("rdma.gid", "rdma.port-down", "rdma.device-missing"),
        "{name} is not used (port {port}, GID index {gid})",
        "see the line about it just before",
    ),
    _line(
        "mooncake.ibv-open",
        Stage.CAUSE,
        "ibv_open_device(",
        r"ibv_open_device\((?P<name>[\w.-]{1,64})\) failed",
        ("rdma.uverbs-permission", "rdma.provider-missing", "rdma.cgroup-limit"),
        "libibverbs cannot open {name}",
        "give the user access to /dev/infiniband/uverbs*, install ibverbs-providers",
    ),
    _line(
        "mooncake.device-list",
        Stage.CAUSE,
        "ibv_get_device_list failed",
        r"ibv_get_device_list failed",
        ("rdma.no-device", "rdma.uverbs-permission"),
        "libibverbs lists no device",
        "give the container /dev/infiniband and load the NIC's kernel modules",
    ),
    _line(
        "mooncake.gid-none",
        Stage.CAUSE,
        "No suitable GID found",
        rf"No suitable GID found (?:on|while refreshing) {_DEVICE}/(?P<port>\d+)",
        ("rdma.gid",),
        "{name} has no GID that peers could reach: none, or those of another network namespace",
        "run in the host's network (docker --network=host), give the interface an IPv4 address",
        "all of /sys/class/infiniband/{name}/ports/1/gids being zero points to the namespace",
    ),
    _line(
        "mooncake.gid-query",
        Stage.CAUSE,
        "Failed to query GID",
        rf"Failed to query GID (?P<gid>-?\d+) on {_DEVICE}/(?P<port>\d+): {_ERROR}",
        ("rdma.gid", "number-out-of-range"),
        "{name} has no GID of index {gid}",
        _GID_REMEDY,
        "show_gids, or the files in /sys/class/infiniband/{name}/ports/1/gid_attrs",
    ),
    _line(
        "mooncake.gid-null",
        Stage.CAUSE,
        "GID is NULL",
        r"GID is NULL, please check your GID index",
        ("rdma.gid",),
        "the GID of the chosen index is empty",
        _GID_REMEDY,
    ),
    _line(
        "mooncake.gid-no-netdev",
        Stage.WARNING,
        "has no associated network device",
        rf"GID index (?P<gid>-?\d+) on {_DEVICE}/(?P<port>\d+) has no associated network device",
        ("rdma.gid",),
        "the chosen GID of {name} belongs to no interface of this network namespace: peers will "
        "not be reached",
        _GID_REMEDY,
    ),
    _line(
        "mooncake.gid-table",
        Stage.WARNING,
        "has no GID table entries",
        rf"{_DEVICE}:(?P<port>\d+) has no GID table entries",
        ("rdma.gid",),
        "{name} has no GID at all and is left out",
        "give its interface an address, in this network namespace",
    ),
    _line(
        "mooncake.device-names-wanted",
        Stage.CAUSE,
        "RDMA protocol requires device names",
        r"RDMA protocol requires device names",
        ("rdma.no-device", "no-device-left"),
        "protocol rdma without device names, and discovery is turned off (MC_MS_AUTO_DISC=0)",
        "name the devices in MOONCAKE_DEVICE, or unset MC_MS_AUTO_DISC",
    ),
    _line(
        "mooncake.protocol",
        Stage.CAUSE,
        "unsupported_protocol",
        r"unsupported_protocol protocol=(?P<name>[^\s]{0,60})",
        ("choice-unknown", "arguments-refused"),
        "Mooncake knows no protocol {name!r}",
        "write rdma or tcp in MOONCAKE_PROTOCOL",
    ),
    _line(
        "mooncake.transport-install",
        Stage.CONSEQUENCE,
        "Failed to install",
        r"Failed to install (?P<name>[\w-]{1,40}(?: [\w-]{1,40})?) transport",
        ("rdma.no-device", "rdma.device-missing"),
        "the {name} transport could not be set up",
        "see the lines before it",
    ),
    _line(
        "mooncake.port-event",
        Stage.CAUSE,
        "eceived context async event",
        r"eceived context async event (?P<event>port error|local catastrophic error|client "
        rf"reregistration|device fatal[^\n]{{0,20}}) for context {_DEVICE}",
        ("rdma.port-down", "pci.link-degraded"),
        "the NIC {name} reports: {event}",
        "look at the link and at dmesg of that time",
    ),
)

SGLANG = (
    Pattern(
        "sglang.ib-device-invalid",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Invalid IB devices specified",),
        r"Invalid IB devices specified(?: for (?P<context>[^:\n]{1,40}))?: "
        r"(?P<name>\[[^\]\n]{0,120}\])(?:\. Available devices: (?P<available>\[[^\]\n]{0,300}\]))?",
        ("rdma.device-missing", "device-name-syntax"),
        "the devices {name} are not here; there are {available}",
        "write the names as in /sys/class/infiniband, without port or quotes",
    ),
    Pattern(
        "sglang.ib-sysfs",
        Layer.SGLANG,
        Stage.CAUSE,
        ("InfiniBand sysfs path not found", "No IB devices found in"),
        r"InfiniBand sysfs path not found|No IB devices found in",
        ("rdma.no-device", "rdma.device-missing"),
        "RDMA devices were named, and this host or container has none",
        "load the NIC's modules on the host; give the container /sys and /dev/infiniband",
    ),
    Pattern(
        "sglang.ib-none",
        Layer.SGLANG,
        Stage.CAUSE,
        ("No valid IB devices specified", "No valid GPU mappings found", "Invalid JSON mapping"),
        r"No valid IB devices specified|No valid GPU mappings found|Invalid JSON mapping",
        ("device-map-unreadable", "device-name-syntax"),
        "--disaggregation-ib-device names no device that SGLang can read",
        'write names with commas, or {{"0": "mlx5_0", ..}} by GPU',
    ),
    Pattern(
        "sglang.ib-gpu-missing",
        Layer.SGLANG,
        Stage.CAUSE,
        ("No IB devices configured for GPU",),
        r"No IB devices configured for GPU (?P<name>\d+)",
        ("device-map-rank-missing",),
        "the map of devices leaves out GPU {name}",
        "give every GPU of the host an entry",
    ),
    Pattern(
        "sglang.device-json",
        Layer.SGLANG,
        Stage.WARNING,
        ("Failed to parse device_name as JSON",),
        r"Failed to parse device_name as JSON: (?P<name>[^\n]{0,120})",
        ("device-map-unreadable",),
        "MOONCAKE_DEVICE begins like a map and is none: it is dropped, and devices are discovered",
        "write a JSON object of rank to names, or names with commas",
    ),
    Pattern(
        "sglang.custom-pool",
        Layer.SGLANG,
        Stage.CAUSE,
        (
            "Unsupported custom mem pool type",
            "incompatible with MOONCAKE_PROTOCOL=efa",
            "which is incompatible with MOONCAKE_PROTOCOL",
        ),
        r"Unsupported custom mem pool type: (?P<name>\S{1,60})|SGLANG_MOONCAKE_CUSTOM_MEM_POOL="
        r"(?P<pool>\S{1,40}) is incompatible|expandable_segments|"
        r"incompatible with MOONCAKE_PROTOCOL=efa",
        ("custom-mem-pool-unknown", "gpu.peer-memory"),
        "the GPU's memory pool is of a kind that SGLang does not know or that EFA cannot transfer",
        "unset SGLANG_MOONCAKE_CUSTOM_MEM_POOL, remove expandable_segments from "
        "PYTORCH_CUDA_ALLOC_CONF",
    ),
    Pattern(
        "mooncake.efa-transfer",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("fi_read", "fi_write"),
        r"fi_(?:read|write)[^\n]{0,120}(?:Invalid argument|EINVAL|-22)",
        ("gpu.peer-memory", "custom-mem-pool-unknown"),
        "EFA cannot transfer memory of CUDA's virtual memory interface",
        "unset SGLANG_MOONCAKE_CUSTOM_MEM_POOL, remove expandable_segments from "
        "PYTORCH_CUDA_ALLOC_CONF",
    ),
)

PATTERNS = (*DEVICES, *SGLANG)
