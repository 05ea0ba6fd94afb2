"""A launch given as a file or as words: what kind of file it is, and what it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from preflight.launches import shell_script
from preflight.launches.env_files import read_small_file
from preflight.launches.launch_kind import Beside, HostWords, LaunchText, read_kind
from preflight.launches.source import ASSIGNMENT, Origin, Reading, SourceError, Word, told_apart
from preflight.launches.variables import Layers, environment_words

_MARK = "\ufeff"
# What a launch that comes in by it is called.
STANDARD_INPUT = "stdin"


def read_source(
    path: str,
    environment: Mapping[str, str | Word],
    env_files: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    """Return the commands of a launch file of any kind.

    path: ``-`` for standard input. env_files: paths of files in Docker's form, whose variables go
    over ``environment``, the later over the earlier. arguments: of a script, None if not known.
    host_words: gives the output of ``nproc`` and the like. Raises SourceError, with a sentence, if
    a file cannot be read or is of no known kind.
    """
    text = _text(path)

    @lru_cache(maxsize=64)  # a script names the same files on many lines
    def beside(name: str) -> str | None:
        """Return the text of a file that the launch names; None if it lies nowhere near."""
        name, folder = os.path.expanduser(name), os.path.dirname(path)
        near, here = os.path.join(folder, name), name
        # A name made of ``$(dirname "$0")`` begins where the script is started.
        first, second = (here, near) if folder and name.startswith(f"{folder}/") else (near, here)
        text = read_small_file(first)
        return read_small_file(second) if text is None else text

    texts = [(name, _text(name)) for name in env_files]
    shown = STANDARD_INPUT if path == "-" else path
    return _read(text, shown, environment, texts, beside, arguments, host_words)


def read_text(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]] = (),
) -> Reading:
    """Return the commands of a text at hand, without opening a file. Raises SourceError."""
    return _read(text, path, environment, env_texts, lambda _: None)


def read_argv(argv: Sequence[str], environment: Mapping[str, str | Word]) -> Reading:
    """Return the process of a command line whose words are split already. Never raises.

    ``NAME=value`` in front of the program is an assignment, as in a shell; the caller's shell no
    longer takes it so behind ``--``.
    """
    origin = Origin("command line")
    words = [Word(text, origin) for text in argv]
    changes: dict[str, Word | None] = {}
    start = 0
    while start < len(words) and ASSIGNMENT.match(words[start].text):
        name, _, value = words[start].text.partition("=")
        changes[name] = Word(value, origin)
        start += 1
    surroundings = environment_words(environment)
    variables = Layers(surroundings, changes) if changes else surroundings
    return shell_script.read_words(words[start:], variables, beside=read_small_file)


def _read(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]],
    beside: Beside,
    arguments: Sequence[str] | None = None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    """Return the commands of a text, without its byte order mark."""
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    launch = LaunchText(path, text, marked, environment, env_texts, beside, arguments, host_words)
    return told_apart(read_kind(launch))


def _text(path: str) -> str:
    """Return the text of a launch or env file. Raises SourceError with the reason if not read."""
    text = read_small_file(path)
    if text is not None:
        return text
    if path == "-":
        raise SourceError("standard input is not read: it is closed, or has more than 4 MiB")
    if "\0" in path or not os.path.exists(path):
        raise SourceError(
            f"{path!r} does not exist: give the path of a script or manifest, or a "
            "command with its arguments"
        )
    if not os.path.isfile(path):
        raise SourceError(f"{path!r} is not a regular file: give a script or manifest")
    why = "it may not be read" if not os.access(path, os.R_OK) else "it has more than 4 MiB"
    raise SourceError(f"{path!r} is not read: {why}")
