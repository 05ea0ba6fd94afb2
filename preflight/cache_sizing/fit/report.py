"""The answer of ``fit``: for a person, as a page, and as JSON (``schemas/fit-v1.schema.json``).

The sizes, what binds, what to set, and the edited launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from checks.framework.finding import Finding, Status
from checks.framework.fold import fold_names
from checks.framework.units import GIGABYTE, format_bytes, format_page_size
from checks.host_snapshot.secrets import clean_text, public
from preflight.base.envelope import actions, finding_object
from preflight.base.plain_data import fields, plain
from preflight.base.text import fitted_table, wrapped
from preflight.cache_sizing.fit.fit_launch import FitResult
from preflight.cache_sizing.fit.judged_values import KEEP, ROOM, FitAnswer, Goal, NextGib, is_mended
from preflight.cache_sizing.fit.launch_edit import Advice, Edit
from preflight.cache_sizing.fit.launch_values import Knob, gigabytes
from preflight.host_tuning.refusal import REFUSED
from preflight.verdict.report import amounts

if TYPE_CHECKING:
    from preflight.base.html_page import Html
    from preflight.cache_sizing.capacity.answer import CapacityAnswer
    from preflight.cache_sizing.capacity.trace_answer import TraceAnswer
    from preflight.cache_sizing.fit.divisions import Division, DivisionChoice


Paint = Callable[[str, str], str]
Json = dict[str, Any]

# The answer in a word, by exit code.
WORDS = {0: "fits", 1: "fits-but-fails", 2: "nothing-fits", 3: "unknown"}
_GOALS = {
    Goal.BEST: "what answers the most",
    Goal.L2: "the largest L2",
    Goal.POOL: "the largest segment",
    Goal.BALANCED: "as much L2 as segment, and the rest to L2",
}
# Rules that warn where a model or a release is not known, of which one kind ends the server.
MAY_END = frozenset({"l2-halves-may-overlap", "standalone-may-break-mha"})
_NAMES = {"l2": "L2 on each rank", "segment": "segment"}


def fit_text(result: FitResult, paint: Paint, width: int, plain: bool = False) -> str:
    """Return the whole answer as text, without a final newline.

    Args:
        paint: Colours a word, (text, colour).
        width: In columns.
        plain: Draw with ASCII only.
    """
    answer = result.answer
    lines: list[str] = []
    where = "this host" if result.host == "/" else result.host
    what = f"{public(result.launch)} on {where}, {_GOALS[answer.goal]}"
    if answer.reason:
        verdict = f"{paint('UNKNOWN', 'yellow')}: {what}: no size is given: {answer.reason}"
        lines += wrapped(verdict, width, 0)
    elif answer.fits is None:
        ids = list(dict.fromkeys(finding.check for finding in answer.blocking))
        refused, why = set(ids) & set(REFUSED), f"not with {answer.values.text}"
        why = "the server refuses to start with any size" if refused else why
        lines += wrapped(f"{paint('NOTHING FITS', 'red')}: {what}: {why}", width, 0)
        for finding in answer.blocking:
            lines += ["", *_finding(finding, width)]
            if refused and finding.advice:
                lines += wrapped(public(f"    to do: {finding.advice}"), width, 2)
        advice = "The sizes follow from the corrected launch: then run this command again."
        if not refused and set(ids) <= ROOM:
            advice = _room_advice(answer, ids)
        elif not refused:
            waived = " ".join(f"--ignore {check}=mended" for check in ids)
            advice = (
                "mooncake-preflight check, of the same launch, prints what mends it. To see what "
                f"fits once it is mended, run this command again with {waived}"
            )
        lines += ["", *wrapped(advice, width, 0)]
    else:
        lines += wrapped(f"{_verdict(answer, paint)}: {what}", width, 0)
        lines += ["", *_table(result, width)]
        if (choice := result.choice) is not None:
            lines += ["", *_choice_lines(choice, result.first, paint, width, plain)]
        for bound in answer.bounds:
            size = f"a segment of {bound.value_bytes} bytes (1 MiB more)"
            if bound.size == "l2":
                size = f"--hicache-size {bound.value_bytes // GIGABYTE}"
            limit = _finding(bound.findings[0], width)
            lines += ["", f"what limits it, at {size}", *limit]
        for share in answer.shares:
            lines += ["", *wrapped(_share(share), width, 0)]
    for line in result.unread:
        lines += ["", *wrapped(line, width, 2)]
    for hint in result.hints:
        lines += ["", *wrapped(f"more would fit: {hint}.", width, 0)]
    if answer.unknown:
        what = "gates that could not be judged"
        lines += ["", what if answer.reason else f"{what}, and may allow less"]
        lines += _finding_paragraphs(answer.unknown, width)
    if answer.beside:
        lines += ["", "for any sizes, check reports of this launch here"]
        lines += _finding_paragraphs(answer.beside, width)
    for check, reason in result.ignored:
        lines += ["", *wrapped(f"ignored: {check}: {reason}", width, 2)]
    for waiver in result.waivers_over:
        over = f"{waiver.check}: a waiver until {waiver.until}: it counts again"
        lines += ["", *wrapped(f"warn: launch.waiver, {over}", width, 2)]
    if result.assumptions:
        lines += ["", "the host is described, so this is assumed of it"]
        for text in result.assumptions:
            lines += wrapped(f"  {text}", width, 2)
    if result.host_commands:
        lines += ["", "on the host (mooncake-preflight apply does it, plan says how it lasts)"]
        lines += [f"  {command}" for command in result.host_commands]
    lines += _launch_lines(result, width)
    return "\n".join(lines)


def _room_advice(answer: FitAnswer, ids: Collection[str]) -> str:
    """Return a sentence with the ways to make room on a host that is too small for the least sizes.

    Args:
        ids: Of the checks that stop the least sizes.
    """
    ways = []
    segment = answer.sizes.segment
    if segment is not None and answer.values.segment_bytes is None:
        what = f"lower {segment.name}, which stays as it is here"
        ways.append(f"{what}, or choose it too (--goal balanced)")
    if KEEP in ids:
        ways.append("keep less of the host free (--keep)")
    ways += ["run fewer ranks here", "end what else uses the memory", "take a host with more"]
    listed = f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return f"Even the least sizes are more than this host has left: {listed}."


def _verdict(answer: FitAnswer, paint: Paint) -> str:
    """Return the coloured verdict on sizes that fit.

    The verdict is FITS only if no check fails, no gate is unknown, the launch needs no undescribed
    device, and nothing may end the server.
    """
    failed = [finding for finding in answer.beside if finding.status is Status.FAIL]
    if failed and all(map(is_mended, failed)):
        return paint("FITS ONCE IT IS SET (see below)", "yellow")
    if failed:
        return paint("THE SIZES FIT, AND IT FAILS ALL THE SAME (see below)", "red")
    if answer.undecided:
        return paint("UNKNOWN", "yellow")
    if answer.misses_devices:
        return paint("THE SIZES FIT, THE REST IS NOT DESCRIBED (see below)", "yellow")
    if any(finding.check in MAY_END for finding in answer.beside):
        return paint("THE SIZES FIT, AND THE SERVER MAY END ALL THE SAME (see below)", "yellow")
    return paint("FITS", "green")


def size_rows(result: FitResult) -> list[tuple[str, str, str, str]]:
    """Return a row (name, value now, value that fits, that in bytes or a note) for each size and
    each huge page pool.

    Only for a result with sizes that fit.
    """
    answer = result.answer
    rows: list[tuple[str, str, str, str]] = []
    sizes, values = answer.sizes, answer.values
    rows += _size_row(sizes.l2, values.l2_bytes, " GB", "each rank")
    rows += _size_row(sizes.segment, values.segment_bytes, "", "")
    if sizes.arena is not None:
        old = ", ".join(dict.fromkeys(place.old for place in sizes.arena.places))
        new = "as it is"
        if values.arena_bytes is not None:
            new = sizes.arena.spell(values.arena_bytes) if values.arena_bytes else "none"
        rows.append((sizes.arena.name, old, new, "each process, what is used of it"))
    assert answer.fits is not None
    for target in answer.fits.pools:
        now = target.now_pages or 0
        pages = max(now, target.pages)
        where = "" if target.node is None else f" on node {target.node}"
        name = f"{format_page_size(target.page_bytes)} pages{where}"
        rows.append((name, str(now), str(pages), format_bytes(pages * target.page_bytes)))
    return rows


def _table(result: FitResult, width: int) -> list[str]:
    """Return the lines of the table of sizes; a first launch has no column "now"."""
    rows = size_rows(result)
    if result.first:  # nobody wrote what it starts from
        without_old = [(name, fits, note) for name, _, fits, note in rows]
        table = fitted_table(without_old, ("", "fits", ""), width, right=(1,), firm=(0, 1))
        return table.splitlines()
    heads = ("", "now", "fits", "")
    return fitted_table(rows, heads, width, right=(1, 2), firm=(0, 1, 2)).splitlines()


def _size_row(
    knob: Knob | None, value: int | None, unit: str, note: str
) -> list[tuple[str, str, str, str]]:
    """Return the row (see ``size_rows``) of one size in a list; [] if the launch has no such size.

    Args:
        value: New bytes; None keeps the size.
        unit: Written behind numbers.
        note: Behind the bytes.
    """
    if knob is None:
        return []
    old = ", ".join(dict.fromkeys(place.old for place in knob.places if place.written))
    if not all(place.written for place in knob.places):
        old = "not set"
    if not old and knob.now_bytes is not None:  # it stands in a file that the launch names
        old = knob.spell(knob.now_bytes)
    was = f"{old}{unit}" if old.isdecimal() else old
    if value is None:
        return [(knob.name, was, "as it is", note)]
    size = f"{format_bytes(value)} {note}".rstrip()
    return [(knob.name, was, f"{knob.spell(value)}{unit}", size)]


def _finding(finding: Finding, width: int) -> list[str]:
    """Return the lines of one finding: its check and subject, its formula and its sentence."""
    head, compared = f"{finding.status.value}: {finding.check}, {finding.subject}", amounts(finding)
    seen = f"{head}: {compared}" if compared else head
    lines = wrapped(public(f"  {seen}"), width, 2)
    if finding.formula:
        lines += wrapped(public(f"    need: {finding.formula}"), width, 2)
    if finding.text:
        lines += wrapped(public(f"    {finding.text}"), width, 2)
    return lines


def _share(share: NextGib) -> str:
    """Return the sentence on what 1 GiB more of a size takes and buys."""
    pages = " on regular pages"
    if share.pages:
        pages = f" ({share.pages} pages of {format_page_size(share.page_bytes)})"
    buys = "" if share.tokens is None else f" and buys {share.tokens:,} tokens"
    takes = f"takes {format_bytes(share.host_bytes)} of this host{pages}{buys}"
    return f"1 GiB more {_NAMES[share.size]} {takes}."


def _finding_paragraphs(findings: tuple[Finding, ...], width: int) -> list[str]:
    """Return the lines of findings; those with the same status and sentence share one paragraph.

    The advice of a finding is added if the finding is unknown, or if a setting mends it.
    """
    by_sentence: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        by_sentence.setdefault((each.status.value, each.text or each.have), []).append(each)
    lines: list[str] = []
    for (status, text), alike in by_sentence.items():
        names = [each.subject for each in alike]
        about = ", ".join(dict.fromkeys(each.check for each in alike))
        if alike[0].check == about:
            about += f", {fold_names(names) if len(names) > 1 else names[0]}"
        lines += wrapped(public(f"  {status}: {about}: {text}"), width, 2)
        # What is mended for check is said there; what is not known keeps fit from its answer.
        advising = [each for each in alike if each.status is Status.UNKNOWN or is_mended(each)]
        for advice in dict.fromkeys(each.advice for each in advising if each.advice):
            lines += wrapped(public(f"    to do: {advice}"), width, 2)
    return lines


def _launch_lines(result: FitResult, width: int) -> Iterator[str]:
    """Yield lines with the launch in its new sizes: a script, a command or a diff, or the paths if
    it was written.

    At the end are the changes to make by hand.
    """
    if result.first:
        written = (f"written: {public(path)}" for path in result.written)
        yield from ("", *(written if result.written else result.command.splitlines()))
    elif result.command:
        yield from ("", "the launch", public(f"  {result.command}"))
    if result.edited is None:
        return
    for path in result.written:
        yield from ("", f"written: {public(path)}")
    if not result.written:
        for edit in result.edited.edits:
            yield ""
            yield from diff(edit)
    if result.edited.advice:
        yield from ("", "to change by hand, before --write writes any of it")
        for advice in result.edited.advice:
            yield from wrapped(public(f"  {by_hand_text(advice)}"), width, 2)


def by_hand_text(advice: Advice) -> str:
    wanted = f"take {advice.name} away" if advice.text is None else f"{advice.name} {advice.text}"
    if advice.text is not None and not advice.name.startswith("-"):
        wanted = f"{advice.name}={advice.text}"
    return f"{wanted}, at {advice.where}: {advice.why}"


def diff(edit: Edit) -> Iterator[str]:
    """Yield the lines of a unified difference without secrets.

    If a secret was taken out, no lines around a change are shown.
    """
    import difflib

    before, after = clean_text(edit.before), clean_text(edit.after)
    around = 3 if before == edit.before else 0
    lines = before.splitlines(), after.splitlines()
    path = public(edit.path)
    yield from difflib.unified_diff(*lines, path, path, n=around, lineterm="")


def _choice_lines(
    choice: DivisionChoice, first: bool, paint: Paint, width: int, plain: bool
) -> Iterator[str]:
    """Yield lines on why the division was chosen: the table, the trace's curve, what 1 GiB more
    saves, and notes.

    Args:
        first: The launch has no sizes yet.
    """
    yield from wrapped(choice.what, width, 0)
    heads, rows = division_table(choice, first)
    yield from fitted_table(rows, heads, width, right=range(1, len(heads))).splitlines()
    if choice.capacity is not None and choice.replay is not None:
        yield from _curve_lines(choice.capacity, choice.replay, paint, width, plain)
    for size, tokens in choice.next_gib:
        sentence = f"1 GiB more of {_NAMES[size]} would save about {tokens:,} tokens of it"
        yield from wrapped(sentence, width, 0)
    for note in choice.notes:
        yield from wrapped(f"note: {note}", width, 2)


def division_table(choice: DivisionChoice, first: bool) -> tuple[list[str], list[list[str]]]:
    """Return (headings, rows) of the divisions that were tried.

    Args:
        first: The launch has no sizes yet, so the division ``now`` is left out.
    """
    tiers = dict.fromkeys(name for division in choice.tried for name, _ in division.tier_tokens)
    shown = (each for each in choice.tried if not (first and each.about == "now"))
    rows = [_division(division, tiers) for division in shown]
    heads = ["goal", "L2 size", "segment", *tiers, "unique", "kept", "full in"]
    if choice.workload is None:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return heads, rows


def _division(division: Division, tiers: Iterable[str]) -> list[str]:
    """Return the table row of one division: goal, sizes, tokens of each tier, unique tokens, part
    kept, and for each of ``tiers`` the round in which it is full (``-`` for never).
    """
    from preflight.cache_sizing.capacity.report import share

    tokens, full = dict(division.tier_tokens), dict(division.full)
    first = [str(full.get(name) or "-") for name in tiers]
    values, rates = division.values, ", ".join(share(*each) for each in division.rates)
    l2, segment = f"{gigabytes(values.l2_bytes or 0)} GB", format_bytes(values.segment_bytes or 0)
    by_tier = (_millions(tokens[name]) if name in tokens else "" for name in tiers)
    tokens_told = (*by_tier, _millions(division.unique))
    return [division.about, l2, segment, *tokens_told, rates, " ".join(first)]


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.{2 if tokens < 1e7 else 1}f}M"


def _curve_lines(
    chosen: CapacityAnswer, answer: TraceAnswer, paint: Paint, width: int, plain: bool
) -> Iterator[str]:
    """Yield the lines of the trace's hit curve, drawn if it can be, and the sentences on it."""
    from preflight.cache_sizing.capacity.hit_curve import plot_text
    from preflight.cache_sizing.capacity.trace_report import curve_sentences

    if plot := plot_text(chosen, answer, paint, width, plain):
        yield from ("", plot, "")
    for sentence in curve_sentences(chosen, answer):
        yield from wrapped(sentence, width, 0)


