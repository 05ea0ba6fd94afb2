"""A launch given as a file: what kind of file it is, and what it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.launches.compose import Beside, read_compose
from preflight.launches.compose_env_file import read_compose_env_file
from preflight.launches.documents import Node, load_documents
from preflight.launches.env_file import read_env_file, read_small_file
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.shell_script import read_script
from preflight.launches.source import Origin, Reading, SourceError, SourceNote, Word
from preflight.launches.variables import environment_words

__all__ = ["SourceError", "read_source", "read_text"]

_MARK = "\ufeff"
_YAML = (".yaml", ".yml", ".json")


class _EnvFiles(NamedTuple):
    environment: dict[str, Word]
    notes: tuple[SourceNote, ...]


def read_source(
    path: str,
    environment: Mapping[str, str | Word],
    env_files: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Reading:
    """What a script, Compose file or Kubernetes manifest starts.

    env_files: paths of files in Docker's form, whose variables go over ``environment``, the later
    over the earlier. arguments: what a script is given. Raises SourceError, with a sentence, for a
    file that cannot be read or is none of these.
    """
    text = _text(path)

    def beside(name: str) -> str | None:
        return read_small_file(os.path.join(os.path.dirname(path), os.path.expanduser(name)))

    texts = [(name, _text(name)) for name in env_files]
    return _read(text, path, environment, texts, beside, arguments)


def read_text(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]] = (),
) -> Reading:
    """The same of texts that are at hand: ``text`` as what ``path`` says, and no file is opened.

    env_texts: of env files, each its path and its text. Raises SourceError.
    """
    return _read(text, path, environment, env_texts, lambda _: None)


def _read(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]],
    beside: Beside,
    arguments: Sequence[str] = (),
) -> Reading:
    given = _env_files(env_texts, environment)
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    if path.lower().endswith(_YAML) or _looks_like_manifest(text):
        documents = load_documents(text, path)
        if any("services" in node.fields for node in documents):
            return _compose(text, path, environment, env_texts, beside)
        reading = _manifest(text, path, given, documents)
    else:
        if "\0" in text:
            raise SourceError(f"{path} is a binary file: give the script or manifest that runs it")
        reading = read_script(text, path, given.environment, arguments)
        if marked:
            reading = reading._replace(notes=(_marked(text, path, reading), *reading.notes))
    return reading._replace(notes=(*given.notes, *reading.notes))


def _marked(text: str, path: str, reading: Reading) -> SourceNote:
    """What bash makes of a script behind a byte order mark; YAML, Compose and Docker skip it."""
    line = text.partition("\n")[0]
    word = (line.split() or [""])[0][:40]
    said = "No such file or directory" if "/" in word else "command not found"
    lost = any(command.origin == Origin(path, 1) for command in reading.commands)
    goes_on = "this line is lost, and the rest runs"
    if line.startswith("#!"):
        goes_on = "and without a shell in front the kernel refuses to run it (Exec format error)"
    elif lost:
        goes_on = "the program of this line is not started"
    return SourceNote(
        "program-behind-mark" if lost else "byte-order-mark",
        "the file begins with a byte order mark (U+FEFF), which bash takes for a part of the first "
        f"word: it says \\ufeff{word}: {said}, {goes_on}. It is read here as it was meant; save it "
        "as UTF-8 without the mark",
        Origin(path, 1),
    )


def _text(path: str) -> str:
    text = read_small_file(path)
    if text is not None:
        return text
    if "\0" in path or not os.path.exists(path):
        raise SourceError(f"{path!r} does not exist: give the path of a script or manifest")
    if not os.path.isfile(path):
        raise SourceError(f"{path!r} is not a regular file: give a script or manifest")
    why = "it may not be read" if not os.access(path, os.R_OK) else "it has more than 4 MiB"
    raise SourceError(f"{path!r} is not read: {why}")


def _env_files(
    texts: Sequence[tuple[str, str]], environment: Mapping[str, str | Word]
) -> _EnvFiles:
    variables = environment_words(environment)
    notes: list[SourceNote] = []
    for path, text in texts:
        read, said = read_env_file(text, path, environment)
        variables.update(read)
        notes.extend(said)
    return _EnvFiles(variables, tuple(notes))


def _looks_like_manifest(text: str) -> bool:
    """True for a text whose first line that says anything opens a mapping or a document."""
    for line in text[:65536].splitlines():
        if line.startswith("#!"):
            return False
        if line.strip() and not line.startswith("#"):
            return line.startswith(
                ("---", "apiVersion:", "kind:", "services:", "version:", "{", "[")
            )
    return False


def _compose(
    text: str,
    path: str,
    environment: Mapping[str, str | Word],
    env_texts: Sequence[tuple[str, str]],
    beside: Beside,
) -> Reading:
    """A Compose file, whose env files have another grammar than Docker's own."""
    variables = environment_words(environment)
    notes: list[SourceNote] = []
    for name, given in env_texts:
        read, said = read_compose_env_file(given, name, variables)
        variables.update(read)
        notes.extend(said)
    folder = os.path.dirname(path) or "."
    near = {
        os.path.normpath(os.path.relpath(name, folder)): given
        for name, given in env_texts
        if "\0" not in name
    }
    texts = {**near, **{f"./{name}": given for name, given in near.items()}, **dict(env_texts)}
    reading = read_compose(text, path, variables, texts, beside)
    return reading._replace(notes=tuple(dict.fromkeys((*notes, *reading.notes))))


def _manifest(text: str, path: str, given: _EnvFiles, documents: list[Node]) -> Reading:
    if any(_is_object(node) for document in documents for node in [document, *document.items]):
        return read_kubernetes(text, path, given.environment)
    raise SourceError(
        f"{path} is neither a Compose file, which has services, nor a Kubernetes manifest, "
        "which has kind: give one of them, or a shell script"
    )


def _is_object(node: Node) -> bool:
    return node.at("kind").text is not None or bool(node.at("items").items)
