"""Where a launch sets its sizes, and the same launch with other values in those places.

A ``Knob`` is one size of the launch; its ``ValuePlace``s are where the words of that size stand. A
place that is not written yet is one too: the flag or the variable is added.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from checks.framework.regex import regex
from checks.framework.units import GIGABYTE, MIB, format_bytes, segment_text
from checks.framework.unknown import Unknown
from preflight.command_inputs.written_launch import WrittenLaunch
from preflight.engines.programs.store_config import Source
from preflight.engines.programs.store_service_config import service_arguments
from preflight.engines.sglang.launch import configured_segment
from preflight.launches.source import Command, Origin, Reading, Word
from preflight.processes.processes import LaunchProcess, ProcessKind

ARENA = "MC_MMAP_ARENA_POOL_SIZE"
SEGMENT = "MOONCAKE_GLOBAL_SEGMENT_SIZE"
HICACHE_SIZE = "--hicache-size"
KEY = "global_segment_size"
_CONFIG = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
# The settings of a file or of JSON, in place of one key's value.
_IN_JSON = regex(r'("global_segment_size"\s*:\s*)("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)')


class ValuePlace(NamedTuple):
    """One place in a launch where a value stands, or is to be added.

    Attributes:
        form: How it is written. ``flag``: the word after ``name``. ``joined``: ``--name=value`` in
            one word. ``variable``: an environment variable. ``json``: a key within the word ``at``.
            ``file``: a key of the JSON file ``name``. ``new-flag``: to be added after the word
            ``at``. ``new-variable``: to be added.
        commands: The indices of the commands that have this place.
        at: Index of a word in the command, -1 without one.
        old: The value as it stands now, "" if none; for ``new-flag`` the word ``at``.
    """

    form: str
    name: str
    commands: tuple[int, ...]
    at: int = -1
    old: str = ""
    origin: Origin | None = None

    @property
    def written(self) -> bool:
        return not self.form.startswith("new-")


class Knob(NamedTuple):
    """One size of a launch that can be set.

    Attributes:
        name: Of its flag or variable.
        now_bytes: The largest value at its places now; None if no value is written or known.
        step_bytes: The smallest change.
        spell: Returns bytes as the launch writes them.
    """

    name: str
    places: tuple[ValuePlace, ...]
    now_bytes: int | None
    step_bytes: int
    spell: Callable[[int], str]

    @property
    def last_first(self) -> list[ValuePlace]:
        """The places, the last of a command first: words that are added move those behind them."""
        return sorted(self.places, key=lambda place: -place.at)


class Knobs(NamedTuple):
    """The sizes of a launch that can be set; None is a size that the launch does not have.

    ``why_no_l2`` and ``why_no_segment`` say why, and are "" for a size that it has.
    """

    l2: Knob | None
    segment: Knob | None
    arena: Knob | None
    why_no_l2: str = ""
    why_no_segment: str = ""


class SizeValues(NamedTuple):
    """Sizes to set, in bytes; None leaves a size as it is written.

    Attributes:
        l2_bytes: Of each rank.
        segment_bytes: As its flag or variable takes it.
        arena_bytes: 0 removes the arena.
    """

    l2_bytes: int | None = None
    segment_bytes: int | None = None
    arena_bytes: int | None = None

    @property
    def text(self) -> str:
        """The sizes as a phrase: ``--hicache-size 30 and a segment of 8.00 GiB``."""
        parts = []
        if self.l2_bytes is not None:
            parts.append(f"--hicache-size {gigabytes(self.l2_bytes)}")
        if self.segment_bytes is not None:
            parts.append(f"a segment of {format_bytes(self.segment_bytes)}")
        return " and ".join(parts)


def gigabytes(size: int) -> str:
    """Return a size as --hicache-size takes it: a whole number of 10^9 bytes."""
    return str(size // GIGABYTE)


def arena_text(size: int) -> str:
    return f"{size // MIB}mb" if size % MIB == 0 else str(size)


def knobs(reading: Reading, processes: Sequence[LaunchProcess]) -> Knobs:
    """Return the sizes of a launch that can be set, and where.

    Args:
        processes: Those of ``reading``.
    """
    l2 = _l2_knob(processes)
    segment, why = _segment_knob(processes, reading)
    variables = [command.environment.get(ARENA) for command in reading.commands]
    having = (index for index, word in enumerate(variables) if word is not None and word.text)
    arenas = tuple(dict.fromkeys(_variable_place(reading, index, ARENA) for index in having))
    arena = Knob(ARENA, arenas, None, 2 * MIB, arena_text) if arenas else None
    why_l2 = "" if l2 else "no server of the launch has --enable-hierarchical-cache"
    return Knobs(l2, segment, arena, why_l2, why)


def _l2_knob(processes: Sequence[LaunchProcess]) -> Knob | None:
    """Return ``--hicache-size`` with its places in all servers that have an L2 pool; None if no
    server has an L2 pool.
    """
    places, sizes, beside = [], [], "--enable-hierarchical-cache"
    for process in processes:
        if (server := process.server) is None:
            continue
        offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
        if server.hicache or offloads:
            size = server.value("hicache_size")
            sizes += [size * GIGABYTE] if isinstance(size, int) and size > 0 else []
            places.append(_flag_place(process.command, process.number, HICACHE_SIZE, beside))
    if not places:
        return None
    return Knob(HICACHE_SIZE, tuple(places), max(sizes, default=None), GIGABYTE, gigabytes)


def _flag_place(command: Command, index: int, name: str, beside: str) -> ValuePlace:
    """Return the place of the last flag ``name`` in a command.

    If the command lacks the flag, return a new place behind the word ``beside``, or at the end.

    Args:
        index: Of the command.
    """
    texts = command.words
    for at in range(len(texts) - 1, -1, -1):
        text = texts[at].text
        if text == name and at + 1 < len(texts):
            value = texts[at + 1]
            return ValuePlace("flag", name, (index,), at + 1, value.text, value.origin)
        if text.startswith(f"{name}="):
            old = text.partition("=")[2]
            return ValuePlace("joined", name, (index,), at, old, texts[at].origin)
    at = next((at for at, word in enumerate(texts) if word.text == beside), len(texts) - 1)
    return ValuePlace("new-flag", name, (index,), at, texts[at].text, texts[at].origin)


def _segment_knob(processes: Sequence[LaunchProcess], reading: Reading) -> tuple[Knob | None, str]:
    """Return (the segment size with its places in all processes that contribute to the store, "").

    If no process contributes, return (None, the reason).
    """
    places: list[ValuePlace] = []
    sizes: list[int] = []
    why = "no process of the launch attaches a Mooncake store"
    for process in processes:
        size = _segment_of(process)
        if size is None:
            continue
        if size == 0:
            why = f"{process.name} contributes no segment, as its settings say"
            continue
        if not isinstance(size, Unknown):
            sizes.append(size)
        place = _segment_place(process, process.number, reading)
        if place not in places:
            places.append(place)
    if not places:
        return None, why
    new = [place for place in places if place.form == "new-variable"]
    if len(new) > 1:  # one place: it is to be set for all commands
        commands = tuple(index for place in new for index in place.commands)
        places = [*(p for p in places if p not in new), new[0]._replace(commands=commands)]
    stores = [process.server.store for process in processes if process.server]
    spell = segment_text if all(store is None or store.gigabytes for store in stores) else str
    flags = {place.name if place.form.endswith(("flag", "joined")) else "" for place in places}
    name = flags.pop() if len(flags) == 1 else ""
    return Knob(name or SEGMENT, tuple(places), max(sizes, default=None), MIB, spell), ""


def _segment_of(process: LaunchProcess) -> int | Unknown | None:
    """Return the segment bytes of one process as written: 0 if it contributes nothing, None if it
    is no client of a store, or its store is standalone.

    Returns:
        Unknown if its settings do not tell.
    """
    if process.server is not None:
        store = process.server.store
        if store is None or store.value("standalone_storage") is True:
            return None
        size = configured_segment(process.server)
        return Unknown("not known") if size is None else max(0, size)
    if process.store is not None:
        client = process.store.client
        return client if isinstance(client, Unknown) else client.segment_bytes
    return None


def _segment_place(process: LaunchProcess, index: int, reading: Reading) -> ValuePlace:
    """Return the place from which a process takes its segment size: a flag, JSON, a file or a
    variable; a new place if the size is not written.

    Args:
        index: Of the process's command.
    """
    command = process.command
    if process.kind is ProcessKind.CLIENT:
        names = ("--global_segment_size", "-global_segment_size", "--global-segment-size")
        places = [_flag_place(command, index, name, command.words[0].text) for name in names]
        return next((place for place in places if place.written), places[0])
    if process.server is not None and process.server.store is not None:
        source = process.server.store.source
        path = command.environment.get(_CONFIG)
        if source is Source.EXTRA_CONFIG or (path is None and isinstance(source, Unknown)):
            return _json_place(command, index)
        if path is not None:
            return ValuePlace("file", path.text, (index,), -1, "", path.origin)
    path = command.environment.get("MOONCAKE_CONFIG_PATH")
    if process.consumer is not None and path is not None:
        return ValuePlace("file", path.text, (index,), -1, "", path.origin)
    if process.kind is ProcessKind.STORE_SERVICE:
        for at, word in enumerate(command.words):
            name, equals, value = word.text.partition("=")
            if equals and name in (f"-D{KEY}", KEY, f"--define={KEY}"):
                return ValuePlace("joined", name, (index,), at, value, word.origin)
        config = service_arguments(process.arguments).config
        config = config if config and config.text else path
        if config is not None:
            return ValuePlace("file", config.text, (index,), -1, "", config.origin)
    return _variable_place(reading, index, SEGMENT)


def _json_place(command: Command, index: int) -> ValuePlace:
    """Return the place of the segment size in the JSON of --hicache-storage-backend-extra-config,
    or the file that the flag names with @.

    ``at`` is -1 for the file, or without a written size.
    """
    for at, word in enumerate(command.words):
        if match := _IN_JSON.search(word.text):
            return ValuePlace("json", KEY, (index,), at, match[2], word.origin)
        if word.text.startswith("@"):
            return ValuePlace("file", word.text[1:], (index,), -1, "", word.origin)
    return ValuePlace("json", KEY, (index,), -1, "", command.origin)


def _variable_place(reading: Reading, index: int, name: str) -> ValuePlace:
    """Return the place of the variable ``name`` of the command ``index``, with all commands that
    get it from the same line; a new place if the command lacks the variable.
    """
    word = reading.commands[index].environment.get(name)
    if word is None:
        return ValuePlace("new-variable", name, (index,), -1, "", reading.commands[index].origin)
    values = enumerate(command.environment.get(name) for command in reading.commands)
    places = tuple(at for at, each in values if each == word)
    return ValuePlace("variable", name, places, -1, word.text, word.origin)


def with_values(launch: WrittenLaunch, sizes: Knobs, values: SizeValues) -> WrittenLaunch:
    """Return the launch as if ``values`` were written at the places of ``sizes``, in its words, its
    variables and the JSON files it reads.

    No file is changed.
    """
    commands = list(launch.reading.commands)
    files: dict[str, str] = {}
    for knob, text in changes(sizes, values):
        for place in knob.last_first:
            if place.form == "file":
                content = launch.read_file(files.get(place.name, place.name))
                if not isinstance(content, Unknown):
                    files[place.name] = json_with(content, text or "0")
                continue
            for index in place.commands:
                commands[index] = with_text(commands[index], place, text)

    def read_file(name: str) -> str | Unknown:
        return files[name] if name in files else launch.read_file(name)

    reading = launch.reading._replace(commands=tuple(commands))
    return launch._replace(reading=reading, read_file=read_file)


def changes(sizes: Knobs, values: SizeValues) -> Iterator[tuple[Knob, str | None]]:
    """Yield each size that ``values`` set, with its text; None removes the arena's variable."""
    segment, arena = (sizes.segment, values.segment_bytes), (sizes.arena, values.arena_bytes)
    pairs = (segment, arena, (sizes.l2, values.l2_bytes))
    for knob, value in pairs:
        if knob is not None and value is not None:
            yield knob, None if value == 0 and knob is sizes.arena else knob.spell(value)


