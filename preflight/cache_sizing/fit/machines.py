"""From a workload to the machine: the smallest memory of a host that keeps a part of the workload.

Each kind of GPU that is known, and each number of hosts that share a store, is tried as the host
that ``--memory`` and ``--gpus`` describe, with a first launch of the model; what is kept is
replayed as it is for the best division. What a launch takes of a host is sized once for each kind
of GPU: beside L2 and the segment it does not depend on these.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from checks.framework.units import GIB, GIGABYTE, format_bytes
from checks.framework.unknown import Unknown, UnknownFactError
from checks.host_snapshot.described import Description, Devices, gpu_kinds, usable_bytes
from checks.memory.judge import regular_bytes
from preflight.base.shell import quote
from preflight.base.text import fitted_table, wrapped
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload, WorkloadOptions, workload_of
from preflight.cache_sizing.fit.divisions import Chooser
from preflight.cache_sizing.fit.fit_launch import first_launch
from preflight.cache_sizing.fit.judged_values import CompareBy
from preflight.cache_sizing.fit.launch_values import SizeValues
from preflight.command_inputs.host_source import open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.engines.sglang.admission_gate import RESERVE_BYTES
from preflight.launch_problems.rules.launch_rules import first_failure, problems_of

GPUS_A_HOST, HOSTS = 8, (1, 2, 4)
# What a launch is sized with, large enough that whole pages and bins are no matter.
_SIZED = SizeValues(16 * GIGABYTE, 64 * GIB)
_LEAST_SEGMENT = 64 << 20  # of each rank: less on regular pages may not be mapped
_ENOUGH = "4tb"  # that anything starts; the memory itself is looked for
_MEMORY_STEP, _MOST_MEMORY = 8 * GIB, 64 << 40
KEEP_BYTES = 10 * GIB  # stay available, as with fit's own default of --keep
BUFFERED = -1.0  # in place of a part: L2 is staging for the store alone
# What L2 gets of the memory that is left beside the least L2: the divisions that are tried.
_PARTS = (0.0, 0.06, 0.12, 0.18, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
# How near the memory is looked for, and clients that are replayed meanwhile; all are for a row.
_NEAR, _FEW_CLIENTS = 1.03, 32
Json = dict[str, Any]


class HostRow(NamedTuple):
    """One row of the table: how much memory hosts with one size of GPU need.

    Attributes:
        gpu_names: GPUs that have this size.
        gpus: Of one host.
        memory_bytes: Of one host; None if no memory is enough.
        kept: The part (0 to 1) kept with that memory, with half and with twice as much; None if the
            launch does not fit into half, or no memory is enough.
        values: L2 and segment on one host.
        buffered_bytes: The memory that is enough with L2 as staging alone; None if that is not
            less, or if the memory is fixed.
    """

    gpu_names: tuple[str, ...]
    gpus: int
    hosts: int
    memory_bytes: int | None
    kept: tuple[float, float | None, float | None]
    values: SizeValues
    buffered_bytes: int | None = None


class Machines(NamedTuple):
    """The rows for all kinds of GPU.

    Attributes:
        target: The part (0 to 1) to keep.
        left_out: By the reason, the names of GPUs without a row.
        hosts: The only number that was tried; None if several were.
    """

    model: str
    target: float
    workload: MultiTurnWorkload
    rows: tuple[HostRow, ...]
    left_out: dict[str, list[str]]
    description: Description
    hosts: int | None

    def enough(self, row: HostRow) -> bool:
        """Tell whether the row's memory keeps the target."""
        return row.memory_bytes is not None and row.kept[0] >= self.target


