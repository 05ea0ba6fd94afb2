"""Find what some words are about: a quoted line, a part of one, or a symptom in plain words."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, NamedTuple

from checks.framework.regex import regex
from preflight.server_logs.explain import (
    NO_CHECKS,
    Explanation,
    Outcomes,
    Paint,
    explanation_object,
    explanation_text,
    filled_text,
    heading,
    read_log,
)
from preflight.server_logs.patterns import Pattern, Stage, read_patterns

# A word, or a number of up to three digits (an errno); addresses, sizes and times differ from line
# to line and say nothing.
_WORD = regex(r"[a-z_][a-z0-9_]*|(?<![\w.])\d{1,3}(?![\w.])")
_HEX = regex(r"0x[0-9a-f]+")
_HUGE_PAGE = regex(r"huge[ -]pages?|hugepages?|hugetlb")
# What stands before a line's own words: glog's level, time and source; a time or a process in
# brackets.
_STAMP = regex(r"^(?:[IWEF](?:20\d\d)?\d{4} [^\]]*\] |\[[^\]]*\] |kernel: )+")
_LETTERS = regex(r"[^a-z]+")
# Below this share of the words, by weight, a text has only everyday words in common with them.
LEAST_SHARE = 0.5
# From this share on, in order, the words are a part of a line; below, a person's own.
QUOTED_SHARE = 0.85
# What a word of a person's own is worth where it stands in an id, the line, its cause, the rest of
# what is said of it; and in each further one of them. By trying:
# tests/server_logs/test_explain_words.py.
_WORTH, _WORTH_AGAIN = (1.3, 1.0, 1.0, 0.5), 0.2
# They stand in every text.
_EVERYDAY = frozenset(
    "a an and are at be by does for has have i in is it my no not of on or so that the then there "
    "this to too was what why with".split()
)
_LETTERS_OR_NUMBER = regex(r"[a-z]+|\d+")
_WHOLE_LOG = "A whole log tells more than one line of it:\n  mooncake-preflight explain server.log"
# So many lines are shown whole, and of those that are similar so many; so many checks and rules.
MOST_WHOLE, MOST_SIMILAR, MOST_IDS, MOST_RANKED = 3, 2, 6, 8


class QueryAnswer(NamedTuple):
    """The answer to ``query``: known lines, then checks and rules, the likeliest first.

    Attributes:
        lines: First the explained lines that match the query, with the query as ``excerpt`` (an
            example if it is an id). Then those that are only similar (stage SIMILAR): each has some
            of the words, and its excerpt is an example.
        ids: (id, question) of checks and rules.
    """

    query: str
    lines: list[Explanation]
    ids: list[tuple[str, str]]


def answer_query(quoted: str, asks: Mapping[str, str]) -> QueryAnswer:
    """Find the known lines that a text resembles, and the checks and rules about its words.

    Args:
        quoted: A line of a log, the id of a known line, or a few words.
        asks: The question of each check or rule, by id.
    """
    patterns = read_patterns()
    if any(each.id == quoted and each.cause for each in patterns):
        return QueryAnswer(quoted, _explain_example(patterns, quoted), [])
    reading = read_log([quoted], alone=True)
    lines = [*reading.explanations, *reading.harmless]
    # A line that is known needs no others that are like it.
    like = [] if lines else rank_by_words(quoted, line_texts(patterns))
    # Of lines that have the words alike, what names its cause tells more than what has several.
    stages = {each.id: each.stage for each in patterns}
    like.sort(key=lambda row: (-round(row[1], 3), stages[row[0]] > Stage.CAUSE))
    if not lines and (not like or like[0][1] < QUOTED_SHARE):
        shares = dict(like)
        for id_, share in rank_by_meaning(quoted, patterns):
            shares[id_] = max(share, shares.get(id_, 0.0))
        like = sorted(shares.items(), key=lambda row: -round(row[1], 2))
    for id_, _ in like[:MOST_RANKED]:
        lines += [each._replace(stage=Stage.SIMILAR) for each in _explain_example(patterns, id_)]
    questions = {id_: [f"{id_} {text}"] for id_, text in asks.items()}
    near = rank_by_words(quoted, questions, in_order=False)
    return QueryAnswer(quoted, lines, [(id_, asks[id_]) for id_, _ in near[:MOST_IDS]])


def _explain_example(patterns: Iterable[Pattern], id_: str) -> list[Explanation]:
    """Explain a known line by its example, without the example's own numbers and names."""
    reading = read_log([next(each.example for each in patterns if each.id == id_)], alone=True)
    every = [*reading.explanations, *reading.harmless]
    return [each._replace(sums="", names=(), decided="") for each in every if each.pattern == id_]


