"""What was written to start a process: words with their origins, before anybody interprets them.

Readers (scripts, command lines, env files, containers, manifests) produce these records and nothing
else; a text is never executed. A variable that the source does not set stays in its word as it was
written, and is named in ``unresolved``.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from checks.framework.needs import RunAs, SetLimit
from checks.framework.regex import regex
from checks.framework.unknown import Inside, OpenVariable, Unknown
from checks.host_snapshot.secrets import beginning
from preflight.launches.container import (
    NO_PROGRAM,
    ContainerSettings,
    Published,
    image_program,
)

# ``NAME=value`` in front of a program.
ASSIGNMENT = regex(r"[A-Za-z_][A-Za-z0-9_]*=")
_MOST_LEFT_OUT = 3
# Gives the text of a file that a launch names, or why it cannot be read.
ReadFile = Callable[[str], "str | Unknown"]


class Origin(NamedTuple):
    """Where a word, command or note of a launch stands.

    Attributes:
        source: A path, or a name such as ``environment``.
        line: None without lines.
        of: The service, role or job, if several share it.
    """

    source: str
    line: int | None = None
    of: str = ""

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place} ({self.of})" if self.of else place


class SourceNote(NamedTuple):
    """A reader's note on a part of a launch: not read, or read otherwise than its author meant.

    Attributes:
        id: Of a row of notices.md.
        advice: "" for the usual advice on such notes.
    """

    id: str
    text: str
    origin: Origin
    advice: str = ""


_NOTICE = regex(r"^\| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)
_LINK = regex(r"\[([^]]*)\]\([^)]*\)")


@cache
def notices() -> dict[str, str]:
    """Return the sentence of each notice by its id: see notices.md."""
    path = os.path.join(os.path.dirname(__file__), "notices.md")
    with open(path, encoding="utf-8") as file:
        rows = _NOTICE.findall(file.read())
    pairs = [(id_, says) for ids, says in rows for id_ in re.findall("`([^`]+)`", ids)]
    return {id_: _LINK.sub(r"\1", says).replace("`", "") for id_, says in pairs}


class Word(NamedTuple):
    """One word as the program gets it, its quotes removed.

    Attributes:
        unresolved: Names of the parts that are not known, such as variables; in ``text`` these
            parts stay as written.
        doubts: The undecided conditions that the text depends on.
        several: The unresolved part stands without quotes, so that it may be several words, or
            none.
        inside: The only place that knows the unresolved part; None for the launch's own shell.
        by_default: The text depends on a default such as the x of ``${A:-x}``, where nothing here
            says what A is.
    """

    text: str
    origin: Origin
    unresolved: tuple[str, ...] = ()
    doubts: tuple[SourceNote, ...] = ()
    several: bool = False
    inside: Inside | None = None
    by_default: bool = False

    @property
    def flag(self) -> str:
        """Return ``--flag`` of ``--flag=value`` or ``--flag``; "" for any other word."""
        return self.text.partition("=")[0] if self.text.startswith("-") else ""


def words_in_image(
    image: str, argv: Sequence[Word], has_entrypoint: bool, origin: Origin
) -> tuple[tuple[Word, ...], bool]:
    """Return the words that run in a container, with a known image's entrypoint in front.

    The second value is True if the image's own program runs them, and nothing shows which that is.

    Args:
        argv: The launch's words.
        has_entrypoint: The launch replaces the image's, even by "".
    """
    name = argv[0].text if argv else ""
    front = () if has_entrypoint else image_program(image, name)
    hidden = not front and (not name if has_entrypoint else NO_PROGRAM.fullmatch(name) is not None)
    kept = () if hidden and name.startswith("-") else argv
    return (*(Word(text, origin) for text in front), *kept), hidden


class Place(NamedTuple):
    """The pod, service or job of a manifest that a process belongs to.

    Attributes:
        kind: ``pod``, ``service`` of Compose, or ``job`` of srt-slurm.
        name: Of a pod its object and role, of a service its name, of a job its name and role.
        container: That of a pod.
    """

    kind: str
    name: tuple[str, ...]
    container: str = ""


class PartlyKnown(Unknown):
    """A text of which a part is not known: ``text`` has that part as it is written, with its $."""

    __slots__ = ("text",)

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason)
        self.text = text


class Command(NamedTuple):
    """One process that the source starts.

    Attributes:
        words: Program and arguments, without wrappers.
        environment: Its variables, those of the caller included.
        wrappers: ``numactl --membind=0``, ``sudo``, ``docker run ...``, outermost first, each as
            words.
        container: The settings of the container that the source starts for this process.
        doubts: The undecided conditions on which this process depends.
        copies: The number that a manifest asks for, over all hosts.
        waited: The script goes on only when this process has ended.
        ended: The script kills this process and waits for the end.
        turn: How often the script had killed all that it started, before it started this process.
        files: Path -> content of files that only the container has: mounted ConfigMaps, and files
            that a script in the container writes.
        limits: Those that the source sets, in order, on top of the container's.
        run_as: The user, within the container.
        published: The host's ports of the container, at the container's first process.
        place: None without a manifest.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    wrappers: tuple[tuple[str, ...], ...]
    origin: Origin
    container: ContainerSettings | None = None
    doubts: tuple[SourceNote, ...] = ()
    copies: int = 1
    waited: bool = False
    turn: int = 0
    files: Mapping[str, Word] = {}
    limits: tuple[SetLimit, ...] = ()
    published: tuple[Published, ...] = ()
    place: Place | None = None
    run_as: RunAs = RunAs()
    ended: bool = False

    def under(self, run_as: RunAs, limits: tuple[SetLimit, ...]) -> Command:
        """Return this command as the user ``run_as`` starts it, with ``limits`` set first."""
        inner_limits = tuple(
            limit._replace(setter=run_as.then(limit.setter)) for limit in self.limits
        )
        return self._replace(limits=(*limits, *inner_limits), run_as=run_as.then(self.run_as))


