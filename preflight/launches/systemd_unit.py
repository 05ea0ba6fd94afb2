"""A systemd unit: what its ExecStart starts, with its Environment.

Source: systemd.exec(5) (Environment, EnvironmentFile) and systemd.service(5), "Command lines".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.framework.needs import RunAs, SetLimit
from checks.framework.regex import regex
from preflight.launches.launch_files import LaunchKind, LaunchText, with_env_files
from preflight.launches.set_limits import limit_note, unit_defaults, unit_limit, unit_user
from preflight.launches.shell_script import read_words
from preflight.launches.source import Command, Origin, Reading, SourceError, Word, join, only_note
from preflight.launches.variables import Layers, unknown_needed

_SECTION = regex(r"^\[Service\]\s*$", re.MULTILINE)
_QUADLET = regex(r"^\[(Container|Kube|Pod)\]\s*$", re.MULTILINE)
_WORD = regex(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""", re.DOTALL)
_QUOTED = regex(r"""(\\.[^\s"'\\]*)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""", re.DOTALL)
_ESCAPED = regex(r"\\(x[0-9a-fA-F]{2}|[0-7]{3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'", strict=True))
# In a file of variables a backslash counts otherwise, and a quote may stand anywhere.
_FILE_QUOTED = regex(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'""", re.DOTALL)
_FILE_ESCAPED = regex(r"\\([\"\\`$])")
_VARIABLE = regex(r"\$\$|\$\{([A-Za-z_]\w*)\}", re.ASCII)
_SPECIFIER = regex(r"(?<!%)(?:%%)*(%[a-zA-Z])")  # systemd knows what it stands for
# A word of its own: the words of the variable stand in its place.
_ALONE = regex(r"\$(?![{$])(.+)", re.DOTALL)
_PREFIXES = "@-:+!|"
_STARTS = ("ExecStart", "ExecStartPre", "ExecStartPost")


def _read(launch: LaunchText) -> Reading:
    """Return the commands of a service unit, with its environment, limits and user.

    Raises:
        SourceError: For a unit of Podman's generator.
    """
    if _SECTION.search(launch.text) is None or "ExecStart" not in launch.text:
        raise SourceError(
            f"{launch.path} is a unit for Podman's generator: give the service that "
            "/usr/lib/systemd/system-generators/podman-system-generator --dryrun prints"
        )
    variables, notes = with_env_files(launch)
    readings = [Reading((), notes)]
    from_unit: dict[str, Word | None] = {}
    of_files: dict[str, Word | None] = {}
    starts: list[tuple[Origin, str, bool]] = []  # of each the line, and whether the rest waits
    limits: list[SetLimit] = []
    others: list[tuple[str, Word]] = []
    not_read: Origin | None = None
    system = "/user/" not in launch.path and "WantedBy=default.target" not in launch.text
    unit = launch.path.rpartition("/")[2]
    unit = unit if system and unit.endswith(".service") else ""
    for origin, key, value in _settings(launch):
        if key == "Environment":
            from_unit = {**from_unit, **_pairs(value, origin)} if value else {}
        elif key == "EnvironmentFile":
            path = value.removeprefix("-")
            text = launch.beside(path)
            if text is None:
                why = f"{path} cannot be read here: its variables are unknown"
                readings.append(only_note("env-file-not-read", why, origin))
                not_read = origin
            lines = (line.strip() for line in (text or "").splitlines())
            for line in (line for line in lines if "=" in line and line[:1] not in "#;"):
                name, _, value_text = line.partition("=")
                of_files[name.strip()] = Word(_file_value(value_text.strip()), Origin(path))
        elif key in _STARTS:
            starts = starts if value else []
            starts.append((origin, value, key == "ExecStartPre"))
        elif value and (limit := unit_limit(key, Word(value, origin), unit, system)):
            limits.append(limit)
        elif note := limit_note(key, value, origin):
            readings.append(Reading((), (note,)))
        else:
            specifiers = tuple(dict.fromkeys(_SPECIFIER.findall(value)))
            others.append((key, Word(value, origin, specifiers)))
    if system and starts:
        limits += unit_defaults(unit, limits)
    run_as = unit_user(others, system, launch.path)
    # Files stand over Environment=, wherever they are named.
    environment = Layers(variables, {**from_unit, **of_files})
    if not_read is not None:
        environment = Layers(environment, unknown_needed(environment, not_read))
    for origin, line, ends in starts:
        for prefixes, argv in _commands(line, origin, environment):
            reading = read_words(argv, environment, beside=launch.beside)
            last = [command._replace(waited=ends) for command in reading.commands[-1:]]
            reading = reading._replace(commands=(*reading.commands[:-1], *last))
            reading = _with_specifiers(argv, reading)
            whose = run_as
            if system and ("+" in prefixes or "!" in prefixes):
                whose = RunAs("root", (), str(origin))

            def of_unit(command: Command, whose: RunAs = whose) -> Command:
                return command if command.container else command.under(whose, tuple(limits))

            readings.append(reading.each(of_unit))
    return join(readings)


def _with_specifiers(argv: list[Word], reading: Reading) -> Reading:
    """Mark the ``%`` specifiers of a line, ``argv``, as unresolved in its commands too: a shell in
    between takes them for text.
    """
    names = {name for word in argv for name in word.unresolved if _SPECIFIER.fullmatch(name)}

    def opened(word: Word) -> Word:
        more = (name for name in sorted(names) if name in word.text)
        return word._replace(unresolved=tuple(dict.fromkeys((*word.unresolved, *more))))

    if not names:
        return reading
    return reading.each(
        lambda command: command._replace(
            words=tuple(map(opened, command.words)),
            environment={name: opened(word) for name, word in command.environment.items()},
        )
    )


def _settings(launch: LaunchText) -> Iterator[tuple[Origin, str, str]]:
    """Yield the origin, key and value of each setting of [Service].

    A continued line is one setting, whose origin is its first line.
    """
    section, line_so_far, begun = "", "", 0
    for number, line in enumerate(launch.text.splitlines(), start=1):
        if line.lstrip()[:1] in ("#", ";"):  # between lines that go on, too
            continue
        begun = begun if line_so_far else number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        line_so_far += f"{line[:-1]} " if goes_on else line
        if goes_on:
            continue
        text, line_so_far = line_so_far.strip(), ""
        if text.startswith("["):
            section = text
        elif section == "[Service]" and "=" in text:
            key, _, value = text.partition("=")
            yield Origin(launch.path, begun), key.strip(), value.strip()


def _unescaped(text: str) -> str:
    """Return a text with the escapes of systemd's C-style quotes replaced."""

    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) > 1:
            number = int(code.lstrip("xuU"), 8 if code[0].isdigit() else 16)
            return chr(number) if number < 0x110000 else match.group()
        return _ESCAPES.get(code, match.group())

    return _ESCAPED.sub(plain, text)


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: _unescaped("".join(filter(None, match.groups()))), text)