def rank_by_words(
    query: str, texts: Mapping[str, Sequence[str]], *, in_order: bool = True
) -> list[tuple[str, float]]:
    """Return (id, share) of the texts that have most of the query's words, the best first.

    Args:
        texts: The texts of each id, which gets the share of its best text. Of equal shares, the id
            with the shortest text is first. Rare words weigh more.
        in_order: Words in sequence weigh more, as in a quoted line. An id with less than
            ``LEAST_SHARE``, or far less than the best, is left out.
    """
    asked = _words(query)
    split = {id_: [_words(text) for text in each] for id_, each in texts.items()}
    in_texts = Counter(word for each in split.values() for word in {w for t in each for w in t})
    weights = {word: math.log1p(len(split) / (1 + in_texts[word])) for word in asked}
    most = _weight(asked, weights, in_order)
    if not most:
        return []
    shares = {
        id_: max((_weight_in(asked, text, weights, in_order) / most for text in each), default=0.0)
        for id_, each in split.items()
    }
    least = max(LEAST_SHARE, 0.6 * max(shares.values(), default=0.0))
    # Of texts that have them all, the shortest says least beside them.
    length = {id_: min((len(text) for text in each), default=0) for id_, each in split.items()}
    results = [(id_, share) for id_, share in shares.items() if share >= least]
    return sorted(results, key=lambda row: (-round(row[1], 3), length[row[0]]))


def line_texts(patterns: Iterable[Pattern]) -> dict[str, list[str]]:
    """Return the example and the search texts of each known line, by id, for ``rank_by_words``.

    Patterns without a cause are left out.
    """
    every = sorted((each for each in patterns if each.cause), key=lambda each: each.stage)
    return {each.id: [each.example, *each.find] for each in every}


def rank_by_meaning(query: str, patterns: Iterable[Pattern]) -> list[tuple[str, float]]:
    """Return (id, share) of the known lines that a person's own words likely mean, in the order of
    ``patterns``.

    A share can be above 1: words in an id weigh most. Ids with less than ``LEAST_SHARE``, or far
    less than the best, are left out.
    """
    asked = list(dict.fromkeys(_words(query)))
    asked = [word for word in asked if word not in _EVERYDAY] or asked
    ids_parts = {}
    for each in (each for each in patterns if each.cause):
        # A family's name stands in many ids, and tells none of them apart.
        id_ = each.id.split(".")[1] if each.process else each.id
        names, remedy = f"{id_} {' '.join(each.checks)}", f"{each.remedy} {each.apart}"
        split = map(_words, (names, each.example, each.cause, remedy))
        ids_parts[each.id] = [{*of, *_LETTERS_OR_NUMBER.findall(" ".join(of))} for of in split]
    weights = {}
    for word in asked:
        times = sum(any(word in part for part in parts) for parts in ids_parts.values())
        weights[word] = math.log1p(len(ids_parts) / (1 + times))
    shares = {}
    for id_, parts in ids_parts.items():
        worth = 0.0
        for word in asked:
            at = [each for each, part in zip(_WORTH, parts, strict=True) if word in part]
            worth += weights[word] * (at[0] + _WORTH_AGAIN * (len(at) - 1)) if at else 0.0
        shares[id_] = worth / (sum(weights.values()) or 1.0)
    least = max(LEAST_SHARE, 0.6 * max(shares.values(), default=0.0))
    return [(id_, share) for id_, share in shares.items() if share >= least]


@lru_cache(maxsize=8192)
def _words(text: str) -> list[str]:
    """Return the words that tell lines apart: no addresses, no long numbers, no plural s."""
    plain = _HUGE_PAGE.sub("hugepage", _HEX.sub(" ", text.lower()))
    return [word.rstrip("s") or word for word in _WORD.findall(plain)]


def _weight(run: Sequence[str], weights: Mapping[str, float], in_order: bool) -> float:
    """Return the weight of words.

    Args:
        in_order: As a run, they weigh more than one by one.
    """
    return sum(weights[word] for word in run) * (math.sqrt(len(run)) if in_order else 1)


