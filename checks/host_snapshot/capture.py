"""A host in one file: the answers that were recorded, under the names by which they were asked.

An archive holds ``capture.json`` (folders, links, modes, and why a file could not be read),
``calls.json`` (the answers of calls, in the form that ``Root`` takes too) and the files as they
are, for a person to read; a folder with the same content serves too.
"""

import errno
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from checks.framework.recording import Answers, no_answers
from checks.framework.root import CALLS_FILE, NOWHERE, Root, answer_of, call_key, refused_by_kernel
from checks.framework.unknown import NOT_RECORDED, Unknown
from checks.host_snapshot.root_names import CaptureError as CaptureError
from checks.host_snapshot.root_names import is_description

SCHEMA = "mooncake-preflight/capture/v1"
CAPTURE_FILE = "capture.json"
_NO_HOST = (
    f"neither a capture, which has {CAPTURE_FILE}, nor a host's files, which are below proc and sys"
)
# The whole of a capture is to fit into an issue or a mail.
LARGEST_BYTES = 10**6
# Of each of the two objects: some 5 kB a process of a launch. Python's objects take 25 times that.
MOST_JSON_BYTES = 8 * 2**20
# Made hosts that ship with the program: --root demo:NAME (tools/write_demo_host.py).
DEMO = "demo:"
_DEMOS = os.path.join(os.path.dirname(__file__), "demo")
# Refused unopened; what is smaller may unpack to archive.MOST_BYTES.
LARGEST_ARCHIVE_BYTES = 128 * 2**20

Json = dict[str, Any]
Answer = TypeVar("Answer")


def _not_recorded(reason: str) -> Unknown:
    """Return the Unknown of an answer that the capture lacks: nobody asked the host for it."""
    advice = "check on the host itself, or capture it again with this launch"
    return Unknown(reason, cause="not in this capture", advice=advice, code=NOT_RECORDED)


class Capture(Root):
    """A host that was captured: gives the recorded ``answers`` back.

    An answer that was not recorded is Unknown.

    Args:
        extras: Plain data that the writer of the capture added.
    """

    def __init__(self, answers: Answers, extras: Json) -> None:
        super().__init__(NOWHERE)
        self.answers, self.extras = answers, extras

    def text(self, name: str) -> str | Unknown:
        return self._file(self.answers.texts, name)

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        return self._file(self.answers.folders, name)

    def link(self, name: str) -> str | Unknown:
        return self._file(self.answers.links, name)

    def mode(self, name: str) -> int | Unknown:
        return self._file(self.answers.modes, name)

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        key = call_key(name, *arguments)
        return self.answers.calls.get(key, _not_recorded(f"not in this capture ({key})"))

    def _file(self, known: dict[str, Answer], name: str) -> Answer | Unknown:
        if name in known:
            return known[name]
        if self._certainly_absent(name):
            return refused_by_kernel(name, errno.ENOENT)
        return _not_recorded(f"{name}: not in this capture")

    def _certainly_absent(self, name: str) -> bool:
        """Tell whether a name certainly does not exist, as the listing of a folder above shows."""
        parts = name.strip("/").split("/")
        for depth, part in enumerate(parts):
            entries = self.answers.folders.get("/" + "/".join(parts[:depth]))
            if isinstance(entries, Unknown):
                if entries.absent:
                    return True
            elif entries is not None and part not in entries:
                return True
        return False


def open_root(path: str) -> Root:
    """Open what ``--root`` names.

    Raises CaptureError.

    Args:
        path: "/", a host's folder, a capture (archive or folder), a tar of a host's files,
            ``demo:NAME``, ``described:...`` or a TOML file that describes a host.
    """

    def refused(why: str) -> CaptureError:
        return CaptureError(f"--root {path}: {why}")

    if path.startswith(DEMO):
        demos = [name.removesuffix(".tar.gz") for name in sorted(os.listdir(_DEMOS))]
        if path.removeprefix(DEMO) not in demos:
            known = ", ".join(f"{DEMO}{name}" for name in demos)
            raise refused(f"no such made host: there is {known}")
        return open_root(os.path.join(_DEMOS, f"{path.removeprefix(DEMO)}.tar.gz"))
    if is_description(path):
        from checks.host_snapshot.described import DescribedRoot, description_of

        return DescribedRoot(description_of(path))
    if os.path.isdir(path):
        if path.strip("/") and os.path.isfile(os.path.join(path, CAPTURE_FILE)):
            return _from_folder(path)
        if path.strip("/") and not any(os.path.isdir(f"{path}/{top}") for top in ("proc", "sys")):
            raise refused(_NO_HOST)
        return Root(path)
    if not os.path.exists(path):
        raise refused("no such file or folder")
    if not os.path.isfile(path):
        raise refused("a device or a pipe: give a host's folder, or a capture as a file")
    if os.path.getsize(path) > LARGEST_ARCHIVE_BYTES:
        raise refused(f"more than {LARGEST_ARCHIVE_BYTES >> 20} MiB, which no recorded host has")
    from checks.framework.archive import ArchiveError, TreeRoot, read_archive

    try:
        archive = read_archive(path)
    except ArchiveError as error:
        raise CaptureError(f"--root {error}") from None
    content = archive.files.get(f"/{CAPTURE_FILE}")
    if content is not None:
        return _capture_of_parts(path, content, archive.files)
    names = (*archive.files, *archive.folders)
    if not any(name.startswith(("/proc/", "/sys/")) for name in names):
        raise refused(_NO_HOST)
    return TreeRoot(*archive)


