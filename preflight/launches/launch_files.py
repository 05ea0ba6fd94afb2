"""A launch given as a file: what kind it is, how that is told, and who reads it.

A new kind is a module with its ``KIND``, and its name in ``KINDS``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import islice
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.base.shell import quote
from preflight.launches.documents import Node, load_documents
from preflight.launches.env_files import read_env_file, read_given_file, read_small_file
from preflight.launches.source import Reading, SourceError, SourceNote, Word, tell_apart
from preflight.launches.variables import environment_words

# Gives the text of a file that lies beside a launch file, by its name; None without the file.
Beside = Callable[[str], "str | None"]
# Gives the output of a command such as ``nproc`` on the launch's host; None if not known.
HostWords = Callable[[str], "str | None"]
# What docker compose takes where it is told no file, and what it lays over that.
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
COMPOSE_OVERRIDES = tuple(
    f"{name}.override.{end}" for name in ("compose", "docker-compose") for end in ("yml", "yaml")
)
_MARK = "\ufeff"
# What a launch that comes in by it is called.
STANDARD_INPUT = "stdin"
# Where a missing file's name is looked for among its folder's: a letter or two may differ.
_MOST_ENTRIES, _ALIKE = 10_000, 0.8
_SCRIPTS = (".sh", ".bash")
_YAML = (".yaml", ".yml", ".json")
# Recipes that another program fills in and runs: what prints the commands of one of them.
_RECIPES = {
    "makefile": "make -n TARGET",
    "gnumakefile": "make -n TARGET",
    "justfile": "just --dry-run RECIPE 2>&1",
    ".justfile": "just --dry-run RECIPE 2>&1",
}
_SUPERVISED = regex(r"^\[(?:program:|supervisord\])", re.MULTILINE)
# Keys of a configuration of vLLM alone.
_OF_VLLM = frozenset(
    "gpu-memory-utilization kv-transfer-config max-model-len max-num-seqs served-model-name "
    "tensor-parallel-size".split()
)
_COMMENT = regex(r"\s*[;#](?!!)")
_OPENS_SECTION = regex(r"\s*\[[^\s\[\]][^\[\]]*\]\s*(?:[;#].*)?$")
# A list of JSON, but not the shell's [ -f x ].
_MANIFEST = regex(r"---|apiVersion:|kind:|services:|version:|\{|\[\s*(?:[\[{\"]|$)")
_TEMPLATE = regex(r"\{\{-? *(?:\.|include|if|range|with|end|define|template|toYaml)")


@dataclass(frozen=True)
class LaunchText:
    """The text of a launch file without a byte order mark, and all that belongs to it.

    Attributes:
        marked: The file begins with the mark.
        environment: The caller's.
        env_texts: Path and text of each file behind --env-file.
        beside: Gives the text of a file near the launch.
        arguments: Of a script, or None if not known.
        host_words: Gives the output of ``nproc`` and the like.
        is_manifest: The text is YAML or JSON that stands in a file of another kind.
    """

    path: str
    text: str
    marked: bool
    environment: Mapping[str, str | Word]
    env_texts: Sequence[tuple[str, str]]
    beside: Beside
    arguments: Sequence[str] | None = None
    host_words: HostWords = lambda command: None
    is_manifest: bool = False

    @cached_property
    def documents(self) -> Sequence[Node] | None:
        """Return the documents of a YAML or JSON file; None for a script or another text.

        Raises:
            SourceError: If the file is broken, or is a template that is not filled in.
        """
        path = self.path.lower()
        if path.endswith(_SCRIPTS) and not self.is_manifest:  # which may begin with { too
            return None
        if self.is_manifest or path.endswith(_YAML) or _looks_like_manifest(self.text):
            try:
                return load_documents(self.text, self.path)
            except SourceError:
                if _TEMPLATE.search(self.text) is None:
                    raise
                raise SourceError(
                    f"{self.path} is a template that is not filled in: give what helm template "
                    "CHART prints"
                ) from None
        return None

    @property
    def begins_with_section(self) -> bool:
        """Return whether the first line that is no comment opens a section, as ``[Unit]`` does."""
        lines = (line for line in self.text.splitlines() if line.strip())
        first = next((line for line in lines if not _COMMENT.match(line)), "")
        return _OPENS_SECTION.match(first) is not None


class LaunchKind(NamedTuple):
    """One kind of launch file.

    Attributes:
        name: With its article, for a message that lists the kinds.
    """

    name: str
    recognises: Callable[[LaunchText], bool]
    read: Callable[[LaunchText], Reading]


# Modules with their ``KIND``, by name, since they read words as a script does: the first that
# recognises a text reads it.
KINDS = tuple("systemd_unit dockerfile python_program compose kubernetes srt_slurm".split())
KINDS += ("shell_script",)


def read_python_text(launch: LaunchText) -> Reading | None:
    """Return the commands of a Python text, with notes on calls that are not read; None if it has
    neither.

    Raises:
        SourceError: If the text is not Python.
    """
    # By name, as the kinds: a Python program may start what a shell does.
    reading: Reading = import_module("preflight.launches.python_program").read_program(launch)
    return reading if reading.commands or reading.notes else None


def read_kind(launch: LaunchText) -> Reading:
    """Read a launch text with the reader of its kind.

    Raises:
        SourceError: If no kind fits, with advice on the file to give instead, or if the reader
            raises it.
    """
    name = launch.path.rpartition("/")[2]
    prints = _RECIPES.get("makefile" if name.endswith(".mk") else name.lower())
    why = ""
    if prints is not None:
        why = f" holds recipes, not a script: give what {prints} prints"
    elif launch.begins_with_section and _SUPERVISED.search(launch.text):
        why = " is a configuration of supervisord, which is not read: give the lines behind "
        why += "command= as a script"
    elif name.endswith((".timer", ".path", ".socket")):
        service = f"{name.rpartition('.')[0]}.service, or the one that it names"
        why = f" starts another unit: give that unit: {service}"
    if why:
        raise SourceError(launch.path + why)
    kinds: list[LaunchKind] = [import_module(f"preflight.launches.{name}").KIND for name in KINDS]
    for launch_kind in kinds:
        if launch_kind.recognises(launch):
            return launch_kind.read(launch)
    *names, script = (launch_kind.name for launch_kind in kinds)
    why = f" is neither {', nor '.join(names)}: give one of them, or {script}"
    keys = {key.replace("_", "-") for document in launch.documents or () for key in document.fields}
    if launch.documents and name.startswith("kustomization"):
        folder = launch.path.removesuffix(name).rstrip("/") or "."
        why = f": give what kubectl kustomize {quote(folder)} prints"
    elif "model-path" in keys or ("model" in keys and keys & _OF_VLLM):
        program = "python3 -m sglang.launch_server" if "model-path" in keys else "vllm serve"
        why = f" is read by a server: give {program} --config {quote(name)}"
    elif launch.documents and "values" in name:
        why = " looks like the values of a Helm chart: give what helm template CHART -f "
        why += f"{quote(name)} prints"
    raise SourceError(launch.path + why)


def with_env_files(launch: LaunchText) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """Return the environment with the env files over it, read as Docker does, and notes on them."""
    variables = environment_words(launch.environment)
    notes: list[SourceNote] = []
    for path, text in launch.env_texts:
        file_variables, file_notes = read_env_file(text, path, launch.environment)
        variables.update(file_variables)
        notes.extend(file_notes)
    return variables, tuple(notes)


def _looks_like_manifest(text: str) -> bool:
    """Return whether the first line that is no comment begins YAML or JSON; not after ``#!``."""
    for line in text[:65536].splitlines():
        if line.startswith("#!"):
            return False
        if line.strip() and not line.startswith("#"):
            return _MANIFEST.match(line) is not None
    return False


