"""SGLang's configuration of the Mooncake store: one of three sources, never a mixture.

The extra-config JSON, if it names a master or a client; else the file that
SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names; else the environment. In the first two, a missing key
takes a constant, not its environment variable (``protocol`` and ``local_hostname`` apart).
Source: SGLang 0.5.23 ``mooncake_store.py`` (``_load_config`` and ``MooncakeStoreConfig``); what
other releases do differently is in ``checks.releases.sglang``.
"""

import json
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, NamedTuple

from checks.framework.pages import Default
from checks.framework.units import GIB
from checks.framework.unknown import NoFile, Unknown
from checks.releases.sglang import StoreReader, store_reader
from preflight.engines.programs.sglang_arguments import SettingValue, file_text, word_value
from preflight.engines.programs.store_service_config import json_object, store_segment_bytes
from preflight.launches.source import Origin, PartlyKnown, ReadFile, Word
from preflight.launches.variables import may_be_absent


class Source(Enum):
    EXTRA_CONFIG = "the extra config"
    FILE = "the config file"
    ENVIRONMENT = "the environment"


class ConfigKey(NamedTuple):
    """A key of the JSON, and the environment variable with the same meaning.

    Attributes:
        default: The value if it is not set.
        read: Turns the variable's text into a value; a ValueError means the default.
    """

    variable: str
    default: Any
    read: Callable[[str], Any] = str


def sglang_env_bool(text: str) -> bool:
    """Return the boolean that SGLang's ``EnvBool`` reads.

    Raises:
        ValueError: For any other text.
    """
    value = text.lower()
    if value in ("true", "1", "yes", "y"):
        return True
    if value in ("false", "0", "no", "n"):
        return False
    raise ValueError(f'"{value}" is not a valid boolean value')


