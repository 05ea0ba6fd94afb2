"""How Mooncake's store service gets its settings: arguments, file or environment, overrides.

A ``-Dkey=value`` replaces the parsed value by its raw text, which no check sees and which goes to
the C++ library as it is. Source: Mooncake ``mooncake-wheel/mooncake``
``mooncake_store_service.py`` and ``mooncake_config.py``; ``mooncake-store/src/real_client.cpp``
``setup_internal``.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checks.framework.units import GIB, TIB
from checks.framework.unknown import NoFile, Unknown
from preflight.engines.programs.sglang_arguments import file_text, why_unresolved, word_value
from preflight.engines.programs.store_environment import boolean, byte_size
from preflight.launches.source import ReadFile, Word

SERVICE_PORT = 8080
# mooncake-store/include/types.h: MIN_SEGMENT_SIZE, MAX_SEGMENT_SIZE.
LEAST_SIZE_BYTES, MOST_BUFFER_BYTES = 1024, TIB
# client_service.cpp InitTransferEngine, without auto discovery. mooncake_config.py knows more
# (_KNOWN_PROTOCOLS: nvlink, hip, barex, ...), which it passes on and the store's client refuses.
PROTOCOLS = frozenset(
    "tcp rdma efa cxl cxi ascend ub ubshmem sunrise_link nvlink_intra rpc_only".split()
)
_POWERS = {letter: 1024**power for power, letter in enumerate("kmgt", start=1)}
STORE_SUFFIXES = (*((f"{k}b", size) for k, size in _POWERS.items()), *_POWERS.items(), ("b", 1))
_AGAIN = "setup fails, and is tried again until --max-wait-time"
_SETUP = "setup ends with -600 (INVALID_PARAMS), and is tried again until --max-wait-time"


def sglang_segment_bytes(value: Any) -> int:
    """Return a size in bytes as SGLang's ``_parse_global_segment_size`` reads it: ``4gb`` is 4 GiB;
    gb is the only unit.

    Raises:
        ValueError: For any other text.
    """
    if isinstance(value, int):
        return int(value)  # a JSON true is 1
    if isinstance(value, str):
        text = value.strip().lower()
        if text.endswith("gb"):
            number = text[:-2].strip()
            if not number:
                raise ValueError("Invalid global_segment_size: missing number before 'gb'")
            return int(number) * 1024**3
        return int(text)
    return python_int(value)


def store_segment_bytes(value: Any) -> int:
    """Return a size in bytes as Mooncake's ``_parse_segment_size`` reads it since 0.3.12: also
    floats, and units from b to tb (powers of 1024).

    Raises:
        ValueError: For any other text.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        text = value.strip().lower()
        if not text:
            raise ValueError("Invalid segment size: empty string")
        for suffix, scale in STORE_SUFFIXES:
            if text.endswith(suffix):
                number = text[: -len(suffix)].strip()
                if not number:
                    raise ValueError(f"Invalid segment size: missing number before '{suffix}'")
                return python_int(float(number) * scale)
        return python_int(float(text))
    return python_int(value)


def store_bool(value: Any) -> bool:
    """Read a boolean as Mooncake's ``_parse_bool``.

    Raises:
        ValueError: For any other text.
    """
    if isinstance(value, int | float | None):
        return bool(value)
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on", "enable"):
        return True
    if text not in ("", "false", "0", "no", "off", "disable"):
        raise ValueError(f"Invalid boolean value: {value!r}")
    return False


