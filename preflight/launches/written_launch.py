"""A launch as the command line gives it, a file or words behind ``--``, read and sized."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from checks.root import Root
from checks.unknown import Unknown
from preflight.launches.command_line import read_argv
from preflight.launches.launch_processes import is_program
from preflight.launches.launch_source import ReadFile, Reading
from preflight.launches.read_source import SourceError, read_source
from preflight.sizing.source_inputs import SourceOptions
from preflight.sizing.source_sizing import SourceSizing, size_source
from preflight.usage_error import NoLaunchError, UsageError


class WrittenLaunch(NamedTuple):
    """What a launch starts, what it is called, and how to read the files that it names."""

    reading: Reading
    name: str
    read_file: ReadFile


def read_launch(
    launch: tuple[str, ...],
    env_files: tuple[str, ...],
    environment: Mapping[str, str],
    root: Root,
    is_command: bool = False,
) -> WrittenLaunch:
    """``launch`` is one file, or the words of a command. Raises UsageError where it is neither.

    One word that is the name of a program is a command too: mooncake_master needs no argument.
    """
    is_file = len(launch) == 1 and not is_command and not is_program(launch[0])
    try:
        if is_file:
            name = launch[0]
            reading = read_source(name, environment, env_files)
        else:
            name = "command line"
            reading = read_argv(launch, environment)
    except SourceError as error:
        raise UsageError(str(error)) from None
    if not reading.commands:
        raise NoLaunchError(f"{name}: starts no program that is known here")
    folder = os.path.dirname(launch[0]) if is_file else ""
    return WrittenLaunch(reading, name, _reader(root, folder))


def size_written(launch: WrittenLaunch, options: SourceOptions, root: Root) -> SourceSizing:
    """Hold it against the host below ``root``. Raises UsageError as flags do."""
    return size_source(launch.reading, launch.name, options, root, launch.read_file)


def _reader(root: Root, folder: str) -> ReadFile:
    """Files that a launch names: absolute ones below the root, others beside the launch."""

    def read(name: str) -> str | Unknown:
        if name.startswith("/"):
            return root.text(name)
        return Root(folder or ".").text("/" + name)

    return read