def sglang_env_int(text: str) -> int:
    """Return the integer that SGLang's ``EnvInt`` reads.

    Raises:
        ValueError: For any other text.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'"{text}" is not a valid integer value') from None


KEYS: Mapping[str, ConfigKey] = {
    "local_hostname": ConfigKey("MOONCAKE_LOCAL_HOSTNAME", "localhost"),
    "metadata_server": ConfigKey("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
    "global_segment_size": ConfigKey("MOONCAKE_GLOBAL_SEGMENT_SIZE", "4gb"),
    "protocol": ConfigKey("MOONCAKE_PROTOCOL", "rdma"),
    "device_name": ConfigKey("MOONCAKE_DEVICE", ""),
    "master_server_address": ConfigKey("MOONCAKE_MASTER", None),
    "master_metrics_port": ConfigKey("MOONCAKE_MASTER_METRICS_PORT", 9003, sglang_env_int),
    "check_server": ConfigKey("MOONCAKE_CHECK_SERVER", False, sglang_env_bool),
    "standalone_storage": ConfigKey("MOONCAKE_STANDALONE_STORAGE", False, sglang_env_bool),
    "client_server_address": ConfigKey("MOONCAKE_CLIENT", None),
    "enable_ssd_offload": ConfigKey("MOONCAKE_ENABLE_SSD_OFFLOAD", False, sglang_env_bool),
    "ssd_offload_path": ConfigKey("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", None),
    "tenant_id": ConfigKey("MOONCAKE_TENANT_ID", "default"),
}


class StoreEdit(NamedTuple):
    """What to write, in place of ``old``, at ``where`` (None: where the server is started)."""

    new: str
    old: str = ""
    where: Origin | None = None


class StoreConfig(NamedTuple):
    """The settings of a store, and those not used.

    Attributes:
        edit: Mends ``error``; None if none is known.
    """

    source: Source | Unknown
    settings: Mapping[str, SettingValue]
    extra: Mapping[str, Any]  # the parsed extra config, all of it
    unused: tuple[tuple[str, str], ...]  # (name, where) of Mooncake settings that no source reads
    unknown_keys: tuple[str, ...]
    error: str | None  # SGLang's words, when it refuses to start
    local_buffer_bytes: int | None = None  # of releases that read one; None for SGLang's own
    gigabytes: bool = True  # whether ``4gb`` is a segment size to it, or bytes alone
    edit: StoreEdit | None = None

    def value(self, key: str) -> Any:
        return self.settings[key].value


def read_store_config(
    extra_config: SettingValue,
    environment: Mapping[str, Word],
    read_file: ReadFile,
    sglang_version: str | None = None,
) -> StoreConfig:
    """Return the configuration of the Mooncake store that SGLang would use, and SGLang's ``error``.

    Args:
        extra_config: The setting of the storage backend's or the linker's extra config.
        read_file: Returns a file's text, or Unknown.
        sglang_version: None for the newest known release.

    Raises:
        ValueError: If that is no version.
    """
    reader = store_reader(sglang_version)
    extra, error = read_extra_config(extra_config, read_file)
    if error or isinstance(extra, Unknown):
        source: Source | Unknown = extra if isinstance(extra, Unknown) else Source.EXTRA_CONFIG
        return StoreConfig(source, _unread_settings(source), {}, (), (), error)
    wrong = wrong_type(extra, reader.typed)
    path = environment.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH")
    if any(extra.get(key) is not None for key in reader.addresses):
        where = extra_config.origin
        config = _from_json(Source.EXTRA_CONFIG, extra, where, extra, environment, reader)
    elif path is not None and reader.config_file and (path.text or reader.set_counts):
        config = _from_file(path, extra, environment, read_file, reader)
    else:
        config = _from_environment(extra, extra_config.origin, environment, reader)
    config = config._replace(gigabytes=reader.gigabytes)
    if wrong is not None:
        key, error = wrong
        return config._replace(error=error, edit=_type_edit(key, extra[key]))
    if config.error:
        return config
    error = _segment_error(config, reader)
    edit = None if error is None else segment_edit(config, environment)
    return config._replace(error=error, edit=edit)


def _segment_error(config: StoreConfig, reader: StoreReader) -> str | None:
    """Return SGLang's error for a segment size that this release cannot read; None if it can."""
    size = config.value("global_segment_size")
    if reader.gigabytes or not isinstance(size, str):
        return None
    if config.source is not Source.ENVIRONMENT:
        return f"global_segment_size is the text {size!r}: this SGLang takes a number of bytes"
    try:
        int(size)
    except ValueError as error:
        return f"MOONCAKE_GLOBAL_SEGMENT_SIZE: {error}"
    return None


def segment_edit(config: StoreConfig, environment: Mapping[str, Word]) -> StoreEdit | None:
    """Return the edit that writes the segment size in bytes, as every release reads it; None if the
    setting holds no size, or a negative one.
    """
    setting = config.settings["global_segment_size"]
    try:
        size = store_segment_bytes(setting.value)
    except (ValueError, TypeError):
        return None
    if size < 0:
        return None
    word = environment.get(setting.written_as)
    if word is not None:
        name = setting.written_as
        return StoreEdit(f"{name}={size}", f"{name}={word.text}", word.origin)
    key = '"global_segment_size": '
    return StoreEdit(f"{key}{size}", key + json.dumps(setting.value))


def _type_edit(key: str, value: Any) -> StoreEdit | None:
    """Return the edit that writes a text as its key's type, ``"8"`` as 8; None if that fails."""
    try:
        meant = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return None
    fits = isinstance(meant, _HICACHE_TYPES[key][0])
    quoted = f'"{key}": {json.dumps(value)}'
    return StoreEdit(f'"{key}": {json.dumps(meant)}', quoted) if fits else None


