"""Everything that is answered of a launch on a host, as one flat table of texts; and the difference
of two, as rows, text and JSON.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date
from enum import Enum
from typing import Any, NamedTuple

from checks.framework.finding import Finding, Kind, Status
from checks.framework.fold import fold_alike
from checks.framework.units import KIB, format_bytes, format_page_size
from checks.framework.unknown import Unknown, UnknownFactError, UnreadTopicError, require
from checks.host_snapshot.secrets import REMOVED, is_secret, public
from checks.run_checks.facts import Facts
from checks.run_checks.runner import every_check
from checks.system.facts import with_kernel
from preflight.base.envelope import subjects
from preflight.base.usage_error import UsageError
from preflight.base.within import within
from preflight.command_inputs.host_source import Host, Sized
from preflight.command_inputs.launch_words import LaunchWords, Waiver
from preflight.command_inputs.reading.understood import sentence
from preflight.engines.mooncake.allocations import Allocation
from preflight.engines.programs.sglang_argument_tables import argument_table
from preflight.host_tuning.plan import kept_settings, plan
from preflight.launch_problems.advisories.judge import advisory_findings, may_arise, release_of
from preflight.launch_problems.advisories.records import CHECK_PREFIX, advisory, version_key
from preflight.launch_problems.rules.hicache import left_over_as_shown
from preflight.launch_problems.rules.launch_rules import with_problems
from preflight.needs.launch_needs import source_name
from preflight.needs.sizing_text import BACKINGS
from preflight.processes.processes import LaunchProcess
from preflight.verdict.judge_host import JudgedHost, judge_again, judge_host
from preflight.verdict.store_keys import launch_keys


class Section(Enum):
    """What a line of the answer is about, in the order in which they are shown."""

    VERDICT = "The verdict"
    HOST = "The host"
    MEMORY = "Bytes and pages"
    FLAGS = "Flags and defaults"
    KEYS = "Keys of the store: a page is found again where none of these differs"
    ADVISORIES = "Known problems"
    FINDINGS = "What is found"
    SETTINGS = "What to set"


class AnswerKey(NamedTuple):
    """The key of one line of an answer.

    Attributes:
        subject: A process, a check, or another thing that the line is about; name: the property of
            the subject.
    """

    section: Section
    subject: str
    name: str


Answer = Mapping[AnswerKey, str]
_CHECK_VERDICT = AnswerKey(Section.VERDICT, "check", "verdict")
# What --from and --to may name: options of the launch, then facts of the host.
PRODUCTS = ("sglang", "mooncake", "kernel", "rdma-core", "nvidia-driver")
_JUDGED = (Status.FAIL, Status.UNKNOWN, Status.WARN)
# What a flag is to a release that does not have it.
NO_FLAG = "no such flag"


class DefaultValue(str):
    """The value of a flag that nobody gave."""

    __slots__ = ()


class Side(NamedTuple):
    """One of the two launches to compare, with its host; both may share a host.

    Attributes:
        versions: Product -> release to assume, in place of those of the launch and the host.
    """

    launch: LaunchWords
    host: Host
    versions: Mapping[str, str]


def parse_versions(option: str, text: str) -> dict[str, str]:
    """Return product -> release of a text as ``sglang=0.5.9,mooncake=0.3.8``.

    Raises:
        UsageError: For anything else; ``option`` begins the message.
    """
    versions: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        product, equals, version = part.strip().partition("=")
        if product not in PRODUCTS or not equals or product in versions:
            raise UsageError(f"{option} {part}: write {'=..,'.join(PRODUCTS)}=.., each once")
        if isinstance(version_key(product, version), Unknown):
            raise UsageError(f"{option} {part}: {version!r} is no version of {product}")
        versions[product] = version
    return versions


def answer_of(
    side: Side, timeout_seconds: float, waivers: Iterable[Waiver] = ()
) -> tuple[Answer, tuple[str, str]]:
    """Judge one side.

    Return its answer, and a pair: the launch's name, and its processes in a sentence.

    Raises:
        UsageError: If no launch can be read.
    """
    launch = side.launch._replace(
        mooncake_version=side.versions.get("mooncake", side.launch.mooncake_version),
        sglang_version=side.versions.get("sglang", side.launch.sglang_version),
    )
    checks = list(every_check())
    judged_host = judge_host(launch, side.host, timeout_seconds, checks)
    facts = _with_versions(judged_host.facts, side.versions)
    if facts is not judged_host.facts:
        judged_host = judged_host._replace(facts=facts)
        judged_host = judged_host._replace(of_host=judge_again(judged_host, checks))
    sized = _sized(judged_host).sizing
    return full_answer(judged_host, waivers), (source_name(sized), sentence(sized.inputs.processes))


def _sized(judged_host: JudgedHost) -> Sized:
    launch = judged_host.launch
    if not isinstance(launch, Sized):
        raise UsageError("there is no launch" if launch is None else launch.reason)
    return launch


def _with_versions(facts: Facts, versions: Mapping[str, str]) -> Facts:
    """Return the facts as if the host had the kernel, rdma-core or NVIDIA driver of ``versions``;
    the same object if ``versions`` names none of these.

    A topic that was not read stays Unknown.
    """
    topics: dict[str, Any] = dict(facts.topics)
    kernel, library = versions.get("kernel"), versions.get("rdma-core")
    driver = versions.get("nvidia-driver")
    if kernel is not None and not isinstance(topics["system"], Unknown):
        topics["system"] = with_kernel(topics["system"], kernel)
    if library is not None and not isinstance(topics["rdma"], Unknown):
        major = version_key("rdma-core", library)[0]
        libraries = topics["rdma"].libraries._replace(version=major)
        topics["rdma"] = topics["rdma"]._replace(libraries=libraries)
    if driver is not None and not isinstance(topics["gpus"], Unknown):
        nvml = topics["gpus"].nvml
        nvml = nvml if isinstance(nvml, Unknown) else nvml._replace(driver=driver)
        topics["gpus"] = topics["gpus"]._replace(kernel_module_version=driver, nvml=nvml)
    return Facts(topics) if kernel or library or driver else facts


def full_answer(judged_host: JudgedHost, waivers: Iterable[Waiver] = ()) -> Answer:
    """Return every line of the answer about a launch.

    A finding with a valid waiver does not change the verdict, and is marked as ignored.

    Raises:
        UsageError: If no launch was read.
    """
    sized, today = _sized(judged_host), date.today()
    ignored = {waiver.check for waiver in waivers if not waiver.is_over(today)}
    on_host = sized, judged_host.facts, judged_host.host.root
    findings = [*judged_host.findings, *advisory_findings(*on_host)]
    lines = [
        *_verdict(sized, [finding for finding in findings if finding.check not in ignored]),
        *_memory(sized),
        *_host(judged_host.facts),
        *_flags(sized),
        *_keys(sized),
        *_findings(findings, ignored),
        *(
            (
                AnswerKey(Section.ADVISORIES, arising.advisory.check, arising.process.name),
                f"may arise, where {arising.advisory.arises}: {arising.advisory.summary}",
            )
            for arising in may_arise(*on_host)
        ),
        *_settings(judged_host, findings),
    ]
    return dict(lines)


LOCK_SCHEMA = "mooncake-preflight/lock/v1"
# Characters of a locked answer: that of a launch of 64 ranks has some hundred thousand.
_MOST_CHARACTERS = 16 << 20


class LockedAnswer(NamedTuple):
    """What ``--lock`` wrote.

    Attributes:
        name: Of the launch.
        waivers: The answer was accepted with these.
    """

    name: str
    answer: Answer
    waivers: tuple[Waiver, ...]


def locked_text(name: str, answer: Answer, waivers: Iterable[Waiver] = ()) -> str:
    """Return an answer as JSON text for ``--lock``, without secrets.

    Args:
        name: Of the launch.
    """
    pairs = without_secrets(answer).items()
    lines = [[key.section.name.lower(), *key[1:], text] for key, text in pairs]
    accepted = [
        {**waiver._asdict(), "until": waiver.until and waiver.until.isoformat()}
        for waiver in waivers
    ]
    about = {"schema": LOCK_SCHEMA, "name": public(name), "waivers": public(accepted)}
    return json.dumps({**about, "lines": lines}, indent=1) + "\n"


def read_locked(path: str, limit_seconds: float) -> LockedAnswer:
    """Read a lock file.

    Raises:
        UsageError: If it is late, unreadable, or holds no locked answer.
    """

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS)

    where = f"--locked {path}"
    try:
        content = json.loads(within(limit_seconds, where, read))
        if content["schema"] != LOCK_SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        lines = [(*map(str, line),) for line in content["lines"]]
        answer = {AnswerKey(Section[line[0].upper()], line[1], line[2]): line[3] for line in lines}
        _ = answer[_CHECK_VERDICT]
        waivers = (
            Waiver(str(row["check"]), str(row["reason"]), day and date.fromisoformat(day))
            for row in content.get("waivers", ())
            for day in (row["until"] or None,)
        )
        return LockedAnswer(str(content["name"]), answer, tuple(waivers))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError) as error:
        raise UsageError(f"{where}: no file that --lock wrote: {error}") from None


def without_secrets(answer: Answer) -> Answer:
    """Return an answer as a locked one is, to be held against one."""
    lines = ((AnswerKey(key.section, *map(public, key[1:])), text) for key, text in answer.items())
    return {key: public(text) for key, text in lines}


def _verdict(sized: Sized, findings: list[Finding]) -> Iterator[tuple[AnswerKey, str]]:
    """Yield check's and sizing's verdict, and the releases of Mooncake and SGLang."""
    statuses = {finding.status for finding in findings}
    worst = next((status for status in _JUDGED if status in statuses), Status.PASS)
    yield _CHECK_VERDICT, worst.value
    yield AnswerKey(Section.VERDICT, "sizing", "verdict"), with_problems(sized.sizing).status
    for product in ("mooncake", "sglang"):
        release = release_of(sized, product)
        assumed = " (assumed: nothing says which)" * release.assumed
        yield AnswerKey(Section.VERDICT, product, "release"), f"{release.value}{assumed}"


def _memory(sized: Sized) -> Iterator[tuple[AnswerKey, str]]:
    """Yield each process's allocations, the huge pages that the host needs, and each process's
    regular memory.

    If the sizes are not known, one line says why.
    """
    shown = sized.sizing.shown
    if shown is None:
        yield AnswerKey(Section.MEMORY, "launch", "sizes"), f"not known: {sized.sizing.reason}"
        return
    for process in shown.asked:
        for what in dict.fromkeys(allocation.what for allocation in process.allocations):
            pieces = [allocation for allocation in process.allocations if allocation.what is what]
            yield AnswerKey(Section.MEMORY, process.process.name, str(what)), _pieces(pieces)
    for spot, pages in sorted(shown.verdict.needs.items(), key=str):
        where = "all nodes" if spot.node is None else f"node {spot.node}"
        name = f"{format_page_size(spot.page_size_bytes)} pages needed, {where}"
        yield AnswerKey(Section.MEMORY, "host", name), f"{pages} pages"
    for need in sized.needs.processes:
        taken = need.regular_bytes
        text = taken.reason if isinstance(taken, Unknown) else _bytes(taken)
        yield AnswerKey(Section.MEMORY, need.name, "regular memory"), text


def _pieces(pieces: list[Allocation]) -> str:
    """Describe allocations of one kind: their bytes in total, and the pages of each backing."""
    pages: Counter[tuple[str, int]] = Counter()
    for part in pieces:
        pages[BACKINGS[part.backing], part.page_size_bytes] += part.pages
    backed = (
        f"{backing}, {count} pages of {format_page_size(size)}" if count else backing
        for (backing, size), count in pages.items()
    )
    return f"{_bytes(sum(piece.bytes for piece in pieces))}, {' and '.join(backed)}"


def _bytes(size_bytes: int) -> str:
    exact = f"{size_bytes:,} B"
    return exact if size_bytes < KIB else f"{exact} ({format_bytes(size_bytes)})"


def _flags(sized: Sized) -> Iterator[tuple[AnswerKey, str]]:
    """Yield the flags of each process as its release reads them.

    The subject is the process's kind; the second process of a kind is ``KIND 2``.
    """
    seen: Counter[str] = Counter()
    for process in sized.sizing.inputs.processes:
        seen[process.kind.value] += 1
        count = seen[process.kind.value]
        subject = process.kind.value if count == 1 else f"{process.kind.value} {count}"
        for name, text in _flags_of(process):
            yield AnswerKey(Section.FLAGS, subject, name), text


def _flags_of(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) for one process.

    For an SGLang server: why it is refused, words that it does not know, all flags with their
    values, and its store's settings.

    For another program: the options of its command line that begin with "-"; one without ``=value``
    is "given".
    """
    server = process.server
    if server is None:
        for word in process.arguments:
            flag, _, value = word.text.partition("=")
            if flag.startswith("-"):
                yield flag, _value(flag, value) if value else "given"
        return
    parsed = server.arguments
    has = {row["name"] for row in argument_table(parsed.version).rows}
    yield "refused", parsed.error or "nothing"
    for shown in left_over_as_shown(parsed.unrecognized):
        yield f"{shown} (not recognized)", "given"
    for name, setting in parsed.settings.items():
        value = _value(name, setting.value)
        text = value if setting.given else DefaultValue(f"{value} (default)")
        yield f"--{name.replace('_', '-')}", text if name in has else NO_FLAG
    if server.store is not None:
        for name, setting in server.store.settings.items():
            yield f"store: {name}", _value(name, setting.value)


