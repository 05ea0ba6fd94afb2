"""Carries a plan's steps out one by one: all of them, or none."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.settings.apply_journal import Entry, Journal, JournalError
from preflight.settings.apply_steps import Step
from preflight.settings.apply_write import Writer
from preflight.settings.undo import Undone, boot_id, undo

COMPACT = "/proc/sys/vm/compact_memory"
# Each try compacts first; a try that brings no page ends them.
MOST_TRIES = 4


class Outcome(NamedTuple):
    """lines: what was done, step by step. failure: why it stopped, "" where it did not.

    undone: what became of what had been done before the failure.
    """

    lines: tuple[str, ...]
    failure: str = ""
    undone: tuple[Undone, ...] = ()


class StepError(Exception):
    """A step that did not come to what it was to: a sentence."""


def carry_out(steps: tuple[Step, ...], journal: Journal, writer: Writer, root: Root) -> Outcome:
    """Make each change, read it back, and take all of them back where one fails."""
    start, boot = len(journal.entries), boot_id(root)
    lines: list[str] = []
    try:
        for step in steps:
            lines += _carry_out(step, journal, writer, root, boot)
    except (StepError, JournalError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{error.filename or step.path}: {error.strerror}"
        return Outcome(tuple(lines), text, tuple(undo(journal, root, writer, start)))
    except BaseException:
        undo(journal, root, writer, start)
        raise
    return Outcome(tuple(lines))


def _carry_out(
    step: Step, journal: Journal, writer: Writer, root: Root, boot: str
) -> tuple[str, ...]:
    if step.kind == "value":
        return _value(step, journal, writer, root, boot)
    mode = None
    if step.kind == "file":
        found = writer.content(step.path)
        if (None if found is None else found[0]) != step.before:
            raise StepError(f"{step.path}: somebody changed it meanwhile: run apply again")
        mode = None if found is None else found[1]
    entry = Entry(step.kind, step.path, step.before, step.wanted, None, boot, mode)
    journal.add(entry)
    if step.kind == "file":
        writer.file(step.path, step.wanted, 0o644 if mode is None else mode)
    else:
        writer.link(step.path, step.wanted)
    journal.replace(entry, entry._replace(got=step.wanted))
    return (f"{step.path}: {'written' if step.kind == 'file' else 'enabled'}",)


def _value(step: Step, journal: Journal, writer: Writer, root: Root, boot: str) -> tuple[str, ...]:
    current = root.word(step.path)
    if isinstance(current, Unknown):
        raise StepError(f"{current.reason}: it was there when the plan was made")
    current = " ".join(current.split())
    if current == step.wanted or (step.pool and _count(current, step) >= int(step.wanted)):
        return (f"{step.path}: is {current} already",)
    entry = Entry("value", step.path, current, step.wanted, None, boot)
    journal.add(entry)
    if step.pool:
        got, tries = _grow(step, writer, root)
        note = f", after compacting memory {tries} times" if tries else ""
    else:
        writer.value(step.path, step.wanted)
        got, note = _read_back(step, root), ""
        if got != step.wanted:
            raise StepError(f"{step.path}: wrote {step.wanted}, and it reads {got}")
    journal.replace(entry, entry._replace(got=got))
    return (f"{step.path}: {current or 'nothing'} -> {got or 'nothing'}{note}",)


def _grow(step: Step, writer: Writer, root: Root) -> tuple[str, int]:
    """Ask for the pages; the kernel gives what it finds in one piece and calls that no error."""
    wanted = int(step.wanted)
    writer.value(step.path, step.wanted)
    got = _count(_read_back(step, root), step)
    tries = 0
    while got < wanted and tries < MOST_TRIES:
        tries += 1
        with suppress(OSError):  # a kernel without compaction: a second try may still find more
            writer.value(COMPACT, "1")
        writer.value(step.path, step.wanted)
        before, got = got, _count(_read_back(step, root), step)
        if got <= before:
            break
    if got < wanted:
        raise StepError(
            f"{step.name}: the kernel gave {got} of {wanted} pages, after compacting memory "
            f"{tries} times: memory is in use or in pieces; reserve them at boot (plan --format "
            "cmdline, sysfs or sysctl, then a reboot)"
        )
    return str(got), tries


def _read_back(step: Step, root: Root) -> str:
    found = root.word(step.path)
    if isinstance(found, Unknown):
        raise StepError(f"{found.reason}: it cannot be read back")
    return " ".join(found.split())


def _count(text: str, step: Step) -> int:
    if not text.isdecimal():
        raise StepError(f"{step.path}: not a number of pages: {text[:40]!r}")
    return int(text)


def adopt(journal: Journal, root: Root) -> list[str]:
    """Changes that a crash broke off: what they came to is written down, so undo finds them."""
    lines = []
    for entry in list(journal.entries):
        if entry.got is not None or entry.kind != "value":
            continue
        current = root.word(entry.path)
        if isinstance(current, Unknown):
            continue
        current = " ".join(current.split())
        lines.append(
            f"{entry.path}: an earlier apply was broken off here; it was {entry.before}, was to be "
            f"{entry.wanted}, and is {current}"
        )
        mine = boot_id(root) == entry.boot and current != entry.before
        journal.replace(entry, entry._replace(got=current) if mine else None)
    return lines
