"""The only module that changes a host: its files, the journal of earlier contents, and undo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.pools import POOLS

# A crash leaves at most this beside a file; the next write of it, apply and undo take it away.
PART = ".mooncake-part"
_ENCODING = ("utf-8", "surrogateescape")  # any bytes survive being saved and put back


class Writer:
    """Writes below ``prefix``, "" for the machine itself.

    Every method may raise OSError.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix.rstrip("/")

    def is_link(self, path: str) -> bool:
        return os.path.islink(self.locate(path))

    def locate(self, path: str) -> str:
        return self._prefix + path

    def value(self, path: str, text: str) -> None:
        """Write a kernel file in one piece; a missing file is not made."""
        handle = os.open(self.locate(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    def file(self, path: str, content: str, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        """Write a file completely, or leave it as it was.

        Its folder is made (with ``folder_mode``) if missing, and the owner of an existing file
        stays.
        """
        place = self.locate(path)
        folder = os.path.dirname(place)
        os.makedirs(folder, folder_mode, exist_ok=True)
        self.discard_part(path)
        part = self._part(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(part, flags, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode(*_ENCODING))
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError, PermissionError):  # the owner stays
                    before = os.lstat(place)
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), mode)
            os.replace(part, place)
        except BaseException:
            os.unlink(part)
            raise
        _sync_folder(folder)

    def _part(self, path: str) -> str:
        folder, name = os.path.split(self.locate(path))
        return os.path.join(folder, f".{name}{PART}")

    def discard_part(self, path: str) -> None:
        """Remove the part that a crash left of writing ``path``."""
        part = self._part(path)
        if os.path.lexists(part):
            os.unlink(part)

    def link(self, path: str, target: str) -> None:
        place = self.locate(path)
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        os.symlink(target, place)
        _sync_folder(os.path.dirname(place))

    def remove(self, path: str) -> None:
        os.unlink(self.locate(path))
        _sync_folder(os.path.dirname(self.locate(path)))

    def content(self, path: str) -> tuple[str, int] | None:
        """Return a file's whole content and permissions, or None if it does not exist."""
        try:
            with open(self.locate(path), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o7777
                return file.read().decode(*_ENCODING), mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def target(self, path: str) -> str | None:
        """Return where a symbolic link leads; None if the path is no link."""
        try:
            return os.readlink(self.locate(path))
        except OSError:
            return None

    def may_write(self, entry_kind: str, path: str) -> bool:
        """Return whether this user may write a kernel file ("value"), or into a file's folder."""
        place = self.locate(path)
        if entry_kind == "value":
            return os.access(place, os.W_OK)
        folder = os.path.dirname(place)
        while not os.path.isdir(folder) and folder not in ("/", ""):
            folder = os.path.dirname(folder)
        return os.access(folder, os.W_OK | os.X_OK)


def _sync_folder(folder: str) -> None:
    """Wait until a change in a folder is on the disk: a file renamed, linked or removed."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


SCHEMA = "mooncake-preflight/journal/v1"
JOURNAL = "journal.json"
LOCK = "lock"
ROOT_FOLDER = "/var/lib/mooncake-preflight"


class JournalError(Exception):
    """A journal that cannot be read or kept; the message is a sentence for the user."""


class Entry(NamedTuple):
    """One change that apply made, or is making."""

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
    """The entries of the changes, oldest first.

    Use it in a ``with`` block: one process at a time can hold it.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, JOURNAL)
        self.entries: list[Entry] = []
        self._folder = folder
        self._writer = Writer()
        self._lock = -1

    def __enter__(self) -> Journal:
        """Lock and read the journal.

        Raises:
            JournalError: If either fails.
        """
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
        """Save an entry before its change.

        Raises JournalError: the change must not be made.
        """
        self.entries.append(entry)
        try:
            self._save()
        except JournalError:
            self.entries.pop()
            raise

    def replace(self, old: Entry, new: Entry | None) -> None:
        """Replace the entry ``old``, or remove it if ``new`` is None.

        Raises JournalError.
        """
        at = max(at for at, entry in enumerate(self.entries) if entry is old)
        self.entries[at : at + 1] = [] if new is None else [new]
        self._save()

    def _save(self) -> None:
        """Write the journal, or remove it if it has no entry.

        Raises JournalError.
        """
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
        """Return the entries of the journal's file; [] without a file.

        Raises:
            JournalError: If it cannot be read or is not ours.
        """
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
    """Return the entry of a row.

    Raises:
        ValueError: If a field is missing or of another type.
    """
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
    """The result of taking one entry back; ``text`` says it in a sentence."""

    text: str
    settled: bool  # forget the entry
    whole: bool  # as before
    now: str | None = None  # what the value is if it was taken back in part


def boot_id(root: Root) -> str:
    """Return the id of this boot; "" if the kernel does not say: a reboot is not noticed then."""
    word = root.word(BOOT_ID)
    return "" if isinstance(word, Unknown) else word


def undo(journal: Journal, root: Root, writer: Writer, since: int = 0) -> list[Undone]:
    """Take back all entries from index ``since`` on, the last first, and forget those that are
    settled.

    An entry that fails does not stop the next. Return a result for each, in that order.
    """
    results = []
    boot = boot_id(root)
    for entry in reversed(journal.entries[since:]):
        try:
            if entry.kind == "value":
                result = _restore_value(entry, root, writer, boot)
            else:
                result = (_remove_link if entry.kind == "link" else _restore_file)(entry, writer)
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


def _restore_value(entry: Entry, root: Root, writer: Writer, boot: str) -> Undone:
    """Put a kernel file's value back, unless a reboot has undone it or somebody else has changed it
    since.

    Args:
        boot: The id of this boot, "" if unknown.
    """
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
        return _shrink_pool(entry, int(current), root, writer)
    writer.value(path, before)
    return Undone(f"{path}: {current or 'nothing'} -> {before or 'nothing'}", True, True)


def _still_ours(entry: Entry, current: str) -> bool:
    """Return whether apply set ``current``; a pool may be half grown if apply broke off."""
    if entry.got is not None:
        return current == entry.got
    if entry.path.endswith(_NR) and entry.before is not None:
        numbers = (entry.before, current, entry.wanted)
        if all(number.isdecimal() for number in numbers):
            first, now, last = map(int, numbers)
            return first < now <= last
    return current == entry.wanted


def _shrink_pool(entry: Entry, current: int, root: Root, writer: Writer) -> Undone:
    """Shrink a pool to its earlier size, but give up only pages that no process uses or has
    reserved.

    If not all can go, the entry is not settled, and ``now`` is the size left.
    """
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


def _restore_file(entry: Entry, writer: Writer) -> Undone:
    """Put a file's content back, or remove a file that is new.

    A file that somebody else has changed stays.
    """
    writer.discard_part(entry.path)
    path, (content, _) = entry.path, writer.content(entry.path) or (None, 0)
    if content == entry.before:
        return Undone(
            f"{path}: is {'gone already' if content is None else 'as before'}", True, True
        )
    if content is not None and content != entry.wanted:
        kept = entry.before is not None
        text = f"{path}: left, somebody else has changed it since"
        more = "; what stood there before us is in the journal" if kept else ""
        return Undone(f"{text}{more}", not kept, False)
    if entry.before is None:
        writer.remove(path)
        return Undone(f"{path}: removed", True, True)
    writer.file(path, entry.before, 0o644 if entry.mode is None else entry.mode)
    return Undone(f"{path}: as before", True, True)


def _remove_link(entry: Entry, writer: Writer) -> Undone:
    """Remove a link that apply made, unless it leads elsewhere now."""
    path, target = entry.path, writer.target(entry.path)
    if target is None:
        return Undone(f"{path}: is gone already", True, True)
    if target != entry.wanted:
        return Undone(f"{path}: left, it leads to {target} now", True, False)
    writer.remove(path)
    return Undone(f"{path}: removed", True, True)
