"""LMCache inside an engine's workers: its settings, its pinned pool, and its clients of the store.

Its settings come from the YAML file of LMCACHE_CONFIG_FILE, then LMCACHE_<KEY>, then
``lmcache.<key>`` of the engine's own JSON. Read in LMCache 0.5.6 (``lmcache/v1/config.py``,
``config_base.py``, ``storage_backend``, ``integration/vllm``); ``data/lmcache_settings.txt`` has
every setting. That file and ``_STORES`` have what differs between the releases since 0.3.5.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.framework.written_numbers import Numbers, version_numbers
from preflight.base.program import data_file
from preflight.engines.consumers.consumer import (
    STORE_PATH,
    Client,
    Consumer,
    ConsumerParts,
    RefusedBy,
    WorkerPool,
    attempt,
    flags_of,
    port_of,
    setup_refuses,
)
from preflight.engines.programs.memory_records import OwnPool, Protocol, StoreClient
from preflight.engines.programs.sglang_arguments import SettingValue, file_text, why_unresolved
from preflight.engines.programs.store_environment import byte_size
from preflight.engines.programs.store_processes import StoreProcess
from preflight.launches.source import ReadFile, Word

_ALIASES = {"plugin_locations": "runtime_plugin_locations", "external_backends": "storage_plugins"}


class _Row(NamedTuple):
    """How a setting is read, its default, and the first release that knows it."""

    reader: str
    default: Any
    since: Numbers = (0, 0, 0, 0)


@cache
def lmcache_settings() -> Mapping[str, _Row]:
    """Return the reader and the default of every setting, by name."""
    rows = {}
    with open(data_file("lmcache_settings.txt"), encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                name, reader, since, default = line.split(" ", 3)
                first = _version("0.0.0" if since == "-" else since)
                rows[name] = _Row(reader, json.loads(default), first)
    return rows


def _version(release: str) -> Numbers:
    """Return a release as numbers; for "" or a text that is no number, the newest that was read."""
    try:
        return version_numbers(release, "an LMCache", "0.5.6")
    except ValueError:
        return _version(RELEASE.rpartition(" ")[2])


def _parts(value: Any) -> list[Any]:
    """Return a list as it is, and the parts of a text between its commas."""
    if isinstance(value, list):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _numbers(value: Any) -> list[Any]:
    return _parts(value if isinstance(value, list) else str(value))


def _json(value: Any) -> Any:
    return value if isinstance(value, dict) else json.loads(value) if value else None


_READ: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda value: value is True or str(value).strip().lower() in ("true", "1"),
    "str": str,
    "disk": lambda value: ",".join(p.removeprefix("file://") for p in _parts(str(value))) or None,
    "ints": lambda value: [*map(int, _numbers(value))],
    "floats": lambda value: [*map(float, _numbers(value))],
    "strs": _parts,
    "json": _json,
    "list": lambda value: value if isinstance(value, list) else [value] if value else [],
}


def lmcache_values(
    file: str | None,
    environment: Mapping[str, str],
    warnings: list[str] | None = None,
    release: str = "",
) -> dict[str, Any]:
    """Return every setting as LMCache has it, by name.

    Its LMCACHE_... variables win over its YAML file, whose text is ``file`` (None without one).
    Raises the errors with which LMCache ends.

    Args:
        warnings: A list to which LMCache's warnings of lost values are added.
        release: One that is older than a setting passes it over; "" is the newest.
    """
    warnings = [] if warnings is None else warnings
    rows = lmcache_settings()
    of_file: dict[str, Any] = {}
    if file is not None:
        import yaml

        of_file = _known_settings((yaml.safe_load(file) or {}).items(), warnings, release)
    values: dict[str, Any] = {}
    variables = {name: f"LMCACHE_{name.upper()}" for name in (*rows, *_ALIASES)}
    plain = _known_settings(
        [(n, environment[v]) for n, v in variables.items() if v in environment], warnings, release
    )
    for name, row in rows.items():
        value = row.default
        if name in of_file:
            value = of_file[name]
        elif file is None and name in plain:
            value = _unquote(plain[name])
        values[name] = _convert(name, row, value, warnings)
        if file is not None and name in plain:
            try:
                values[name] = _READ[row.reader](_unquote(plain[name]))
            except ValueError as error:
                warnings.append(f"LMCACHE_{name.upper()}={plain[name]}: {error}: it is passed over")
    _validate(values)
    return values


def _known_settings(items: Any, warnings: list[str], release: str) -> dict[str, Any]:
    """Return the settings that a release knows, without aliases; add a warning for each other
    key.
    """
    values, at = {}, _version(release)
    for key, value in items:
        row = lmcache_settings().get(key)
        if key in _ALIASES or (row is not None and row.since <= at):
            values[_ALIASES.get(key, key)] = value
        else:
            warnings.append(f"Unknown configuration key: {key}")
    return values


def _convert(name: str, row: _Row, value: Any, warnings: list[str]) -> Any:
    """Convert a value as LMCache does.

    Returns:
        None if that raises a ValueError, which adds a warning; any other error is raised.
    """
    if value is None:
        return None
    try:
        return _READ[row.reader](value)
    except ValueError as error:
        warnings.append(f"Failed to convert value for {name}={value!r}: {error}: it has none then")
        return None


def _unquote(text: str) -> str:
    """Take the quotes off a text, as LMCache does."""
    text = text.strip()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text[1:-1]
    return value if isinstance(value, str) else text


def _validate(values: dict[str, Any]) -> None:
    """Check and complete the values, in place, as LMCache's ``_validate_config`` does, without its
    checks of P2P.

    Raises:
        ValueError: With LMCache's words.
    """
    if values["min_retrieve_tokens"] < 0:
        raise ValueError(f"min_retrieve_tokens must be >= 0, got {values['min_retrieve_tokens']}")
    if values["enable_controller"]:
        for name in ("controller_pull_url", "controller_reply_url"):
            if values[name] is None:
                raise ValueError(f"{name} is required when enable_controller=True")
        if not values["lmcache_worker_ports"]:
            why = "is required and cannot be empty when enable_controller=True"
            raise ValueError(f"lmcache_worker_ports {why}")
    extra = values["extra_config"]
    nixl = extra is not None and extra.get("enable_nixl_storage")
    if nixl and values["nixl_buffer_device"] == "cpu" and "nixl_use_hugepages" in extra:
        values["local_cpu_use_hugepages"] = bool(extra["nixl_use_hugepages"])


def override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set ``key`` of LMCache's ``values`` to what the engine's JSON says as ``lmcache.<key>``.

    An unknown key, or a value that LMCache cannot convert, changes nothing.
    """
    row = lmcache_settings().get(key)
    if row is None:
        return
    try:
        if key == "extra_config":  # of whatever type it is
            values[key] = _json(value) if isinstance(value, str) else value
            return
        read = None if value is None else _READ[row.reader](value)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return
    if value is None or read is not None:
        values[key] = read