def _value(name: str, value: Any) -> str:
    secret = value is not None and not isinstance(value, Unknown) and is_secret(name)
    return REMOVED if secret else _text_of(value)


def _text_of(value: Any) -> str:
    return value.reason if isinstance(value, Unknown) else str(value)


def _keys(sized: Sized) -> Iterator[tuple[AnswerKey, str]]:
    """Yield the keys under which each process stores cache, and what they depend on; the SGLang
    release is left out.
    """
    for launch_key in launch_keys(sized.sizing):
        name = launch_key.process.name
        yield AnswerKey(Section.KEYS, name, "key"), launch_key.random or launch_key.pattern
        for what, value in launch_key.named.items():
            # Releases are told from each other by what their keys hold.
            if what != "SGLang release":
                yield AnswerKey(Section.KEYS, name, f"named: {what}"), _text_of(value)
        for what, value in launch_key.content.items():
            yield AnswerKey(Section.KEYS, name, f"held: {what}"), _text_of(value)


def _host(facts: Facts) -> Iterator[tuple[AnswerKey, str]]:
    """Yield the host's kernel, NVIDIA driver, rdma-core, NICs and pools; a reason if unknown."""
    for name, read in _HOST.items():
        try:
            value = read(facts)
        except (UnknownFactError, UnreadTopicError) as error:
            value = error.fact
        yield AnswerKey(Section.HOST, "host", name), _text_of(value)


