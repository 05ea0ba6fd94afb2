"""Known lines of SGLang: its store, its arguments, NUMA binding, processes, disaggregation.

Wording: SGLang 0.5.2 to 0.5.23 (mem_cache/storage/mooncake_store, entrypoints/engine.py,
utils/watchdog.py, utils/numa_utils.py, utils/network.py, disaggregation), numactl.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Printer, Reading, Seen, Stage

# Mooncake's error codes, mooncake-store/include/types.h.
_CODES = {
    "-1": "INTERNAL_ERROR: with huge pages in 0.3.14, a buffer that could not be allocated",
    "-200": "NO_AVAILABLE_HANDLE: no room",
    "-300": "INVALID_VERSION: master and client differ",
    "-600": "INVALID_PARAMS: anything that failed in the client's setup, the master's address too",
    "-800": "TRANSFER_FAIL: a peer was not reached",
    "-900": "RPC_FAIL: the master did not answer, or not in this release's language",
    "-901": "RPC_TIMEOUT: the master did not answer in time",
}


def _read_setup(groups: Groups, seen: Seen) -> Reading:
    says = _CODES.get(groups.get("code", ""), "")
    return Reading(decided=f"{groups.get('code')} is {says}." if says else "")


def _read_numa(groups: Groups, seen: Seen) -> Reading:
    error = groups.get("error", "")
    if "not permitted" in error:
        return Reading(decided="Operation not permitted: seccomp.", checks=("numa.policy-refused",))
    if "Invalid argument" in error:
        return Reading(
            decided="Invalid argument: the node is not in cpuset.mems, or does not exist.",
            checks=("numa.cpuset-excludes", "numa.policy-refused"),
        )
    return Reading()


def _read_import(groups: Groups, seen: Seen) -> Reading:
    if "library.missing" in seen or "library.symbol" in seen:
        return Reading(
            decided="a library is missing (see there): Mooncake is installed, it cannot be loaded.",
            checks=("software.library-missing", "software.mooncake-duplicate"),
            stage=Stage.CONSEQUENCE,
        )
    return Reading()


_line = Printer(Layer.SGLANG).line


_NUMA_REMEDY = (
    "docker --cap-add SYS_NICE (or a seccomp profile that allows set_mempolicy and mbind); give "
    "the cgroup the nodes in cpuset.mems"
)

STORE = (
    _line(
        "sglang.store-setup",
        Stage.SYMPTOM,
        ("Failed to setup Mooncake",),
        r"Failed to setup Mooncake (?:store|Embedding Store)(?:, error code)?: ?(?P<code>-?\d+)",
        ("service.reachable", "software.version-skew", "rdma.no-device"),
        "the store's setup ended with {code}",
        "see Mooncake's own lines before it",
    )._replace(read=_read_setup),
    _line(
        "sglang.warmup",
        Stage.SYMPTOM,
        ("Warmup put failed after",),
        r"Warmup put failed after (?P<times>\d+) attempts",
        ("segment-nowhere", "network.advertised-address", "service.reachable"),
        "the store took no first object: no segment is mounted, or the segment's owner is not "
        "reached",
        "see Mooncake's own lines before it, and 'Mem Storage' in the master's log",
    ),
    _line(
        "sglang.mooncake-missing",
        Stage.CAUSE,
        ("Please install mooncake", "No module named 'mooncake"),
        r"Please install mooncake|No module named 'mooncake(?P<name>[\w.]{0,40})'",
        ("software.mooncake-missing", "software.library-missing"),
        "the interpreter that runs SGLang cannot import mooncake",
        "pip install mooncake-transfer-engine (or its -cuda13 flavour) into that interpreter",
        "the import's own error, above or further down in the traceback, tells missing from broken",
    )._replace(read=_read_import),
    _line(
        "sglang.mooncake-old",
        Stage.WARNING,
        (
            "allocator requires mooncake >=",
            "installed Mooncake version does not support",
            "requires mooncake-transfer-engine",
            "requires a newer version of",
            "does not support ReplicateConfig.group_ids",
        ),
        r"requires mooncake >= (?P<name>[\d.]+\w*)|installed Mooncake version does not support|"
        r"requires mooncake-transfer-engine|requires a newer version of|group_ids",
        ("mooncake-too-old", "software.version-skew"),
        "the installed Mooncake lacks what SGLang would use; where it falls back, L2 is pinned "
        "memory and huge pages that were reserved for it stay unused",
        "upgrade mooncake-transfer-engine, on all nodes and the master",
    ),
    _line(
        "sglang.standalone",
        Stage.CAUSE,
        ("standalone_storage=True requires MooncakeHostTensorAllocator",),
        r"standalone_storage=True requires MooncakeHostTensorAllocator",
        ("mooncake-too-old", "standalone-breaks-mha"),
        "standalone storage needs the allocator of Mooncake 0.3.8.post1, which is not in use here",
        "upgrade Mooncake, or set standalone_storage to false",
    ),
    _line(
        "sglang.segment-size",
        Stage.CAUSE,
        ("invalid literal for int() with base 10", "Invalid global_segment_size"),
        r"invalid literal for int\(\) with base 10: '(?P<name>\s*-?[\d.]+\s*[kmgtKMGT]?i?"
        r"[bB]?\s*)'|"
        r"Invalid global_segment_size: missing",
        ("segment-size-refused", "number-refused"),
        "a size is not in the spelling that SGLang reads: whole bytes, or a whole number and gb",
        "write 4gb or 4294967296, no mb, no fraction, no plain g",
        "the traceback names the setting: global_segment_size is the usual one",
    ),
    _line(
        "sglang.store-config",
        Stage.CAUSE,
        (
            "Either the environment variable 'MOONCAKE_MASTER'",
            "Either master_server_address or client_server_address",
            "Config file path not set",
            "Failed to load config from",
            "extra config JSON",
            "onfiguration loading failed: ",
            "error occurred while loading the configuration: ",
        ),
        r"Either the environment variable 'MOONCAKE_MASTER'|Either master_server_address or "
        r"client_server_address|Config file path not set|Failed to load config from "
        r"(?P<name>[^\s:]{1,200})|backend extra config JSON|(?:onfiguration loading failed|error "
        r"occurred while loading the configuration): (?P<error>[^\n]{1,160})",
        ("store-config-refused", "extra-config-ignored", "storage.files"),
        "the store's configuration names neither a master nor a client, or cannot be read",
        "set MOONCAKE_MASTER=host:50051, or master_server_address in the JSON",
    ),
    _line(
        "sglang.store-timeout",
        Stage.CAUSE,
        ("Launch mooncake store server timeout",),
        r"Launch mooncake store server timeout",
        ("service.reachable", "service.address"),
        "the store server that SGLang waited for did not come up",
        "see its own log; start it before the server",
    ),
    _line(
        "sglang.backend",
        Stage.SYMPTOM,
        ("Failed to create storage backend: ",),
        r"Failed to create storage backend: (?P<error>[^\n]{1,160})",
        ("store-config-refused", "service.reachable", "software.mooncake-missing"),
        "the storage backend did not come up ({error})",
        "see the error that it quotes",
    ),
    _line(
        "sglang.layout",
        Stage.CAUSE,
        (
            "Unsupported layout",
            "Unsupported IO backend",
            "HiCache cannot build the",
            "layer_first multi-buffer is only",
        ),
        r"Unsupported layout(?: for models with head_dim != v_head_dim(?: and io_backend='\w{1,20}'"
        r")?)?: (?P<name>\w{1,40})|Unsupported layout (?P<name2>\w{1,40}) for io backend|"
        r"Unsupported IO backend(?: for models with head_dim != v_head_dim)?: (?P<name3>\w{1,40})|"
        r"HiCache cannot build the (?P<pool>[^\n]{1,80}?) host pool|layer_first multi-buffer",
        ("host-pools-refused", "storage-needs-equal-heads"),
        "the host pools of this model cannot have this memory layout",
        "give --hicache-mem-layout page_first or layer_first, as the model allows",
    ),
    _line(
        "sglang.cold-cache",
        Stage.WARNING,
        ("Pin budget: 0 tokens", "External prefix cache hit rate: 0.0%"),
        r"Pin budget: 0 tokens|External prefix cache hit rate: 0\.0%",
        ("software.version-skew", "prefetch-best-effort", "keys-collide"),
        "the cache holds or finds nothing; the log gives no reason",
        "compare the versions of all Mooncakes, the layout, the prefetch policy and the keys' "
        "model name; one known report in a container was never explained",
        "in the first minutes this is normal",
    ),
)

ARGUMENTS = (
    _line(
        "sglang.argument-unknown",
        Stage.CAUSE,
        ("error: unrecognized arguments", "error: ambiguous option"),
        r"error: (?:unrecognized arguments|ambiguous option): (?P<name>[^\n]{1,160})",
        ("argument-unknown", "arguments-refused"),
        "this release does not have {name}",
        "take it out, or install the release that has it",
    ),
    _line(
        "sglang.argument-refused",
        Stage.CAUSE,
        ("error: argument -", "error: the following arguments are required"),
        r"error: (?:argument (?P<name>--?[\w/, -]{1,80}): (?P<error>[^\n]{1,120})|the following "
        r"arguments are required[^\n]{0,80})",
        ("arguments-refused",),
        "the command line is refused: {name}: {error}",
        "mend the argument",
    ),
    _line(
        "sglang.hicache-arguments",
        Stage.CAUSE,
        (
            "--hicache-host-memory-fraction must be in",
            "requires a host pool size: pass --hicache",
            "HiCache with --dcp-size",
            "HiCache auto-sizing does not support",
        ),
        r"--hicache-host-memory-fraction must be in|requires a host pool size|HiCache with "
        r"--dcp-size|HiCache auto-sizing does not support (?P<name>\w{1,60})",
        ("arguments-refused", "host-pools-refused", "hicache-size-unset"),
        "SGLang refuses these HiCache arguments together",
        "give --hicache-size or --hicache-ratio explicitly, within what the message allows",
    ),
    _line(
        "sglang.port",
        Stage.CAUSE,
        (
            " is not available in ",
            "error while attempting to bind on address",
            "is used by a process already",
        ),
        r"(?:[\w-]{1,40}) at (?P<name>\d{1,5}) is not available in|attempting to bind on address "
        r"\('(?P<host>[^']{1,60})', (?P<port>\d+)\): address already in use|"
        r"is used by a process already",
        ("network.port-taken", "network.port-range"),
        "a port of the server is taken",
        "end the process that has it (ss -ltnp), or give another --port",
        "eRDMA in compatibility mode takes TCP 30608 to 30623; Kubernetes gives out 30000 to 32767",
    ),
)

NUMA = (
    _line(
        "sglang.numa-binding",
        Stage.CAUSE,
        ("setting membind", "set_mempolicy: ", "sched_setaffinity: "),
        r"(?:setting membind|set_mempolicy|sched_setaffinity): (?P<error>[^\n'\")]{1,60})",
        ("numa.policy-refused", "numa.cpuset-excludes"),
        "numactl may not bind the rank to its NUMA node; before SGLang 0.5.16 the rank ends here, "
        "with exit code 1 and no traceback",
        _NUMA_REMEDY,
        "Operation not permitted is seccomp, Invalid argument is cpuset.mems",
    )._replace(layer=Layer.LIBRARY, read=_read_numa),
    _line(
        "sglang.numa-soft",
        Stage.WARNING,
        ("numactl rejected", "numactl could not apply NUMA binding"),
        r"numactl (?:rejected (?:hard )?memory binding|could not apply NUMA binding)"
        r"(?P<error>[^\n]{0,240})",
        ("numa.policy-refused", "numa.cpuset-excludes"),
        "a rank is not bound to its NUMA node: it runs, slower and on the other node's memory",
        _NUMA_REMEDY,
    )._replace(read=_read_numa),
    _line(
        "sglang.numa-range",
        Stage.CAUSE,
        ("node argument", "is invalid"),
        r"libnuma: Warning: (?:node|cpu) argument (?P<name>\S{1,20}) is out of range|"
        r"^<(?P<node>[\d,-]{1,20})> is invalid",
        ("numa.cpuset-excludes",),
        "numactl was told a NUMA node or CPU that is not there for this process",
        "see --numa-node against the nodes of this host and cpuset.mems.effective",
    )._replace(layer=Layer.LIBRARY),
    _line(
        "sglang.numactl-missing",
        Stage.CAUSE,
        (
            "numactl: not found",
            "numactl: command not found",
            "numactl: No such file",
            "numactl command not found",
        ),
        r"numactl:? (?:command )?(?:not found|No such file)",
        ("software.numactl-missing",),
        "numactl is not installed in the image",
        "apt install numactl in the image",
    )._replace(layer=Layer.RUNTIME),
)

PEERS = (
    _line(
        "sglang.peer-dead",
        Stage.SYMPTOM,
        (
            "might be dead",
            "could be dead",
            "Lost connection with prefill instance",
            "KVTransferError",
        ),
        r"Failed to get kvcache from prefill instance|Decode instance could be dead[^\n]{0,120}|"
        r"Lost connection with prefill instance(?: \(bootstrap_addr: (?P<name>[^\s)]{1,80})\))?|"
        r"KVTransferError\(bootstrap_room=\d+\): (?P<error>[^\n]{1,120})",
        ("pd-registration-silent", "rdma.subnets", "network.advertised-address"),
        "KV did not get from prefill to decode: the other end died, or its NICs are not reached, "
        "or memory was not registered at its start, which disaggregation does not check",
        "see the other server's log of that time, and 'Failed to register memory' at its start",
    ),
    _line(
        "sglang.prefill-dead",
        Stage.SYMPTOM,
        ("Transfer thread failed because of",),
        r"Transfer thread failed because of (?P<error>[^\n]{1,160})",
        ("pd-registration-silent", "rdma.subnets"),
        "the prefill server's transfers ended ({error})",
        "see the error that it quotes",
    ),
)

PATTERNS = (*STORE, *ARGUMENTS, *NUMA, *PEERS)
