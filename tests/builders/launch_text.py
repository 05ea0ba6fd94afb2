"""Launches for rule tests, written as one would type them."""

import json
import re
import shlex
from collections.abc import Mapping

from checks.framework.unknown import Unknown
from preflight.launches.source import Command, Origin, Word
from preflight.processes.processes import LaunchProcess, understand

SERVER = "python3 -m sglang.launch_server --model-path m --tp 8 --page-size 64"
HICACHE = f"{SERVER} --enable-hierarchical-cache"
STORE = f"{HICACHE} --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout"
SERVICE = "python3 -m mooncake.mooncake_store_service"
MASTER = {"MOONCAKE_MASTER": "10.0.0.1:50051"}


def service(**more: object) -> str:
    """The text of a store service's file: what it must have, and ``more``."""
    needed = {"local_hostname": "a", "metadata_server": "P2PHANDSHAKE"}
    return json.dumps({**needed, "master_server_address": "10.0.0.1:50051", **more})


def process(line: str, environment: Mapping[str, str] | None = None, number: int = 1) -> Command:
    """A command as a reader gives it: line ``number`` of launch.sh; ``$NAME`` stays unresolved."""
    origin = Origin("launch.sh", number)

    def word(text: str) -> Word:
        return Word(text, origin, tuple(re.findall(r"\$[@*]|(?<=\$)\w+", text)))

    given = {name: word(text) for name, text in (environment or {}).items()}
    return Command(tuple(word(text) for text in shlex.split(line)), given, (), origin)


def understood(
    *lines: str | Command | tuple[str, Mapping[str, str]],
    files: Mapping[str, str] | None = None,
    sglang_version: str | None = None,
) -> tuple[LaunchProcess, ...]:
    """Processes from lines, from (line, environment) pairs, or from commands as they are read."""
    commands = []
    for number, line in enumerate(lines, start=1):
        if isinstance(line, Command):
            commands.append(line)
            continue
        text, environment = (line, {}) if isinstance(line, str) else line
        commands.append(process(text, environment, number))

    def read_file(name: str) -> str | Unknown:
        return (files or {}).get(name, Unknown(f"{name}: No such file or directory", absent=True))

    return understand(commands, read_file, sglang_version)
