"""What was changed on this host, saved before each change; undo puts back what has our value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.hugetlb.pools import POOLS
from preflight.settings.writer import Writer

SCHEMA = "mooncake-preflight/journal/v1"
JOURNAL = "journal.json"
LOCK = "lock"
ROOT_FOLDER = "/var/lib/mooncake-preflight"


class JournalError(Exception):
    """A journal that cannot be read or kept; the message is a sentence for the user."""


class Entry(NamedTuple):
    """One change."""

    kind: str  # value (a kernel file), file, link
    path: str
    before: str | None  # None if nothing was there
    wanted: str
    got: str | None  # as read back, None while the change is being made
    boot: str  # the kernel's boot id
    mode: int | None = None  # a replaced file's permissions


def state_folder(environment: Mapping[str, str], root: bool) -> str:
    """Return the journal's folder: the system's for root, else the user's own."""
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
        """Lock and read the journal. Raises JournalError if it cannot."""
        import fcntl

        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            place = os.path.join(self._folder, LOCK)
            self._lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._writer.discard_part(self.path)
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

    def __exit__(self, *error: object) -> None:
        self._close()

    def add(self, entry: Entry) -> None:
        """Save an entry before its change. Raises JournalError: the change must not be made."""
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
        """Write the journal, or remove it if it has no entry. Raises JournalError."""
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
        """Return the entries of the journal's file. Raises JournalError if it is not ours."""
        import json

        try:
            content = self._writer.content(self.path)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}: nothing was changed") from None
        if content is None:
            return []
        try:
            plain: Any = json.loads(content[0])
            schema = plain.get("schema")
        except (ValueError, AttributeError, RecursionError):
            raise JournalError(_not_ours(self.path, "not a journal of this program")) from None
        if schema != SCHEMA:
            why = f"its schema is {schema!r}, and this program has {SCHEMA}"
            raise JournalError(_not_ours(self.path, why))
        try:
            return [_entry(row) for row in plain["entries"]]
        except (KeyError, TypeError, ValueError):
            raise JournalError(_not_ours(self.path, "an entry is incomplete")) from None

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _entry(row: dict[str, Any]) -> Entry:
    """Return the entry of a row. Raises ValueError if a field is missing or of another type."""
    entry = Entry(**row)
    texts = (entry.kind, entry.path, entry.wanted, entry.boot)
    fits = all(isinstance(text, str) for text in texts) and isinstance(entry.mode, int | None)
    fits = fits and all(isinstance(text, str | None) for text in (entry.before, entry.got))
    if fits and entry.kind in ("value", "file", "link") and entry.path.startswith("/"):
        return entry
    raise ValueError(row)


def _unwritable(path: str, error: OSError) -> str:
    first = "nothing was changed, because the journal has to be written first"
    return f"{path}: {error.strerror}: {first}"


def _not_ours(path: str, why: str) -> str:
    return (
        f"{path}: {why}: nothing was changed. Undo with the version that wrote it, or look at it "
        "and move it away: it is the only record of what stood there before"
    )


BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NR = "/nr_hugepages"


class Undone(NamedTuple):
    """What became of an entry."""

    text: str
    settled: bool  # forget the entry
    whole: bool  # as before
    now: str | None = None  # what the value is if it was taken back in part


def boot_id(root: Root) -> str:
    """Return the id of this boot; "" if the kernel does not say: a reboot is not noticed then."""
    word = root.word(BOOT_ID)
    return "" if isinstance(word, Unknown) else word


def undo(journal: Journal, root: Root, writer: Writer, since: int = 0) -> list[Undone]:
    """Take back all entries from ``since`` on, the last first; one that fails stops no other."""
    results = []
    boot = boot_id(root)
    for entry in reversed(journal.entries[since:]):
        try:
            if entry.kind == "value":
                result = _value(entry, root, writer, boot)
            else:
                result = (_link if entry.kind == "link" else _file)(entry, writer)
        except OSError as error:
            result = Undone(f"{entry.path}: not put back: {error.strerror}", False, False)
        if result.settled or result.now is not None:
            rest = None if result.settled else entry._replace(got=result.now)
            try:
                journal.replace(entry, rest)
            except JournalError as error:  # what could be put back is; the rest must be tried too
                result = result._replace(text=f"{result.text} ({error})")
        results.append(result)
    return results


