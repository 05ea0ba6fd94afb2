"""A Dockerfile: what its ENTRYPOINT and CMD start, with its ENV, and the releases that it installs.

Source: docs.docker.com/reference/dockerfile (ENTRYPOINT and CMD, shell and exec form, ENV, ARG).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.container import ContainerSettings
from preflight.launches.env_files import interpolate
from preflight.launches.launch_files import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, Word, join, only_note
from preflight.launches.variables import Layers

_INSTRUCTION = regex(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_FROM = regex(r"^[ \t]*FROM\s+\S+", re.MULTILINE | re.IGNORECASE)
_PAIR = regex(r"""(?<!\w)([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|'[^']*'|(?:\\.|[^\s"'])*)""", re.DOTALL)


class _Stage(NamedTuple):
    """A build stage: its base image, variables, program (``entry``, ``command``), pip installs."""

    image: str = ""
    variables: Mapping[str, Word] = {}
    entry: tuple[Word, ...] = ()
    command: tuple[Word, ...] = ()
    installs: tuple[Reading, ...] = ()


def _read(launch: LaunchText) -> Reading:
    """Return the program of the last build stage, and the pip installations of that stage and of
    the stages that it is built from.
    """
    variables, notes = with_env_files(launch)
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    name = ""
    for_all: dict[str, Word] | None = None  # by ARG in front of the first stage
    for origin, instruction, text in _instructions(launch):
        variables_here = dict(stage.variables)
        if instruction == "FROM":  # --platform=x IMAGE AS NAME; the last stage is what runs
            for_all = variables_here if for_all is None else for_all
            words_of_from = interpolate(text, for_all, origin).text.split()
            image, *alias = [w for w in words_of_from if not w.startswith("--")] or [""]
            name = alias[1].lower() if len(alias) > 1 and alias[0].lower() == "as" else ""
            stage = stages.get(image.lower(), _Stage(image, dict(for_all)))
        elif instruction in ("ENV", "ARG"):
            variables_here.update(_pairs(instruction, text, variables_here, origin))
            stage = stage._replace(variables=variables_here)
        elif instruction == "ENTRYPOINT":
            stage = stage._replace(entry=_words(text, origin), command=())
        elif instruction == "CMD":
            stage = stage._replace(command=_words(text, origin))
        elif instruction == "RUN" and "pip" in text:
            around = Layers(variables, variables_here)
            install = read_words(_words(text, origin), around, in_container=True)
            stage = stage._replace(installs=(*stage.installs, Reading(tuple(install.commands))))
        if for_all is not None and name:
            stages[name] = stage
    readings = [Reading((), notes), *stage.installs]
    argv = [*stage.entry, *stage.command]
    if not argv:
        why = f"it names no program of its own: {stage.image or 'the image'} runs its own command"
        readings.append(only_note("image-command", why, Origin(launch.path)))
    settings = ContainerSettings(image=stage.image)
    left = Layers(variables, stage.variables)
    reading = read_words(argv, left, in_container=True, beside=launch.beside)
    inside = reading.each(
        lambda command: command._replace(
            container=settings, wrappers=(("docker", "run", stage.image), *command.wrappers)
        )
    )
    return join([*readings, inside])


def _instructions(launch: LaunchText) -> Iterator[tuple[Origin, str, str]]:
    """Yield each instruction with its line and its text, continued lines joined."""
    so_far, begun = "", 0
    for number, line in enumerate(launch.text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not so_far and not line.strip()):
            continue
        begun = begun if so_far else number
        goes_on = line.rstrip().endswith("\\")
        so_far += line.rstrip().removesuffix("\\") + (" " if goes_on else "")
        if goes_on:
            continue
        match, so_far = _INSTRUCTION.fullmatch(so_far), ""
        if match is not None:
            yield Origin(launch.path, begun), match.group(1).upper(), match.group(2).strip()


def _words(text: str, origin: Origin) -> tuple[Word, ...]:
    """Return the words to run: those of a JSON list (exec form), else of ``/bin/sh -c TEXT``."""
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and all(isinstance(item, str) for item in listed):
            return tuple(Word(item, origin) for item in listed)
    return tuple(Word(part, origin) for part in ("/bin/sh", "-c", text))


def _pairs(
    instruction: str, text: str, variables: dict[str, Word], origin: Origin
) -> dict[str, Word]:
    """Return the variables that an ENV or ARG instruction sets; an ARG without a value sets none.

    Args:
        variables: Those that fill in ``${NAME}``.
    """
    pairs: dict[str, Word] = {}
    for match in _PAIR.finditer(text):
        value = match.group(2)
        quote = value[:1] if value[:1] in ("'", '"') else ""
        value = value[1:-1] if quote else value
        word = Word(value, origin) if quote == "'" else interpolate(value, variables, origin)
        pairs[match.group(1)] = word._replace(text=re.sub(r"\\(.)", r"\1", word.text))
    if not pairs and instruction == "ENV":  # ENV NAME value
        name, _, value = text.partition(" ")
        pairs[name] = interpolate(value.strip(), variables, origin)
    return pairs


def _recognises(launch: LaunchText) -> bool:
    name = os.path.basename(launch.path)
    named = name.startswith(("Dockerfile", "Containerfile")) or name.endswith(".Dockerfile")
    return named and _FROM.search(launch.text) is not None


KIND = LaunchKind("a Dockerfile", _recognises, _read)
