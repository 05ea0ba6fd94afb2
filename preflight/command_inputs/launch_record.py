"""A launch as its readers understood it, as plain data, for a capture and for a node; and back.

Kept are settings and variables that this project knows, with their values and where each is
written; never the text. A word that nobody here understands, a command of another program, a
variable that nothing reads may hold anything, and is left out: where it stood, ``(removed)``
stands, so that what refuses it still does. So do values of settings that are secrets by their
kind, and what an address says of who asks.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from checks.framework.needs import Bound, GivenGpus, RunAs, SetLimit
from checks.framework.regex import regex
from checks.framework.unknown import Inside, Unknown
from checks.host_snapshot.secrets import REMOVED, clean_address, is_secret
from preflight.base.program import data_file
from preflight.command_inputs.written_launch import WrittenLaunch, is_answerable
from preflight.engines.consumers.lmcache import lmcache_settings
from preflight.engines.programs import store_config, store_service_config
from preflight.engines.programs.known_variables import known_variables
from preflight.engines.programs.mooncake_flags import flag_table
from preflight.engines.programs.sglang_argument_tables import argument_flags
from preflight.launches.container import ContainerSettings, Mount, Published
from preflight.launches.source import (
    Command,
    Origin,
    Place,
    ReadFile,
    Reading,
    SourceNote,
    Word,
    file_reader,
    is_output,
    notices,
)
from preflight.processes.other_programs import tells_of_server, unknown_program
from preflight.processes.processes import LaunchOptions, ProcessKind, classify

Json = dict[str, Any]
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (
        *(Bound, Command, ContainerSettings, GivenGpus, Inside, Mount, Origin, Place, Published),
        *(Reading, RunAs, SetLimit, SourceNote, Unknown, Word),
    )
}
# Variables that a launch, a library below it or this program reads, beside those of Mooncake and
# SGLang; the others are nobody's business.
_READ = regex(
    r"(MC|MOONCAKE|SGLANG|SGL|VLLM|LMCACHE|DYN|RDMAV|IBV|MLX\d?|NCCL|CUDA|NVIDIA|HIP|ROCR|UCX|GLOO|KUBERNETES|SLURM)_"
    r"|(ALL|HTTPS?|NO|FTP)_PROXY$|(all|https?|no|ftp)_proxy$"
    r"|(WITH_NVIDIA_PEERMEM|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|PYTHONPATH|CONTAINER|container)$"
)
# Of these prefixes every name is looked at: one that nobody reads is misspelt.
_OURS = ("MC_", "MOONCAKE_", "SGLANG_")
# Options of mooncake_store_service, and those words of its configuration that have no other list.
_SERVICE = ("config", "D", "define", "port", "max_wait_time")
# Whose flags are not known here one by one: names are kept, and values that can be no secret.
_OPEN = (ProcessKind.ROUTER, ProcessKind.METADATA, ProcessKind.BENCHMARK)
_OPEN_FLAG = regex(r"--[a-z][a-z0-9-]{1,40}")
_NUMBER = regex(r"-?\d{1,9}(\.\d{1,9})?|true|false", re.IGNORECASE)
_OPEN_VALUE = regex(rf"{_NUMBER.pattern}|(?:https?://)?[\w.\-\[\]:]*:\d{{1,5}}[\w/]*")
_SCHEMES = ("http", "https", "grpc")
_VARIABLE = regex(r"\$(\w+|\{\w+\})")
_INTERPRETER = regex(r"-[A-Za-z]{1,12}")
# Wrappers whose words are settings that count; of others, the program alone or with what it does.
_WRAPPERS = frozenset("numactl taskset chrt ionice nice prlimit".split())
# A setting in a line of YAML or TOML; what stands behind it where others follow below.
_SETTING = regex(r"[\s\-]*[\"']?([A-Za-z][\w\-]{0,50})[\"']?\s*[:=](?!//)")
_OPENS = regex(r"\s*[|>]?[-+]?\s*")
_DOES = regex(r"[a-z]{2,12}")
# Keys of a model's config.json whose value is a word.
_MODEL_KEYS = frozenset(
    "architectures model_type torch_dtype dtype quant_method fmt kv_cache_quant_algo rope_type "
    "type mamba_ssm_dtype layer_types "
    "hybrid_layer_pattern linear_attn_config layers_block_type".split()
)
# A value with what the host can be asked for: variables, parts of them, numbers of them.
_ANSWERED = regex(
    r"(?:[^$`]|\$(?:\w+|[@*#?]|\{[#!]?\w+(?:[#%]{1,2}[*:/.,@_-]{1,4}|:\d+(?::\d+)?|\[[\d@*]+\])?\}"
    r"|\(\([\w\s+*/%()$-]*\)\)|\([^()`]*\)))*"
)
_ASKED = regex(r"\$\((?!\()([^()]*)\)")
# Another command, with two more within; what stands in place of a variable that is not set.
_COMMAND = regex(
    r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\$\{(?:[^{}]|\$?\{[^{}]*\})*\}"
)
# What is left open, by a name that says nothing else: a variable's, ``<IP>``, ``{{ .Values.x }}``.
_OPEN_NAME = regex(
    r"\$?\w{1,60}|\$[@*#?]|\$\{\w{1,60}\}|<[\w .-]{1,60}>|\{\{[ ]?[\w.$-]{1,60}[ ]?\}\}"
)


@cache
def _known_words() -> frozenset[str]:
    """Return flags, keys and variables of all releases, without leading dashes and with _ for -.

    ``engine_words.txt`` adds the words of other engines and of trainers that start SGLang.
    """
    with open(data_file("engine_words.txt"), encoding="ascii") as file:
        of_engines = file.read().split()
    flags = [flag for known in flag_table().programs.values() for flag in known]
    keys = (*store_config.KEYS, *store_config.HICACHE_KEYS, *store_service_config.KEYS)
    return frozenset(
        _normalized(word)
        for listed in (argument_flags(), flags, keys, _SERVICE, of_engines, lmcache_settings())
        for word in listed
    )


def _normalized(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def is_read(name: str) -> bool:
    """Tell whether a variable of this name is kept in what is recorded of a launch."""
    return name in known_variables() or _READ.match(name) is not None


def environment_record(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that programs read, secrets without their value."""
    return {
        name: _value_of_variable(name, value)
        for name, value in sorted(environment.items())
        if is_read(name)
    }


