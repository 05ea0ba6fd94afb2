"""Env files in Docker's form: NAME=value as it stands, with no quotes and no expansion."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

from preflight.launches.source import Origin, SourceNote, Word

# Larger than any file that holds settings; a device or a log is not read into memory.
LARGEST_FILE_BYTES = 4 * 2**20

_QUOTED = re.compile(r"""(["']).*\1""", re.DOTALL)


def read_env_file(
    text: str, name: str, environment: Mapping[str, str | Word]
) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """What ``docker run --env-file`` makes of a file: no quotes, no expansion, the last one wins.

    A name alone takes the value of ``environment``, and nothing where that has none. Never raises.
    """
    variables: dict[str, Word] = {}
    notes: list[SourceNote] = []
    # Docker cuts lines at line feeds only, and drops the carriage return in front of one.
    for number, written in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = written.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        origin = Origin(name, number)
        key, equals, value = line.partition("=")
        if not key or key != "".join(key.split()):
            why = "has no name" if not key else f"has blanks in its name {key!r}"
            text = f"the variable {why}: Docker refuses the whole file; write NAME=value"
            notes.append(SourceNote("env-file-name", text, origin))
        elif equals:
            variables[key] = Word(value, origin)
            if _QUOTED.fullmatch(value.strip()):
                notes.append(SourceNote("env-file-quotes", _quotes(key, value), origin))
        elif key in environment:
            inherited = environment[key]
            variables[key] = inherited if isinstance(inherited, Word) else Word(inherited, origin)
    return variables, tuple(notes)


def _quotes(key: str, value: str) -> str:
    bare = value.strip()[1:-1]
    return f"{key}={value}: Docker keeps the quotes as part of the value; write {key}={bare}"


def read_small_file(path: str) -> str | None:
    """The text of a regular file of at most 4 MiB; None for anything else. Never raises."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE_BYTES:
            return None
        return Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
