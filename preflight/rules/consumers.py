"""Rules about engines beside SGLang: what each refuses, takes for something else, or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.processes.processes import LaunchProcess
from preflight.rules.rules import RuleSet, Seen

RULES = RuleSet("consumers")


@RULES.process("consumer-refused")
def consumer_refused(process: LaunchProcess) -> Iterator[Seen]:
    for text in process.consumer.refused if process.consumer else ():
        yield Seen(f"{process.kind.value}: {text}")


@RULES.process("consumer-misread")
def consumer_misread(process: LaunchProcess) -> Iterator[Seen]:
    yield from map(Seen, process.consumer.misread if process.consumer else ())


@RULES.process("consumer-ignored")
def consumer_ignored(process: LaunchProcess) -> Iterator[Seen]:
    yield from map(Seen, process.consumer.ignored if process.consumer else ())