def _from_json(
    source: Source,
    config: Mapping[str, Any],
    where: str,
    extra: Mapping[str, Any],
    environment: Mapping[str, Word],
    reader: StoreReader,
) -> StoreConfig:
    """Return the configuration of a JSON object, ``config``: of the extra config, or of a file.

    Args:
        where: The object's place, for origins.
        extra: The whole extra config. A variable that is not read, and differs from the key's
            value, is in ``unused``.
    """
    default = Default(f"default of SGLang: not in {source.value}")
    settings = {key: SettingValue(_default(key, reader), default) for key in KEYS}
    stated = KEYS.keys() & config.keys()
    settings |= {key: SettingValue(config[key], f"{key} in {where}") for key in stated}
    settings |= {key: _absent_setting(key) for key in reader.absent}
    read = set()
    if reader.protocol_from_environment:
        read.add("MOONCAKE_PROTOCOL")
        if "protocol" not in config and "MOONCAKE_PROTOCOL" in environment:
            settings["protocol"] = _from_variable("protocol", environment, reader)
    host = _hostname(environment, reader) if reader.hostname_first else None
    if reader.hostname_first:
        read.add("MOONCAKE_LOCAL_HOSTNAME")
    if host is not None:
        settings["local_hostname"] = host
    elif reader.hostname_first and settings["local_hostname"].value in (None, "", 0):
        origin = Default("default of SGLang: empty in JSON")
        settings["local_hostname"] = SettingValue("localhost", origin)
    variables = ((entry.variable, str(config.get(key))) for key, entry in KEYS.items())
    written = ((name, environment[name], text) for name, text in variables if name in environment)
    unused = [
        (name, str(word.origin))
        for name, word, text in written
        if name not in read and not may_be_absent(word, name) and text != word.text
    ]
    known = set(KEYS) - reader.absent | set(HICACHE_KEYS) | reader.typed
    local = config.get("local_buffer_size") if reader.local_buffer else None
    if reader.local_buffer and source is Source.EXTRA_CONFIG:
        known.add("local_buffer_size")
    unknown = [key for key in config if key not in known]
    error, missed = None, ""
    if reader.set_counts and not any(key in config for key in reader.addresses):
        missed = f'"{reader.addresses[0]}": "HOST:50051" (HOST runs mooncake_master)'
        named = " or ".join(reader.addresses)
        error = f"{'Either ' if ' or ' in named else ''}{named} is required in config file"
    missing = [key for key in ("local_hostname", "metadata_server") if key not in config]
    if source is Source.FILE and not reader.set_counts and missing:
        error = f"the config file has no {missing[0]}, and setup() takes no None (TypeError)"
        meant = {"local_hostname": "HOST", "metadata_server": "P2PHANDSHAKE"}[missing[0]]
        missed = f'"{missing[0]}": "{meant}"'
    buffer = local if isinstance(local, int) and source is Source.EXTRA_CONFIG else None
    edit, names = StoreEdit(missed, "", Origin(where)) if missed else None, tuple(unknown)
    return StoreConfig(source, settings, extra, tuple(unused), names, error, buffer, edit=edit)


def _default(key: str, reader: StoreReader) -> Any:
    if key == "global_segment_size" and not reader.gigabytes:
        return 4 * GIB
    return {"protocol": reader.protocol, "device_name": reader.device}.get(key, KEYS[key].default)


def _absent_setting(key: str) -> SettingValue:
    return SettingValue(KEYS[key].default, f"{key} is no setting of this SGLang")


def _hostname(environment: Mapping[str, Word], reader: StoreReader) -> SettingValue | None:
    """Return the setting of the first variable that names this host; None if none is set.

    Some releases skip an empty variable, unless it is MOONCAKE_LOCAL_HOSTNAME.
    """
    for variable in reader.hostnames:
        word = environment.get(variable)
        empty = variable == "MOONCAKE_LOCAL_HOSTNAME" or not reader.hostname_first
        if word is not None and (word.text or empty):
            return _word_setting(variable, word)
    return None