RELEASE = "LMCache 0.5.6"
_WHAT = "what LMCache takes"
# By the first release, which master its store is given: that of remote_url; that of the settings,
# else remote_url's; that of the settings alone; and at last its settings as Mooncake's setup(dict)
# reads them. Read in each wheel from 0.3.5 to 0.5.6, mooncakestore_connector.py.
_OF_URL, _ELSE_OF_URL, _OF_SETTINGS, _AS_DICT = "url", "settings or url", "settings", "dict"
_STORES = (
    ("0.4.5", _AS_DICT),
    ("0.4.4", _OF_SETTINGS),
    ("0.3.9.post2", _ELSE_OF_URL),
    ("0.0.0", _OF_URL),
)
FILE_VARIABLE = "LMCACHE_CONFIG_FILE"
HUGEPAGE_BYTES = 2 * MIB  # memory_management.py: of no other size
# mooncakestore_connector.py _SETUP_DEFAULTS.
_SETUP_DEFAULTS = {
    "global_segment_size": "3355443200",
    "local_buffer_size": str(GIB),
    "protocol": "tcp",
    "device_name": "",
}
# Mooncake's own, where setup(dict) names no size (types.h).
_MOONCAKE_DEFAULTS = dict.fromkeys(("global_segment_size", "local_buffer_size"), str(16 * MIB))
_MOONCAKE_DEFAULTS["protocol"] = "tcp"
# Of the multiprocess server: what never reaches Mooncake, and pools that nobody here counts.
_L2_KEYS = frozenset("type num_workers eviction per_op_workers".split())
_OTHER_POOLS = ("--gds-l1-path", "--l1-devdax-path")
_SERVER_PORTS = (
    ("port", "port", 5555),
    ("prometheus port", "prometheus-port", 9090),
    ("HTTP port", "http-port", 8080),
)
_LAZY_BYTES = 20 * GIB  # L1MemoryManagerConfig.init_size_in_bytes
_BARE_KEYS = frozenset(
    "local_hostname metadata_server global_segment_size local_buffer_size protocol device_name "
    "master_server_address".split()
)
_OWN_KEYS = frozenset("transfer_timeout storage_root_dir prefer_local_alloc".split())
# What Mooncake's setup(dict) reads in place of two of them (types.h, since 0.3.9).
_RIGHT_KEYS = {
    "master_server_address": ("master_server_addr", "127.0.0.1:50051"),
    "device_name": ("rdma_devices", "the discovery of all devices"),
}
# Remote caches whose client holds no memory of its own here.
_NO_MEMORY = frozenset(
    "lm lms redis rediss redis-sentinel redis-cluster valkey valkey-cluster fs s3 blackhole "
    "external".split()
)
# What else takes memory that nobody here counts, where it is set.
_UNCOUNTED = {
    "enable_hidden_state_cache": "what LMCache's hidden states take",
    "enable_p2p": "what LMCache's peer-to-peer channel registers",
    "enable_pd": "what LMCache's prefill/decode buffer takes",
    "external_lookup_client": "what LMCache's lookup client takes",
    "gds_path": "what LMCache's GPUDirect Storage buffer takes",
    "maru_path": "what LMCache's Maru pool takes",
    "storage_plugins": "what LMCache's storage plugins take",
}
_NO_PAGES = (
    "RuntimeError: mmap failed: Failed to allocate huge pages. Please grow the 2 MiB hugepage pool."
)


