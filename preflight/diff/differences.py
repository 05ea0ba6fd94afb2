"""The difference of two full answers, as rows, text and JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from checks.base.fold import fold_alike
from preflight.base.envelope import subjects
from preflight.diff.full_answer import NO_FLAG, Answer, AnswerKey, DefaultValue, Section

# Words of a verdict, the worst last.
_WORSE = ("pass", "warn", "unknown", "fail")
# Subjects that have no number to count by are named up to so many.
MOST_NAMES = 3
Paint = Callable[[str, str], str]


class Change(NamedTuple):
    """One line of the answer that is another one; None where a side does not have it."""

    key: AnswerKey
    old: str | None
    new: str | None


def changes(old: Answer, new: Answer) -> list[Change]:
    """Return every line in which two answers differ, section by section."""
    order = list(Section)
    keys = [*old, *(key for key in new if key not in old)]
    found = [Change(key, old.get(key), new.get(key)) for key in keys]
    differing = [one for one in found if one.old != one.new]
    return sorted(differing, key=lambda one: order.index(one.key.section))


def exit_code(old: Answer, new: Answer) -> int:
    """Return 0 where nothing changes, 1 where something does, 2 where check's verdict is worse."""
    key = AnswerKey(Section.VERDICT, "check", "verdict")
    if _WORSE.index(new[key]) > _WORSE.index(old[key]):
        return 2
    return int(bool(changes(old, new)))


def differences_object(names: tuple[str, str], old: Answer, new: Answer) -> dict[str, Any]:
    """Return the answer of ``schemas/diff-v1.schema.json``."""
    return {
        "from": names[0],
        "to": names[1],
        "changes": [
            {
                "section": one.key.section.name.lower(),
                "subjects": subjects([one.key.subject]),
                "name": one.key.name,
                "from": one.old,
                "to": one.new,
            }
            for one in changes(old, new)
        ],
    }


def differences_text(
    names: tuple[str, str], old: Answer, new: Answer, verbosity: int, paint: Paint, width: int
) -> str:
    """Return the changes for a terminal; flags that come or go with a release, and that nobody
    gave, are counted unless ``verbosity`` is 1 or more."""
    from preflight.render.text import wrapped

    found = changes(old, new)
    if not found:
        return f"{names[0]} and {names[1]}: nothing differs"
    parts = ["\n".join(wrapped(f"from {names[0]} to {names[1]}", width))]
    for section in Section:
        rows = [one for one in found if one.key.section is section]
        quiet = [one for one in rows if _of_the_release(one)] if verbosity < 1 else []
        lines = _verdict_as_before(old, new) if section is Section.VERDICT else []
        told = _folded([one for one in rows if one not in quiet])
        lines += [line for one in told for line in _lines(one, paint, width)]
        if quiet:
            come = sum(one.old == NO_FLAG for one in quiet)
            counted = (
                f"  {come} flags are new and {len(quiet) - come} are gone that the launch does "
                "not use (-v)"
            )
            lines.append(counted)
        if lines:
            parts.append("\n".join([section.value, *lines]))
    return "\n\n".join(parts)


def _verdict_as_before(old: Answer, new: Answer) -> list[str]:
    """Return the line of check's verdict where both sides have the same."""
    key = AnswerKey(Section.VERDICT, "check", "verdict")
    return [f"  check: verdict: {new[key]}, as before"] if old[key] == new[key] else []


def _folded(rows: list[Change]) -> list[Change]:
    """Return the same change of several subjects as one: ``launch.sh:3 rank 0-7``."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for one in rows:
        alike = (one.key.section, one.key.name, one.old, one.new)
        groups.setdefault(alike, []).append(one.key.subject)
    found = []
    for one in rows:
        names = groups.pop((one.key.section, one.key.name, one.old, one.new), None)
        if names is not None:
            subject = fold_alike(names, MOST_NAMES)
            found.append(one._replace(key=one.key._replace(subject=subject)))
    return found


def _of_the_release(one: Change) -> bool:
    """Return whether a flag comes or goes, and nobody gave it."""
    both = (one.old, one.new)
    return NO_FLAG in both and any(isinstance(text, DefaultValue) for text in both)


def _lines(one: Change, paint: Paint, width: int) -> list[str]:
    from preflight.render.text import wrapped

    subject = f"{one.key.subject}: " if one.key.subject else ""
    head = f"  {subject}{one.key.name}"
    if one.old is None:
        return wrapped(f"{head}: {paint('now', 'yellow')} {one.new}", width, 6)
    if one.new is None:
        return wrapped(f"{head}: {paint('gone', 'green')} ({one.old})", width, 6)
    return wrapped(f"{head}: {one.old} -> {one.new}", width, 6)
