"""Findings of ``fleet merge`` about the reports: which count, are missing, or cannot be read."""

from __future__ import annotations

from checks.base.finding import Check, Consequence, Status

REPORT_CHECKS = (
    Check(
        id="fleet.report",
        asks="Did every expected node give a report?",
        consequence=Consequence.WILL_NOT_START,
        why="Nothing is known of the node, and a fleet is as good as its worst one: a launch over "
        "several hosts waits for all of them. Either no text of it came, or one that is cut off "
        "or no report, or the program ended there without a verdict; the finding says which, with "
        "the last words of its standard error. It does not say that the node is broken.",
        outcomes=(
            (
                Status.UNKNOWN,
                "no report, one that cannot be used, or one in which the program gave no verdict",
            ),
        ),
        remedy="Run mooncake-preflight fleet node on it, with the launch, and read what it says; "
        "or leave it out (--nodes-failing names all of these).",
        source="the reports that were given",
        topics=(),
    ),
    Check(
        id="fleet.no-verdict",
        asks="Did the checks come to a verdict on each node?",
        consequence=Consequence.WILL_NOT_START,
        why="The node ran the checks, and its report is of an error, or says pass and names no "
        "check that passed. Mostly the launch could not be read there: a file that it names is "
        "missing on this node alone, or an option is not known to the version that is installed. "
        "A pass that rests on nothing is none.",
        outcomes=((Status.UNKNOWN, "status error, or a pass without any check"),),
        remedy="Run what the text quotes on that node: mooncake-preflight check with the launch.",
        source="the node's report (error, passes)",
        topics=(),
    ),
    Check(
        id="fleet.several-reports",
        asks="Does each node have one report?",
        consequence=Consequence.WILL_NOT_START,
        why="Two reports of one node that differ are of two times, of two containers, or of two "
        "machines with one host name; in the last case one machine is not shown at all. Those "
        "that say the same count as one and are no finding.",
        outcomes=(
            (Status.WARN, "they differ, and the newest, which counts, is known"),
            (
                Status.UNKNOWN,
                "they differ, and not all are dated, or two are of one second: the worst is shown",
            ),
        ),
        remedy="Keep the one that is meant; give machines that share a host name names of their "
        "own: fleet node --name.",
        source="made_unix_seconds of the reports",
        topics=(),
    ),
    Check(
        id="fleet.old-report",
        asks="Are the reports of one time?",
        consequence=Consequence.DEGRADED,
        why="A report made a day or more before the newest tells of a state that may be over: "
        "huge pages were taken, a driver was updated, the node was booted. Or its clock is wrong. "
        "A folder that was not emptied since the last run is the usual reason.",
        outcomes=((Status.WARN, "made more than a day before the newest one"),),
        remedy="Ask these nodes again, or empty the folder first; compare date -u on them.",
        source="made_unix_seconds of the reports",
        topics=(),
    ),
    Check(
        id="fleet.unexpected",
        asks="Is every report of a node that is expected?",
        consequence=Consequence.DEGRADED,
        why="The node is none of --expect. What it says counts all the same, so a login node or "
        "one of another job can spoil the verdict, or be the majority that others are held "
        "against; and where one host has two names, the expected one may be missing for this one.",
        outcomes=((Status.WARN, "a report of a node that --expect does not name"),),
        remedy="Add it to --expect, or take its report away.",
        source="--expect",
        topics=(),
    ),
    Check(
        id="fleet.unusable",
        asks="Can every text that was given be read as a report?",
        consequence=Consequence.WILL_NOT_START,
        why="Some text is nobody's report: truncated, empty, binary, of another program or "
        "version. It could be the report of a node that is missing here, and the worst one. Each "
        "is named below the findings with its source, line and reason.",
        outcomes=(
            (Status.UNKNOWN, "one of them can be the report of a node that is missing"),
            (Status.WARN, "every node of --expect has a report, so none is missing"),
        ),
        remedy="Get these again; name the nodes with --expect, so that a stray file cannot hide "
        "one.",
        source="the texts that were given",
        topics=(),
    ),
)