def mooncake_setup(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that LMCache gives Mooncake's ``setup`` (``_build_setup_dict``).

    Args:
        raw: The settings of extra_config or a file; a key with ``mooncake_`` in front wins over the
            bare key.
    """
    bare, prefixed = {}, {}
    for key, value in ((str(key), value) for key, value in raw.items()):
        name = key.removeprefix("mooncake_")
        if value is not None and name not in (*_OWN_KEYS, ""):
            if name != key:
                prefixed[name] = str(value)
            elif key in _BARE_KEYS:
                bare[key] = str(value)
    return {**_SETUP_DEFAULTS, **bare, **prefixed}


def setup_of_older(
    raw: Mapping[str, Any], url: str, in_file: bool, release: str
) -> dict[str, str] | str:
    """Return the settings that LMCache before 0.4.5 gives Mooncake's ``setup``, by the names of
    ``setup(dict)``; the error if it ends before.

    Args:
        raw: The settings of extra_config, or of a file (``in_file``).
        url: remote_url, or "".
    """
    how = _master_is(release)
    parts: tuple[str | None, int | None, str] = None, None, ""
    if how in (_OF_URL, _ELSE_OF_URL) and url.startswith("mooncakestore://"):
        read = attempt(lambda: (urlsplit(url).hostname, urlsplit(url).port, urlsplit(url).query))
        if isinstance(read, str) or None in read:
            return f"AssertionError: Invalid URL {url}"
        parts = read
    for key in () if in_file else ("local_hostname", "metadata_server", "master_server_address"):
        if key not in raw:
            return f"KeyError: {key!r}"
    sizes = (raw.get(key, 0) for key in ("global_segment_size", "local_buffer_size"))
    if not all(isinstance(size, int) for size in sizes):
        return "TypeError: setup(): incompatible function arguments"
    setup = {**_SETUP_DEFAULTS, **{key: raw[key] for key in _BARE_KEYS & raw.keys()}}
    master, (host, port, query) = setup.get("master_server_address"), parts
    if host is not None and (how == _OF_URL or not master):
        master = f"{host}:{port}"
    devices = parse_qs(query).get("device", [setup["device_name"]])[0]
    named = {"master_server_addr": master, "rdma_devices": devices}
    return {key: str(value) for key, value in (setup | named).items() if value is not None}


def _master_is(release: str) -> str:
    """Return which master LMCache gives its store; see ``_STORES``."""
    return next(how for first, how in _STORES if _version(first) <= _version(release))


def read_lmcache(
    environment: Mapping[str, Word],
    read_file: ReadFile,
    overrides: Mapping[str, Any],
    release: str = "",
) -> Consumer:
    """Read what LMCache takes in each worker of an engine.

    Args:
        overrides: ``lmcache.<key>`` of the engine's JSON; other keys are passed over.
        release: The one that the launch or the host names, or "". If a file or variable is not
            known, or LMCache refuses its settings, the memory is uncounted.
    """
    path = environment.get(FILE_VARIABLE)
    text = None if path is None else file_text(path, read_file)
    variables = (word for name, word in environment.items() if name.startswith("LMCACHE_"))
    unread = [why_unresolved(word) for word in variables if word.unresolved]
    if isinstance(text, Unknown) or unread:
        why = text if isinstance(text, Unknown) else unread[0]
        return Consumer(RELEASE, uncounted=(f"{_WHAT} ({why.reason})",), may_use=why)
    warnings: list[str] = []
    plain = {name: word.text for name, word in environment.items()}
    try:
        values = lmcache_values(text, plain, warnings, release)
    except Exception as error:  # whatever LMCache's own conversions raise ends it there too
        refused = RefusedBy(RELEASE, f"LMCache: {type(error).__name__}: {error}", uncounted=_WHAT)
        return Consumer(RELEASE, refused_by=(refused,), misread=tuple(warnings))
    for key, value in overrides.items():
        if key.startswith("lmcache."):
            override(values, key.removeprefix("lmcache."), value)
    return _LMCacheReading(values, environment, read_file, warnings, release).read()


class _LMCacheReading(ConsumerParts):
    """Makes the settings of one LMCache into pools, clients and faults."""

    def __init__(
        self,
        values: dict[str, Any],
        environment: Mapping[str, Word],
        read_file: ReadFile,
        warnings: list[str],
        release: str,
    ) -> None:
        """Keep the values; an extra_config that is no mapping is refused."""
        super().__init__()
        self.release = release
        self.values, self.environment, self.read_file = values, environment, read_file
        extra = values["extra_config"] or {}
        self.extra: dict[str, Any] = extra if isinstance(extra, dict) else {}
        self.misread = warnings
        if not isinstance(extra, dict):
            self._refuse(f"AttributeError: extra_config is {extra!r}, and no mapping", _WHAT)
        self.uncounted = [text for name, text in _UNCOUNTED.items() if values[name]]

    def _refuse(self, says: str, what: str = "") -> None:
        self.refused_by.append(RefusedBy(RELEASE, says, uncounted=what))

    def read(self) -> Consumer:
        """Read all parts, and return them as a Consumer."""
        values = self.values
        if values["remote_config_url"]:
            where = values["remote_config_url"]
            self.uncounted.append(f"what LMCache's configuration service changes ({where})")
        if self.extra.get("enable_nixl_storage"):
            self.uncounted.append("what LMCache's NIXL storage registers")
        if "first_rank_max_local_cpu_size" in self.extra:
            self.uncounted.append("what LMCache's pool of a first worker takes")
        lookup = str(values["external_lookup_client"])
        if lookup.startswith("mooncakestore://"):
            master = _RIGHT_KEYS["master_server_address"][1]
            text = f"external_lookup_client {lookup}: Mooncake takes {master} as its master"
            self.misread.append(text)
        self._remotes()
        origin = self.environment.get(FILE_VARIABLE)
        where = "LMCACHE_<KEY>" if origin is None else origin.text
        names = ("chunk_size", "max_local_cpu_size", "local_cpu_use_hugepages", "remote_url")
        self.settings = {f"lmcache.{name}": SettingValue(values[name], where) for name in names}
        self._pools()
        return self.consumer(RELEASE)

    @property
    def _first_if_mla(self) -> bool:
        """Whether, with MLA, the first worker alone has the storage (cache_engine.py post_init)."""
        every = self.values["use_layerwise"] or self.values["enable_controller"]
        worker_ids = self.values["lookup_server_worker_ids"]
        return not every and not worker_ids and bool(self.extra.get("save_only_first_rank", True))

    def _pools(self) -> None:
        """Add the CPU pool of each worker, or the error with which LMCache ends."""
        values = self.values
        size = attempt(lambda: int(values["max_local_cpu_size"] * GIB))
        if isinstance(size, str):
            self._refuse(f"LMCache: max_local_cpu_size: {size}", "its CPU pool")
            return
        device_only = values["enable_pd"] and not values["local_cpu"]
        if size > 0 and not (device_only and values["nixl_buffer_device"] != "cpu"):
            huge = HUGEPAGE_BYTES if values["local_cpu_use_hugepages"] else None
            if huge and values["enable_p2p"]:
                self._refuse("ValueError: Hugepages are not supported with P2P mode")
            memory = OwnPool(size, size, self.rdma, False, huge, _NO_PAGES if huge else "")
            self.pools.append(WorkerPool(memory, first_if_mla=self._first_if_mla))

    def _remotes(self) -> None:
        """Add the remote storage that the settings name: Mooncake's store as a client, other memory
        as uncounted.
        """
        for name in self.values["remote_storage_plugins"] or ():
            if str(name).split(".", 1)[0] == "mooncakestore":
                self._store()
            else:
                self.uncounted.append(f"what LMCache's remote storage {name} takes")
        url = self.values["remote_url"]
        if url is None:
            return
        scheme, separator, _ = url.partition("://")
        if scheme == "mooncakestore" and separator:
            self._store()
            if _master_is(self.release) in (_OF_SETTINGS, _AS_DICT):
                why = "LMCache takes the master from elsewhere"
                self.ignored.append(f"the address of remote_url {url}: {why}")
        elif not separator:
            self.misread.append(f"Invalid remote url: {url}: LMCache goes on without it")
        elif scheme not in _NO_MEMORY:
            self.uncounted.append(f"what LMCache's remote cache {scheme}:// takes")

    def _store(self) -> None:
        """Add the client of Mooncake's store, as the file of MOONCAKE_CONFIG_PATH, or else
        extra_config, sets it up.

        If the setup fails, add the reason to ``misread``.
        """
        path = self.environment.get(STORE_PATH)
        where = "extra_config"
        raw: Any = self.values["extra_config"]
        if path is not None:
            where = path.text
            text = file_text(path, self.read_file)
            if isinstance(text, Unknown):
                self._client(StoreProcess(text, devices=text, master=text, file=where), text)
                return
            raw = attempt(lambda: json.loads(text))
        if not isinstance(raw, dict):
            why = "The extra config is not set." if raw is None else f"{where}: {raw}"
            self.misread.append(f"LMCache's store: {why}: it goes on without the store")
            return
        setup: dict[str, str] | str
        older = _master_is(self.release) != _AS_DICT
        if older:
            url = str(self.values["remote_url"] or "")
            setup = setup_of_older(raw, url, path is not None, self.release)
        else:
            setup = mooncake_setup(raw)
        if isinstance(setup, str):
            self.misread.append(f"LMCache's store ({where}): {setup}: it goes on without the store")
            return
        for key, (right, instead) in () if older else _RIGHT_KEYS.items():
            if setup.get(key) and right not in setup:
                reads = f"Mooncake reads mooncake_{right} there, and takes {instead}"
                self.misread.append(f"{key} {setup[key]!r} of {where}: {reads}")
        problem, store = _setup_of(setup, self)
        if problem:
            goes_on = "it says that setup completed, and stores nothing there"
            self.misread.append(f"LMCache's store ({where}): {problem}: {goes_on}")
        if store is not None:
            file = "" if path is None else where
            self._client(store._replace(file=file), setup.get("tenant_id", "default"))

    def _client(self, store: StoreProcess, tenant: str | Unknown) -> None:
        names = ("chunk_size", "pre_caching_hash_algorithm", "use_layerwise", "remote_serde")
        keys = {name: self.values[name] for name in names}
        keys["save_only_first_rank"] = bool(self.extra.get("save_only_first_rank", True))
        keys["tenant"] = tenant
        self.clients.append(Client(store, self._first_if_mla, "LMCache", keys))


def _setup_of(setup: Mapping[str, str], parts: ConsumerParts) -> tuple[str, StoreProcess | None]:
    """Return (error or "", store client or None) of a setup.

    Memory that no number has is added to ``parts.uncounted``.
    """
    if setup.get("enable_egm_store_pool", "false").lower() not in ("false", "0"):
        parts.uncounted.append("the EGM pool of its store")  # of Mooncake 0.3.14
    problem, client = setup_client(setup)
    if client is None:
        return problem, None
    master = setup.get("master_server_addr", _RIGHT_KEYS["master_server_address"][1])
    devices, metadata = setup.get("rdma_devices", ""), setup["metadata_server"]
    process = StoreProcess(client, devices=devices, master=master, metadata=metadata)
    return problem, process._replace(protocol=setup["protocol"])


def setup_client(setup: Mapping[str, str]) -> tuple[str, StoreClient | None]:
    """Return ("", client) as Mooncake's ``setup(dict)`` makes it (0.3.9 on), else (error, None)."""
    for key in ("local_hostname", "metadata_server"):
        if not setup.get(key):
            return f"{key} is missing: setup returns -600", None
    sizes: list[int] = []
    for key in ("global_segment_size", "local_buffer_size"):
        size = byte_size(setup[key])
        if size is None:
            return f"{key} {setup[key]!r} is not a size to Mooncake: setup returns -600", None
        sizes.append(size)
    (segment, local), protocol = sizes, setup["protocol"]
    if wrong := setup_refuses(segment, local, protocol):
        return wrong, None
    return "", StoreClient(segment, local, Protocol.TCP if protocol == "tcp" else Protocol.RDMA)


def read_lmcache_server(command: Sequence[Word], arguments: Sequence[Word]) -> Consumer:
    """Read the memory of LMCache's own server.

    Args:
        command: All its words.
        arguments: Those behind its program. ``lmcache server`` and ``lmcache.v1.multiprocess`` hold
            one pool for all engines of the host; ``lmcache_server`` keeps all that its clients
            store, without a bound.
    """
    named = [word.text for word in command]
    http = named[:2] == ["lmcache", "server"] or "lmcache.v1.multiprocess.http_server" in named
    if not http and "lmcache.v1.multiprocess.server" not in named:
        return Consumer(RELEASE, uncounted=("what its clients store in it, without a bound",))
    flags = flags_of(arguments)
    parts = ConsumerParts()
    parts.uncounted += [f"what {name} takes" for name in _OTHER_POOLS if name[2:] in flags]
    for word in flags.get("l2-adapter", ()):
        config = attempt(lambda word=word: json.loads(word.text))  # type: ignore[misc]
        if not isinstance(config, dict):
            parts.uncounted.append(f"what --l2-adapter {word.text} takes")
        elif config.get("type") == "mooncake_store":
            setup = {k: str(v) for k, v in config.items() if k not in _L2_KEYS and v is not None}
            problem, client = _setup_of({**_MOONCAKE_DEFAULTS, **setup}, parts)
            if problem:
                says = f"--l2-adapter: {problem}"
                what = "what its L2 adapter takes"
                parts.refused_by.append(RefusedBy(RELEASE, says, uncounted=what))
            if client is not None:
                parts.clients.append(Client(client))
    last = {name: values[-1] for name, values in flags.items()}
    size = last.get("l1-size-gb")
    if "l1-manager" in last:
        parts.uncounted.append("what --l1-manager takes")
    elif size is None or "eviction-policy" not in last:
        says = "ValueError: Legacy L1 configuration requires --l1-size-gb and --eviction-policy"
        parts.refused_by.append(RefusedBy(RELEASE, says, uncounted="its L1 pool"))
    elif size.unresolved:
        parts.uncounted.append(f"its L1 pool ({why_unresolved(size).reason})")
    else:
        parts.pools += _l1_pool(last, size.text, parts)
    if size is not None:
        parts.settings["l1_size_gb"] = SettingValue(size.text, str(size.origin))
    for what, flag, default in _SERVER_PORTS:
        if http or flag != "http-port":
            parts.ports.append((what, port_of(last.get(flag), default, f"--{flag}", "LMCache")))
    return parts.consumer(RELEASE)


def _l1_pool(flags: Mapping[str, Word], text: str, parts: ConsumerParts) -> list[WorkerPool]:
    """Return the pool of the server's first level (L1); [] if its size is refused.

    Args:
        flags: The last value of each, by name.
        text: Of --l1-size-gb. Errors are added to ``parts``.
    """
    size = attempt(lambda: int(float(text) * GIB))
    if isinstance(size, str):
        parts.refused.append(f"argument --l1-size-gb: invalid float value: {text!r}")
        return []
    name = flags.get("shm-name")
    shared = name is not None and name.text != ""
    if "l1-use-hugepages" in flags:
        if shared:
            says = "ValueError: l1-use-hugepages is incompatible with shared memory."
            parts.refused_by.append(RefusedBy(RELEASE, says))
        required = f"{-(-size // HUGEPAGE_BYTES)} required for a {size} byte L1 buffer"
        error = f"RuntimeError: Insufficient hugepages: {required}"
        return [WorkerPool(OwnPool(size, size, parts.rdma, False, HUGEPAGE_BYTES, error))]
    first = attempt(lambda: int(flags["l1-init-size-gb"].text) * GIB)
    lazy = "no-l1-use-lazy" not in flags and not shared
    least = min(size, first if isinstance(first, int) else _LAZY_BYTES) if lazy else size
    return [WorkerPool(OwnPool(size, least, parts.rdma, shared))]
