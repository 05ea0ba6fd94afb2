"""A launch as plain data, for a capture, and back: what it starts, without its secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.base.needs import Bound, RunAs, SetLimit
from checks.base.unknown import Inside, OpenVariable, Unknown
from checks.capture.secret_names import is_secret, is_secret_file
from checks.capture.secrets import REMOVED, clean_command, clean_text
from preflight.inputs.public_launch import is_read, public_file, public_json, understood
from preflight.inputs.written_launch import WrittenLaunch
from preflight.launches.container import ContainerSettings, Mount, Published
from preflight.launches.source import (
    Command,
    Origin,
    Place,
    ReadFile,
    Reading,
    SourceNote,
    Word,
    reads_written,
)
from preflight.processes.processes import LaunchOptions

# Too short to be a secret, and too likely to stand elsewhere.
_LEAST_SECRET = 4
_LEAST_NUMBER = 6
# Of a Secret's values, which may be settings too: shorter ones are gone where they stand alone.
_LEAST_OF_OBJECT = 8

Json = dict[str, Any]
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (
        *(
            Command,
            ContainerSettings,
            Mount,
            Origin,
            Place,
            Published,
            Reading,
            Bound,
            Inside,
            OpenVariable,
            RunAs,
            SetLimit,
            SourceNote,
            Unknown,
            Word,
        ),
    )
}


def environment_record(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that count, those that may be secret without their value."""
    return {
        name: REMOVED if is_secret(name) and not value.isdecimal() else clean_text(value)
        for name, value in sorted(environment.items())
        if is_read(name)
    }


def launch_record(
    launch: WrittenLaunch, options: LaunchOptions, files: Mapping[str, Any], whole: bool = False
) -> Json:
    """Return the launch, what the command line said beside it, and the files that it named.

    As it was understood, or all that it says with ``whole``; without secrets either way.
    """
    # What is installed is the host's, and stands beside the launch.
    said = {name: value for name, value in options._asdict().items() if name != "installed"}
    if not whole and options.model_config is not None:
        said["model_config"] = public_json(options.model_config)
    plain = {
        "name": launch.name,
        "reading": _encode(_with_own(launch.reading) if whole else understood(launch.reading)),
        "options": _encode(said),
        "files": {
            name: {"unknown": text.reason, "absent": text.absent}
            if isinstance(text, Unknown)
            else text
            if whole
            else public_file(text)
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
    reading = reading._replace(commands=tuple(map(_placed, reading.commands)))
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


def _placed(command: Command) -> Command:
    """Return a command of an older record, whose place stands in front as words of its own."""
    first, *others = command.wrappers or ((),)
    match first:
        case ("kubernetes", *name, container) if name:
            place = Place("pod", tuple(name), container)
        case ("docker", "compose", "up", service):
            place = Place("service", (service,))
        case ("srt-slurm", job, node):
            place = Place("job", (job, node))
        case _:
            return command
    return command._replace(wrappers=tuple(others), place=place)


def _with_own(reading: Reading) -> Reading:
    """Return a reading without the caller's variables that nothing reads, nor secrets' files."""
    return reading._replace(
        files={
            path: word._replace(text=REMOVED) if is_secret_file(path) else word
            for path, word in reading.files.items()
        },
        commands=tuple(
            command._replace(
                environment={
                    name: word._replace(text=REMOVED) if word.secret and not is_read(name) else word
                    for name, word in sorted(command.environment.items())
                    if word.origin.source != "environment" or is_read(name)
                }
            )
            for command in reading.commands
        ),
    )


def _secrets(reading: Reading) -> Iterator[str]:
    for command in reading.commands:
        for name, word in command.environment.items():
            if word.secret and not is_read(name) and len(word.text) >= _LEAST_OF_OBJECT:
                yield word.text
            assigned = clean_text(f"{name}={word.text}")
            if is_secret(name) or assigned == f"{name}='{REMOVED}'":
                yield from _secret(word.text)
        for words in (tuple(word.text for word in command.words), *command.wrappers):
            yield from _secret_words(words)
            # What is one by its place among the others: of curl -u, of docker login -p.
            shown = clean_command(words)
            yield from (word for word, kept in zip(words, shown, strict=True) if kept == REMOVED)


def _secret(value: str) -> Iterator[str]:
    """Yield a value that stands nowhere by chance; a short one or a number may."""
    if len(value) >= _LEAST_SECRET and not (value.isdecimal() and len(value) < _LEAST_NUMBER):
        yield value


def _secret_words(words: Iterable[str]) -> Iterator[str]:
    """Yield the values of flags such as --api-key, and of NAME=value words."""
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and is_secret(name):
            yield from _secret(value)
        elif before.startswith("-") and "=" not in before and is_secret(before):
            yield from _secret(word)
        before = word


def _without(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REMOVED)
        return clean_text(value)
    if isinstance(value, dict):
        return {key: _without(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, secrets) for item in value]
    return value


def _encode(value: Any) -> Any:
    """Return a record as an object with the one key that names it; other tuples as lists."""
    if isinstance(value, Unknown):
        return {"Unknown": {name: _encode(getattr(value, name)) for name in Unknown.__slots__}}
    if isinstance(value, Bound):
        return {"Bound": {"value": value.value}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        left_out = getattr(value, "_field_defaults", {})
        fields = {
            name: _encode(getattr(value, name))
            for name in value._fields
            if name not in left_out or getattr(value, name) != left_out[name]
        }
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
        fields = {key: _decode(item) for key, item in value[name].items()}
        if name == "Unknown":  # older records have the names of variables alone
            sets = fields.get("sets", ())
            fields["sets"] = tuple(
                OpenVariable(each) if isinstance(each, str) else each for each in sets
            )
        return _RECORDS[name](**fields)
    return {key: _decode(item) for key, item in value.items()}