def _file_value(text: str) -> str:
    """Return a value of an EnvironmentFile without its quotes and escapes."""

    def plain(match: re.Match[str]) -> str:
        single, double, quoted = match.groups()
        return single or quoted or _FILE_ESCAPED.sub(r"\1", double or "")

    return _FILE_QUOTED.sub(plain, text)


def _pairs(value: str, origin: Origin) -> dict[str, Word | None]:
    """Read the variables of one ``Environment=`` line.

    A specifier such as ``%i`` stays in the text, and is listed as unresolved.
    """
    pairs: dict[str, Word | None] = {}
    for match in _WORD.finditer(value):
        name, equals, text = _unquoted(match.group()).partition("=")
        if equals:
            specifiers = tuple(dict.fromkeys(_SPECIFIER.findall(text)))
            pairs[name] = Word(text.replace("%%", "%"), origin, specifiers)
    return pairs


def _commands(line: str, origin: Origin, environment: Layers) -> Iterator[tuple[str, list[Word]]]:
    """Yield the prefixes and the words of each command of an ExecStart line, in which ``;``
    separates commands.

    With the prefix ``@`` the second word is the name that the program is given, and is left out.
    With ``:`` no variable is filled in.
    """
    raw = [match.group() for match in _WORD.finditer(line)]
    while raw:
        end = raw.index(";") if ";" in raw else len(raw)
        texts, raw = raw[:end], raw[end + 1 :]
        if not texts:
            continue
        program = texts[0].lstrip(_PREFIXES)
        prefixes = texts[0][: len(texts[0]) - len(program)]
        argv = [program, *texts[2 if "@" in prefixes else 1 :]]
        if ":" in prefixes:
            yield prefixes, [Word(_unquoted(text).replace("%%", "%"), origin) for text in argv]
        else:
            yield prefixes, [w for text in argv for w in _words(text, origin, environment)]


def _words(text: str, origin: Origin, environment: Layers) -> Iterator[Word]:
    """Fill the variables into one word of a command line: a lone ``$NAME`` is split at blanks,
    ``${NAME}`` is filled in at its place.

    Variables that are not set and ``%`` specifiers stay as written, and are unresolved.
    """
    plain = ";" if text == "\\;" else _unquoted(text)
    alone = _ALONE.fullmatch(plain)
    if alone is None:
        yield _fill_in(plain, origin, environment)
        return
    word = environment.get(alone.group(1))
    if word is None:
        yield Word(plain, origin, (alone.group(1),))
    else:
        parts = (match.group() for match in _WORD.finditer(word.text))
        yield from (word._replace(text=_file_value(part)) for part in parts)


def _fill_in(text: str, origin: Origin, environment: Layers) -> Word:
    """Fill in ``${NAME}``; an unset variable, or a specifier such as ``%i``, stays unresolved."""
    unresolved = _SPECIFIER.findall(text)

    def fill(match: re.Match[str]) -> str:
        """Return the text of one variable, or its reference as written."""
        name = match.group(1)
        if name is None:
            return "$"
        word = environment.get(name)
        if word is None:
            unresolved.append(name)
            return match.group()
        unresolved.extend(word.unresolved)
        return word.text

    filled = _VARIABLE.sub(fill, text.replace("%%", "%"))
    return Word(filled, origin, tuple(dict.fromkeys(unresolved)))


def _recognises(launch: LaunchText) -> bool:
    is_unit = _SECTION.search(launch.text) is not None and "ExecStart" in launch.text
    return launch.begins_with_section and (is_unit or _QUADLET.search(launch.text) is not None)


KIND = LaunchKind("a systemd unit, which has [Service]", _recognises, _read)
