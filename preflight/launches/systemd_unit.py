"""A systemd unit: what its ExecStart starts, with its Environment.

Source: systemd.exec(5) (Environment, EnvironmentFile) and systemd.service(5), "Command lines".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceNote, Word, joined
from preflight.launches.variables import Layers

_SECTION = re.compile(r"^\[Service\]\s*$", re.MULTILINE)
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""", re.DOTALL)
_QUOTED = re.compile(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", re.ASCII)
_PREFIXES = "@-:+!|"
_STARTS = ("ExecStart", "ExecStartPre", "ExecStartPost")


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    readings = [Reading((), notes)]
    own: dict[str, Word | None] = {}
    starts: list[tuple[Origin, str]] = []
    for origin, key, value in _settings(launch):
        if key == "Environment":
            own.update(_pairs(value, origin) if value else {})
        elif key == "EnvironmentFile":
            path = value.removeprefix("-")
            text = launch.beside(path)
            if text is None:
                why = f"{path} cannot be read here: its variables are unknown"
                readings.append(Reading((), (SourceNote("env-file-not-read", why, origin),)))
            else:
                lines = (line.strip() for line in text.splitlines())
                kept = (line for line in lines if "=" in line and line[:1] not in "#;")
                for line in kept:
                    name, _, said = line.partition("=")
                    own[name.strip()] = Word(_unquoted(said.strip()), Origin(path))
        elif key in _STARTS:
            starts = starts if value else []
            starts.append((origin, value))
        elif key == "LimitMEMLOCK":
            text = f"LimitMEMLOCK={value}: sets a limit of the processes of this unit"
            readings.append(Reading((), (SourceNote("ulimit", text, origin),)))
    environment = Layers(variables, own)
    for origin, line in starts:
        words = list(_words(line.lstrip(_PREFIXES), origin, environment))
        readings.append(read_words(words, environment, beside=launch.beside))
    return joined(readings)


def _settings(launch: LaunchText) -> Iterator[tuple[Origin, str, str]]:
    """Yield the settings of [Service], a continued line as one, with the line it begins at."""
    section, held, begun = "", "", 0
    for number, line in enumerate(launch.text.splitlines(), start=1):
        if not held and line.lstrip()[:1] in ("#", ";"):
            continue
        begun = begun if held else number
        held += line.removesuffix("\\") + (" " if line.endswith("\\") else "")
        if line.endswith("\\"):
            continue
        text, held = held.strip(), ""
        if text.startswith("["):
            section = text
        elif section == "[Service]" and "=" in text:
            key, _, value = text.partition("=")
            yield Origin(launch.path, begun), key.strip(), value.strip()


def _unquoted(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        single, double, quoted = match.groups()
        return single if single is not None else _ESCAPED.sub(r"\1", double or quoted or "")

    return _QUOTED.sub(plain, text)


def _pairs(value: str, origin: Origin) -> dict[str, Word | None]:
    found: dict[str, Word | None] = {}
    for match in _WORD.finditer(value):
        name, equals, text = _unquoted(match.group()).partition("=")
        if equals:
            found[name] = Word(text, origin)
    return found


def _words(line: str, origin: Origin, environment: Layers) -> Iterator[Word]:
    """``$NAME`` alone is split into words, ``${NAME}`` is filled in; ``%`` specifiers stay."""
    for match in _WORD.finditer(line):
        text = match.group()
        alone = _VARIABLE.fullmatch(text)
        if alone is not None and alone.group(2):
            word = environment.get(alone.group(2))
            if word is None:
                yield Word(text, origin, (alone.group(2),))
            else:
                yield from (word._replace(text=part) for part in word.text.split())
            continue
        yield _filled(_unquoted(text), origin, environment)


def _filled(text: str, origin: Origin, environment: Layers) -> Word:
    unresolved = re.findall(r"(?<!%)(?:%%)*(%[a-zA-Z])", text)

    def fill(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if name is None:
            return "$"
        word = environment.get(name)
        if word is None:
            unresolved.append(name)
            return match.group()
        return word.text

    filled = _VARIABLE.sub(fill, text).replace("%%", "%")
    return Word(filled, origin, tuple(dict.fromkeys(unresolved)))


def _recognises(launch: LaunchText) -> bool:
    return _SECTION.search(launch.text) is not None and "ExecStart" in launch.text


KIND = LaunchKind("a systemd unit, which has [Service]", _recognises, _read)
