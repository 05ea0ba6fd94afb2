"""What was understood of a launch: hosts and pods, a line a process, for a person; and as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from checks.framework.unknown import Unknown
from preflight.base.one_line import clean, shortened
from preflight.base.plain_data import plain
from preflight.base.text import wrapped
from preflight.command_inputs.reading.understood import LaunchReading, ProcessReading, Value
from preflight.launches.source import Origin

# Settings that tell one server from the next, in the order in which they are said.
_TELLING = (
    "model_path model tp_size tensor_parallel_size dp_size pp_size nnodes node_rank "
    "disaggregation_mode disaggregation_transfer_backend hicache_size hicache_ratio "
    "hicache_storage_backend store.protocol store.master_server_address "
    "store.global_segment_size kv_transfer_config segment_bytes protocol master"
).split()
# Those of a store's own process, which it takes from a file, its environment or a default.
_ALWAYS = frozenset(("segment_bytes", "protocol", "master"))
_LONGEST_VALUE = 60
# Ports that one line of read lists.
_MOST_PORTS = 8


def reading_text(
    reading: LaunchReading, paint: Callable[[str, str], str], width: int, verbosity: int
) -> str:
    """Return the reading of a launch as text for a person, wrapped at ``width`` columns.

    Args:
        paint: Puts a colour around a text.
        verbosity: 0 shows the settings that tell most, 1 also every written setting and the notes,
            2 also the defaults. Below 0 shows only the sentence about the launch, and what was not
            read.
    """
    lines = [*wrapped(clean(f"{reading.name}: {reading.sentence}"), width)]
    if verbosity >= 0:
        groups: dict[str, list[ProcessReading]] = {}
        for process in reading.processes:
            groups.setdefault(process.group, []).append(process)
        for group, members in groups.items():
            lines += ["", paint(clean(group), "cyan"), *_group_lines(members, width, verbosity)]
    left_out = [note for note in reading.notes if note.id == "not-started"]
    if left_out and verbosity >= 0:
        lines += ["", f"Not started ({len(left_out)})"]
        for note in left_out:
            lines += wrapped("  " + clean(f"{note.text} ({note.origin})"), width)
    if reading.unread:
        lines += ["", paint(f"Not read ({len(reading.unread)})", "magenta")]
        for each in reading.unread:
            lines += wrapped("  " + clean(each.text), width)
    if verbosity > 0 and reading.notes:
        lines += ["", "Notes"]
        places_of: dict[tuple[str, str], list[Origin]] = {}
        for note in reading.notes:
            places_of.setdefault((note.text, note.id), []).append(note.origin)
        for (text, identifier), places in places_of.items():
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            lines += wrapped("  " + clean(f"{text} ({places[0]}{more}) [{identifier}]"), width)
    return "\n".join(lines)


def _group_lines(processes: Sequence[ProcessReading], width: int, verbosity: int) -> Iterator[str]:
    """Yield a line for each process of a group, and below it all its settings if ``verbosity`` is
    above 0.

    Processes that one line of the launch starts with the same main settings share a line. All
    programs that are not known here share a last line.
    """
    others = [process for process in processes if process.program == "other"]
    alike: dict[tuple[object, ...], list[ProcessReading]] = {}
    for process in processes:
        if process.program != "other":
            telling = (process.settings.get(n) or process.defaults.get(n) for n in _TELLING)
            shown = (None if value is None else _value_text(value) for value in telling)
            alike.setdefault((process.title, process.origin, *shown), []).append(process)
    for members in alike.values():
        first = members[0]
        known = [member.number for member in members if isinstance(member.number, int)]
        count = first.number if isinstance(first.number, Unknown) else sum(known)
        times = "? x " if isinstance(count, Unknown) else f"{count} x " if count > 1 else ""
        where = f"{first.origin.source}:{first.origin.line}"
        where = where if first.origin.line is not None else first.origin.source
        settings = ", ".join(_main_settings(members))
        yield from wrapped("  " + clean(f"{times}{first.title} ({where}): {settings}"), width)
        if isinstance(count, Unknown):
            yield from wrapped("      " + clean(f"how many: {count.reason}"), width)
        if verbosity > 0:
            yield from _all_settings(first, width, verbosity > 1)
    if others:
        # The module that Python runs, or the program's name without its folder.
        each = (process.argv for process in others)
        names = dict.fromkeys(
            argv[2] if argv[1:2] == ("-m",) and argv[2:] else os.path.basename(argv[0])
            for argv in each
        )
        first_names = ", ".join([*names][:8]) + (" ..." if len(names) > 8 else "")
        number = f"{len(others)} other command{'s' if len(others) > 1 else ''}"
        yield from wrapped("  " + clean(f"{number}: {first_names}"), width)


def _main_settings(members: Sequence[ProcessReading]) -> Iterator[str]:
    """Yield the settings that tell most of a process, as "name value", then its ports.

    Args:
        members: Processes that differ only in their ports; each port is shown as a range or a list.
    """
    first = members[0]
    for name in _TELLING:
        value = first.settings.get(name)
        shown = name in first.written or name in _ALWAYS
        if value is None or not shown or value.value in (None, ""):
            continue
        yield f"{name.removeprefix('store.')} {_value_text(value)}"
    for name in first.settings:
        if name == "hostPort" or (name.endswith("port") and " " in name):
            numbers = [member.settings[name].value for member in members]
            known = [number for number in numbers if isinstance(number, int)]
            text = _value_text(first.settings[name])
            if len(known) > 1 and known == list(range(known[0], known[-1] + 1)):
                text = f"{known[0]} to {known[-1]}"
            elif len(set(map(str, numbers))) > 1:  # no step, or one of them is not known
                each = [*dict.fromkeys(_value_text(member.settings[name]) for member in members)]
                more = f" and {len(each) - _MOST_PORTS} more" if len(each) > _MOST_PORTS else ""
                text = ", ".join(each[:_MOST_PORTS]) + more
            yield f"{name} {text}"


def _all_settings(process: ProcessReading, width: int, defaults: bool) -> Iterator[str]:
    """Yield a line for each written setting, variable and release of a process, and for its image.

    Args:
        defaults: Also settings that nobody wrote.
    """
    settings = {**process.settings, **(process.defaults if defaults else {})}
    for title, values in (("", settings), ("environment ", process.environment)):
        for name, value in values.items():
            written = name in process.written or title
            if value.value is None or not (written or defaults):
                continue
            text = f"{title}{name} = {_value_text(value)}  ({value.origin})"
            yield from wrapped("      " + clean(text), width)
    if process.image:
        yield f"      image {clean(process.image)}"
    for name, value in process.release.items():
        yield from wrapped("      " + clean(f"{name} {value.value}  ({value.origin})"), width)


def _value_text(value: Value) -> str:
    if isinstance(value.value, Unknown):
        return f"not known ({value.value.reason})"
    return shortened(str(value.value), _LONGEST_VALUE)


def reading_object(reading: LaunchReading, defaults: bool = False) -> dict[str, Any]:
    """Return a reading as launch-v1.schema.json says.

    Args:
        defaults: Also settings that nobody wrote.
    """
    return {
        "processes": [_process(process, defaults) for process in reading.processes],
        "unread": [
            {"what": each.what, "reason": each.why, "origin": str(each.origin)}
            for each in reading.unread
        ],
        "notes": [{"note": n.id, "text": n.text, "origin": str(n.origin)} for n in reading.notes],
    }


def _process(process: ProcessReading, defaults: bool) -> dict[str, Any]:
    """Return one process as JSON.

    Args:
        defaults: Also settings that nobody wrote, if SGLang has them.
    """
    more = process.defaults.items() if defaults else ()
    here = {name: value for name, value in more if not value.origin.startswith("absent ")}
    return {
        "program": process.program,
        "count": plain(process.number),
        "group": process.group,
        "place": {"source": process.origin.source, "line": process.origin.line},
        "words": list(process.argv),
        "settings": _values({**process.settings, **here}),
        "environment": _values(process.environment),
        "image": process.image,
        "release": {
            name: {"version": plain(value.value), "origin": value.origin}
            for name, value in process.release.items()
        },
        "model": None
        if process.model is None
        else {"name": plain(process.model.value), "config_origin": process.model_config},
    }


def _values(values: Mapping[str, Value]) -> dict[str, Any]:
    return {
        name: {"value": plain(value.value), "origin": value.origin}
        for name, value in values.items()
    }