def launch_record(
    launch: WrittenLaunch, options: LaunchOptions, files: Mapping[str, str | Unknown]
) -> Json:
    """Return the launch as a record of plain data: as understood, with its options and files.

    Private words and secrets are removed.

    Args:
        files: Texts read beside the launch, by the launch's names for them.
    """
    commands = tuple(filter(None, map(_public_command, launch.reading.commands)))
    known = launch.reading._replace(commands=commands)
    # What is installed is the host's, and stands beside the launch.
    kept = {*options._fields} - {"installed"}
    shown = {name: value for name, value in options._asdict().items() if name in kept}
    if options.model_config is not None:
        shown["model_config"] = public_json(options.model_config)
    return {
        "name": launch.name,
        "reading": _encode(known._replace(files=_files(known.files))),
        "options": _encode(shown),
        "files": {
            name: {"unknown": text.reason, "absent": text.absent}
            if isinstance(text, Unknown)
            else clean_address(public_file(text))
            for name, text in sorted(files.items())
        },
    }


def launch_from(
    record: Mapping[str, Any], absolute: ReadFile
) -> tuple[WrittenLaunch, LaunchOptions]:
    """Return the launch of a record, and its options.

    Args:
        absolute: Reads the files that the launch names by their absolute path.

    Raises:
        ValueError: For anything that is no record.
        KeyError: For anything that is no record.
        TypeError: For anything that is no record.
        AttributeError: For anything that is no record.
    """
    reading = _decode(record["reading"])
    if not isinstance(reading, Reading):
        raise ValueError("no launch")
    files = record["files"]

    def read(name: str) -> str | Unknown:
        """Read a file of the record, or an absolute path of the host."""
        if name.startswith("/"):
            return absolute(name)
        text = files.get(name)
        if isinstance(text, Mapping):
            return Unknown(str(text.get("unknown")), text.get("absent") is True)
        return text if isinstance(text, str) else Unknown(f"{name}: not in this capture")

    options = _typed(LaunchOptions, {name: _decode(v) for name, v in record["options"].items()})
    return WrittenLaunch(reading, str(record["name"]), file_reader(reading.files, read)), options