def _from_file(
    path: Word,
    extra: Mapping[str, Any],
    environment: Mapping[str, Word],
    read_file: ReadFile,
    reader: StoreReader,
) -> StoreConfig:
    """Return the configuration of the file that SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names.

    A file that SGLang cannot load is an error of the configuration. For a file that cannot be read
    here, the source and all settings are Unknown.
    """
    unread = StoreConfig(Source.FILE, _unread_settings(Source.FILE), extra, (), (), None)
    failed = f"Failed to load config from {path.text}"
    if not path.text:
        return unread._replace(error=f"{failed}: no path")
    text = file_text(path, read_file)
    partly = _known_parts(text) if isinstance(text, PartlyKnown) else None
    if partly is not None:
        return _from_json(Source.FILE, partly, path.text, extra, environment, reader)
    if isinstance(text, NoFile):
        return unread._replace(error=f"Failed to load config from {text.reason}")
    if isinstance(text, Unknown):
        return StoreConfig(text, _unread_settings(text), extra, (), (), None)
    config = json_object(text)
    if isinstance(config, str):
        return unread._replace(error=f"{failed}: {config}")
    store_config = _from_json(Source.FILE, config, path.text, extra, environment, reader)
    ignored = tuple((key, "the extra config") for key in extra if key in KEYS)
    return store_config._replace(unused=(*ignored, *store_config.unused))


def _known_parts(text: PartlyKnown) -> dict[str, Any] | None:
    """Return the settings of a file of which a part is not known.

    A value with an unknown part is Unknown.

    Returns:
        None if the text is no JSON object, or the unknown part is in a key or in no value.
    """
    config = json_object(text.text)
    if isinstance(config, str) or any("$" in key for key in config):
        return None
    settings = {
        key: text if "$" in json.dumps(value) or "`" in json.dumps(value) else value
        for key, value in config.items()
    }
    # What is not known may also stand where no $ shows it.
    return settings if any(value is text for value in settings.values()) else None


def _from_environment(
    extra: Mapping[str, Any], where: str, environment: Mapping[str, Word], reader: StoreReader
) -> StoreConfig:
    """Return the configuration of the MOONCAKE_... variables.

    Args:
        extra: The extra config, whose store keys are not used.
        where: The place of ``extra``.
    """
    keys = [key for key in KEYS if key not in reader.absent]
    settings = {key: _absent_setting(key) for key in KEYS}
    settings |= {key: _from_variable(key, environment, reader) for key in keys}
    settings["local_hostname"] = _hostname(environment, reader) or SettingValue(
        "localhost", Default(f"default of SGLang: {reader.hostnames[0]} is not set")
    )
    error, edit = None, None
    variables = [KEYS[key].variable for key in reader.addresses]
    named = [environment[name] for name in variables if name in environment]
    if not any(word.text or reader.set_counts for word in named):
        names = " or ".join(f"'{name}'" for name in variables)
        which = "Either the" if len(variables) > 1 else "The"
        error = f"{which} environment variable {names} is not set."
        empty = named[0].origin if named else None
        edit = StoreEdit(f"{variables[0]}=HOST:50051 (HOST runs mooncake_master)", "", empty)
    port = environment.get("MOONCAKE_MASTER_METRICS_PORT")
    if port is not None and not reader.set_counts and "master_metrics_port" not in reader.absent:
        try:
            int("0" if port.unresolved else port.text)
        except ValueError as wrong:
            error, name = f"MOONCAKE_MASTER_METRICS_PORT: {wrong}", "MOONCAKE_MASTER_METRICS_PORT"
            edit = StoreEdit(f"{name}=9003 (or another port)", f"{name}={port.text}", port.origin)
    ignored = tuple((key, where) for key in extra if key in KEYS)
    known = set(KEYS) - reader.absent | set(HICACHE_KEYS) | reader.typed
    unknown = tuple(key for key in extra if key not in known)
    config = StoreConfig(Source.ENVIRONMENT, settings, extra, ignored, unknown, error)
    return config._replace(edit=edit)