class Reading(NamedTuple):
    """All commands of a source in order, with notes.

    Attributes:
        files: Path as written -> content of files that the source writes (``cat > f <<EOF``); an
            unknown content is unresolved.
        published: The host's ports of containers whose program the source does not show.
        own_lines: The commands stand in an inner shell, whose lines they name, and know themselves
            whether anything waits for them.
    """

    commands: tuple[Command, ...]
    notes: tuple[SourceNote, ...] = ()
    files: Mapping[str, Word] = {}
    published: tuple[Published, ...] = ()
    own_lines: bool = False

    def each(self, change: Callable[[Command], Command]) -> Reading:
        """Return this reading with every command changed."""
        return self._replace(commands=tuple(map(change, self.commands)))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the sentences on parts that are not started, such as a service of an unused
        profile: the first three, then one with the number of further parts.
        """
        texts = list(dict.fromkeys(note.text for note in self.notes if note.id == "not-started"))
        more = len(texts) - _MOST_LEFT_OUT
        last = (f"and {more} more are not started",) if more > 0 else ()
        return (*texts[:_MOST_LEFT_OUT], *last)


def only_note(id_: str, text: str, origin: Origin) -> Reading:
    """Return a reading that has one note and starts nothing."""
    return Reading((), (SourceNote(id_, text, origin),))


def with_published(reading: Reading, ports: tuple[Published, ...]) -> Reading:
    """Return a reading whose first process, or the reading itself without one, has these ports."""
    if not reading.commands:
        return reading._replace(published=ports)
    first, *others = reading.commands
    return reading._replace(commands=(first._replace(published=ports), *others))


def tell_apart(reading: Reading) -> Reading:
    """Return the reading with the service or role in each origin that commands of several services
    or roles share.
    """
    origins = Counter(origin for origin, _ in {(c.origin, c.place) for c in reading.commands})

    def named(command: Command) -> Command:
        if command.place is None or origins[command.origin] < 2:
            return command
        return command._replace(origin=command.origin._replace(of=" ".join(command.place.name)))

    return reading.each(named)


def name_by_program(reading: Reading) -> Reading:
    """Replace each command's origin by the name of its program: the module behind ``-m``, else the
    first word.

    A repeated name gets a number: ``sglang.launch_server 2``.
    """
    seen: Counter[str] = Counter()

    def named(command: Command) -> Command:
        texts = [word.text.rpartition("/")[2] for word in command.words]
        program = texts[texts.index("-m") + 1] if "-m" in texts[:-1] else "".join(texts[:1])
        seen[program] += 1
        name = program if seen[program] == 1 else f"{program} {seen[program]}"
        return command._replace(origin=Origin(name))

    return reading.each(named)


def join(readings: Iterable[Reading]) -> Reading:
    """Join readings into one, in order; equal notes are kept once.

    A file that two of the readings write with different texts is marked unresolved.
    """
    together = list(readings)
    commands = tuple(command for reading in together for command in reading.commands)
    notes = dict.fromkeys(note for reading in together for note in reading.notes)
    files: dict[str, Word] = {}
    for path, word in (item for reading in together for item in reading.files.items()):
        other = files.get(path)
        if other is not None and other.text != word.text:  # two containers' own
            word = word._replace(unresolved=("which container reads it",))
        files[path] = word
    ports = tuple(port for reading in together for port in reading.published)
    return Reading(commands, tuple(notes), files, ports)


def file_reader(files: Mapping[str, Word], read_file: ReadFile) -> ReadFile:
    """Return a file reader for the programs of a launch: it gives the ``files`` that the launch
    itself writes, else what ``read_file`` gives.

    A file with unknown parts is PartlyKnown.
    """
    written = {posixpath.normpath(path): word for path, word in files.items()}

    def read(name: str) -> str | Unknown:
        """Return the text that the launch writes to ``name``, or that ``read_file`` gives."""
        word = written.get(posixpath.normpath(name))
        if word is None or not word.unresolved:
            return read_file(name) if word is None else word.text
        names = ", ".join(word.unresolved)
        why = f"{name}, which the launch writes ({word.origin}), depends on {names}"
        return PartlyKnown(why, word.text)

    return read if written else read_file


class SourceError(Exception):
    """A source that cannot be read or meant: its message is a sentence for the user."""


# What stands for the output of a command whose words are in the text.
_OUTPUTS = ("$(...)", "`...`")


def is_output(name: str) -> bool:
    """Tell whether ``name``, of an unknown part of a word, stands for the output of a command."""
    return name in _OUTPUTS


def open_name(word: Word, name: str) -> str:
    """Return an unknown part of ``word`` for a message: its name, or the command that gives it."""
    computed = _is_computed(word) and name.isidentifier()
    return brief(word.text) if is_output(name) else f"the name {name}" if computed else name


def open_names(word: Word) -> str:
    """Return all unknown parts of ``word``, separated by commas."""
    return ", ".join(dict.fromkeys(open_name(word, name) for name in word.unresolved))


def open_variables(word: Word) -> tuple[str, ...]:
    """Return the names of the variables that a word needs and nobody sets; () for a word that a
    program computes.

    Parameters such as ``$1`` are left out.
    """
    return () if _is_computed(word) else tuple(n for n in word.unresolved if n.isidentifier())


# What sets a variable once the pod is there; ``Inside.what`` has all such variables of a word.
_OF_POD = ("operator", "cluster")


def why_open(word: Word, names: str) -> str:
    """Return a clause on why ``names`` of ``word`` are open: not set, or given by Kubernetes."""
    inside = word.inside
    of_cluster = inside is not None and inside.kind == "cluster"
    of_cluster = of_cluster and set(word.unresolved) <= {*inside.what.split()}  # type: ignore[union-attr]
    return f"{names} is {'given by Kubernetes when the pod starts' if of_cluster else 'not set'}"


def join_inside(first: Inside | None, second: Inside | None) -> Inside | None:
    """Return the place that knows the unresolved names of two joined texts; None if both are None.

    Two places of the same kind in Kubernetes are joined; else the first that is not None.
    """
    if first is None or second is None or first.kind != second.kind or first.kind not in _OF_POD:
        return first or second
    return first._replace(what=" ".join(dict.fromkeys(f"{first.what} {second.what}".split())))


def is_set_by_operator(word: Word, name: str) -> bool:
    """Return whether the operator of a pod sets ``name``, a variable unresolved in ``word``."""
    inside = word.inside
    return inside is not None and inside.kind == "operator" and name in inside.what.split()


# What a guide leaves to its reader, beside the <x> that a shell's reader names. Met in recipes and
# threads: [model_path], xxxxxxx/Qwen3-32B, xx.xx.xx.xx, YOUR_IP, your-model, /path/to/model.
_PLACEHOLDER = regex(
    r"\[[A-Za-z][\w ./-]*\]|<[A-Za-z][^<>|]*>|\{\{[^{}]*\}\}|(?<![^/:=@])(?:"
    r"[xX]{3,}(?=[/:]|$)|x{1,3}(?:\.x{1,3}){3}|(?:your|YOUR|Your)[-_][\w.-]+)|^/?path/to/[^:,\s]*"
)


def placeholder_in(text: str) -> str:
    """Return the part of a value that a reader has to replace, or "".

    A part in brackets, ``[x]`` or ``<x>``, is returned only if the rest of the value is empty or an
    address.
    """
    match = _PLACEHOLDER.search(text)
    if match is None:
        return ""
    around = f"{text[: match.start()]}{text[match.end() :]}"
    address = re.fullmatch(r"(?:\w+://)?(?::\w+)?(?:/[\w./-]*)?", around)
    return match.group() if address or match.group()[0] not in "[<" else ""


def _is_computed(word: Word) -> bool:
    return word.inside is not None and word.inside.kind == "program"


# How a variable is given, by where the shell runs that reads it: the sentence, how one is written
# in there, and what stands between them.
_GIVEN = {
    # A capture, demo:h800 too, has its own variables; every other host takes this shell's.
    "": (
        "give {set} in an --env-file or, unless --root is a capture, in front of this command",
        "{}=...",
        " ",
    ),
    "run": ("write {set} into {what}", "-e {}=...", " "),
    "service": ("name {set} under environment of service {what}", "{}", ", "),
    "pod": ("name {set} under env of container {what}", "{}", ", "),
    "remote": ("set {set} in what {what} runs", "{}=...", " "),
    "operator": ("run this check in the pod: its operator sets {set} there", "{}", ", "),
    "cluster": ("run this check in the pod: Kubernetes gives it {set}", "{}", ", "),
    "program": ("write a value in place of {set} in {what}", "{}", ", "),
}


def give_variables(variables: Iterable[OpenVariable]) -> str:
    """Return the advice on unset variables: how to set them, for each place that reads some.

    The clauses are joined by ``; ``.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for variable in variables:
        within, what = variable.inside or ("", "")
        places.setdefault((within, "" if within in _OF_POD else what), []).append(variable.name)

    def given(place: str, what: str, names: Iterable[str]) -> str:
        sentence, each, between = _GIVEN[place]
        return sentence.format(set=between.join(map(each.format, dict.fromkeys(names))), what=what)

    return "; ".join(given(*place, names) for place, names in places.items())


def mark_inside(reading: Reading, inside: Inside, outer: Iterable[Word]) -> Reading:
    """Mark a container's unresolved words with ``inside``, the place that alone can set them.

    Args:
        outer: The words outside of the container. A word stays unmarked if all its names are
            unresolved in ``outer`` too.
    """
    lost = {name for word in outer for name in word.unresolved}

    def is_own(word: Word) -> bool:
        open_here = word.unresolved and word.inside is None
        return bool(open_here) and not lost.issuperset(word.unresolved)

    def marked(command: Command) -> Command:
        variables = command.environment
        inner = {n: w._replace(inside=inside) for n, w in variables.items() if is_own(w)}
        environment = {**variables, **inner} if inner else variables
        all_words = (w._replace(inside=inside) if is_own(w) else w for w in command.words)
        return command._replace(words=tuple(all_words), environment=environment)

    return reading.each(marked)


def brief(text: str) -> str:
    """Return a text for a sentence, without secrets and cut off if it is long."""
    return beginning(text, 80)