# What is understood ---------------------------------------------------------------------------


def _files(files: Mapping[str, Word]) -> dict[str, Word]:
    return {path: word._replace(text=public_file(word.text)) for path, word in files.items()}


def _public_command(command: Command) -> Command | None:
    """Return a command without private words; None for a program that starts no engine and no
    store.

    Of an unknown program that may start one, only the words that show this are kept.
    """
    process_kind, arguments = classify(command)
    if process_kind is ProcessKind.OTHER:
        if not unknown_program(command):
            return None
        # That something was not read is kept, with the words that say so.
        argv = (each if tells_of_server(each.text) else _removed(each) for each in command.words)
        return command._replace(words=tuple(argv), environment={}, wrappers=(), files={})
    texts = [word.text for word in command.words]
    served = texts[1:2] in (["serve"], ["server"])
    start = 2 if served else len(texts) - len(arguments)
    if not served and command.words[start:] != arguments:  # handed on by a trainer
        start = next((at for at, text in enumerate(texts) if text.startswith("--")), len(texts))
    positional = served and not "".join(texts[start : start + 1]).startswith("-")
    # An interpreter, its options without what they take, and the module or script.
    program = (
        word if at in (0, start - 1) or _INTERPRETER.fullmatch(word.text) else _removed(word)
        for at, word in enumerate(command.words[:start])
    )
    return command._replace(
        words=(*program, *_arguments(command.words[start:], process_kind, positional)),
        environment={
            name: word._replace(text=_value_of_variable(name, word.text))
            for name, word in sorted(command.environment.items())
            if is_read(name)
        },
        wrappers=tuple(map(_wrapper, command.wrappers)),
        files=_files(command.files),
        limits=tuple(each._replace(setter=_nameless(each.setter)) for each in command.limits),
        run_as=_nameless(command.run_as),
    )


def _value_of_variable(name: str, text: str) -> str:
    """Return the value of a variable as it is recorded: without user info and queries of addresses.

    A secret, and a Mooncake or SGLang variable that nothing reads, becomes ``(removed)``; "" stays
    "" here.
    """
    if is_secret(name) or (name not in known_variables() and name.startswith(_OURS)):
        return REMOVED if text else ""
    text = clean_address(text)
    # A proxy's address may lack its scheme.
    return text.rpartition("@")[2] if name.lower().endswith("_proxy") else text


def _nameless(run_as: RunAs) -> RunAs:
    """Return ``run_as`` without the user's name, which may be a person's; root stays root."""
    user = run_as.user
    named = isinstance(user, str) and user and not user.isdecimal() and user != "root"
    return run_as._replace(user=REMOVED) if named else run_as


def _arguments(argv: Sequence[Word], process_kind: ProcessKind, positional: bool) -> Iterator[Word]:
    """Yield the arguments; unknown flags become ``--(removed)``, their values ``(removed)``.

    Args:
        positional: The first word is no flag, and is kept.
    """
    takes = positional  # whether a known flag stands in front
    flag = ""
    for word in argv:
        text = word.text
        if not text.startswith("-") or _NUMBER.fullmatch(text):
            yield _value(flag, word, process_kind) if takes else _removed(word)
            continue
        flag, equals, value = text.partition("=")
        takes = _is_known(flag, process_kind)
        if not takes:
            yield word._replace(text=f"--{REMOVED}", unresolved=())
        elif not equals:
            yield word
        else:
            kept = _value(flag, word._replace(text=value), process_kind)
            yield kept._replace(text=f"{flag}={kept.text}")