def fit_object(result: FitResult) -> Json:
    """Return the answer as the JSON object of ``schemas/fit-v1.schema.json``."""
    answer, edited, choice = result.answer, result.edited, result.choice
    sizes, values, fits = answer.sizes, answer.values, answer.fits
    return {
        **fields(result, *"keep_bytes hints written command assumptions unread".split()),
        "actions": actions(result.host_commands),
        **fields(answer, "goal"),
        "sizes": {
            name: _size(getattr(sizes, name), value, fits is not None)
            for name, value in zip(("l2", "segment", "arena"), values, strict=True)
        },
        "pools": [] if fits is None else [target.as_object() for target in fits.pools],
        "bounds": [
            {**fields(bound, "size", "value_bytes"), "findings": _objects(bound.findings)}
            for bound in answer.bounds
        ],
        "findings": _objects((*answer.blocking, *answer.unknown, *answer.beside)),
        "blocking": _objects(answer.blocking),
        "unknowns": _objects(answer.unknown),
        "beside": _objects(answer.beside),
        "per_gib": [
            {
                **fields(share, "size", "host_bytes", "pages", "tokens"),
                "page_size_bytes": share.page_bytes,
            }
            for share in answer.shares
        ],
        "edits": [
            {"path": e.path, "diff": "\n".join(diff(e))} for e in (edited.edits if edited else ())
        ],
        "by_hand": [
            {"value": a.text, **fields(a, "name"), "origin": plain(a.where), "reason": a.why}
            for a in (edited.advice if edited else ())
        ],
        **({"hits": _choice_object(choice)} if choice is not None else {}),
    }


