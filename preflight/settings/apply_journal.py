"""What was changed on this host, and what stood there before: saved before each change is made.

A change that a crash broke off is in the journal without its result, so that it can be found and
put back. Nothing is forgotten until it is put back or gone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from preflight.settings.apply_write import Writer

SCHEMA = "mooncake-preflight/journal/v1"
JOURNAL = "journal.json"
LOCK = "lock"
ROOT_FOLDER = "/var/lib/mooncake-preflight"


class JournalError(Exception):
    """A journal that cannot be read or kept; the message is a sentence for the user."""


class Entry(NamedTuple):
    """One change. kind: value (a kernel file), file, link.

    before: None where nothing was there. got: as read back, None while it is being made. boot: the
    kernel's boot id. mode: a replaced file's permissions.
    """

    kind: str
    path: str
    before: str | None
    wanted: str
    got: str | None
    boot: str
    mode: int | None = None


def state_folder(environment: Mapping[str, str], root: bool) -> str:
    """Where the journal is kept: the system's for root, else the user's own."""
    if root:
        return ROOT_FOLDER
    base = environment.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(environment.get("HOME", ""), ".local/state")
    return os.path.join(base, "mooncake-preflight")


class Journal:
    """The entries, oldest first. Use it as a context: one process at a time has it."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, JOURNAL)
        self.entries: list[Entry] = []
        self._folder = folder
        self._writer = Writer()
        self._lock = -1

    def __enter__(self) -> Journal:
        """Raises JournalError: another process has it, or it cannot be read."""
        import fcntl

        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            place = os.path.join(self._folder, LOCK)
            self._lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise JournalError(f"{self._folder}: another apply is running: try again") from None
        except OSError as error:
            self._close()
            raise JournalError(_unwritable(self._folder, error)) from None
        try:
            self.entries = self._read()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def add(self, entry: Entry) -> None:
        """Save it, before the change is made. Raises JournalError, and then it must not be."""
        self.entries.append(entry)
        try:
            self._save()
        except JournalError:
            self.entries.pop()
            raise

    def replace(self, old: Entry, new: Entry | None) -> None:
        """Put ``new`` in the place of ``old``, or take it out."""
        at = max(at for at, entry in enumerate(self.entries) if entry is old)
        self.entries[at : at + 1] = [] if new is None else [new]
        self._save()

    def _save(self) -> None:
        import json

        try:
            if not self.entries:
                if os.path.lexists(self.path):
                    self._writer.remove(self.path)
                return
            plain = {"schema": SCHEMA, "entries": [entry._asdict() for entry in self.entries]}
            content = json.dumps(plain, indent=1) + "\n"
            self._writer.file(self.path, content, 0o600, 0o700)
        except OSError as error:
            raise JournalError(_unwritable(self.path, error)) from None

    def _read(self) -> list[Entry]:
        import json

        try:
            found = self._writer.content(self.path)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}: nothing was changed") from None
        if found is None:
            return []
        try:
            plain: Any = json.loads(found[0])
            schema = plain.get("schema")
        except (ValueError, AttributeError, RecursionError):
            raise JournalError(
                _not_ours(self.path, "not a journal as it is written here")
            ) from None
        if schema != SCHEMA:
            raise JournalError(
                _not_ours(self.path, f"its schema is {schema!r}, and this program has {SCHEMA}")
            )
        try:
            return [_entry(row) for row in plain["entries"]]
        except (KeyError, TypeError, ValueError):
            raise JournalError(_not_ours(self.path, "an entry is not whole")) from None

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _entry(row: dict[str, Any]) -> Entry:
    entry = Entry(**row)
    texts = (entry.kind, entry.path, entry.wanted, entry.boot)
    optional = (entry.before, entry.got)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(row)
    if not all(text is None or isinstance(text, str) for text in optional):
        raise ValueError(row)
    if entry.kind not in ("value", "file", "link") or not entry.path.startswith("/"):
        raise ValueError(row)
    if entry.mode is not None and not isinstance(entry.mode, int):
        raise ValueError(row)
    return entry


def _unwritable(path: str, error: OSError) -> str:
    return f"{path}: {error.strerror}: what is to be changed is written down there first"


def _not_ours(path: str, why: str) -> str:
    return (
        f"{path}: {why}: nothing was changed. Undo with the version that wrote it, or look at it "
        "and move it away: it is the only record of what stood there before"
    )