def _is_known(flag: str, process_kind: ProcessKind) -> bool:
    """Tell whether a flag, or its beginning, is known.

    All flags of programs in ``_OPEN`` are.
    """
    name = _normalized(flag).removeprefix("sglang_")
    if process_kind in _OPEN:
        return _OPEN_FLAG.fullmatch(flag) is not None
    known = _known_words()
    if name in known or name.removeprefix("no") in known or flag.startswith("-D"):
        return True
    # As argparse takes the beginning of a flag for it.
    return len(name) > 1 and any(known_name.startswith(name) for known_name in known)


def _value(flag: str, word: Word, process_kind: ProcessKind) -> Word:
    """Return the value of a flag as it is recorded: without secrets and unknown keys of JSON.

    Of programs whose flags are not listed here, only numbers, addresses and variables are kept.
    """
    text = word.text
    if is_secret(flag):
        return _removed(word)
    if process_kind in _OPEN:
        if word.unresolved and not _VARIABLE.fullmatch(text):  # of an address: that it is one
            scheme, separator, _ = text.rpartition("://")
            return word._replace(text=f"{scheme if scheme in _SCHEMES else ''}{separator}{REMOVED}")
        return word if word.unresolved or _OPEN_VALUE.fullmatch(text) else _removed(word)
    if text.lstrip().startswith(("{", "[{")):
        return word._replace(text=public_json(text))
    return word


def _removed(word: Word) -> Word:
    return word._replace(text=REMOVED if word.text else "")


def _wrapper(argv: tuple[str, ...]) -> tuple[str, ...]:
    program = argv[0].rpartition("/")[2] if argv else ""
    if program in _WRAPPERS:
        return argv
    return argv[:2] if len(argv) > 1 and _DOES.fullmatch(argv[1]) else argv[:1]


def public_file(text: str) -> str:
    """Return a file's text with only the values of settings that are known and not secret.

    Other values become (removed), and lines without a setting become empty. A text that begins with
    { or [ is read as JSON; if that fails, the whole text becomes (removed).
    """
    if text.lstrip().startswith(("{", "[")):
        return public_json(text)
    lines, keeps = [], False
    for line in text.splitlines():
        key = _SETTING.match(line)
        if key is None:  # values of a list stand in lines of their own
            lines.append(line if keeps and line.lstrip().startswith("-") else "")
            continue
        keeps = _normalized(key[1]) in _known_words() and not is_secret(key[1])
        # What is below a key belongs to it; a key that nobody knows may be refused.
        says = keeps or _OPENS.fullmatch(line, key.end())
        lines.append(line if says else f'{key[0]}{" " * key[0].endswith(":")}"{REMOVED}"')
    return "\n".join(lines) + "\n" * text.endswith("\n")


def public_json(text: str) -> str:
    """Return JSON without the texts at unknown keys; ``(removed)`` for a text that is no JSON."""
    try:
        return json.dumps(_public(json.loads(text), ""))
    except (ValueError, RecursionError):
        return REMOVED


def _public(value: Any, key: str) -> Any:
    """Return data with ``(removed)`` for texts at unknown keys, and secrets.

    Args:
        key: Of ``value``.
    """
    if isinstance(value, Mapping):
        # A key that is made as names of settings are; any other may be somebody's word.
        made = regex(r"[A-Za-z][A-Za-z_0-9]{0,50}|\d{1,4}").fullmatch
        items = ((name, _public(item, name)) for name, item in value.items())
        return {name if made(name) else REMOVED: item for name, item in items}
    if isinstance(value, list):
        return [_public(item, key) for item in value]
    if isinstance(value, str):
        known = _normalized(key) in _known_words() or key in _MODEL_KEYS
        return value if known and not is_secret(key) else REMOVED if value else ""
    return REMOVED if is_secret(key) and value not in (None, True, False) else value


