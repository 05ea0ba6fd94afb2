"""A launch as plain data, for a capture, and back: what it starts, without its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.base.unknown import Unknown
from preflight.inputs.written_launch import WrittenLaunch
from preflight.launches.container import ContainerSettings
from preflight.launches.source import (
    Command,
    Origin,
    ReadFile,
    Reading,
    SourceNote,
    Word,
    is_secret,
    reads_written,
)
from preflight.processes.processes import LaunchOptions

REMOVED = "(removed)"
# Variables of the caller that a launch or this program reads; the others are nobody's business.
_READ = re.compile(
    r"(MC|MOONCAKE|SGLANG|SGL|RDMAV|IBV|MLX\d?|NCCL|CUDA|NVIDIA|HIP|ROCR|UCX|GLOO|KUBERNETES|SLURM)_"
    r"|(ALL|HTTPS?|NO|FTP)_PROXY$|(all|https?|no|ftp)_proxy$"
    r"|(WITH_NVIDIA_PEERMEM|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|PYTHONPATH|CONTAINER|container)$"
)
# Too short to be a secret, and too likely to stand elsewhere.
_LEAST_SECRET = 4

Json = dict[str, Any]
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (Command, ContainerSettings, Origin, Reading, SourceNote, Word)
}


def environment_record(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that count, those that may be secret without their value."""
    return {
        name: REMOVED if is_secret(name) else value
        for name, value in sorted(environment.items())
        if _READ.match(name)
    }


def launch_record(launch: WrittenLaunch, options: LaunchOptions, files: Mapping[str, Any]) -> Json:
    """Return the launch, what the command line said beside it, and the files that it named."""
    reading = launch.reading._replace(
        commands=tuple(_public(command) for command in launch.reading.commands)
    )
    # What is installed is the host's, and stands beside the launch.
    said = {name: value for name, value in options._asdict().items() if name != "installed"}
    plain = {
        "name": launch.name,
        "reading": _encode(reading),
        "options": _encode(said),
        "files": {
            name: {"unknown": text.reason, "absent": text.absent}
            if isinstance(text, Unknown)
            else text
            for name, text in sorted(files.items())
        },
    }
    secrets = sorted(set(_secrets(launch.reading)), key=lambda text: (-len(text), text))
    found: Json = _without(plain, secrets)
    return found


def launch_from(
    record: Mapping[str, Any], absolute: ReadFile
) -> tuple[WrittenLaunch, LaunchOptions]:
    """Return the launch of a record. Raises ValueError, KeyError or TypeError for what is none.

    absolute: reads the files that it names by their absolute path.
    """
    reading = _decode(record["reading"])
    if not isinstance(reading, Reading):
        raise ValueError("no launch")
    files = record["files"]

    def read(name: str) -> str | Unknown:
        if name.startswith("/"):
            return absolute(name)
        found = files.get(name)
        if isinstance(found, Mapping):
            return Unknown(str(found.get("unknown")), found.get("absent") is True)
        return found if isinstance(found, str) else Unknown(f"{name}: not in this capture")

    options = LaunchOptions(**{name: _decode(v) for name, v in record["options"].items()})
    read_file = reads_written(reading.files, read)
    return WrittenLaunch(reading, str(record["name"]), read_file), options


def _public(command: Command) -> Command:
    """Without the caller's variables that nothing reads."""
    kept = {
        name: word
        for name, word in sorted(command.environment.items())
        if word.origin.source != "environment" or _READ.match(name)
    }
    return command._replace(environment=kept)


def _secrets(reading: Reading) -> Iterator[str]:
    for command in reading.commands:
        for name, word in command.environment.items():
            if is_secret(name) and len(word.text) >= _LEAST_SECRET:
                yield word.text
        yield from _secret_words([word.text for word in command.words])
        for wrapper in command.wrappers:
            yield from _secret_words(wrapper)


def _secret_words(words: Iterable[str]) -> Iterator[str]:
    """Values of flags such as --api-key, and of NAME=value words."""
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and is_secret(name):
            yield value
        elif before.startswith("-") and "=" not in before and is_secret(before):
            yield word
        before = word


def _without(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            if len(secret) >= _LEAST_SECRET:
                value = value.replace(secret, REMOVED)
        return value
    if isinstance(value, dict):
        return {key: _without(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, secrets) for item in value]
    return value


def _encode(value: Any) -> Any:
    """A record as an object with the one key that names it; other tuples as lists."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {name: _encode(getattr(value, name)) for name in value._fields}
        return {type(value).__name__: fields}
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if len(value) == 1 and name in _RECORDS:
        return _RECORDS[name](**{key: _decode(item) for key, item in value[name].items()})
    return {key: _decode(item) for key, item in value.items()}