def json_object(text: str) -> dict[str, Any] | str:
    """Return the object of a JSON text; if it has none, the reason as a text."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return config if isinstance(config, dict) else "not a JSON object"


def python_int(value: Any) -> int:
    """Return a value as ``int`` converts it.

    Raises:
        ValueError: For every refusal.
    """
    try:
        return int(value)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


class ServiceArguments(NamedTuple):
    """The command line, as argparse reads it."""

    config: Word | None
    overrides: tuple[Word, ...]
    port: int | Unknown
    error: str | None  # argparse's own words: exit code 2


class ServiceConfig(NamedTuple):
    """The settings of a service by key; Unknown if not known or refused.

    Attributes:
        refused: The errors with which the service fails.
        misread: Settings that it reads otherwise than written.
        refused_by_older: Further errors, of releases that know no unit but gb.
    """

    values: Mapping[str, Any]
    refused: tuple[str, ...]
    misread: tuple[str, ...]
    unknown_keys: tuple[tuple[str, str], ...]  # each with where it stands
    port: int | Unknown
    file: str = ""  # "" where the settings are of the environment
    refused_by_older: tuple[str, ...] = ()


class _Key(NamedTuple):
    default: Any
    read: Callable[[Any], Any]
    variable: str


def _text(value: Any) -> str:
    return str(value) if value is not None else ""


def _protocol(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"Invalid protocol: {value!r}. Protocol must be a non-empty string")
    return value.strip().lower()


def _required(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a non-empty string, got {value!r}")
    return value


KEYS: Mapping[str, _Key] = {
    "local_hostname": _Key("localhost", _required, "MOONCAKE_LOCAL_HOSTNAME"),
    "metadata_server": _Key("P2PHANDSHAKE", _required, "MOONCAKE_TE_META_DATA_SERVER"),
    "global_segment_size": _Key(3355443200, store_segment_bytes, "MOONCAKE_GLOBAL_SEGMENT_SIZE"),
    "local_buffer_size": _Key(GIB, store_segment_bytes, "MOONCAKE_LOCAL_BUFFER_SIZE"),
    "protocol": _Key("tcp", _protocol, "MOONCAKE_PROTOCOL"),
    "device_name": _Key("", _text, "MOONCAKE_DEVICE"),
    "master_server_address": _Key("", _required, "MOONCAKE_MASTER"),
    "enable_ssd_offload": _Key(False, store_bool, "MOONCAKE_OFFLOAD_ENABLED"),
    "ssd_offload_path": _Key("", _text, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"),
    "tenant_id": _Key("default", _text, "MOONCAKE_TENANT_ID"),
    "enable_client_http_server": _Key(False, store_bool, "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"),
    "client_http_port": _Key(9300, python_int, "MOONCAKE_CLIENT_HTTP_PORT"),
}
_SIZES = ("global_segment_size", "local_buffer_size")
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


def read_service_config(
    arguments: tuple[Word, ...], environment: Mapping[str, Word], read_file: ReadFile
) -> ServiceConfig | Unknown:
    """Return the settings of one service; Unknown if its file cannot be read here.

    If an error ends the service before it has settings, all are Unknown, and ``refused`` is that
    error.
    """
    options = service_arguments(arguments)
    if options.error:
        return ServiceConfig(_unknown(options.error), (options.error,), (), (), options.port)
    path = options.config if options.config and options.config.text else None
    path = path or environment.get("MOONCAKE_CONFIG_PATH")
    config = _environment(environment) if path is None else _file(path, read_file)
    if path is not None and not path.unresolved and not path.text.strip():
        config = f"MOONCAKE_CONFIG_PATH is {path.text!r}: FileNotFoundError: {path.text!r}"
    if isinstance(config, Unknown):
        return config
    if isinstance(config, str):
        file = "" if path is None else path.text
        return ServiceConfig(_unknown(config), (config,), (), (), options.port, file)
    refused: list[str] = []
    raw = {key: config.get(key, entry.default) for key, entry in KEYS.items()}
    values = {key: _read(raw[key], entry.read, key, refused) for key, entry in KEYS.items()}
    unknown = [(key, "") for key in config if key not in KEYS]
    misread: list[str] = []
    for word in options.overrides:
        key, equals, text = word.text.partition("=")
        if equals and key in KEYS:
            values[key], problem = _override(word, key, text)
            if problem:
                (refused if key in _SIZES else misread).append(problem)
        elif equals and "$" not in key:
            unknown.append((key, " (-D)"))
        elif not equals and not word.unresolved:
            misread.append(f"-D{word.text}: Ignoring invalid CLI config: it has no =")
    refused += _setup_refuses(values)
    file = "" if path is None else path.text
    older: list[str] = []
    for key in _SIZES:
        _read(config.get(key, 0), sglang_segment_bytes, key, older)
    by_older = tuple(each for each in older if each not in refused)
    texts = (tuple(refused), tuple(misread), tuple(unknown))
    return ServiceConfig(values, *texts, options.port, file, by_older)


def service_arguments(argv: tuple[Word, ...]) -> ServiceArguments:
    """Read the service's options, also if shortened (``--po``), up to the first error."""
    config, port = None, Word(str(SERVICE_PORT), argv[0].origin) if argv else None
    overrides: list[Word] = []
    error = None
    left = list(argv)
    while left and error is None:
        word = left.pop(0)
        name, equals, value = word.text.partition("=")
        if word.text.startswith("-D") and word.text != "-D":
            overrides.append(word._replace(text=word.text[2:].removeprefix("=")))
            continue
        option = _option(name)
        if option is None:
            if not word.unresolved and word.text not in ("-h", "--help"):
                error = f"error: unrecognized arguments: {word.text}"
            continue
        if not equals and (not left or left[0].text.startswith("-")):
            error = f"error: argument {option}: expected one argument"
            continue
        argument = word._replace(text=value) if equals else left.pop(0)
        if option == "--config":
            config = argument
        elif option == "-D/--define":
            overrides.append(argument)
        elif option == "--port":
            port = argument
    number, wrong = _port(port)
    return ServiceArguments(config, tuple(overrides), number, error or wrong)


