"""vLLM: its workers, and what each KV connector takes through Mooncake or beside it.

Read in vLLM 0.33.0 (``vllm/config/vllm.py``, ``vllm/distributed/kv_transfer/kv_connector/v1``,
``vllm/v1/kv_offload/cpu``). A connector of which nothing is known here is named in ``uncounted``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checks.framework.units import GIB, format_bytes
from checks.framework.unknown import Unknown
from preflight.engines.consumers.consumer import (
    STORE_PATH,
    Client,
    Consumer,
    ConsumerParts,
    RefusedBy,
    WorkerPool,
    attempt,
    chunked_pool,
    port_of,
    setup_refuses,
)
from preflight.engines.consumers.vllm_arguments import (
    VllmArguments,
    expand_numbers,
    host_rank_of,
    model_of,
    vllm_arguments,
    vllm_size_bytes,
    workers_of,
)
from preflight.engines.programs.memory_records import OwnPool, Protocol, StoreClient
from preflight.engines.programs.sglang_arguments import SettingValue, file_text, word_value
from preflight.engines.programs.store_processes import StoreProcess
from preflight.launches.source import ReadFile, Word
from preflight.launches.variables import may_be_absent

RELEASE = "vLLM 0.33.0"
# The first of the releases whose KVTransferConfig was read: 0.8.5, 0.9.2, 0.11.0, 0.12.0, 0.16.0,
# 0.23.0 and 0.33.0. A connector or flag that one of them has not is refused by it too.
READ_FROM = "0.8.5"
# The first of them that gives a child of MultiConnector an engine_id itself, and the last before.
_ENGINE_IDS_FROM, _ENGINE_IDS_TAKEN_BY = "0.11.0", "0.9.2"
# The first of them whose store connector reads its file as 0.33.0 does (0.9.2 has an older one).
_STORE_FILES_FROM = "0.23.0"
# vllm/distributed/mooncake_store.py: DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE.
STORE_SIZE_BYTES = 4 * GIB
# simple_cpu_offload_connector.py DEFAULT_CPU_CAPACITY_BYTES, of one engine.
SIMPLE_POOL_BYTES = 8 * GIB
# config/cache.py gpu_memory_utilization: 0.92, in older releases 0.9.
LEAST_UTILIZATION = 0.9
# What lets it take less of its GPU than that: a KV cache by size or by blocks, models that embed,
# or a server that sleeps.
_TAKES_LESS = frozenset(
    "kv-cache-memory kv-cache-memory-bytes num-gpu-blocks-override task runner convert "
    "enable-sleep-mode".split()
)
BOOTSTRAP_PORT = 8998  # vllm/envs.py VLLM_MOONCAKE_BOOTSTRAP_PORT
# What its workers and its keys follow from, with vLLM's defaults; None is left to vLLM.
_SHOWN = {
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "data-parallel-size": 1,
    "prefill-context-parallel-size": 1,
    "decode-context-parallel-size": 1,
    "block-size": None,
    "kv-cache-dtype": "auto",
    "prefix-caching-hash-algo": "sha256",
    "speculative-config": None,
}
# Dynamo's KVBM (1.6.1, ``distributed/leader.rs``).
_KVBM_PORTS = {"DYN_KVBM_LEADER_ZMQ_PUB_PORT": 56001, "DYN_KVBM_LEADER_ZMQ_ACK_PORT": 56002}
_KVBM_NOTHING = "KVBM Configuration Error: At least one cache tier must be configured."
_WHAT = "what its KV connector takes"
_ROLES = ("kv_producer", "kv_both", "kv_consumer")
_SAVES = "save_decode_cache"
_TRANSFER_KEYS = frozenset(
    "kv_connector engine_id kv_buffer_device kv_role kv_port kv_connector_extra_config "
    "kv_connector_module_path enable_permute_local_kv kv_load_failure_policy".split()
)
# Of releases before 0.33.0. Source: vllm/config/kv_transfer.py, up to 0.23.0.
_FORMER_TRANSFER_KEYS = frozenset("kv_buffer_size kv_ip kv_parallel_size kv_rank".split())
_FORMER_KEYS_UP_TO = "0.23.0"
# MooncakeStoreConfig.from_file.
_STORE_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("metadata_server", "master_server_address", "device_name"), ""),
    **dict.fromkeys(("global_segment_size", "local_buffer_size"), STORE_SIZE_BYTES),
    "protocol": "rdma",
    "mode": "embedded",
    "enable_offload": False,
    "tenant_id": "default",
}
# Variables that SGLang or the store service would take, and vLLM's connector does not.
_OTHERS_VARIABLES = (
    "MOONCAKE_MASTER MOONCAKE_PROTOCOL MOONCAKE_DEVICE MOONCAKE_GLOBAL_SEGMENT_SIZE "
    "MOONCAKE_LOCAL_BUFFER_SIZE MOONCAKE_TE_META_DATA_SERVER MOONCAKE_LOCAL_HOSTNAME"
).split()
# What --connector of Dynamo's vLLM worker calls connectors up to 0.9 (dynamo/vllm/args.py).
_DYNAMO_CONNECTORS = {
    "kvbm": "DynamoConnector",
    "lmcache": "LMCacheConnectorV1",
    "nixl": "NixlConnector",
}
# Those of its own module, of which PdConnector is a MultiConnector (lib/bindings/kvbm
# vllm_integration/connector/pd_connector.py).
_DYNAMOS_OWN = ("DynamoConnector", "PdConnector")
_NO_CONNECTOR = ("none", "null")
# Of vLLM's own connectors (kv_connector/factory.py), those with another library.
_WITHOUT_MOONCAKE = frozenset(
    "FlexKVConnectorV1 HF3FSKVConnector HiSparseConnector MoRIIOConnector NixlConnector "
    "NixlPullConnector NixlPushConnector P2pNcclConnector SharedStorageConnector".split()
)
_NO_MEMORY = "DecodeBenchConnector ExampleConnector ExampleHiddenStatesConnector".split()


def read_vllm(
    argv: Sequence[Word], environment: Mapping[str, Word], read_file: ReadFile, lmcache: str = ""
) -> Consumer:
    """Read ``vllm serve``, or the API server's module, with these arguments.

    Args:
        lmcache: Its release, "" if nothing names it.
    """
    return _consumer(vllm_arguments(argv), environment, read_file, lmcache)


def _consumer(
    arguments: VllmArguments,
    environment: Mapping[str, Word],
    read_file: ReadFile,
    lmcache: str,
    extra_names: Sequence[str] = (),
) -> Consumer:
    """Read the engine's workers and connectors.

    Args:
        extra_names: Connectors that are named outside of vLLM's own arguments.
    """
    engines, workers, hosts = workers_of(arguments)
    connectors = _Connectors(arguments, environment, read_file, engines, workers, lmcache)
    connectors.read()
    for name in extra_names:
        connectors._connector({"kv_connector": name, "kv_role": "kv_both"}, child=True)
    if "numa-bind" in arguments.flags and connectors.clients:
        connectors.uncounted.append("which NUMA node --numa-bind binds each worker to")
    for name, default in _SHOWN.items():
        connectors.settings[name.replace("-", "_")] = arguments.setting(name, default)
    host_rank, leader = host_rank_of(arguments)
    utilization = arguments.setting("gpu-memory-utilization", LEAST_UTILIZATION).value
    fraction = attempt(lambda: float("" if isinstance(utilization, Unknown) else utilization))
    return connectors.consumer(
        RELEASE,
        engines=engines,
        workers=workers,
        transfer=connectors.transfer,
        transfer_protocol=connectors.transfer_protocol,
        registers_gpu=connectors.registers,
        hosts=hosts,
        node=host_rank,
        leader=leader,
        gpu_fraction=fraction if isinstance(fraction, float) and 0 < fraction <= 1 else None,
        gpu_fills=not _TAKES_LESS & arguments.flags.keys(),
        executor=str(arguments.setting("distributed-executor-backend", "").value),
    )


def read_dynamo_vllm(
    argv: Sequence[Word],
    environment: Mapping[str, Word],
    read_file: ReadFile,
    release: str | None = None,
    lmcache: str = "",
) -> Consumer:
    """Read ``python -m dynamo.vllm``: vLLM's own arguments, without its HTTP server.

    Args:
        release: Dynamo's, None if nothing says it. Read in ai-dynamo 1.6.1, where a prefill worker
            has to be given a connector. ``--connector`` and DYN_CONNECTOR name connectors up to
            0.9, and are refused from 1.0.0 on (pull request 6450). Dynamo's KVBM is a connector of
            another module.
    """
    arguments = vllm_arguments(argv)
    old = environment.get("DYN_CONNECTOR")
    named = _dynamos_connectors(argv) or ([] if old is None else old.text.split())
    takes = release is not None and release.startswith("0.")
    beside = [_DYNAMO_CONNECTORS.get(name, name) for name in named if name not in _NO_CONNECTOR]
    beside = [] if release and not takes else beside
    consumer = _consumer(arguments, environment, read_file, lmcache, beside)
    refused, uncounted = list(consumer.refused), list(consumer.uncounted)
    if named and release is None:
        uncounted.append("--connector, which Dynamo refuses from 1.0.0 on: its release is not said")
    elif named and not takes:
        refused.append("--connector is no longer supported: write --kv-transfer-config")
    ports = tuple(port for port in consumer.ports if port[0] != "HTTP port")
    return consumer._replace(ports=ports, refused=tuple(refused), uncounted=tuple(uncounted))


def _dynamos_connectors(argv: Sequence[Word]) -> list[str]:
    """Return the connectors behind ``--connector``, which takes several words; [] without it."""
    names: list[str] = []
    taken = False
    for word in argv:
        name, equals, value = word.text.partition("=")
        if word.text.startswith("-"):
            taken = name == "--connector"
            names += [value] if taken and equals else []
        elif taken:
            names.append(word.text)
    return names


class _Connectors(ConsumerParts):
    """Reads --kv-transfer-config and --kv-offloading-size: what each connector takes."""

    def __init__(
        self,
        arguments: VllmArguments,
        environment: Mapping[str, Word],
        read_file: ReadFile,
        engines: int | Unknown,
        workers: int | Unknown,
        lmcache: str,
    ) -> None:
        """Keep the arguments; add the HTTP port and the pinned weights."""
        super().__init__()
        self.lmcache = lmcache
        self.arguments, self.environment, self.read_file = arguments, environment, read_file
        self.engines, self.workers = engines, workers
        self.transfer: SettingValue | None = None
        self.transfer_protocol = ""
        self.registers = ""
        self.engine_id: Any = None
        self.settings["model"] = model_of(arguments)
        if "headless" not in arguments.flags:
            self.ports.append(("HTTP port", arguments.port()))
        if arguments.unread is not None:
            self.uncounted.append(f"what its other settings say ({arguments.unread.reason})")
        self._weights()

    def _weights(self) -> None:
        """Add the pinned weights of each worker (--cpu-offload-gb, in GiB)."""
        setting = self.arguments.setting("cpu-offload-gb", "0")
        if isinstance(setting.value, Unknown):
            if setting.given:
                self.uncounted.append(f"its weights on the host ({setting.value.reason})")
            return
        size = attempt(lambda: int(float(setting.value) * GIB))
        if isinstance(size, int) and size > 0:
            # Whole parameters up to this much; a smaller model has fewer.
            self.pools.append(WorkerPool(OwnPool(size, 0)))

    def read(self) -> None:
        """Read the KV connector, and the pool that --kv-offloading-size asks for."""
        config = self._config()
        config = self._offloading_size(config)
        if not config:
            return
        self.engine_id = config.get("engine_id")
        unknown = sorted(set(config) - _TRANSFER_KEYS, key=lambda key: key in _FORMER_TRANSFER_KEYS)
        if unknown:
            error = f"--kv-transfer-config: {unknown[0]}: Unexpected keyword argument"
            former = _FORMER_KEYS_UP_TO if unknown[0] in _FORMER_TRANSFER_KEYS else ""
            self._refuse(error, taken_by=former)
        self._connector(config)

    def _refuse(self, says: str, since: str = "", what: str = "", taken_by: str = "") -> None:
        """Add an error; what: what of a release that does not end with it is not counted."""
        self.refused_by.append(RefusedBy(RELEASE, says, since, since == READ_FROM, taken_by, what))

    def _config(self) -> dict[str, Any]:
        """Return the JSON of --kv-transfer-config; {} if it is missing, not known or refused."""
        setting = self.arguments.setting("kv-transfer-config")
        self.settings["kv_transfer_config"] = setting
        if isinstance(setting.value, Unknown):
            if setting.given:
                self.uncounted.append(f"what its KV connector takes ({setting.value.reason})")
            self.may_use = setting.value
            return {}
        if setting.value in (None, "", "None"):
            return {}
        read = attempt(lambda: [json.loads(expand_numbers(setting.value))])
        if isinstance(read, list) and isinstance(read[0], dict):
            return read[0]
        why = f"no JSON: {read}" if isinstance(read, str) else "Input should be a dictionary"
        self._refuse(f"argument --kv-transfer-config: {why}", READ_FROM, _WHAT)
        return {}

    def _offloading_size(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return ``config`` with the connector that --kv-offloading-size puts in its place (vllm
        config/vllm.py).

        Without that flag, or if its value is unknown or refused, ``config`` is unchanged.
        """
        setting = self.arguments.setting("kv-offloading-size")
        backend = self.arguments.setting("kv-offloading-backend", "native")
        if setting.value is None or not setting.given:
            return config
        self.settings["kv_offloading_size"] = setting
        if isinstance(setting.value, Unknown):
            self.uncounted.append(f"its CPU pool ({setting.value.reason})")
            return config
        size = attempt(lambda: float(setting.value) * GIB)
        if isinstance(size, str):
            says = f"argument --kv-offloading-size: invalid float value: {size}"
            self._refuse(says, READ_FROM, "its CPU pool")
            return config
        if config.get("kv_connector"):
            place = "--kv-offloading-size takes its place, and kv_role becomes kv_both"
            self.ignored.append(f"{config['kv_connector']} of --kv-transfer-config: {place}")
        simple = self.environment.get("VLLM_USE_SIMPLE_KV_OFFLOAD")
        is_simple = simple is not None and simple.text.strip() not in ("", "0")
        name = "SimpleCPUOffloadConnector" if is_simple else "OffloadingConnector"
        extra = config.get("kv_connector_extra_config") or {}
        if not isinstance(extra, dict):
            return config  # refused below
        extra = dict(extra)
        if backend.value == "lmcache":
            name = "LMCacheMPConnector"
            self.ignored.append("--kv-offloading-size: its LMCache server decides the size")
            # LMCacheConnectorV1 with its part of the size in each worker, in earlier releases.
            where = "LMCache holds it in the engine or in a server, as the release of vLLM has it"
            self.uncounted.append(f"its CPU pool of {format_bytes(int(size))}: {where}")
        else:
            extra["cpu_bytes_to_use"] = size
        both = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
        return {**config, **both}

    def _connector(self, config: dict[str, Any], child: bool = False) -> None:
        """Read one connector by its name, or add the error with which vLLM refuses it; one that is
        not known is added to ``uncounted``.

        Args:
            child: Of a MultiConnector.
        """
        name, role = config.get("kv_connector"), config.get("kv_role")
        extra = config.get("kv_connector_extra_config") or {}
        wrong, since, taken_by = "", READ_FROM, ""
        if role is not None and role not in _ROLES:
            wrong = f"Unsupported kv_role: {role}. Supported roles are {_ROLES}"
        elif name is not None and role is None:
            wrong = f"Please specify kv_role when kv_connector is set, supported roles are {_ROLES}"
        elif child and "engine_id" in config:
            wrong = "got multiple values for keyword argument 'engine_id'"
            wrong = f"TypeError: KVTransferConfig() {wrong}"
            since, taken_by = _ENGINE_IDS_FROM, _ENGINE_IDS_TAKEN_BY
        elif name is not None and not isinstance(name, str):
            wrong = "kv_connector: Input should be a valid string"
        elif name is not None and not isinstance(extra, dict):
            wrong = "kv_connector_extra_config: Input should be a valid dictionary"
        if wrong:
            self._refuse(wrong, since, _WHAT, taken_by)
        if wrong or name is None:
            return
        self.connectors.append(str(name))
        module = config.get("kv_connector_module_path")
        # Dynamo's own connectors always name their module: kvbm.vllm_integration.connector.
        dynamos = name in _DYNAMOS_OWN and str(module or "kvbm").startswith(("kvbm", "dynamo"))
        read = _CONNECTORS.get(name) if dynamos or not module else None
        if read is not None:
            read(self, extra, str(role))
        elif name not in _NO_MEMORY:
            from difflib import get_close_matches

            # MooncakeConnectorV1 and its like are another's own names.
            slip = not module and not str(name).startswith(tuple(_CONNECTORS))
            near = get_close_matches(str(name), _CONNECTORS, 1, 0.85) if slip else []
            meant = f": vLLM has {near[0]}" if near else ""
            self.uncounted.append(f"what {name} takes{meant}")
            if module or name not in _WITHOUT_MOONCAKE:
                self.may_use = Unknown(f"whether {name} uses Mooncake is not known")

    def _multi(self, extra: dict[str, Any], _role: str) -> None:
        """Read each child of a MultiConnector.

        Args:
            extra: The connector's settings.
        """
        children = extra.get("connectors")
        if not isinstance(children, list) or not all(isinstance(each, dict) for each in children):
            says = "MultiConnector: AssertionError: its connectors are no list of objects"
            self._refuse(says, READ_FROM, _WHAT)
            return
        for each in children:
            self._connector(each, child=True)

    def _store(self, extra: dict[str, Any], role: str) -> None:
        """Read MooncakeStoreConnector: a client of the store.

        Args:
            extra: The connector's settings.
        """
        # Device memory alone: what of it there is, only a start tells.
        if role != "kv_consumer" or extra.get("enable_lookup", True) or extra.get(_SAVES):
            self.registers = "the KV cache on the GPU, whose size is known only once it runs"
        path = self.environment.get(STORE_PATH)
        store, tenant = self._store_config()
        names = ("cache_prefix", "store_tp_size", "enable_store_tp_lcm")
        keys = {name: extra[name] for name in names if name in extra}
        keys["tenant"] = tenant
        self.clients.append(Client(store, family="vLLM MooncakeStoreConnector", keys=keys))
        self._socket(f"lookup_rpc_port_{extra.get('lookup_rpc_port', 0)}_host_<host>_dp_rank")
        reads = f"MooncakeStoreConnector reads {'no file' if path is None else path.text} alone"
        for name in _OTHERS_VARIABLES:
            word = self.environment.get(name)
            if word is not None and word.text and not may_be_absent(word, name):
                self.ignored.append(f"{name} ({word.origin}): {reads}")

    def _socket(self, name: str) -> None:
        """Add a socket of every data-parallel engine here, in vLLM's socket folder; nothing if the
        folder or the engines are not known.

        Args:
            name: The file's, without the engine's rank.
        """
        base, engines = self.environment.get("VLLM_RPC_BASE_PATH"), self.engines
        names = ("data-parallel-rank", "data-parallel-start-rank")
        values = [self.arguments.setting(name_of).value for name_of in names]
        first = next((name_of for name_of in values if name_of is not None), "0")
        plain = isinstance(first, str) and first.isdecimal() and len(first) < 6
        if not plain or isinstance(engines, Unknown) or (base is not None and base.unresolved):
            return
        folder = "/tmp" if base is None else base.text
        self.sockets += [f"{folder}/{name}{int(first) + rank}" for rank in range(engines)]

    def _store_config(self) -> tuple[StoreProcess, str]:
        """Return the client that the file of MOONCAKE_CONFIG_PATH sets up, and the tenant whose
        keys it sees.

        If the file is missing, cannot be read or is refused by the connector, the client's memory
        is Unknown and the tenant "".
        """
        path, what = self.environment.get(STORE_PATH), "what MooncakeStoreConnector takes"
        if path is None or not path.text:  # by every release with such a connector
            unset = Unknown(f"The environment variable '{STORE_PATH}' is not set.")
            self._refuse(f"ValueError: {unset.reason}", READ_FROM, what)
            return StoreProcess(unset, devices=unset), ""
        text, place = file_text(path, self.read_file), path.text
        if isinstance(text, Unknown):
            return StoreProcess(text, devices=text), ""
        config = attempt(lambda: store_config(text))
        if isinstance(config, str):
            self._refuse(f"{place}: {config}", _STORE_FILES_FROM, what)
            refused = Unknown(config)
            return StoreProcess(refused, devices=refused, file=place), ""
        raw = json.loads(text)
        for key in sorted(set(raw) - _STORE_DEFAULTS.keys()):
            self.ignored.append(f"{key} in {place}: MooncakeStoreConnector has no such key")
        self.settings |= {f"store.{name}": SettingValue(v, place) for name, v in config.items()}
        segment, local = config["global_segment_size"], config["local_buffer_size"]
        protocol = str(config["protocol"])
        wrong = setup_refuses(segment, local, protocol)
        if not wrong and config["metadata_server"] == "":
            wrong = "metadata_server is empty, which names an etcd without an address"
        if wrong:  # Mooncake's own words, whichever vLLM asks it
            failed = "Initialize MooncakeDistributedStore failed."
            self.refused.append(f"{place}: {wrong}: {failed}")
        if isinstance(raw.get("enable_offload"), str):
            becomes = str(config["enable_offload"]).lower()
            self.misread.append(f"enable_offload in {place} is a text: it counts as {becomes}")
        transport = Protocol.TCP if protocol == "tcp" else Protocol.RDMA
        client = StoreProcess(
            StoreClient(max(0, segment), max(0, local), transport),
            devices=str(config["device_name"]),
            master=str(config["master_server_address"]),
            metadata=str(config["metadata_server"]),
            file=place,
            protocol=protocol,
        )
        return client, str(config["tenant_id"])

    def _transfer(self, extra: dict[str, Any], role: str) -> None:
        """Read MooncakeConnector: a transfer engine.

        Args:
            extra: The connector's settings.
        """
        self.registers = "the KV cache on the GPU, whose size is known only once it runs"
        self.transfer_protocol = str(extra.get("mooncake_protocol", "rdma"))
        if self.transfer_protocol == "rdma":
            devices = extra.get("device_name", "")
            self.transfer = SettingValue(devices, "device_name in --kv-transfer-config")
        if role != "kv_consumer" and extra.get("bootstrap_server_address") is None:
            name = "VLLM_MOONCAKE_BOOTSTRAP_PORT"
            default = f"vLLM: {name} is not set"
            port = port_of(self.environment.get(name), BOOTSTRAP_PORT, name, default)
            self.ports.append(("bootstrap port", port))

    def _offloading(self, extra: dict[str, Any], _role: str) -> None:
        """Read OffloadingConnector: one pool of the engine.

        Args:
            extra: The connector's settings.
        """
        asked = extra.get("cpu_bytes_to_use")
        size = attempt(lambda: int(asked or 0))
        if isinstance(size, str) or not asked:  # 0.12.0 and before have num_cpu_blocks
            unset = "cpu_bytes_to_use must be specified in kv_connector_extra_config"
            says = f"OffloadingConnector: cpu_bytes_to_use: {size}" if asked else unset
            self._refuse(says, what="its CPU pool")
            return
        if extra.get("spec_name") not in (None, "CPUOffloadingSpec"):
            self.uncounted.append(f"what {extra['spec_name']} of OffloadingConnector takes beside")
        shared_pool = chunked_pool(size)._replace(shared_memory=True)
        self.pools.append(WorkerPool(shared_pool, of_engine=True))

    def _simple(self, extra: dict[str, Any], _role: str) -> None:
        """Read SimpleCPUOffloadConnector: a pool a worker.

        Args:
            extra: The connector's settings.
        """
        if extra.get("kv_offload_backend", "cpu") != "cpu":
            self.uncounted.append("what SimpleCPUOffloadConnector holds for its disk")
            return
        workers = self.workers
        if isinstance(workers, Unknown):
            self.uncounted.append(f"its CPU pool ({workers.reason})")
            return
        whole = extra.get("cpu_bytes_to_use", SIMPLE_POOL_BYTES)
        each = extra.get("cpu_bytes_to_use_per_rank")
        size = attempt(lambda: int(whole) // workers if each is None else int(each))
        if isinstance(size, str):
            self._refuse(f"SimpleCPUOffloadConnector: {size}", what="its CPU pool")
        elif size > 0:
            # num_cpu_blocks may make it less; the bytes still bound it.
            fewer = extra.get("num_cpu_blocks") is not None
            self.pools.append(WorkerPool(OwnPool(size, 0) if fewer else chunked_pool(size)))

    def _lmcache(self, extra: dict[str, Any], _role: str) -> None:
        """Read LMCache inside the workers.

        Args:
            extra: The connector's settings.
        """
        from preflight.engines.consumers.lmcache import read_lmcache

        self.add(read_lmcache(self.environment, self.read_file, extra, self.lmcache))
        if self.engine_id is not None:  # otherwise drawn at random
            port = extra.get("lmcache_rpc_port", 0)
            self._socket(f"engine_{self.engine_id}_lmcache_rpc_port_{port}_")

    def _kvbm(self, _extra: dict[str, Any], _role: str) -> None:
        """Add Dynamo's KVBM, and say if its host pool is smaller than the GPU's."""
        part = read_kvbm(self.environment)
        self.add(part)
        each, workers = self.arguments.number("kv-cache-memory-bytes", 0), self.workers
        host = sum(own_pool.memory.bytes for own_pool in part.pools)
        if isinstance(each, int) and isinstance(workers, int) and 0 < host < each * workers:
            gpu = f"{workers} x {format_bytes(each)} of --kv-cache-memory-bytes"
            self.ignored.append(
                f"DYN_KVBM_CPU_CACHE_GB is {format_bytes(host)}, less than the KV cache on the GPU "
                f"({gpu}): KVBM writes through, and the host holds nothing that the GPU has not"
            )

    def _lmcache_server(self, _extra: dict[str, Any], _role: str) -> None:
        from preflight.engines.consumers.lmcache import RELEASE as LMCACHE

        self.parts.append(LMCACHE)  # the memory is in a server, another process


_CONNECTORS: dict[str, Callable[[_Connectors, dict[str, Any], str], None]] = {
    "MultiConnector": _Connectors._multi,
    "PdConnector": _Connectors._multi,
    "MooncakeStoreConnector": _Connectors._store,
    "MooncakeConnector": _Connectors._transfer,
    "OffloadingConnector": _Connectors._offloading,
    "SimpleCPUOffloadConnector": _Connectors._simple,
    "LMCacheConnectorV1": _Connectors._lmcache,
    "LMCacheMPConnector": _Connectors._lmcache_server,
    "DynamoConnector": _Connectors._kvbm,
}


def read_kvbm(environment: Mapping[str, Word]) -> Consumer:
    """Read the pinned host pool of Dynamo's KVBM, one for each engine, and KVBM's ports.

    DYN_KVBM_CPU_CACHE_GB gives the pool's size in units of 10^9 bytes. If neither host nor disk has
    a size, ``refused`` has KVBM's error.
    """
    sizes: dict[str, float] = {}
    parts = ConsumerParts()
    for tier in ("CPU", "DISK"):
        name = f"DYN_KVBM_{tier}_CACHE_GB"
        word = environment.get(name)
        text: str | Unknown = "" if word is None else word_value(word)
        blocks = environment.get(f"DYN_KVBM_{tier}_CACHE_OVERRIDE_NUM_BLOCKS")
        if isinstance(text, Unknown):
            parts.uncounted.append(f"KVBM's {tier} tier ({text.reason})")
        elif blocks is not None and blocks.text.strip() not in ("", "0"):
            parts.uncounted.append(f"KVBM's {tier} tier: {blocks.text} blocks of the model's size")
        size = attempt(lambda text=text: float(str(text)))  # type: ignore[misc]
        sizes[tier] = 0.0 if isinstance(size, str) or not 0 <= size < 1e9 else size
        if isinstance(size, str) and isinstance(text, str) and text:
            parts.misread.append(f"{name}={text}: not a number to KVBM, which takes 0")
    if not parts.uncounted and not any(sizes.values()):
        parts.refused.append(_KVBM_NOTHING)
        return parts.consumer()
    if 0 < sizes["DISK"] < sizes["CPU"]:
        less = "DYN_KVBM_DISK_CACHE_GB is less than DYN_KVBM_CPU_CACHE_GB"
        nothing = "KVBM writes through, and the disk holds nothing that the host has not"
        parts.ignored.append(f"{less}: {nothing}")
    whole = int(sizes["CPU"] * 10**9)
    parts.pools += [WorkerPool(chunked_pool(whole), of_engine=True)] if whole else []
    for name, default in _KVBM_PORTS.items():
        what = f"KVBM {name.split('_')[-2].lower()} port"
        parts.ports.append((what, port_of(environment.get(name), default, name, "KVBM")))
    parts.settings["kvbm.cpu_cache_gb"] = SettingValue(sizes["CPU"], "DYN_KVBM_CPU_CACHE_GB")
    return parts.consumer()


def store_config(text: str) -> dict[str, Any]:
    """Return the settings of a JSON file as vLLM's ``MooncakeStoreConfig.from_file`` reads them,
    sizes in bytes; raises the errors that vLLM raises.
    """
    config = json.loads(text)
    config = {key: config.get(key, default) for key, default in _STORE_DEFAULTS.items()}
    for key in ("global_segment_size", "local_buffer_size"):
        config[key] = vllm_size_bytes(config[key])
    config["enable_offload"] = bool(config["enable_offload"])
    tenant = config["tenant_id"]
    if not isinstance(tenant, str | None):
        raise TypeError(f"tenant_id must be a string or null, got {tenant!r}")
    config["tenant_id"] = (tenant or "").strip() or "default"
    mode = config["mode"]
    if mode not in ("embedded", "standalone-store"):
        raise ValueError(f"unknown Mooncake mode: {mode!r}")
    if config["local_buffer_size"] <= 0:
        raise ValueError("local_buffer_size must be > 0")
    if mode == "embedded" and config["global_segment_size"] == 0:
        raise ValueError("embedded mode requires global_segment_size > 0")
    if mode == "standalone-store" and config["global_segment_size"] != 0:
        raise ValueError("standalone-store mode requires global_segment_size == 0")
    return config