def _weight_in(
    asked: Sequence[str], text: Sequence[str], weights: Mapping[str, float], in_order: bool
) -> float:
    """Return the weight of the ``asked`` words that ``text`` has.

    Args:
        in_order: As for ``_weight``.
    """
    if not in_order:
        return _weight([word for word in asked if word in text], weights, in_order)
    if not set(asked).intersection(text):
        return 0.0
    runs = SequenceMatcher(None, asked, text, autojunk=False).get_matching_blocks()
    return sum(_weight(asked[at : at + size], weights, in_order) for at, _, size in runs)


def index_rows() -> list[Explanation]:
    """Return each known line with a cause, explained by its example, sorted by the text of the
    example.

    The time and the place at the start of an example are cut off.
    """
    rows = [
        each._replace(excerpt=_STAMP.sub("", pattern.example))
        for pattern in read_patterns()
        if pattern.cause
        for reading in [read_log([pattern.example])]
        for each in (*reading.explanations, *reading.harmless)
        if each.pattern == pattern.id
    ]
    return sorted(
        rows, key=lambda row: (_LETTERS.sub(" ", row.excerpt.lower()).split(), row.pattern)
    )


def index_text(rows: Iterable[Explanation], width: int) -> str:
    """Return a table of known lines: printer, cause and checks, for a terminal of ``width``."""
    lines: list[str] = []
    for row in rows:
        checks = ", ".join(row.checks) or row.pattern
        lines.append(filled_text(f"{row.excerpt}  ({row.printer})", width, "", "  "))
        lines += (filled_text(text, width, "    ", "    ") for text in (row.cause, checks))
    return "\n".join(lines)


def answer_text(answer: QueryAnswer, paint: Paint, width: int, here: Outcomes = NO_CHECKS) -> str:
    """Write the answer for a terminal ``width`` columns wide, without a final newline.

    Args:
        here: What each check found on this host, by check id; empty if no check ran.
    """
    parts = []
    lines = shown_lines(answer)
    known = [each for each in lines if each.stage is not Stage.SIMILAR]
    for number, each in enumerate(lines, 1):
        if number == 1 and known:
            count = "One known line is" if len(known) == 1 else f"{len(known)} known lines are"
            # An id alone is explained by an example of its line.
            head = "" if each.excerpt in answer.query else "; names and numbers are examples"
            parts.append(filled_text(f"{count} like this{head}:", width))
        if number == len(known) + 1:
            head = "" if known else "No known line is this one. "
            head += "Similar, and perhaps another case; names and numbers are examples:"
            parts.append(filled_text(head, width))
        head = f"{number}. {heading(each, paint)} ({each.printer})"
        parts.append(explanation_text(head, each, width, here, "This line"))
    if answer.ids:
        column = max(len(id_) for id_, _ in answer.ids) + 2
        margin = " " * (column + 2)
        rows = [filled_text(asks, width, f"  {id_:<{column}}", margin) for id_, asks in answer.ids]
        parts.append("\n".join(["Checks and rules about it:", *rows]))
    ids = list(dict.fromkeys(id_ for each in lines for id_ in each.checks))
    if ids:
        only = ("--only " + id_ for id_ in ids[:3])
        which = "Which of these it is on this host:\n"
        which += f"  mooncake-preflight check {' '.join(only)} launch.sh\n"
        parts.append(f"{'' if here else which}{_WHOLE_LOG}")
    return "\n\n".join(parts)


def shown_lines(answer: QueryAnswer) -> list[Explanation]:
    """Return the first three lines that match and the first two similar; for ``--index`` all."""
    known = [each for each in answer.lines if each.stage is not Stage.SIMILAR]
    if answer.query == "--index":
        return known
    return [*known[:MOST_WHOLE], *answer.lines[len(known) :][:MOST_SIMILAR]]


def answer_object(answer: QueryAnswer) -> dict[str, Any]:
    """Return the answer as JSON data of ``schemas/explain-log-v1.schema.json``."""
    return {
        "words": answer.query,
        "explanations": [explanation_object(each) for each in shown_lines(answer)],
        "checks": [{"check": id_, "asks": asks} for id_, asks in answer.ids],
    }
