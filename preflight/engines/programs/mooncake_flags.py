"""The flags that mooncake_master and mooncake_client know, and how gflags reads a command line.

An unknown flag or a value of another type ends the program before it does anything. The flags are
data, ``data/mooncake_flags.txt``, which ``tools/write_mooncake_flags.py`` writes; the reading is
gflags' (gflags.cc CommandLineFlagParser), in gflags' words.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from checks.framework.unknown import Unknown
from preflight.base.program import data_file
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.launches.documents import load_documents
from preflight.launches.source import Origin, ReadFile, SourceError, Word

TRUE, FALSE = frozenset("1 t true y yes".split()), frozenset("0 f false n no".split())
_BITS = {"int32": 31, "int64": 63, "uint32": 32, "uint64": 64}


class Flag(NamedTuple):
    """A flag: gflags' name of its type, and the first and last release with it ("" if open).

    Attributes:
        empty, blank: How the program ends if the value is "" or blanks, in words; "" if it goes on.
    """

    type: str
    since: str = ""
    until: str = ""
    empty: str = ""
    blank: str = ""


class FlagRead(NamedTuple):
    """One flag of a command line, as gflags reads it.

    Attributes:
        value: None if a variable that is not set decides it.
        problem: The message with which the program ends, or "".
        flag: None if the program has no such flag.
        passed_over: The word behind a switch, such as ``false``, that gflags does not take for its
            value.
    """

    name: str
    value: str | None
    word: Word
    problem: str = ""
    flag: Flag | None = None
    passed_over: str = ""


class FlagTable(NamedTuple):
    """The flags by program and name.

    Attributes:
        releases: Those whose flags are known, the oldest first.
    """

    releases: tuple[str, ...]
    programs: Mapping[str, Mapping[str, Flag]]


@cache
def flag_table() -> FlagTable:
    """Read the flags of Mooncake's programs, and how a program ends on an empty value."""
    programs: dict[str, dict[str, Flag]] = {}
    releases: tuple[str, ...] = ()
    with open(data_file("mooncake_flags.txt"), encoding="utf-8") as file:
        for line in file:
            flag_type, *fields = line.split()
            if flag_type == "releases":
                releases = tuple(fields)
            elif flag_type == "program":
                flags = programs[fields[0]] = {}
            elif flag_type != "#":
                flags[fields[0]] = Flag(flag_type, *fields[1:])
    for program, name, value, code, says in empty_values():
        flag = programs.get(program, {}).get(name)
        if flag is not None and code.isdecimal() and _is_legal(flag.type, value):
            ends = f"ended by {value!r} with exit code {code}{f': {says}' if says else ''}"
            how = {"blank" if value else "empty": ends}
            programs[program][name] = flag._replace(**how)
    return FlagTable(releases, programs)


@cache
def empty_values() -> tuple[tuple[str, ...], ...]:
    """Return the trials of empty values: program, flag, value, exit code or "runs", message."""
    with open(data_file("mooncake_empty_values.txt"), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("|") for line in file if not line.startswith("#")]
    return tuple((*names.split(), value, code, says) for names, value, code, says in rows)


def flags_of(program: str) -> Mapping[str, Flag]:
    """Return the flags of mooncake_master or mooncake_client, by name."""
    return flag_table().programs[program]


def read_flags(arguments: tuple[Word, ...], known: Mapping[str, Flag]) -> Iterator[FlagRead]:
    """Yield every flag of a command line in order, up to ``--``; other words are passed over.

    Args:
        known: The program's flags by name; any other flag is yielded with a problem. A flag whose
            name is not known because of a variable is left out.
    """
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word.text == "--":
            return
        if not word.text.startswith("-") or word.text == "-":
            continue
        key, equals, value = word.text.removeprefix("-").removeprefix("-").partition("=")
        name = key.replace("-", "_")
        if word.unresolved and not re.fullmatch(r"\w+", name):
            continue
        resolved: str | None = None if word.unresolved else value
        negated = known.get(name.removeprefix("no")) if name not in known else None
        flag = known.get(name)
        if negated is not None:
            says = f"ERROR: boolean value ({name}) specified for {negated.type} command line flag"
            problem = "" if negated.type == "bool" else says
            yield FlagRead(name.removeprefix("no"), "0", word, problem, negated)
        elif flag is None:
            yield FlagRead(name, resolved, word, f"ERROR: unknown command line flag '{name}'")
        elif flag.type == "bool" and not equals:
            beside = left[0].text if left else ""
            looks = beside.lower() in TRUE | FALSE
            yield FlagRead(name, "1", word, "", flag, beside if looks else "")
        elif not equals and not left:
            says = f"ERROR: flag '--{name}' is missing its argument"
            yield FlagRead(name, None, word, "" if word.unresolved else says, flag)
        else:
            argument = word._replace(text=value) if equals else left.pop(0)
            resolved = None if argument.unresolved else argument.text
            yield FlagRead(name, resolved, word, _illegal_text(name, flag, resolved), flag)


