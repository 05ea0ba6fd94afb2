"""What of a launch no reader here knows, and which releases the launch itself names.

With anything unread no answer about memory passes. ``data/launch_names.txt`` is a table of SGLang's
arguments, flags of Mooncake's programs and variables: what each touches, and whether this project
reads the name (modelled), has it in no number (named), or need not (harmless).
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.framework.unknown import Inside, OpenVariable, Unknown
from checks.host_snapshot.secrets import clean_words
from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import older_than_known, sglang_release
from preflight.base.program import data_file
from preflight.engines.programs.mooncake_flags import flags_of, read_flags
from preflight.engines.programs.sglang_arguments import (
    is_own_argument,
    operator_variables,
    why_unresolved,
)
from preflight.launches.launchers import tasks
from preflight.launches.source import (
    Command,
    Origin,
    Reading,
    Word,
    brief,
    give_variables,
    open_name,
    placeholder_in,
)
from preflight.launches.variables import matching, may_be_absent
from preflight.processes.image_releases import IMAGE, pip_pins, stated_releases
from preflight.processes.other_programs import Servers, unknown_beside
from preflight.processes.processes import (
    GFLAGS_PROGRAMS,
    LaunchOptions,
    LaunchProcess,
    ProcessKind,
    classify,
    flag_values,
    keep_last,
    with_router,
)


class NameRow(NamedTuple):
    """A name of SGLang, Mooncake or vLLM in the table.

    Attributes:
        kind: Argument, flag, variable or vllm.
        state: Modelled, named or harmless.
        touches: Memory, pinning, devices, .. or nothing.
        what: A few words.
        source: Where that was read.
    """

    name: str
    kind: str
    state: str
    touches: str
    what: str
    source: str


@cache
def name_rows() -> tuple[NameRow, ...]:
    """Return the rows of ``data/launch_names.txt``, in the file's order."""
    rows: list[NameRow] = []
    head: tuple[str, ...] = ()
    with open(data_file("launch_names.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(" "):
                rows += (NameRow(name, *head) for name in line.split())
            elif not line.startswith("#"):
                fields, _, rest = line.strip().partition(": ")
                what, _, source = rest.removesuffix("]").rpartition(" [")
                head = (*fields.split(), what, source)
    return tuple(rows)


@cache
def _by_name() -> dict[tuple[str, str], NameRow]:
    return {(row.kind, row.name): row for row in name_rows()}


@cache
def row_of(name_kind: str, name: str) -> NameRow | None:
    """Return the row of a name of this kind; None for one that is newer than the table."""
    patterns = (row for row in name_rows() if "*" in row.name and row.kind == name_kind)
    exact_row = _by_name().get((name_kind, name))
    return exact_row or next((row for row in patterns if fnmatchcase(name, row.name)), None)


def without_row(name_kind: str, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that the table does not have, each once."""
    return sorted({name for name in names if row_of(name_kind, name) is None})


# Notices of the readers that tell of settings or programs that were not read.
_NOTICES = frozenset(
    "config-not-read env-file-not-read env-from-not-read extends-not-read "
    "image-command image-missing include-not-read loop-not-counted "
    "resource-not-read script-not-read source-not-read unit-limit-not-read".split()
)
# Variables that a program which is read here takes.
_READ = regex(r"(MC|MOONCAKE|SGLANG|SGL|LMCACHE|VLLM|CUDA|NCCL)_")

# Variables that may say where metadata are kept.
_OF_METADATA = regex(r".*META")


class _Cache(NamedTuple):
    """A KV cache that an engine may load.

    Attributes:
        connectors: How the names of its vLLM connectors begin.
        backends: Its names as a storage backend of SGLang.
    """

    name: str
    variables: re.Pattern[str]
    connectors: str = ""
    backends: tuple[str, ...] = ()

    def loader(self, process: LaunchProcess) -> str:
        """Return the option that makes ``process`` load this cache; "" if not known."""
        if process.server is None:
            return f"a kv_connector {self.connectors}.." if self.connectors else ""
        if self.name == "LMCache":
            return "--enable-lmcache"
        return f"--hicache-storage-backend {self.backends[0]}" if self.backends else ""


# Caches with memory of their own, which their variables alone may show: what loads one may be a
# plugin of the engine or a patch of its image. Sources: github.com/taco-project/FlexKV (flexkv
# common/config.py, docs/trtllm_adaption), github.com/vllm-project/aibrix (aibrix_kvcache/envs.py).
_CACHES = (
    _Cache("FlexKV", regex(r"FLEXKV_\w+|(?:ENABLE|TENSORRT_LLM_USE)_FLEXKV"), "FlexKV"),
    _Cache("LMCache", regex(r"LMCACHE_\w+"), "LMCache"),
    _Cache("Dynamo's KVBM", regex(r"DYN_KVBM_\w+"), "DynamoConnector"),
    _Cache(
        "AIBrix's KV cache", regex(r"AIBRIX_(?:KV_CACHE_OL|LLM_KV_CACHE)\w*"), "AIBrix", ("aibrix",)
    ),
    _Cache("Vineyard's cache", regex(r"VINEYARD_CACHE_\w+|VLLM_USE_VINEYARD_CACHE"), "Vineyard"),
    _Cache("MemCache", regex(r"MMC_\w+"), "AscendStore", ("npu_memcache",)),
)
# Who has more finds them beside these.
MOST_NAMED = 6
# What of their variables says nothing of memory.
_OF_NO_MEMORY = regex(r"\w+_(?:LOG_LEVEL|LOG_FORMAT|TRACK_USAGE|USE_EXPERIMENTAL)")
_SGLANG, _VLLM = ProcessKind.SGLANG, ProcessKind.VLLM
_ENGINES = (_SGLANG, _VLLM, ProcessKind.DYNAMO_SGLANG, ProcessKind.DYNAMO_VLLM)
# Programs that load Mooncake's library, or are told by variables what to hold.
_READERS = (*_ENGINES, ProcessKind.STORE_SERVICE, ProcessKind.CLIENT)
# Variables that a launcher gives to each process that it starts.
_OF_EACH = frozenset(
    "SLURM_PROCID SLURM_NODEID SLURM_LOCALID OMPI_COMM_WORLD_RANK PMI_RANK".split()
)

# What stands in front and starts one process or many, as nothing here shows.
_SEVERAL = frozenset("mpiexec mpirun prun srun torchrun".split())

# Flags of engines that neither memory nor ports nor devices follow from.
_DECIDE_NOTHING = frozenset(
    "admin-api-key api-key chat-template collect-tokens-histogram completion-template "
    "file-storage-path log-level log-level-http reasoning-parser served-model-name "
    "ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password tool-call-parser "
    "uvicorn-log-level weight-version".split()
)


class NotRead(NamedTuple):
    """A program, file or condition (``what``) that was not read.

    Attributes:
        why: The reason, or what depends on it.
        cause: The reason in the words of a size that depends on it.
        sets: The variables that the advice says to set.
    """

    what: str
    why: str
    origin: Origin
    advice: str = ""
    cause: str = ""
    sets: tuple[OpenVariable, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.what} ({self.origin}): {self.why}"


@keep_last
def unread(reading: Reading, processes: Sequence[LaunchProcess]) -> tuple[NotRead, ...]:
    """Return everything of a launch that was not read and may matter, each once.

    Programs come first, then unknown counts, notes, files, caches, settings whose memory is not
    counted, and conditions.
    """
    notices = (NotRead(n.id, n.text, n.origin) for n in reading.notes if n.id in _NOTICES)
    lost = ((p, p.unread) for p in processes if p.unread is not None)
    files = (NotRead(p.kind.value, w.reason, p.command.origin, w.advice, w.cause) for p, w in lost)
    begin = (*_programs(reading, processes), *_counts(processes), *notices, *files)
    end = (*_caches(processes), *_touched_uncounted(processes), *_doubts(processes))
    return tuple(dict.fromkeys((*begin, *end)))


def undecided(processes: Sequence[LaunchProcess], model_stated: bool) -> Iterator[NotRead]:
    """Yield the names that memory depends on and whose value the launch does not tell: the model,
    and a store's devices and segment size.

    Args:
        model_stated: The model's shape is given, so that the model is left out.
    """
    if not model_stated:
        yield from _placeholders(processes, ("--model", "--model-path"))
    for process in processes:
        model = process.consumer.model if process.consumer is not None else None
        if process.server is not None:
            model = process.server.arguments.value("model_path")
        if isinstance(model, Unknown) and not model_stated:
            why = f"{process.kind.value}: {model.reason}"
            yield NotRead("model", why, process.command.origin, cause=model.cause)
        for word in process.arguments if process.store is not None else ():
            flag = word.flag.lstrip("-")
            if word.unresolved and flag in ("device_names", "global_segment_size"):
                why = f"nothing here says what it is, and it decides {flag}"
                yield NotRead(open_name(word, word.unresolved[0]), why, word.origin)


def _known_processes(processes: Sequence[LaunchProcess]) -> list[LaunchProcess]:
    others = (ProcessKind.OTHER, ProcessKind.BENCHMARK)
    return [process for process in processes if process.kind not in others]


def not_set(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield the variables that arguments use and nothing sets, if they decide something that is
    checked.

    Variables that a launcher or Kubernetes sets for each process are left out. Then yield the
    placeholders of a guide that were not replaced.
    """
    open_names: dict[tuple[str, Inside | None], tuple[list[str], Word]] = {}
    for process in _known_processes(processes):
        before, container = "", process.command.container
        in_pod = container is not None and container.engine == "kubernetes"
        for word in process.arguments:
            flag = word.flag or before
            if in_pod and operator_variables(word):
                continue  # its operator gives it to each pod
            for name in word.unresolved:
                variable = process.command.environment.get(name)
                # The cluster gives it to each pod.
                of_cluster = in_pod and variable is not None and variable.unresolved == (name,)
                decides = flag.lstrip("-") or process.kind.value
                nothing = decides.replace("_", "-") in _DECIDE_NOTHING
                if name in _OF_EACH or of_cluster or nothing:
                    continue
                key = open_name(word, name), word.inside
                open_names.setdefault(key, ([], word))[0].append(decides)
            before = word.text if word.text.startswith("-") else ""
    several = [word for (name, _), (_, word) in open_names.items() if not is_own_argument(name)]
    names = tuple(name for name, _ in open_names)
    whole = why_unresolved(Word(" ".join(word.text for word in several), Origin("launch"), names))
    sets = tuple(dict.fromkeys(each for word in several for each in why_unresolved(word).sets))
    for (name, _), (flags, word) in open_names.items():
        shown = ", ".join([*dict.fromkeys(flags)][:6])
        why = f"nothing here says what it is, and it decides {shown}"
        reason = why_unresolved(word)
        of_all = Unknown("", advice=give_variables(sets), sets=sets) if sets else whole
        advice = reason if is_own_argument(name) else of_all
        yield NotRead(name, why, word.origin, advice.advice, reason.cause, advice.sets)
    yield from _placeholders(processes)


def _placeholders(
    processes: Sequence[LaunchProcess], flags: Container[str] | None = None
) -> Iterator[NotRead]:
    """Yield the placeholders of a guide, such as <HOST>, that are left among the values of
    ``flags``.

    Args:
        flags: None for all flags and for variables.
    """
    for process in _known_processes(processes):
        settings = [("", word) for word in process.arguments]
        settings += [*matching(process.command.environment, _READ)]
        before = ""
        for name, word in settings:
            flag, equals, value = word.text.partition("=")
            is_flag = word.text.startswith("-") and not name
            value = value if is_flag else word.text
            name = name or (flag if is_flag else before)
            before = flag if is_flag and not equals else ""
            left_out = "" if word.unresolved else placeholder_in(value)
            if flags is not None and name not in flags:
                continue
            if left_out and name.lstrip("-").replace("_", "-") not in _DECIDE_NOTHING:
                where = name or process.kind.value
                why = f"a placeholder, in {where}: nothing here says what it is"
                yield NotRead(left_out, why, word.origin, f"write a value in place of {left_out}")


def count_of(process: LaunchProcess) -> int | Unknown:
    """Return how many times the launch starts a process; for a router or trainer, how many engines
    it starts.

    Unknown behind a launcher or loop that is not read, and for a trainer whose engines cannot be
    counted.
    """
    for wrapper in process.command.wrappers:
        name = wrapper[0].rpartition("/")[2] if wrapper else ""
        if name in _SEVERAL and tasks(wrapper, process.command.environment) is None:
            return Unknown(f"{name} stands in front: how many it starts is not read")
    for note in process.command.doubts:
        if note.id == "loop-not-counted":
            return Unknown(note.text)
    engines = engines_of_trainer(process)
    if isinstance(engines, Unknown):
        return engines
    return process.command.copies * (routed_servers(process) or engines or 1)


def routed_servers(process: LaunchProcess) -> int | None:
    """Return the number of servers, with a scheduler each, that a router's launch_server starts.

    Source: sglang_router 0.3.2 launch_server.py, one process for each of --dp-size, which each
    server then takes as 1.

    Returns:
        None for any other process, and if the number is not known.
    """
    if process.server is None or not with_router(process.command):
        return None
    replicas = process.server.value("dp_size")
    return replicas if isinstance(replicas, int) else None


def engines_of_trainer(process: LaunchProcess) -> int | Unknown | None:
    """Return how many engines a trainer such as slime starts; None for other processes.

    Source: github.com/THUDM/slime ``slime/utils/arguments.py``: --rollout-num-gpus divided by
    --rollout-num-gpus-per-engine. With --colocate and no --rollout-num-gpus, the actor's GPUs are
    divided.

    Returns:
        Unknown if a flag that is needed is missing or not known.
    """
    argv = process.command.words
    if process.server is None or not any(word.text.startswith("--sglang-") for word in argv):
        return None
    values = flag_values(argv)
    colocated = any(word.text == "--colocate" for word in argv)
    asked = "--rollout-num-gpus"
    if asked not in values and not colocated:
        return Unknown(f"how many engines the trainer starts is not known: it has no {asked}")
    defaults = {"--actor-num-nodes": "1", "--actor-num-gpus-per-node": "8"}
    defaults = {asked: ""} if asked in values else defaults
    numbers = []
    for flag, default in {**defaults, "--rollout-num-gpus-per-engine": "1"}.items():
        word = values.get(flag, Word(default, process.command.origin))
        if word.unresolved or not word.text.isdecimal() or int(word.text) == 0:
            return Unknown(f"how many engines the trainer starts follows from {flag} {word.text}")
        numbers.append(int(word.text))
    *of_all, each = numbers
    return max(math.prod(of_all) // each, 1)


def _counts(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield each process that starts several times although the sizes are those of one, and each
    process whose number of starts is not known.
    """
    for process in processes:
        engines = engines_of_trainer(process)
        if isinstance(engines, int) and engines > 1:
            why = f"the trainer starts {engines} of it, and the numbers here are those of one"
            yield NotRead(process.kind.value, why, process.command.origin)
        place, copies = process.command.place, process.command.copies
        holds = process.server is not None or process.stores or process.consumer is not None
        if holds and copies > 1 and place is not None and place.kind == "service":
            why = f"{copies} of it run on one host, and the numbers here are those of one"
            yield NotRead(process.kind.value, why, process.command.origin)
        loop = any(note.id == "loop-not-counted" for note in process.command.doubts)
        count = count_of(process)
        if isinstance(count, Unknown) and not loop and _known_processes([process]):
            why, origin = count.reason, process.command.origin
            yield NotRead(process.kind.value, why, origin, cause=count.cause)


def _programs(reading: Reading, processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield the programs, and the parts of known programs, whose memory nothing here counts.

    A program that a note names already is left out.
    """
    lost_source = any(note.id == "source-not-read" for note in reading.notes)
    servers = Servers(processes)
    noted = {(note.id, note.origin) for note in reading.notes}
    for process in processes:
        consumer = process.consumer
        if consumer is not None:
            texts = [word.text for word in process.command.words]
            doubted = (
                f"{refusal.uncounted}, where its release takes what {refusal.release} refuses"
                for refusal in consumer.refused_by
                if refusal.uncounted and consumer.doubt_of(refusal) != ""
            )
            for what in (*consumer.uncounted, *doubted):
                yield NotRead(_first(texts, 3), f"{what}: not counted", process.command.origin)
            continue
        why = "the memory that it takes" if process.kind is ProcessKind.ENGINE else None
        if process.kind is ProcessKind.REDIS and not _of_metadata_only(processes):
            why = "what it holds"
        if why is not None:
            what = _first([word.text for word in process.command.words], 4)
            yield NotRead(what, f"{why} is not counted", process.command.origin)
        elif _is_noted(process.command, noted):
            continue  # named once
        elif why := unknown_beside(process, servers, lost_source):
            what = _first([word.text for word in process.command.words], 6)
            yield NotRead(what, why, process.command.origin)


def _is_noted(command: Command, noted: Container[tuple[str, Origin]]) -> bool:
    """Return whether a note, (id, place) of ``noted``, tells that a program is not read."""
    program = command.words[0].text.rpartition("/")[2] if command.words else ""
    if command.container is not None and ("image-command", command.origin) in noted:
        return True
    script = program.startswith("python") or program.endswith((".py", ".sh"))
    return script and ("script-not-read", command.origin) in noted


def _first(texts: Sequence[str], number: int) -> str:
    """Return the first ``number`` words of a command, without secrets."""
    return brief(" ".join(clean_words(texts)[:number]))


def _caches(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield one entry for each cache whose variables an engine has although no process loads that
    cache: it may hold memory that is not counted.
    """
    for kv_cache in _CACHES:
        if any(_loads(process, kv_cache) for process in processes):
            continue  # it is counted, or named there
        variables = {
            name: (process, word)
            for process in processes
            if process.kind in _ENGINES
            for name, word in matching(process.command.environment, kv_cache.variables)
            if kv_cache.variables.fullmatch(name)
            and not _OF_NO_MEMORY.fullmatch(name)
            and not may_be_absent(word, name)
        }
        for name, (process, word) in [*variables.items()][:1]:
            more = f" and {len(variables) - 1} more" if len(variables) > 1 else ""
            why = f"nothing here shows whether {kv_cache.name} is loaded, and what it takes"
            names = ", ".join([*variables][:MOST_NAMED])
            names += " and the rest" * (len(variables) > MOST_NAMED)
            place = "" if word.origin.source == "command line" else f" from {word.origin}"
            loader = kv_cache.loader(process)
            loader = f" ({loader} would)" if loader else ""
            advice = f"remove {names}{place}: nothing there loads {kv_cache.name}{loader}"
            yield NotRead(f"{name}{more}", why, word.origin, advice)


# Of what SGLang reads as off.
_OFF = ("", "0", "false", "no", "n", "f", "off")


def _touched_uncounted(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield one NotRead for all settings that touch memory which no number has: those whose row in
    ``launch_names.txt`` is "named".

    Nothing if there are none.
    """
    rows: dict[str, tuple[NameRow, Origin]] = {}
    for process in processes:
        for name_kind, name, shown, origin in _switched_on(process):
            row = row_of(name_kind, name)
            if row is not None and row.state == "named":
                rows.setdefault(shown, (row, origin))
    if rows:
        (_, origin), *_ = rows.values()
        why = "; ".join(dict.fromkeys(row.what for row, _ in rows.values()))
        yield NotRead(", ".join(rows), f"{why}: not counted", origin)


def _switched_on(process: LaunchProcess) -> Iterator[tuple[str, str, str, Origin]]:
    """Yield (kind, name, spelling, origin) of each argument, flag and variable of a process that
    switches something on.

    kind: as in ``NameRow``. Every vLLM flag and MC_ variable is on.
    """
    server, origin = process.server, process.command.origin
    for name, setting in server.arguments.written.items() if server is not None else ():
        value = setting.value
        number = isinstance(value, (int, float))
        on = not isinstance(value, Unknown) and value
        if on and (not number or value > 0):
            yield "argument", name, f"--{name.replace('_', '-')}", origin
    if process.kind in GFLAGS_PROGRAMS:
        for read in read_flags(process.arguments, flags_of(GFLAGS_PROGRAMS[process.kind])):
            if read.value not in (None, *_OFF):
                yield "flag", read.name, f"--{read.name}", read.word.origin
    if process.kind in (ProcessKind.VLLM, ProcessKind.DYNAMO_VLLM):
        for word in process.arguments:
            flag = word.flag.replace("_", "-")
            yield "vllm", flag.lstrip("-").replace("-", "_"), flag, word.origin
    if process.kind not in _READERS:
        return
    for name, word in matching(process.command.environment, _READ):
        # Mooncake takes some variables as on whatever they say.
        off = not name.startswith("MC_") and word.text.lower() in _OFF
        if not off and not may_be_absent(word, name):
            yield "variable", name, name, word.origin


def _loads(process: LaunchProcess, cache: _Cache) -> bool:
    """Tell whether a process loads a cache, as its arguments show."""
    if cache.name == "LMCache" and process.kind is ProcessKind.LMCACHE:
        return True
    server, consumer = process.server, process.consumer
    if server is not None:
        loads = cache.name == "LMCache" and server.value("enable_lmcache") is True
        return loads or server.backend in cache.backends
    connectors = consumer.connectors if consumer is not None else ()
    return any(name.startswith(cache.connectors) for name in connectors)


@keep_last
def _of_metadata_only(processes: Sequence[LaunchProcess]) -> bool:
    """Return whether Redis holds Mooncake's metadata, which are few: some word names a redis://."""
    texts = (word.text for process in processes for word in process.command.words)
    environments = (matching(process.command.environment, _OF_METADATA) for process in processes)
    variables = (word.text for each in environments for _, word in each)
    return any("redis://" in text for text in (*texts, *variables))


def _doubts(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield the conditions that are not known and on which a program or its settings depend."""
    for process in _known_processes(processes):
        command = process.command
        settings = [word for _, word in matching(command.environment, _READ)]
        doubts = [*command.doubts, *(note for word in command.words for note in word.doubts)]
        for note in (*doubts, *(note for word in settings for note in word.doubts)):
            yield NotRead("condition", note.text, note.origin)


_KNOWN = {"sglang": sglang_release, "mooncake": mooncake_release}
_SERVERS = (ProcessKind.SGLANG, ProcessKind.DYNAMO_SGLANG)


class WrittenVersion(NamedTuple):
    """A release that a launch names.

    Attributes:
        product: Sglang or mooncake.
        by: What names it.
    """

    product: str
    version: str
    by: str
    at: Origin

    @property
    def origin(self) -> str:
        return f"{self.by} at {self.at}"


def written_versions(reading: Reading) -> dict[str, WrittenVersion]:
    """Return the release of each product, if the launch names exactly one that is known here."""
    by_product: dict[str, dict[str, WrittenVersion]] = {}
    for each in _stated_versions(reading):
        try:
            _KNOWN[each.product](each.version)
        except ValueError:
            continue
        by_product.setdefault(each.product, {}).setdefault(each.version, each)
    pairs = ((product, [*versions.values()]) for product, versions in by_product.items())
    return {product: named[0] for product, named in pairs if len(named) == 1}


def written_too_old(options: LaunchOptions, reading: Reading) -> tuple[NotRead, ...]:
    """Return the launch's SGLang releases that are older than any known, if no option gives one."""
    reasons: dict[str, NotRead] = {}
    for each in _stated_versions(reading) if options.sglang_version is None else ():
        if each.product == "sglang" and (why := older_than_known(each.version)):
            reasons.setdefault(each.version, NotRead(each.by, why, each.at))
    return tuple(reasons.values())


def with_written_versions(options: LaunchOptions, reading: Reading) -> LaunchOptions:
    """Return the options with the releases that the launch names.

    Releases of options stay.
    """
    named = {f"{product}_version": named for product, named in written_versions(reading).items()}
    named = {option: each for option, each in named.items() if getattr(options, option) is None}
    origins = {**options.origins, **{option: each.origin for option, each in named.items()}}
    versions: dict[str, Any] = {option: each.version for option, each in named.items()}
    return options._replace(origins=origins, **versions)


def _stated_versions(reading: Reading) -> Iterator[WrittenVersion]:
    """Yield the SGLang and Mooncake releases that images, labels and pip installs of a launch name.

    Those of images and labels are yielded only if every command (for SGLang: every server, if the
    launch has servers) has one that names the product.
    """
    stated = [stated_releases(command.container) for command in reading.commands]
    serves = [classify(command)[0] in _SERVERS for command in reading.commands]
    # The SGLang of a router's image is not the one that a server's has.
    of_servers = [each for each, is_server in zip(stated, serves, strict=True) if is_server]
    # The Mooncake of a master's image is not the one that an SGLang's image has.
    said_by = {"sglang": of_servers or stated, "mooncake": stated}
    products = [name for name in _KNOWN if all(name in each for each in said_by[name])]
    for command, releases, is_server in zip(reading.commands, stated, serves, strict=True):
        container = command.container
        for product in products:
            named = releases.get(product)
            counts = is_server or product != "sglang" or not of_servers
            if container is not None and named is not None and counts:
                by = f"image {container.image}" if named.by == IMAGE else named.by
                yield WrittenVersion(product, named.release, by, command.origin)
        for product, release, word in pip_pins(command):
            if product in _KNOWN:
                yield WrittenVersion(product, release, word.text, word.origin)