def read_source(
    path: str,
    environment: Mapping[str, str | Word],
    env_files: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    """Return the commands of a launch file of any kind.

    Args:
        path: ``-`` for standard input.
        env_files: Paths of files in Docker's form, whose variables go over ``environment``, the
            later over the earlier.
        arguments: Of a script, None if not known.
        host_words: Gives the output of ``nproc`` and the like.

    Raises:
        SourceError: With a sentence, if a file cannot be read or is of no known kind.
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

    texts = env_texts_of(env_files)
    shown = STANDARD_INPUT if path == "-" else path
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    launch = LaunchText(shown, text, marked, environment, texts, beside, arguments, host_words)
    return tell_apart(read_kind(launch))


def read_text(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]] = (),
) -> Reading:
    """Return the commands of a launch's text.

    Args:
        path: Its name, which tells the kind; no file is opened.
        env_texts: Name and text of each env file.

    Raises:
        SourceError: As ``read_kind`` does.
    """
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    launch = LaunchText(path, text, marked, environment, env_texts, lambda _: None)
    return tell_apart(read_kind(launch))


def env_texts_of(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return path and text of each env file.

    Raises:
        SourceError: If one cannot be read.
    """
    return [(path, _text(path)) for path in paths]


def near_file(path: str) -> str:
    """Return a question that names the file whose name is most like that of a missing file.

    Returns:
        "" without one.
    """
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or ".") as entries:
            files = [each.name for each in islice(entries, _MOST_ENTRIES) if each.is_file()]
    except (OSError, ValueError):
        return ""
    near = get_close_matches(name, files, 1, _ALIKE)
    return f"did you mean {os.path.join(folder, near[0])}?" if near else ""


def _text(path: str) -> str:
    """Return the text of a launch or env file.

    Raises:
        SourceError: With the reason if not read.
    """
    text = read_given_file(path)
    if text is not None:
        return text
    if path == "-":
        raise SourceError("standard input is not read: it is closed, or has more than 4 MiB")
    if "\0" in path or not os.path.exists(path):
        advice = "give the path of a script or manifest, or a command with its arguments"
        raise SourceError(f"{path!r} does not exist: {near_file(path) or advice}")
    if not os.path.isfile(path):
        raise SourceError(f"{path!r} is not a regular file: give a script or manifest")
    why = "it may not be read" if not os.access(path, os.R_OK) else "it has more than 4 MiB"
    raise SourceError(f"{path!r} is not read: {why}")