def _left_open(word: Word) -> Word:
    """Return a word with unresolved parts, less what could be private, as a capture keeps it.

    Names of variables, plain arithmetic and commands that a host can be asked for, such as
    ``$(nproc)``, stay. Any other command becomes ``$(...)``, any other expression (removed).
    """
    text, names = word.text, []
    for name in word.unresolved:
        plain = is_output(name) or _OPEN_NAME.fullmatch(name) is not None
        names.append(name if plain else "what is written there")
        text = text if plain else text.replace(name, REMOVED)  # of a program: its expression
    return word._replace(text=_answerable(text, names), unresolved=tuple(names))


def _answerable(text: str, names: Collection[str]) -> str:
    """Return a value with ``$(...)`` for each command that the host cannot answer, or in place of
    the whole value.

    Args:
        names: Of variables, which a manifest writes as ``$(NAME)``.
    """

    def asked(part: str) -> bool:
        commands = _ASKED.findall(part)
        known = all(is_answerable(command) or command in names for command in commands)
        return known and _ANSWERED.fullmatch(part) is not None

    if asked(text):
        return text
    shorter = _COMMAND.sub(lambda match: match[0] if asked(match[0]) else "$(...)", text)
    return shorter if asked(shorter.replace("$(...)", "")) else "$(...)"


# Plain data, and back -------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    """Return a value as plain data, without private parts.

    A record becomes an object with one key, the record's name; other tuples become lists. An
    Unknown loses its reason, and a note its words.
    """
    if isinstance(value, str):
        return clean_address(value)
    if isinstance(value, Unknown):
        return {"Unknown": {"reason": "what the launch says of it is not kept"}}
    if isinstance(value, Bound):
        return {"Bound": {"value": value.value}}
    if isinstance(value, SourceNote):
        value = value._replace(text=notices().get(value.id, "what it says is not kept"))
    if isinstance(value, Word) and value.unresolved:
        value = _left_open(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        usual = getattr(value, "_field_defaults", {})
        pairs = ((name, getattr(value, name)) for name in value._fields)
        fields = {n: _encode(x) for n, x in pairs if n not in usual or x != usual[n]}
        return {type(value).__name__: fields}
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    """Return the records, tuples and mappings that ``_encode`` has made plain data."""
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if len(value) == 1 and name in _RECORDS:
        return _typed(_RECORDS[name], {key: _decode(item) for key, item in value[name].items()})
    return {key: _decode(item) for key, item in value.items()}


def _typed(record: Any, fields: Json) -> Any:
    """Return a record of the type ``record``.

    Raises:
        ValueError: For a field of another type than its annotation says, TypeError for a field too
            many or too few.
    """
    for name, hint in _hints(record).items():
        if name in fields and not _is_of(fields[name], hint):
            raise ValueError(f"{record.__name__}: {name} is {str(fields[name])[:40]!r}")
    return record(**fields)


@cache
def _hints(record: Any) -> dict[str, Any]:
    """Return the type of each field, of what makes a record that is no tuple of each argument."""
    return get_type_hints(record if hasattr(record, "_fields") else record.__init__)


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a value that ``_decode`` made is of the type of an annotation."""
    generic, parts = get_origin(hint), get_args(hint)
    if generic is None:
        return isinstance(value, hint) and (hint is not int or type(value) is int)
    if generic is UnionType:
        return any(_is_of(value, part) for part in parts)
    if generic is Literal:
        return value in parts
    if not isinstance(value, generic):
        return False
    if generic is tuple and parts[-1] is not ...:
        return len(value) == len(parts) and all(map(_is_of, value, parts))
    each = value.values() if generic is Mapping else value
    return all(_is_of(item, parts[generic is Mapping]) for item in each)