def _value(entry: Entry, root: Root, writer: Writer, boot: str) -> Undone:
    """Put a kernel file's value back, unless somebody else has changed it since."""
    path, before = entry.path, entry.before
    if boot and entry.boot and boot != entry.boot:
        return Undone(f"{path}: a reboot has undone it since", True, True)
    current = root.word(path)
    if isinstance(current, Unknown) and current.absent:
        return Undone(f"{path}: is gone: there is nothing to put back", True, True)
    if isinstance(current, Unknown):
        return Undone(f"{current.reason}: not put back, it was {before}", False, False)
    current = " ".join(current.split())
    if before is None or current == before:
        return Undone(f"{path}: is {current}, as before", True, True)
    if not _still_ours(entry, current):
        text = f"{path}: left at {current}, which somebody else set since; it was {before}"
        return Undone(text, True, False)
    if path.endswith(_NR):
        return _pool(entry, int(current), root, writer)
    writer.value(path, before)
    return Undone(f"{path}: {current or 'nothing'} -> {before or 'nothing'}", True, True)


def _still_ours(entry: Entry, current: str) -> bool:
    """Return whether a value is ours, or on its way to ours if the change broke off."""
    if entry.got is not None:
        return current == entry.got
    if entry.path.endswith(_NR) and entry.before is not None:
        numbers = (entry.before, current, entry.wanted)
        if all(number.isdecimal() for number in numbers):
            first, now, last = map(int, numbers)
            return first < now <= last
    return current == entry.wanted


def _pool(entry: Entry, current: int, root: Root, writer: Writer) -> Undone:
    """Give up only the pages that no process holds."""
    path = entry.path
    folder = path.removesuffix(_NR)
    free = root.integer(f"{folder}/free_hugepages")
    # Reservations are counted for the whole pool; any node may have to honour them.
    reserved = root.integer(f"{POOLS}/{folder.rpartition('/')[2]}/resv_hugepages")
    if isinstance(free, Unknown) or isinstance(reserved, Unknown):
        why = next(fact.reason for fact in (free, reserved) if isinstance(fact, Unknown))
        text = f"not put back, because it is unknown which process holds its pages: {why}"
        return Undone(f"{path}: {text}", False, False)
    before = int(entry.before or 0)
    target = max(before, current - max(0, free - reserved))
    if target < current:
        writer.value(path, str(target))
    after = root.integer(path)
    if after == before:
        return Undone(f"{path}: {current} -> {before}", True, True)
    text = f"{path}: {current} -> {after}, not {before}: the other pages are in use; end what has "
    now = None if isinstance(after, Unknown) else str(after)
    return Undone(f"{text}them and undo again", False, False, now)


def _file(entry: Entry, writer: Writer) -> Undone:
    """Put a file's content back, or remove a file that is new."""
    writer.discard_part(entry.path)
    path, content_and_mode = entry.path, writer.content(entry.path)
    content = None if content_and_mode is None else content_and_mode[0]
    if content == entry.before:
        return Undone(f"{path}: is as before", True, True)
    if content is None:
        if entry.before is None:
            return Undone(f"{path}: is gone already", True, True)
    elif content != entry.wanted:
        kept = entry.before is not None
        text = f"{path}: left, somebody else has changed it since"
        more = "; what stood there before us is in the journal" if kept else ""
        return Undone(f"{text}{more}", not kept, False)
    if entry.before is None:
        writer.remove(path)
        return Undone(f"{path}: removed", True, True)
    writer.file(path, entry.before, 0o644 if entry.mode is None else entry.mode)
    return Undone(f"{path}: as before", True, True)


def _link(entry: Entry, writer: Writer) -> Undone:
    """Remove a link that apply made, unless it leads elsewhere now."""
    path, target = entry.path, writer.target(entry.path)
    if target is None:
        return Undone(f"{path}: is gone already", True, True)
    if target != entry.wanted:
        return Undone(f"{path}: left, it leads to {target} now", True, False)
    writer.remove(path)
    return Undone(f"{path}: removed", True, True)