class _HostKind:
    """One kind of host, and what a launch takes and keeps on it; several may share a store."""

    def __init__(
        self,
        argv: LaunchWords,
        model: str,
        description: Description,
        basis: CompareBy,
        limit: float,
    ) -> None:
        """Size a first launch once, to learn what it takes beside L2 and the segment.

        Args:
            argv: Options of the launch.
            limit: Seconds for reading.

        Raises:
            UnknownFactError: If the launch cannot be sized or does not start, or if the GPUs are
                not known to hold one conversation.
        """
        host = open_host(description.root, limit)
        first = first_launch(model, host)
        l2_bytes, segment_bytes = _SIZED.l2_bytes or 0, _SIZED.segment_bytes or 0
        script = first.script("launch.sh", l2_bytes // GIGABYTE, segment_bytes)
        launch = argv._replace(words=("bash", "-c", script), is_command=True)
        sized = size_within(launch, host, limit)
        if isinstance(sized, Unknown) or sized is None:
            raise UnknownFactError(sized or Unknown("the launch was not read"))
        inputs = sized.sizing.inputs
        if refused := first_failure(problems_of(inputs)):
            raise UnknownFactError(Unknown(refused.text))
        taken = regular_bytes(sized.needs)
        if isinstance(taken, Unknown):
            raise UnknownFactError(taken)
        self._ranks, self._nodes = first.ranks, description.numa_nodes
        # What pools of L2 take of the host, by byte that is set; and all else of a launch.
        pools = [host_pool for memory in inputs.memory.values() for host_pool in memory.pools]
        self._taken = sum(host_pool.bytes for host_pool in pools) / l2_bytes
        self._beside = int(taken - self._taken * self._ranks * l2_bytes - segment_bytes)
        # SGLang's gate, when the last rank asks: all others have their pools.
        shares = self._ranks if inputs.sglang.ranks_share_memory else 1
        self._gate = shares + self._taken * (self._ranks - 1)
        self._chooser = Chooser(basis, SizeValues(), sized.options, host.root, lambda _: None)
        self._least = self._chooser.begin(_SIZED, inputs, capped=False)
        tiers = self._chooser.capacity(_SIZED).servers[0].tiers
        workload, l1 = self._chooser.workload, tiers.gpu.group_tokens
        context = 0 if workload is None else workload.context_tokens(workload.rounds)
        if context and not isinstance(l1, Unknown) and (l1 is None or l1.least < context):
            why = "beside the model the GPUs hold less than one conversation"
            if l1 is not None and l1.most >= context:
                why = f"what the GPUs hold is known to {l1.text()} tokens alone"
            raise UnknownFactError(Unknown(why))
        self._staging = self._chooser.staged_bytes(_SIZED)

    def values(self, memory_bytes: int, part: float) -> SizeValues | None:
        """Return L2 and segment for a host with ``memory_bytes``; None if that is too little.

        Args:
            part: How much L2 gets (0 to 1) of the memory that the least L2 leaves free, or
                ``BUFFERED``.
        """
        available = usable_bytes(memory_bytes, self._nodes)
        room = available - KEEP_BYTES - self._beside
        most = room - _LEAST_SEGMENT * self._ranks
        high = int(min(most / self._taken / self._ranks, (available - RESERVE_BYTES) / self._gate))
        if high < self._least:
            return None
        if part == BUFFERED:
            high, part = min(high, self._staging), 1.0
        l2 = (self._least + int((high - self._least) * part)) // GIGABYTE * GIGABYTE
        return SizeValues(l2, int(room - l2 * self._taken * self._ranks))

    def kept(self, values: SizeValues | None, clients: int | None = _FEW_CLIENTS) -> float:
        """Return the part (0 to 1) of the workload that is kept with ``values``; -1 for None.

        Args:
            clients: To replay at most; None for all.
        """
        return -1.0 if values is None else self._chooser.kept(values, clients)

    def buffered(self, target: float, most: int) -> int | None:
        """Return the least memory, in bytes, that keeps ``target`` with L2 as staging alone.

        Returns:
            None if a server has no buffer_only mode here, or if ``most`` bytes or more are needed.
        """
        if not self._staging:
            return None
        low, high = _MEMORY_STEP, most

        def kept(memory_bytes: int, clients: int | None = _FEW_CLIENTS) -> float:
            values = self.values(memory_bytes, BUFFERED)
            return self._chooser.kept(values, clients, True) if values else -1.0

        while high > low * _NEAR:
            middle = int((low * high) ** 0.5)
            low, high = (low, middle) if kept(middle) >= target else (middle, high)
        while high < most and kept(high, None) < target:
            high = int(high * _NEAR)
        return -(-high // _MEMORY_STEP) * _MEMORY_STEP if high < most else None

    def best(
        self, memory_bytes: int, parts: Iterable[float], clients: int | None = _FEW_CLIENTS
    ) -> tuple[float, float]:
        """Return (the most that is kept, the one of ``parts`` for L2 that keeps the most).

        The first value is -1 if the launch does not fit.
        """
        return max((self.kept(self.values(memory_bytes, part), clients), part) for part in parts)

    def smallest(self, target: float, guess: int, part: float | None) -> tuple[int, float] | None:
        """Return the least memory, in bytes, that keeps ``target``, and L2's part (0 to 1); None if
        no memory does.

        Args:
            guess, part: Bytes and part to begin with, such as the answer for a host with less GPU
                memory, which needs as much or more. None for the part: several are tried.
        """
        low, high = _MEMORY_STEP, guess
        if part is None or self.best(high, (part,))[0] < target:
            kept, part = self.best(high, _PARTS[::2])
            while kept < target:
                low, high = high, high * 2
                if high > _MOST_MEMORY:
                    return None
                kept, part = self.best(high, _PARTS[::2])
        step = _NEAR
        while high > low * _NEAR:
            # Down from a guess that is near, in steps that grow; then by halves.
            middle = max(int(high / step), int((low * high) ** 0.5))
            for each in (part, *_neighbours(part)):
                if self.kept(self.values(middle, each)) >= target:
                    high, part, step = middle, each, step * step
                    break
            else:
                low = middle
        return high, part


def _neighbours(part: float) -> tuple[float, ...]:
    """Return the parts next to ``part`` in the list of those that are tried, below and above."""
    at = _PARTS.index(part)
    return _PARTS[max(0, at - 1) : at] + _PARTS[at + 1 : at + 2]


def machines(
    model: str,
    target: float,
    workload_options: WorkloadOptions,
    description: Description,
    hosts: int | None,
    launch_words: LaunchWords,
    limit_seconds: float,
    tell: Callable[[str], None],
) -> Machines | Unknown:
    """Return a row for each kind of GPU and number of hosts; Unknown if none has a row.

    Args:
        target: The part (0 to 1) of the workload to keep.
        description: Of the hosts; if it gives a memory, all rows have that memory, else the least
            is looked for.
        hosts: How many share a store; None to try several numbers.
        launch_words: Options of the launch.
        limit_seconds: For reading.
        tell: Called with a line of progress.

    Raises:
        UsageError: Without a workload.
    """
    workload = workload_of(workload_options, ())
    if not isinstance(workload, MultiTurnWorkload):
        raise UsageError("--keep 80% is of a workload: give --clients, --rounds, --request-length")
    rows: list[HostRow] = []
    left_out: dict[str, list[str]] = {}
    fixed = None if description.memory is None else description.memory_bytes
    guesses: dict[int, tuple[int, float]] = {}
    for names, devices in gpu_kinds(description.gpus, GPUS_A_HOST):
        host_words = description._replace(memory=_ENOUGH, gpus=f"{devices.number}x{devices.name}")
        for count in (hosts,) if hosts else HOSTS:
            tell(f"fit: hosts with {devices.name}, {len(rows)} rows so far")
            question = CompareBy(workload_options, hosts=count)
            try:
                host = _HostKind(launch_words, model, host_words, question, limit_seconds)
            except UnknownFactError as error:
                why = error.fact.reason
                why = "the weights do not fit" if "weights take" in why else why
                left_out.setdefault(why, []).extend(names)
                break
            smallest = _smallest(host, fixed, target, guesses.get(count))
            if smallest is not None:
                guesses[count] = smallest[:2]
            rows.append(_host_row(host, names, devices, count, smallest, target, fixed is not None))
    if not rows:
        return Unknown(next(iter(left_out), "no GPU is known"))
    return Machines(model, target, workload, tuple(rows), left_out, description, hosts)


def _smallest(
    host: _HostKind, fixed: int | None, target: float, guess: tuple[int, float] | None
) -> tuple[int, float, float] | None:
    """Return (memory in bytes, L2's part, part kept): the least memory that keeps ``target``, or
    the best for ``fixed`` bytes.

    Args:
        guess: Memory and L2's part of another host.

    Returns:
        None if no memory is enough, or the launch does not start with ``fixed``.
    """
    if fixed is not None:
        part = host.best(fixed, _PARTS)[1]
        if host.values(fixed, part) is None:
            return None
        return fixed, part, host.kept(host.values(fixed, part), None)
    smallest = host.smallest(target, *(guess or (512 * GIB, None)))
    if smallest is None:
        return None
    memory, part = smallest
    # Once more with all clients: few alone are up to two hundredths off.
    memory = -(-memory // _MEMORY_STEP) * _MEMORY_STEP
    while (kept := host.kept(host.values(memory, part), None)) < target:
        memory += max(_MEMORY_STEP, int(memory * (_NEAR - 1)) // _MEMORY_STEP * _MEMORY_STEP)
    return memory, part, kept


def _host_row(
    host: _HostKind,
    names: tuple[str, ...],
    devices: Devices,
    count: int,
    smallest: tuple[int, float, float] | None,
    target: float,
    is_fixed: bool,
) -> HostRow:
    """Return the row of one kind of GPU and ``count`` hosts.

    Args:
        names: GPUs of the same size.
        smallest: The answer of ``_smallest``.
        is_fixed: The user gave the memory.
    """
    if smallest is None:
        return HostRow(names, devices.number, count, None, (0.0, None, None), SizeValues())
    memory, part, kept = smallest
    near = part, *_neighbours(part)
    half = host.best(memory // 2, near, None)[0]
    twice = 1.0 if kept > 0.995 else host.best(memory * 2, near, None)[0]
    each = kept, None if half < 0 else min(half, kept), max(twice, kept)
    values = host.values(memory, part) or SizeValues()
    buffered = None if is_fixed else host.buffered(target, memory)
    return HostRow(names, devices.number, count, memory, each, values, buffered)


def machines_text(answer: Machines, width: int) -> str:
    """Return the table of hosts as text with its notes, without a final newline."""
    clients, rounds, length = answer.workload[:3]
    asked = f"{clients:,} clients ask again in {rounds} rounds of {length:,} tokens"
    part, wanted = f"{answer.target:.0%}", "The smallest memory of a host that keeps"
    wanted = f"{wanted} {part} of what {asked}"
    if answer.description.memory is not None:
        memory = format_bytes(answer.description.memory_bytes)
        wanted = f"What hosts of {memory} keep of what {asked}, where {part} is wanted"
    lines = [*wrapped(f"{wanted}: {answer.model}", width, 0), ""]
    rows: list[tuple[str, ...]] = []
    for row in answer.rows:
        sizes = (row.memory_bytes, row.buffered_bytes)
        least, buffered = ("-" if size is None else format_bytes(size) for size in sizes)
        kept = ("-" if part is None else f"{part:.0%}" for part in row.kept)
        host = (f"{row.gpus} {'/'.join(row.gpu_names)}", str(row.hosts), least)
        rows.append((*host, *kept, buffered, "" if answer.enough(row) else "too little"))
    heads = ["GPUs of a host", "hosts", "memory", "keeps", "half", "twice", "buffer_only", ""]
    for at, empty in ((7, ""), (6, "-")):
        if all(row[at] == empty for row in rows):
            del heads[at]
            rows = [row[:at] + row[at + 1 :] for row in rows]
    lines += fitted_table(rows, heads, width, right=range(1, 7), firm=range(1, 7)).splitlines()
    for reason, names in answer.left_out.items():
        kinds = ", ".join(dict.fromkeys(names))
        lines += wrapped(f"note: not on {kinds}: {reason}", width, 2)
    for note in _notes(answer):
        lines += wrapped(f"note: {note}", width, 2)
    if command := _next_command(answer):
        lines += ["", "the launch for one of them, and what limits it", f"  {command}"]
    return "\n".join(lines)


def _notes(answer: Machines) -> Iterator[str]:
    """Yield the notes below the table, on its columns and on the hosts."""
    yield (
        "half, twice: what half of that memory keeps, and twice of it; 2% of it is in use by an "
        f"idle host, and {format_bytes(KEEP_BYTES)} stay available"
    )
    if any(row.buffered_bytes for row in answer.rows):
        yield (
            "buffer_only: the memory that is enough with --hicache-host-memory-mode buffer_only, "
            "with which L2 is staging for the store and keeps nothing (fit --buffer-only)"
        )
    if answer.description.gpus is None:
        yield f"{GPUS_A_HOST} GPUs a host, for one server on all of them: --gpus says otherwise"
    if any(row.hosts > 1 for row in answer.rows):
        yield (
            "of several hosts each runs a server, all share the store, and a router that is "
            "cache-aware brings a conversation back to the same one"
        )


def _next_command(answer: Machines) -> str:
    """Return the ``fit`` command for the cheapest row that is enough: the one whose hosts have the
    least memory together.

    Returns:
        "" if no row is enough.
    """
    rows = [row for row in answer.rows if answer.enough(row)]
    if not rows:
        return ""
    row = min(rows, key=lambda row: ((row.memory_bytes or 0) * row.hosts, row.hosts))
    clients, rounds, length = answer.workload[:3]
    command = ["mooncake-preflight", "fit", "--model", quote(answer.model)]
    command += ["--memory", f"{(row.memory_bytes or 0) // GIB}gb"]
    command += ["--gpus", f"{row.gpus}x{row.gpu_names[0]}"]
    command += ["--nodes", str(row.hosts)] if row.hosts > 1 else []
    command += ["--clients", str(clients), "--rounds", str(rounds), "--request-length", str(length)]
    output = answer.workload.output_tokens
    command += ["--output-length", str(output)] if output > 1 else []
    return " ".join([*command, "--write", "launch.sh"])


def machines_object(answer: Machines) -> Json:
    """Return the answer as the JSON object of ``schemas/fit-v1.schema.json``."""
    return {
        "target": answer.target,
        "workload": answer.workload._asdict(),
        "machines": [
            {
                "gpus": list(row.gpu_names),
                "gpus_a_host": row.gpus,
                "hosts": row.hosts,
                "memory_bytes": row.memory_bytes,
                "enough": answer.enough(row),
                **dict(zip(("kept", "half", "twice"), row.kept, strict=True)),
                "l2_bytes": row.values.l2_bytes,
                "segment_bytes": row.values.segment_bytes,
                "buffer_only_memory_bytes": row.buffered_bytes,
            }
            for row in answer.rows
        ],
        "left_out": [
            {"gpus": list(dict.fromkeys(names)), "reason": reason}
            for reason, names in answer.left_out.items()
        ],
        "notes": list(_notes(answer)),
    }
