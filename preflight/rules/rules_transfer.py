"""Rules about the threads with which a prefill server sends KV over Mooncake."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.processes.processes import SglangServer
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_POOL, _QUEUES = "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", "SGLANG_DISAGGREGATION_QUEUE_SIZE"
# environ.py; conn.py, without the variable: min(max(4, CPUs / 2 // 8), 12).
DEFAULT_QUEUES, MOST_THREADS = 4, 12


@RULES.server(
    "transfer-threads-too-few",
    Severity.FAIL,
    "fewer threads for transfers than queues for them, on a prefill server",
    "the server ends: AssertionError, SGLANG_DISAGGREGATION_THREAD_POOL_SIZE must be greater than "
    "or equal to SGLANG_DISAGGREGATION_QUEUE_SIZE",
    "set SGLANG_DISAGGREGATION_THREAD_POOL_SIZE to the number of queues at least, or unset both",
    "SGLang disaggregation/mooncake/conn.py, environ.py",
)
def transfer_threads_too_few(server: SglangServer) -> Iterator[Seen]:
    if server.mode != "prefill" or server.value("disaggregation_transfer_backend") != "mooncake":
        return
    written = server.environment.get(_POOL) or server.environment.get(_QUEUES)
    if written is None:
        return
    queues = _number(server, _QUEUES, DEFAULT_QUEUES)
    threads = _number(server, _POOL, MOST_THREADS)
    if queues is not None and threads is not None and threads < queues:
        least = "" if _POOL in server.environment else f" at most, as {_POOL} is not set"
        count = f"{threads} thread{'s' * (threads != 1)}{least}"
        yield Seen(f"{count}, for {queues} queues", written.origin)


def _number(server: SglangServer, name: str, default: int) -> int | None:
    """What SGLang makes of a variable; None where it cannot be told here."""
    word = server.environment.get(name)
    if word is None or word.text == "":
        return default if word is None else None
    text = word.text.strip()
    return int(text) if not word.unresolved and text.isdecimal() and len(text) < 10 else None