def _choice_object(choice: DivisionChoice) -> Json:
    """Return ``hits`` of the JSON: the workload or trace, and an object for each division."""
    return {
        **fields(choice, "trace", "workload", "ceiling", "notes"),
        "tried": [
            {
                **fields(division, "about"),
                "sizes": division.values.text,
                "servers": [{"least": least, "most": most} for least, most in division.rates],
                "tiers": [
                    {"name": name, "tokens": tokens, "full_in_round": full.get(name)}
                    for name, tokens in division.tier_tokens
                ],
                "unique_tokens": division.unique,
            }
            for division in choice.tried
            for full in [dict(division.full)]
        ],
        "next_gib": [{"size": size, "tokens": tokens} for size, tokens in choice.next_gib],
    }


def _size(knob: Knob | None, value: int | None, fits: bool) -> Json | None:
    """Return the JSON object of one size; None if the launch has no such size.

    Args:
        value: Bytes to set; None keeps the size, 0 removes it.
        fits: Some sizes fit; else no new size is told.
    """
    if knob is None:
        return None
    written = [place.old for place in knob.places if place.written]
    text = None if value is None or not fits else knob.spell(value) if value else ""
    now, size = written[0] if written else None, value if fits else None
    return {**fields(knob, "name", "step_bytes"), "now": now, "size_bytes": size, "value": text}