def capture_files(answers: Answers, extras: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the members of a capture archive by relative name, ``capture.json`` first.

    Files whose names suit no archive are in ``capture.json``, and so are ``extras``.

    Raises:
        CaptureError: If that file, or ``calls.json``, is too large.
    """
    members: dict[str, bytes] = {}
    inline: dict[str, str] = {}
    for name, text in sorted(answers.texts.items()):
        if isinstance(text, Unknown):
            continue
        # A member of an archive may have this name on every system that unpacks it.
        plain = name.isascii() and name.isprintable() and "\\" not in name and name.startswith("/")
        plain = plain and not {"", ".", ".."} & set(name.split("/")[1:])
        relative = name.lstrip("/")
        taken = name in answers.folders or relative in (CAPTURE_FILE, CALLS_FILE)
        if plain and not taken:
            members[relative] = text.encode()
        else:
            inline[name] = text
    about = {
        "schema": SCHEMA,
        **extras,
        "files": list(members),
        "texts": {**inline, **_reasons(answers.texts)},
        "folders": {**answers.folders, **_reasons(answers.folders)},
        "links": {**answers.links, **_reasons(answers.links)},
        "modes": {**answers.modes, **_reasons(answers.modes)},
    }
    calls = {**answers.calls, **_reasons(answers.calls)}
    return {CAPTURE_FILE: json_of(about), CALLS_FILE: json_of(calls), **members}


def _reasons(answers: Mapping[str, Any | Unknown]) -> Json:
    """Return the Unknown answers, by name, as JSON objects that ``answer_of`` reads."""
    return {
        name: {
            "unknown": answer.reason,
            "absent": answer.absent,
            **({"cause": answer.cause} if answer.cause != answer.reason else {}),
            **({"advice": answer.advice} if answer.advice else {}),
            **({"code": answer.code} if answer.code else {}),
        }
        for name, answer in answers.items()
        if isinstance(answer, Unknown)
    }


def json_of(value: object) -> bytes:
    """Return an object as indented JSON for people, with a line feed at the end.

    Raises:
        CaptureError: If it is too large.
    """
    import json

    text = json.dumps(value, indent=1, sort_keys=True)
    if len(text) >= MOST_JSON_BYTES:  # all of it is ASCII, and a line feed follows
        raise CaptureError(
            f"a capture of this launch would have over {MOST_JSON_BYTES >> 20} MiB beside the "
            "host's files, which check --root refuses: capture the host without the launch, or "
            "with a part of it"
        )
    return f"{text}\n".encode()


def _from_folder(path: str) -> Capture:
    """Read a capture that somebody unpacked into the folder ``path``.

    Raises CaptureError.
    """

    def read(name: str) -> bytes:
        with open(os.path.join(path, name), "rb") as file:
            return file.read()

    try:
        content = read(CAPTURE_FILE)
        names = _parse_capture_json(path, content).get("files")
        files = {f"/{CALLS_FILE}": read(CALLS_FILE)}
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and ".." not in name.split("/"):
                files[f"/{name}"] = read(name)
    except OSError as error:
        raise CaptureError(f"--root {path}: {error.filename}: {error.strerror}") from None
    return _capture_of_parts(path, content, files)


def _parse_json(content: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is not JSON, or larger than the JSON of any capture.
    """
    import json

    if len(content) > MOST_JSON_BYTES:
        raise ValueError(f"over {MOST_JSON_BYTES >> 20} MiB, which no capture has")
    return json.loads(content)


def _parse_capture_json(path: str, content: bytes) -> Json:
    """Parse the content of ``capture.json`` and check its schema.

    Raises CaptureError.

    Args:
        path: Of the capture, for the error's text.
    """
    try:
        about = _parse_json(content)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"--root {path}: {CAPTURE_FILE}: {error}") from None
    schema = about.get("schema") if isinstance(about, dict) else None
    if not isinstance(about, dict) or schema != SCHEMA:
        raise CaptureError(
            f"--root {path}: {CAPTURE_FILE} has the schema {schema!r}, and this program reads "
            f"{SCHEMA}"
        )
    return about


def _capture_of_parts(path: str, content: bytes, files: Mapping[str, bytes]) -> Capture:
    """Return a capture from its parts.

    Args:
        path: For the error's text; content: of ``capture.json``; files: content by absolute name.

    Raises:
        CaptureError: If a part is missing or malformed.
    """
    about = _parse_capture_json(path, content)
    answers = no_answers()
    missing = [name for name in about.get("files", ()) if f"/{name}" not in files]
    if missing or f"/{CALLS_FILE}" not in files:
        name = missing[0] if missing else CALLS_FILE
        raise CaptureError(f"--root {path}: not a whole capture: {name} is missing")
    for name in about.get("files", ()):
        answers.texts[f"/{name}"] = files[f"/{name}"].decode("utf-8", "replace")
    try:
        calls = _parse_json(files[f"/{CALLS_FILE}"])
        for part, type_ in (("texts", str), ("links", str), ("modes", int), ("folders", list)):
            _fill(getattr(answers, part), about.pop(part), type_)
        _fill(answers.calls, calls, object)
        for name, entries in answers.folders.items():
            if not isinstance(entries, Unknown):
                if not {*map(type, entries)} <= {str}:
                    raise ValueError(f"{name}: {str(entries)[:40]}")
                answers.folders[name] = tuple(entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CaptureError(f"--root {path}: not a capture as it was written: {error!r}") from None
    extras = {key: value for key, value in about.items() if key not in ("schema", "files")}
    return Capture(answers, extras)


def _fill(into: dict[str, Any], recorded: Json, type_: type) -> None:
    for name in recorded:
        answer = answer_of(recorded, name)
        if not isinstance(answer, Unknown | type_):
            raise ValueError(f"{name}: {str(answer)[:40]}")
        into[name] = answer
