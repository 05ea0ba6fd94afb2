"""A configuration of supervisord: the processes of its programs, as many as ``numprocs`` says.

Source: supervisord.org/configuration.html ("[program:x] Section Settings").
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import replace

from checks.base.needs import RunAs
from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceNote, Word, brief, joined, with_last
from preflight.launches.variables import Layers

_PROGRAM = re.compile(r"^\[program:([^\]]+)\]", re.MULTILINE)
_NOT_STARTED = ("false", "no", "off", "0")
_SETTING = re.compile(r"([A-Za-z_]\w*)\s*[=:]\s*(.*)", re.DOTALL)
_EXPANSION = re.compile(r"%\((\w+)\)(?:0?\d*)[sd]|%%")
_PAIR = re.compile(
    r"""(?<!\w)([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,\s]*)""", re.DOTALL
)
_INCLUDE = "[include]"  # no program is called so
_SHARED = {"[supervisord]": "", _INCLUDE: _INCLUDE}
# More processes of one program than anybody starts.
_MOST = 1024


def _read(given: LaunchText) -> Reading:
    variables, notes = with_env_files(given)
    readings = [Reading((), notes)]
    shared: dict[str, Word | None] = {}
    for launch, section, settings in _with_included(given, readings):
        own = dict(shared)
        origin, said = settings.get("environment", (Origin(launch.path), ""))
        for match in _PAIR.finditer(said):
            value = match.group(2)
            value = value[1:-1] if value[:1] in ("'", '"') else value
            own[match.group(1)] = _filled(value, origin, section, 0, Layers(variables, own))
        if section == "":
            shared = own
            continue
        origin, line = settings.get("command", (Origin(launch.path), ""))
        if settings.get("autostart", (origin, "true"))[1].strip().lower() in _NOT_STARTED:
            continue
        count = settings.get("numprocs", (origin, "1"))[1]
        environment = Layers(variables, own)
        for number in range(min(int(count), _MOST) if count.isdecimal() else 1):
            words = _words(line, origin, section, number, environment)
            found = with_last(read_words(words, environment, beside=launch.beside), waited=False)
            if "user" in settings:
                at, name = settings["user"]
                run_as = RunAs(name.strip(), origin=str(at))
                commands = tuple(
                    one if one.container is not None else one.under(run_as, ())
                    for one in found.commands
                )
                found = found._replace(commands=commands)
            readings.append(found)
    return joined(readings)


def _with_included(
    launch: LaunchText, readings: list[Reading]
) -> Iterator[tuple[LaunchText, str, dict[str, tuple[Origin, str]]]]:
    """Yield the sections of a file, and of those that it includes; add what is not read of these.

    Source: supervisord.org/configuration.html ("[include] Section Settings"): patterns from the
    folder of the file on; those included include no others.
    """
    folder = os.path.dirname(launch.path)
    for section, settings in _sections(launch):
        if section != _INCLUDE:
            yield launch, section, settings
            continue
        origin, files = settings.get("files", (Origin(launch.path), ""))
        for pattern in files.replace("%(here)s/", "").split():
            # A pattern of one host stands for other files on the next: what is here is read.
            found = sorted(glob.glob(pattern, root_dir=folder or "."))
            texts = [(name, launch.beside(name)) for name in found[:_MOST]]
            for name, text in texts:
                if text is not None:
                    included = replace(launch, path=os.path.join(folder, name), text=text)
                    for inner, its in _sections(included):
                        if inner not in ("", _INCLUDE):
                            yield included, inner, its
            missing = [name for name, text in texts if text is None] if texts else [pattern]
            for name in missing:
                said = f"include: {brief(name)} is not here: what it starts is unknown"
                readings.append(Reading((), (SourceNote("include-not-read", said, origin),)))


def _sections(launch: LaunchText) -> Iterator[tuple[str, dict[str, tuple[Origin, str]]]]:
    """Yield the programs, and first, as "", what is said of all; with their settings' places."""
    found: dict[str, dict[str, tuple[Origin, str]]] = {"": {}}
    section: str | None = None
    name = ""
    for number, written in enumerate(launch.text.splitlines(), start=1):
        line = re.split(r"(?:^|\s);", written)[0].rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.startswith("["):
            program = _PROGRAM.match(line)
            section = program.group(1) if program else _SHARED.get(line)
            name = ""
        elif section is not None and line[:1].isspace() and name:  # a line that goes on
            origin, before = found[section][name]
            found[section][name] = (origin, f"{before}\n{line.strip()}")
        elif section is not None and (match := _SETTING.fullmatch(line)):
            name = match.group(1)
            found.setdefault(section, {})[name] = (Origin(launch.path, number), match.group(2))
    yield from found.items()


def _words(line: str, origin: Origin, section: str, number: int, environment: Layers) -> list[Word]:
    import shlex

    try:
        texts = shlex.split(line)
    except ValueError:
        texts = line.split()
    return [_filled(text, origin, section, number, environment) for text in texts]


def _filled(text: str, origin: Origin, section: str, number: int, environment: Layers) -> Word:
    unresolved: list[str] = []

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "%"
        if name in ("program_name", "group_name"):
            return section
        if name == "process_num":
            return str(number)
        if name == "here":
            return os.path.dirname(os.path.abspath(origin.source))
        variable = name.removeprefix("ENV_")
        word = environment.get(variable) if variable != name else None
        if word is None:
            unresolved.append(variable)
            # The program would inherit it: a shell that the line starts reads the same.
            return f"${{{variable}}}" if variable != name else match.group()
        unresolved.extend(word.unresolved)
        return word.text

    return Word(_EXPANSION.sub(fill, text), origin, tuple(dict.fromkeys(unresolved)))


def _recognises(launch: LaunchText) -> bool:
    # What starts nothing itself may include what does.
    includes = "[supervisord]" in launch.text and _INCLUDE in launch.text
    return launch.begins_with_section and (includes or _PROGRAM.search(launch.text) is not None)


KIND = LaunchKind("a configuration of supervisord, which has [program:...]", _recognises, _read)