def _from_variable(key: str, environment: Mapping[str, Word], reader: StoreReader) -> SettingValue:
    """Return a key's setting by its variable; its default without a text that SGLang can read."""
    entry = KEYS[key]
    word = environment.get(entry.variable)
    if word is None:
        default = _default(key, reader)
        return SettingValue(default, Default(f"default of SGLang: {entry.variable} is not set"))
    setting = _word_setting(entry.variable, word)
    if isinstance(setting.value, Unknown):
        return setting
    try:
        return setting._replace(value=entry.read(word.text))
    except ValueError:
        origin = Default(f"default of SGLang, in place of {setting.origin}")
        return SettingValue(entry.default, origin)


def _word_setting(variable: str, word: Word) -> SettingValue:
    value = word_value(word)
    return SettingValue(value, f"{variable} at {word.origin}", written_as=variable)


def _unread_settings(source: Source | Unknown) -> dict[str, SettingValue]:
    reason = source if isinstance(source, Unknown) else Unknown(f"{source.value} cannot be read")
    return {key: SettingValue(reason, reason.reason) for key in KEYS}


# Read from the extra config by HiCache itself, whatever the storage backend.
HICACHE_KEYS = (
    "prefetch_threshold prefetch_timeout_base prefetch_timeout_per_ki_token tp_lcm_size "
    "hicache_storage_pass_prefix_keys extra_backend_tag enable_group_semantics"
).split()

# What cache_controller and its heirs check of them (parse_storage_backend_extra_config).
_NUMBER = ((int, float), "number")
_HICACHE_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "prefetch_threshold": ((int,), "int"),
    **{f"prefetch_timeout_{of}": _NUMBER for of in ("base", "per_ki_token", "max")},
    "hicache_storage_pass_prefix_keys": ((bool,), "bool"),
}


def read_extra_config(
    setting: SettingValue, read_file: ReadFile
) -> tuple[dict[str, Any] | Unknown, str | None]:
    """Return the object of the extra config, and None or the message with which SGLang refuses it.

    Returns:
        {} for an empty setting and for a refused one; Unknown if a variable or a file is not known,
        or for a file in YAML or TOML.
    """
    text = setting.value
    if text is None or text == "":
        return {}, None
    if isinstance(text, Unknown):
        return text, None
    if not isinstance(text, str):  # the linker's own, which the parser of arguments has read
        wrong = "--unified-cache-external-linker-config must be a JSON object."
        return (dict(text), None) if isinstance(text, dict) else ({}, wrong)
    if text.startswith("@"):
        name = text[1:]
        text = read_file(name)
        if isinstance(text, Unknown):
            return text, None
        if name.lower().endswith((".yaml", ".yml", ".toml")):  # no launch that is known has one
            return Unknown(f"{name}: an extra config in YAML or TOML is not read"), None
        if not name.lower().endswith(".json"):
            wrong = "Unsupported config file: its name must end in .json, .toml, .yaml or .yml"
            return {}, f"Invalid hicache storage backend extra config JSON: {wrong}"
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, f"Invalid hicache storage backend extra config JSON: {error}"
    if not isinstance(parsed, dict):
        type_name = type(parsed).__name__
        return {}, f"Invalid hicache storage backend extra config: a dictionary, not {type_name}"
    return parsed, None


def wrong_type(extra: Mapping[str, Any], typed: Collection[str]) -> tuple[str, str] | None:
    """Return the first key whose value has the wrong type, and HiCache's message; None if all are
    right.

    Args:
        typed: The keys whose types this SGLang checks.
    """
    for key, (kinds, wanted) in _HICACHE_TYPES.items():
        value = extra.get(key)
        if key in extra and key in typed and not isinstance(value, kinds):
            return key, f"{key} must be {wanted}, got {type(value).__name__}"
    return None
