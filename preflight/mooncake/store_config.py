"""SGLang's configuration of the Mooncake store: one of three sources, never a mixture.

The extra-config JSON where it names a master or a client; else the file that
SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names; else the environment. In the first two, a missing key
takes a constant, not its environment variable (``protocol`` and ``local_hostname`` apart).
Source: SGLang 0.5.23 ``mooncake_store.py`` (``_load_config`` and ``MooncakeStoreConfig``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from checks.unknown import Unknown
from preflight.launches.consumer_grammar import sglang_env_bool, sglang_env_int
from preflight.launches.launch_source import ReadFile, Word
from preflight.sglang.sglang_arguments import Setting, unresolved_reason


class Source(Enum):
    EXTRA_CONFIG = "the extra config"
    FILE = "the config file"
    ENVIRONMENT = "the environment"


class Key(NamedTuple):
    """A setting's name in JSON and in the environment, its default, and how the latter is read."""

    variable: str
    default: Any
    read: Callable[[str], Any] = str


KEYS: Mapping[str, Key] = {
    "local_hostname": Key("MOONCAKE_LOCAL_HOSTNAME", "localhost"),
    "metadata_server": Key("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
    "global_segment_size": Key("MOONCAKE_GLOBAL_SEGMENT_SIZE", "4gb"),
    "protocol": Key("MOONCAKE_PROTOCOL", "rdma"),
    "device_name": Key("MOONCAKE_DEVICE", ""),
    "master_server_address": Key("MOONCAKE_MASTER", None),
    "master_metrics_port": Key("MOONCAKE_MASTER_METRICS_PORT", 9003, sglang_env_int),
    "check_server": Key("MOONCAKE_CHECK_SERVER", False, sglang_env_bool),
    "standalone_storage": Key("MOONCAKE_STANDALONE_STORAGE", False, sglang_env_bool),
    "client_server_address": Key("MOONCAKE_CLIENT", None),
    "enable_ssd_offload": Key("MOONCAKE_ENABLE_SSD_OFFLOAD", False, sglang_env_bool),
    "ssd_offload_path": Key("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", None),
    "tenant_id": Key("MOONCAKE_TENANT_ID", "default"),
}
# Read from the extra config by HiCache itself, whatever the storage backend.
HICACHE_KEYS = (
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
    "extra_backend_tag",
    "enable_group_semantics",
)


class StoreConfig(NamedTuple):
    """What the store is set up with, and what was written and is not used."""

    source: Source | Unknown
    settings: Mapping[str, Setting]
    extra: Mapping[str, Any]  # the parsed extra config, all of it
    unused: tuple[tuple[str, str], ...]  # (name, where) of Mooncake settings that no source reads
    unknown_keys: tuple[str, ...]
    error: str | None  # SGLang's words, when it refuses to start

    def value(self, key: str) -> Any:
        return self.settings[key].value


def read_store_config(
    extra_config: Setting,
    environment: Mapping[str, Word],
    read_file: ReadFile,
) -> StoreConfig:
    """The configuration that SGLang would use; ``read_file`` gives a file's text, or why not."""
    extra, error = _extra_config(extra_config, read_file)
    if error or isinstance(extra, Unknown):
        source: Source | Unknown = extra if isinstance(extra, Unknown) else Source.EXTRA_CONFIG
        return StoreConfig(source, _unread(source), {}, (), (), error)
    named = [
        extra.get(key) is not None for key in ("master_server_address", "client_server_address")
    ]
    if any(named):
        return _from_json(Source.EXTRA_CONFIG, extra, extra_config.origin, extra, environment)
    path = environment.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH")
    if path is not None:
        return _from_file(path, extra, environment, read_file)
    return _from_environment(extra, extra_config.origin, environment)


def _extra_config(
    given: Setting, read_file: ReadFile
) -> tuple[dict[str, Any] | Unknown, str | None]:
    text = given.value
    if text is None or text == "":
        return {}, None
    if isinstance(text, Unknown):
        return text, None
    loads: Callable[[str], Any] = json.loads
    if text.startswith("@"):
        name, text = text[1:], read_file(text[1:])
        if isinstance(text, Unknown):
            return text, None
        loads = _loader(name)
    try:
        parsed = loads(text)
    except (ValueError, RecursionError) as error:
        return {}, f"Invalid hicache storage backend extra config JSON: {error}"
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        return {}, f"Invalid hicache storage backend extra config: a dictionary, not {kind}"
    return parsed, None


def _loader(name: str) -> Callable[[str], Any]:
    if name.lower().endswith((".yaml", ".yml")):
        import yaml

        def load_yaml(text: str) -> Any:
            try:
                return yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(str(error)) from None

        return load_yaml
    if name.lower().endswith(".toml"):
        try:
            import tomllib
        except ImportError:  # Python 3.10
            return _no_toml
        return tomllib.loads
    if not name.lower().endswith(".json"):
        return _no_format
    return json.loads


def _no_format(_: str) -> Any:
    raise ValueError("Unsupported config file: its name must end in .json, .toml, .yaml or .yml")


def _no_toml(_: str) -> Any:
    raise ValueError("TOML needs Python 3.11 or newer to be read here")


def _from_json(
    source: Source,
    config: Mapping[str, Any],
    where: str,
    extra: Mapping[str, Any],
    environment: Mapping[str, Word],
) -> StoreConfig:
    settings = {}
    for key, entry in KEYS.items():
        if key in config:
            settings[key] = Setting(config[key], f"{key} in {where}")
        else:
            settings[key] = Setting(entry.default, f"default of SGLang: not in {source.value}")
    if "protocol" not in config and "MOONCAKE_PROTOCOL" in environment:
        settings["protocol"] = _from_variable("protocol", environment)
    for variable in ("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"):
        if variable in environment:
            settings["local_hostname"] = _word_setting(variable, environment[variable])
            break
    read = {"MOONCAKE_PROTOCOL", "MOONCAKE_LOCAL_HOSTNAME"}
    unused = [
        (entry.variable, str(environment[entry.variable].origin))
        for key, entry in KEYS.items()
        if entry.variable in environment
        and entry.variable not in read
        and str(config.get(key)) != environment[entry.variable].text
    ]
    unknown = [key for key in config if key not in KEYS and key not in HICACHE_KEYS]
    error = None
    if not any(key in config for key in ("master_server_address", "client_server_address")):
        error = "Either master_server_address or client_server_address is required in config file"
    return StoreConfig(source, settings, extra, tuple(unused), tuple(unknown), error)


def _from_file(
    path: Word,
    extra: Mapping[str, Any],
    environment: Mapping[str, Word],
    read_file: ReadFile,
) -> StoreConfig:
    if not path.text:
        return StoreConfig(
            Source.FILE, _unread(Source.FILE), extra, (), (), "Failed to load config from : no path"
        )
    text = Unknown(unresolved_reason(path)) if path.unresolved else read_file(path.text)
    if isinstance(text, Unknown):
        return StoreConfig(text, _unread(text), extra, (), (), None)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"Failed to load config from {path.text}: {error}"
        return StoreConfig(Source.FILE, _unread(Source.FILE), extra, (), (), message)
    if not isinstance(config, dict):
        message = f"Failed to load config from {path.text}: not a JSON object"
        return StoreConfig(Source.FILE, _unread(Source.FILE), extra, (), (), message)
    found = _from_json(Source.FILE, config, path.text, extra, environment)
    ignored = tuple((key, "the extra config") for key in extra if key in KEYS)
    return found._replace(unused=(*ignored, *found.unused))


def _from_environment(
    extra: Mapping[str, Any], where: str, environment: Mapping[str, Word]
) -> StoreConfig:
    settings = {key: _from_variable(key, environment) for key in KEYS}
    if "MOONCAKE_LOCAL_HOSTNAME" not in environment and "LOCAL_HOSTNAME" in environment:
        settings["local_hostname"] = _word_setting("LOCAL_HOSTNAME", environment["LOCAL_HOSTNAME"])
    error = None
    if "MOONCAKE_MASTER" not in environment and "MOONCAKE_CLIENT" not in environment:
        error = "Either the environment variable 'MOONCAKE_MASTER' or 'MOONCAKE_CLIENT' is not set."
    ignored = tuple((key, where) for key in extra if key in KEYS)
    unknown = tuple(key for key in extra if key not in KEYS and key not in HICACHE_KEYS)
    return StoreConfig(Source.ENVIRONMENT, settings, extra, ignored, unknown, error)


def _from_variable(key: str, environment: Mapping[str, Word]) -> Setting:
    entry = KEYS[key]
    word = environment.get(entry.variable)
    if word is None:
        return Setting(entry.default, f"default of SGLang: {entry.variable} is not set")
    setting = _word_setting(entry.variable, word)
    if isinstance(setting.value, Unknown):
        return setting
    try:
        return Setting(entry.read(word.text), setting.origin)
    except ValueError:
        return Setting(entry.default, f"default of SGLang, in place of {setting.origin}")


def _word_setting(variable: str, word: Word) -> Setting:
    value = Unknown(unresolved_reason(word)) if word.unresolved else word.text
    return Setting(value, f"{variable} at {word.origin}")


def _unread(source: Source | Unknown) -> dict[str, Setting]:
    reason = source if isinstance(source, Unknown) else Unknown(f"{source.value} cannot be read")
    return {key: Setting(reason, reason.reason) for key in KEYS}