def value_of(arguments: tuple[Word, ...], name: str) -> Word | None:
    """Return the last value that a command line gives the flag ``name``; None without the flag.

    Args:
        name: With underscores; the command line may have ``--a_b=value``, ``-a_b value`` or ``--a-b
            value``. A word with empty text if no value follows the flag.
    """
    result = None
    for index, word in enumerate(arguments):
        flag, equals, value = word.text.lstrip("-").partition("=")
        if not word.text.startswith("-") or flag.replace("-", "_") != name:
            continue
        following = arguments[index + 1 : index + 2]
        if equals:
            result = word._replace(text=value)
        elif following and not following[0].text.startswith("-"):
            result = following[0]
        else:
            result = word._replace(text="")
    return result


def is_on(arguments: tuple[Word, ...], program: str, name: str) -> bool | None:
    """Tell whether the switch ``name`` of ``program`` is on; False without the flag, None if its
    last value is not known.

    ``--name false`` turns the switch on in gflags.
    """
    on: bool | None = False
    for flag in read_flags(arguments, flags_of(program)):
        if flag.name == name:
            on = None if flag.value is None else flag.value.lower() in TRUE or not flag.value
    return on


def _illegal_text(name: str, flag: Flag, value: str | None) -> str:
    if value is None or _is_legal(flag.type, value):
        ends = flag.empty if value == "" else flag.blank if value and value.isspace() else ""
        return f"--{name}={value}: {ends}" if ends else ""
    return f"ERROR: illegal value '{value}' specified for {flag.type} flag '{name}'"


def _is_legal(flag_type: str, value: str) -> bool:
    """Tell whether gflags takes ``value`` for a flag of type ``flag_type``."""
    if flag_type == "string":
        return True
    if flag_type == "bool":
        return value.lower() in TRUE | FALSE
    if flag_type == "double":
        return as_double(value) is not None
    return as_integer(flag_type, value) is not None


def as_integer(flag_type: str, value: str) -> int | None:
    """Return the integer that gflags reads from the whole text; None if gflags refuses the text."""
    text = value.lstrip(" \t\n\v\f\r")
    if value and not text and flag_type.startswith("u"):
        return 0  # strtoull reads no digit, and ends where the text does
    if not re.fullmatch(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)", text) or len(text) > 40:
        return None
    number = int(text, 16) if "x" in text.lower() else int(text)
    least = 0 if flag_type.startswith("u") else -(1 << _BITS[flag_type])
    fits = least <= number < 1 << _BITS[flag_type] and not (least == 0 and text.startswith("-"))
    return number if fits else None


def as_double(value: str) -> float | None:
    """Return the number that strtod reads, also 0x1p-1, inf and nan; None for any other text."""
    text = value.strip()
    if not text or "_" in text or text != value.lstrip():
        return None
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        return None


def with_config_file(
    arguments: tuple[Word, ...], read_file: ReadFile
) -> tuple[tuple[Word, ...], Unknown | None]:
    """Return a master's flags behind those of ``--config_path FILE`` (YAML, JSON): later flags win.

    The second value is None; if the file cannot be read, it is the reason, and the first value is
    ``arguments`` unchanged. A key that is no flag is skipped, as the master does: in Mooncake
    0.3.13, by ``InitMasterConf`` (``mooncake-store/src/master.cpp``).
    """
    path = value_of(arguments, "config_path")
    if path is None or not path.text:
        return arguments, None
    if path.unresolved:
        return arguments, why_unresolved(path)
    text = read_file(path.text)
    if isinstance(text, Unknown):
        return arguments, Unknown(f"--config_path {path.text}: {text.reason}")
    try:
        documents = load_documents(text, path.text)
    except SourceError as error:
        return arguments, Unknown(f"--config_path {path.text}: {error}")
    known = flags_of("mooncake_master")
    from_file = tuple(
        Word(f"--{key}={entry.text}", Origin(path.text, entry.line))
        for document in documents[:1]
        for key, entry in document.fields.items()
        if entry.text is not None and key in known
    )
    return (*from_file, *arguments), None