_HOST: Mapping[str, Callable[[Facts], str | Unknown]] = {
    "kernel": lambda facts: facts.system.kernel_release,
    "NVIDIA driver": lambda facts: require(facts.gpus.kernel_module_version) or "none",
    "rdma-core": lambda facts: str(require(facts.rdma.libraries.version)),
    "NICs": lambda facts: ", ".join(
        f"{nic.name} on {'no node' if nic.node is None else f'node {nic.node}'}"
        for nic in require(facts.rdma.nics)
    ),
    "huge pages": lambda facts: ", ".join(
        f"{require(counts).total_pages} pages of {format_page_size(size)}"
        for size, counts in sorted(require(facts.hugetlb.hugetlb.pools).items())
    ),
}


def _findings(findings: list[Finding], ignored: Collection[str]) -> Iterator[tuple[AnswerKey, str]]:
    """Yield each finding that fails, is unknown or warns.

    The text has its status and amounts, or the summary of its advisory.

    Args:
        ignored: Ids of waived checks; their findings are marked as ignored.
    """
    for finding in (finding for finding in findings if finding.status in _JUDGED):
        record = advisory(finding.check) if finding.check.startswith(CHECK_PREFIX) else None
        section = Section.FINDINGS if record is None else Section.ADVISORIES
        amounts = "; ".join(filter(None, (finding.have, finding.need)))
        text = amounts if record is None else record.summary
        shown = f"{finding.status.value}: {text}" if text else finding.status.value
        shown = f"ignored, was {shown}" if finding.check in ignored else shown
        yield AnswerKey(section, finding.check, finding.subject), shown


