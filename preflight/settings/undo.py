"""Puts back what a journal says was changed: in reverse, and only what still has our value."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.hugetlb.pools import POOLS
from preflight.settings.apply_journal import Entry, Journal, JournalError
from preflight.settings.apply_write import Writer

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NR = "/nr_hugepages"


class Undone(NamedTuple):
    """What became of an entry. settled: it may be forgotten. whole: it is as it was before.

    now: how far it was taken back, where that is part of the way.
    """

    text: str
    settled: bool
    whole: bool
    now: str | None = None


def boot_id(root: Root) -> str:
    """ "" where the kernel does not say: then a reboot is not noticed."""
    found = root.word(BOOT_ID)
    return "" if isinstance(found, Unknown) else found


def undo(journal: Journal, root: Root, writer: Writer, since: int = 0) -> list[Undone]:
    """Take back all entries from ``since`` on, the last first; one that fails stops no other."""
    found = []
    boot = boot_id(root)
    for entry in reversed(journal.entries[since:]):
        try:
            result = put_back(entry, root, writer, boot)
        except OSError as error:
            result = Undone(f"{entry.path}: not put back: {error.strerror}", False, False)
        if result.settled or result.now is not None:
            rest = None if result.settled else entry._replace(got=result.now)
            try:
                journal.replace(entry, rest)
            except JournalError as error:  # what could be put back is; the rest must be tried too
                result = result._replace(text=f"{result.text} ({error})")
        found.append(result)
    return found


def put_back(entry: Entry, root: Root, writer: Writer, boot: str) -> Undone:
    """One entry. Raises OSError."""
    if entry.kind == "value":
        return _value(entry, root, writer, boot)
    return _link(entry, writer) if entry.kind == "link" else _file(entry, writer)


def _value(entry: Entry, root: Root, writer: Writer, boot: str) -> Undone:
    path, before = entry.path, entry.before
    if boot and entry.boot and boot != entry.boot:
        return Undone(f"{path}: a reboot has taken it back since", True, True)
    current = root.word(path)
    if isinstance(current, Unknown):
        if current.absent:
            return Undone(f"{path}: is gone, so there is nothing to put back", True, True)
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
    """What we read back; or, for a change that was broken off, what it was on the way to."""
    if entry.got is not None:
        return current == entry.got
    if entry.path.endswith(_NR) and entry.before is not None:
        numbers = (entry.before, current, entry.wanted)
        if all(number.isdecimal() for number in numbers):
            first, now, last = map(int, numbers)
            return first < now <= last
    return current == entry.wanted


def _pool(entry: Entry, current: int, root: Root, writer: Writer) -> Undone:
    """Only pages that nobody holds are given up: what a process has is left to it."""
    path = entry.path
    folder = path.removesuffix(_NR)
    free = root.integer(f"{folder}/free_hugepages")
    # Reservations are counted for the whole pool; any node may have to honour them.
    reserved = root.integer(f"{POOLS}/{folder.rpartition('/')[2]}/resv_hugepages")
    if isinstance(free, Unknown) or isinstance(reserved, Unknown):
        reason = free if isinstance(free, Unknown) else reserved
        why = reason.reason if isinstance(reason, Unknown) else ""
        return Undone(
            f"{path}: not put back, who holds its pages is not known: {why}", False, False
        )
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
    path, found = entry.path, writer.content(entry.path)
    content = None if found is None else found[0]
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
    path, target = entry.path, writer.target(entry.path)
    if target is None:
        return Undone(f"{path}: is gone already", True, True)
    if target != entry.wanted:
        return Undone(f"{path}: left, it leads to {target} now", True, False)
    writer.remove(path)
    return Undone(f"{path}: removed", True, True)