def _option(name: str) -> str | None:
    """Return the option that ``name`` is or begins; None if it begins none, or several."""
    if name == "-D":
        return "-D/--define"
    options = {name: name for name in ("--config", "--port", "--max-wait-time")}
    options["--define"] = "-D/--define"
    near = [option for option in options if len(name) > 2 and option.startswith(name)]
    return options[near[0]] if len(near) == 1 else None


def _port(word: Word | None) -> tuple[int | Unknown, str | None]:
    """Return (port, None); if the text is no number, Unknown and argparse's message.

    The port is Unknown if it depends on a variable that is not set.
    """
    if word is None:
        return SERVICE_PORT, None
    if word.unresolved:
        return why_unresolved(word), None
    try:
        return int(word.text), None
    except ValueError:
        error = f"error: argument --port: invalid int value: {word.text!r}"
        return Unknown(error), error


def _unknown(reason: str) -> dict[str, Any]:
    return dict.fromkeys(KEYS, Unknown(reason))


def _file(path: Word, read_file: ReadFile) -> dict[str, Any] | str | Unknown:
    """Return the file's object; the text of an error with which the service ends; Unknown if the
    file cannot be read here.
    """
    text = file_text(path, read_file)
    if isinstance(text, Unknown):
        missing_file = isinstance(text, NoFile)
        return f"Configuration load failed: {text.reason}" if missing_file else text
    config = json_object(text)
    if isinstance(config, str):
        return f"Configuration load failed: {path.text}: {config}"
    missing = [key for key in _REQUIRED if key not in config]
    return f"Missing required config field: {missing[0]}" if missing else config


def _environment(environment: Mapping[str, Word]) -> dict[str, Any] | str:
    """Return the settings that MOONCAKE_... variables give, by key, or the text of an error with
    which the service ends.

    Values that are not known are Unknown.
    """
    config: dict[str, Any] = {}
    for key, entry in KEYS.items():
        word = environment.get(entry.variable)
        if word is not None:
            config[key] = word_value(word)
    if config.get("master_server_address", "") == "":
        either = "'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER'"
        return f"Neither the environment variable {either} is set."
    return config


def _read(value: Any, read: Callable[[Any], Any], key: str, refused: list[str]) -> Any:
    """Return a value as ``read`` converts it.

    If ``read`` refuses it, or a size is negative, the error is added to ``refused`` and Unknown is
    returned.
    """
    if isinstance(value, Unknown):
        return value
    try:
        parsed = read(value)
    except ValueError as error:
        refused.append(f"{key} {value!r}: ValueError: {error}")
        return Unknown(f"{key} {value!r} is refused")
    if key in _SIZES and parsed < 0:
        refused.append(f"Invalid {key}: {parsed}. Size must be non-negative.")
        return Unknown(f"{key} {value!r} is refused")
    return parsed


def _override(word: Word, key: str, text: str) -> tuple[Any, str]:
    """Return the value of one ``-D key=value`` as the C++ library reads it, and the problem with
    it, or "".

    A value that is not known, or a size that is refused, is Unknown; a port that is no number is
    -1.
    """
    if word.unresolved:
        return why_unresolved(word), ""
    if key in _SIZES:
        size = byte_size(text)
        wrong = f"-D{key}={text}: not a size to Mooncake: {_SETUP}"
        return (size, "") if size is not None else (Unknown(f"-D{key}={text} is refused"), wrong)
    if isinstance(KEYS[key].default, bool):
        switch = boolean(text)
        wrong = f"-D{key}={text}: not a truth value to Mooncake: off"
        return bool(switch), wrong if switch is None else ""
    if key == "client_http_port":
        return int(text) if text.strip().isdecimal() and len(text) < 20 else -1, ""
    return text, ""


def _setup_refuses(values: Mapping[str, Any]) -> list[str]:
    """Return a message for each setting with which ``setup`` fails."""
    refused = []
    for key in _SIZES:
        size = values[key]
        if isinstance(size, int) and 0 < size < LEAST_SIZE_BYTES:
            refused.append(f"{key} is {size} bytes, less than {LEAST_SIZE_BYTES}: {_SETUP}")
    buffer = values["local_buffer_size"]
    if isinstance(buffer, int) and buffer > MOST_BUFFER_BYTES:
        refused.append(f"local_buffer_size is {buffer} bytes, more than 1.00 TiB: {_SETUP}")
    protocol = values["protocol"]
    if isinstance(protocol, str) and protocol not in PROTOCOLS:
        refused.append(f"protocol {protocol!r} is not one that Mooncake has: {_AGAIN}")
    port, serves = values["client_http_port"], values["enable_client_http_server"] is True
    if serves and isinstance(port, int) and not 0 < port < 65536:
        refused.append(f"client_http_port {port} is not a port: {_SETUP}")
    return refused