def with_text(command: Command, place: ValuePlace, text: str | None) -> Command:
    """Return the command with ``text`` written at ``place``.

    None removes a variable; with None, or at a place without a word (``at`` is -1), no word
    changes.
    """
    if place.form in ("variable", "new-variable"):
        environment = dict(command.environment)
        before = environment.get(place.name)
        if text is None:
            environment.pop(place.name, None)
        else:
            origin = command.origin if before is None else before.origin
            environment[place.name] = Word(text, origin)
        return command._replace(environment=environment)
    texts = list(command.words)
    if place.at < 0 or text is None:
        return command
    word = texts[place.at]
    if place.form == "json":
        texts[place.at] = word._replace(text=json_with(word.text, text))
    elif place.written:
        joined = f"{place.name}={text}" if place.form == "joined" else text
        texts[place.at] = Word(joined, word.origin)
    else:
        texts[place.at + 1 : place.at + 1] = [Word(x, word.origin) for x in (place.name, text)]
    return command._replace(words=tuple(texts))


def json_with(content: str, text: str) -> str:
    """Return the JSON text with ``text`` as the segment size, put first if it is not set yet."""
    written = text if text.isdecimal() else json.dumps(text)
    if _IN_JSON.search(content):
        return _IN_JSON.sub(lambda match: match[1] + written, content, count=1)
    return content.replace("{", f'{{"{KEY}": {written}, ', 1)
