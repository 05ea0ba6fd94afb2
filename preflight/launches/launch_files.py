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
    """Return what a script, Compose file or Kubernetes manifest starts.

    path: ``-`` for standard input. env_files: paths of files in Docker's form, whose variables go
    over ``environment``, the later over the earlier. arguments: what a script is given, None where
    that is not known. host_words: what ``nproc`` and its like write there. Raises SourceError, with
    a sentence, for a file that cannot be read or is none of these.
    """
    text = _text(path)

    @lru_cache(maxsize=64)  # a script names the same files on many lines
    def beside(name: str) -> str | None:
        name, own = os.path.expanduser(name), os.path.dirname(path)
        near, here = os.path.join(own, name), name
        # A name made of ``$(dirname "$0")`` begins where the script is started.
        first, second = (here, near) if own and name.startswith(f"{own}/") else (near, here)
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
    """Return the same of texts at hand: no file is opened. Raises SourceError."""
    return _read(text, path, environment, env_texts, lambda _: None)


def read_argv(argv: Sequence[str], environment: Mapping[str, str | Word]) -> Reading:
    """Return the process that a command line starts, its words already split. Never raises.

    ``NAME=value`` in front of the program is taken as a shell would, which the caller's shell no
    longer does behind ``--``.
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
    held = Layers(surroundings, changes) if changes else surroundings
    return shell_script.read_words(words[start:], held, beside=read_small_file)


def _read(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]],
    beside: Beside,
    arguments: Sequence[str] | None = None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    launch = LaunchText(path, text, marked, environment, env_texts, beside, arguments, host_words)
    return told_apart(read_kind(launch))


def _text(path: str) -> str:
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
