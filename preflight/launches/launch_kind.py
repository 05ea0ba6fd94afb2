"""What a kind of launch file is to the readers: how it is told, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from preflight.launches.documents import Node
from preflight.launches.env_files import read_env_file
from preflight.launches.source import Reading, SourceNote, Word
from preflight.launches.variables import environment_words

# Gives the text of a file that lies beside a launch file; None where there is none.
Beside = Callable[[str], "str | None"]


class LaunchText(NamedTuple):
    """The text of a launch file, without a byte order mark, and what was given with it.

    documents: of YAML or JSON, None for any other text. marked: whether the file begins with the
    mark. environment: the caller's. env_texts: of the files behind --env-file, each its path and
    its text. arguments: what a script is given.
    """

    path: str
    text: str
    documents: Sequence[Node] | None
    marked: bool
    environment: Mapping[str, str | Word]
    env_texts: Sequence[tuple[str, str]]
    beside: Beside
    arguments: Sequence[str] = ()


class LaunchKind(NamedTuple):
    """One kind of launch file. name: what it is, with its article, for who gave none of them."""

    name: str
    recognises: Callable[[LaunchText], bool]
    read: Callable[[LaunchText], Reading]


def with_env_files(launch: LaunchText) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """Return the environment with the variables of the env files, as Docker reads them."""
    variables = environment_words(launch.environment)
    notes: list[SourceNote] = []
    for path, text in launch.env_texts:
        read, said = read_env_file(text, path, launch.environment)
        variables.update(read)
        notes.extend(said)
    return variables, tuple(notes)