def _settings(judged_host: JudgedHost, findings: list[Finding]) -> Iterator[tuple[AnswerKey, str]]:
    """Yield each setting that plan wants, with the wanted value; "unset" if that is empty.

    A number of bytes or pages gets its unit.
    """
    kept = kept_settings(judged_host.host.root)
    made = plan(judged_host.needs, judged_host.facts, findings, kept)
    for row in made.settings:
        setting, wanted = row.setting, row.setting.wanted or "unset"
        limit = setting.kind is Kind.ULIMIT and setting.name in _LIMITS_OF_BYTES
        if wanted.isdecimal() and "hugepages" in setting.name.rpartition("/")[2]:
            wanted += " pages"
        elif wanted.isdecimal() and (limit or setting.kind in _OF_BYTES):
            wanted = _bytes(int(wanted))
        yield AnswerKey(Section.SETTINGS, row.scope.value, setting.label), wanted


_OF_BYTES = (Kind.SHM_SIZE, Kind.MEMORY, Kind.HUGEPAGES)
_LIMITS_OF_BYTES = ("memlock", "as", "data", "fsize", "stack")


# Words of a verdict, the worst last.
_WORSE = ("pass", "warn", "unknown", "fail")
# Subjects that have no number to count by are named up to so many.
MOST_NAMES = 3
Paint = Callable[[str, str], str]