def _objects(findings: Iterable[Finding]) -> list[Json]:
    return [finding_object(finding, **fields(finding, "formula", "text")) for finding in findings]


# The colour of each tier: those of its memory in the picture of the memory.
_COLOURS = {"L1": "k-other", "L2": "k-l2", "L3": "k-segment"}
_STATUS = {0: "pass", 1: "warn", 2: "fail", 3: "unknown"}
_TEXT_COLUMNS = 100


def fit_page(result: FitResult) -> str:
    """Return the whole answer as an HTML document: tables and pictures, then the text of
    ``fit_text``.
    """
    from preflight.base.html_page import element, join, page, table
    from preflight.cache_sizing.capacity.hit_curve import trace_parts
    from preflight.command_inputs.host_source import Sized
    from preflight.report.pictures.check_page import page_style
    from preflight.report.pictures.figures import memory_figure
    from preflight.report.pictures.memory_map import launch_takes, memory_map

    text = fit_text(result, lambda shown, colour: shown, _TEXT_COLUMNS)
    verdict = text.partition("\n\n")[0].replace("\n", " ")
    status = _STATUS[result.exit_code]
    head = element("section", element("strong", verdict), class_=f"verdict {status}")
    parts = [element("h1", result.launch), head]
    fits, choice = result.answer.fits, result.choice
    if fits is not None:
        heads = ["size", "now", "fits", "that is"]
        parts.append(table(heads, size_rows(result), caption="Sizes", numeric_columns=(1, 2)))
        sized = Sized(fits.sizing, fits.needs, None, result.state.launch, result.state.options)
        memory = memory_figure(memory_map(fits.facts, launch_takes(sized)))
        parts += [element("h2", "Memory by tier, once the plan is applied"), memory]
    if choice is not None:
        heads, rows = division_table(choice, result.first)
        numbers = range(1, len(heads))
        shown = [each for each in choice.tried if not (result.first and each.about == "now")]
        most = max((tokens for each in shown for _, tokens in each.tier_tokens), default=0) or 1
        parts += [
            element("h2", "Tokens by tier"),
            element("p", choice.what),
            *(_division_bars(division, most) for division in shown),
            table(heads, rows, caption="Divisions, the best first", numeric_columns=numbers),
        ]
        if choice.capacity is not None and choice.replay is not None:
            parts += trace_parts(choice.capacity, choice.replay)
    parts += [element("h2", "The whole answer"), element("pre", public(text))]
    title = f"{WORDS[result.exit_code]}: {result.launch}"
    return page(title, join(parts, "\n"), style=page_style()).rstrip("\n")


def _division_bars(division: Division, most: int) -> Html:
    """Draw the tokens of each tier of one division as bars.

    Args:
        most: Tokens that fill the width.
    """
    from preflight.base.html_page import element
    from preflight.report.pictures.figures import BAR_HEIGHT

    memory = f"L2 {format_bytes(division.values.l2_bytes or 0)} each rank"
    head = f"{division.about}: {memory}, segment {format_bytes(division.values.segment_bytes or 0)}"
    bars = []
    for name, tokens in division.tier_tokens:
        label = {"role": "img", "aria_label": f"{division.about} {name}: {tokens:,} tokens"}
        width = f"{tokens * 100 / most:.4f}%"
        colour = _COLOURS.get(name, "k-buffer")
        shape = element("rect", x=0, y=0, width=width, height=BAR_HEIGHT // 2, class_=colour)
        drawn = element("svg", shape, width="100%", height=BAR_HEIGHT // 2, **label)
        text = element("span", f"{name} {tokens:,}", class_="small muted")
        bars.append(element("div", text, drawn, class_="bar"))
    return element("div", element("h3", head), *bars, class_="place")