class Change(NamedTuple):
    """A line in which two answers differ.

    Attributes:
        old, new: Its text; None if that answer has no line.
    """

    key: AnswerKey
    old: str | None
    new: str | None


def changes(old: Answer, new: Answer) -> list[Change]:
    """Return every line in which two answers differ, section by section."""
    order = list(Section)
    every = [Change(key, old.get(key), new.get(key)) for key in {**old, **new}]
    differing = [change for change in every if change.old != change.new]
    return sorted(differing, key=lambda change: order.index(change.key.section))


def exit_code(old: Answer, new: Answer) -> int:
    """Return 0 if nothing changes, 1 if something does, 2 if check's verdict is worse."""
    if _WORSE.index(new[_CHECK_VERDICT]) > _WORSE.index(old[_CHECK_VERDICT]):
        return 2
    return int(bool(changes(old, new)))


def differences_object(names: tuple[str, str], old: Answer, new: Answer) -> dict[str, Any]:
    """Return the differences as JSON, the answer of ``schemas/diff-v1.schema.json``.

    Args:
        names: Of the old and the new side.
    """
    rows = [
        {
            "section": key.section.name.lower(),
            "subjects": subjects([key.subject]),
            "name": key.name,
            "from": before,
            "to": after,
        }
        for key, before, after in changes(old, new)
    ]
    return {"from": names[0], "to": names[1], "changes": rows}


def differences_text(
    names: tuple[str, str], old: Answer, new: Answer, verbosity: int, paint: Paint, width: int
) -> str:
    """Return the changes for a terminal.

    Args:
        names: Of the old and the new side. With verbosity below 1, flags that nobody gave and that
            only one release has are counted, not listed.
    """
    from preflight.base.text import wrapped

    every_change = changes(old, new)
    if not every_change:
        return f"{names[0]} and {names[1]}: nothing differs"
    parts = ["\n".join(wrapped(f"from {names[0]} to {names[1]}", width))]
    for section in Section:
        rows = [change for change in every_change if change.key.section is section]
        # Flags that come or go with the release, and that nobody gave.
        flags = [change for change in rows if verbosity < 1 and NO_FLAG in change[1:]]
        quiet = [flag for flag in flags if DefaultValue in map(type, flag[1:])]
        verdict = new[_CHECK_VERDICT]
        same = section is Section.VERDICT and old[_CHECK_VERDICT] == verdict
        lines = [f"  check: verdict: {verdict}, as before"] if same else []
        shown = _folded([change for change in rows if change not in quiet])
        lines += [line for change in shown for line in _lines(change, paint, width)]
        if quiet:
            come = sum(change.old == NO_FLAG for change in quiet)
            count = f"{come} flags are new and {len(quiet) - come} are gone"
            lines.append(f"  {count} that the launch does not use (-v)")
        if lines:
            parts.append("\n".join([section.value, *lines]))
    return "\n\n".join(parts)


def _folded(rows: list[Change]) -> list[Change]:
    """Return changes that differ only in their subject as one: ``launch.sh:3 rank 0-7``."""
    groups: dict[Change, list[str]] = {}
    for change in rows:
        alike = change._replace(key=change.key._replace(subject=""))
        groups.setdefault(alike, []).append(change.key.subject)
    return [
        change._replace(key=change.key._replace(subject=fold_alike(names, MOST_NAMES)))
        for change, names in groups.items()
    ]


def _lines(change: Change, paint: Paint, width: int) -> list[str]:
    """Return one change as wrapped lines: new, gone, or from old to new."""
    from preflight.base.text import wrapped

    subject = f"{change.key.subject}: " if change.key.subject else ""
    head = f"  {subject}{change.key.name}"
    if change.old is None:
        return wrapped(f"{head}: {paint('now', 'yellow')} {change.new}", width, 6)
    if change.new is None:
        return wrapped(f"{head}: {paint('gone', 'green')} ({change.old})", width, 6)
    return wrapped(f"{head}: {change.old} -> {change.new}", width, 6)
