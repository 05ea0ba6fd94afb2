"""``measure --kill``: a small store of the launch's kind, of which one process is killed.

All processes and ports are new, and end with the command: nothing of a running service is touched.
The answer tells the effects that were seen in these processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

from checks.framework.regex import regex
from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.network.calls import http
from preflight.base.one_line import clean
from preflight.base.output import columns
from preflight.base.text import filled, headed
from preflight.base.usage_error import UsageError
from preflight.benchmark.measuring.findings import seconds_text
from preflight.benchmark.measuring.records import HOLDS_METADATA
from preflight.benchmark.measuring.run import LOOPBACK, MeasureError, Measuring
from preflight.benchmark.rehearsal.programs import Running, await_answer, free_port, is_error
from preflight.processes.services import PEER_TO_PEER

OBJECTS = 16
_OBJECT_BYTES, _SEGMENT_BYTES = MIB, 64 * MIB
# Without an answer for so long the master drops a client (--client_ttl); a launch may say another.
_CLIENT_TTL_SECONDS = 10.0
_AFTER_SECONDS = 4.0
# A get of a master that is gone takes 4.6 s (0.3.13.post1).
_CALL_SECONDS = 15.0
_JOIN_SECONDS = 20.0
_MOST_MESSAGES = 3
_STAMP = regex(r"[EWF]\d{4} [\d:.]+ +\d+ ")  # of glog: severity, date, time and thread


class Survival(NamedTuple):
    """What happened to the objects of two clients when one process of their store was killed.

    Attributes:
        killed: Client, master or metadata. gone_*: calls of the other client, the witness, while
            the killed process was gone.
        slowest_seconds: Of these calls.
        join_refused: The error of a client that tried to join meanwhile, "" if none did.
        dropped_seconds: Until the master dropped a dead client's segment.
        restart_refused: The error when the killed client started at its old address; mended_by: the
            step that then let it in.
        back_seconds: From the restart until the witness could put and get again.
        lost: How many of the ``OBJECTS`` put before the kill the witness could then not get.
        newcomer: Of ``OBJECTS`` put since, how many a client that joined last could get;
            newcomer_refused: the error if it could not join.
        messages: The first errors of the witness's log. None: the test did not get so far.
    """

    killed: str
    library: str
    metadata: str
    gone_puts: int
    gone_puts_failed: int
    gone_gets: int
    gone_gets_failed: int
    slowest_seconds: float
    join_refused: str = ""
    dropped_seconds: float | None = None
    restart_refused: str = ""
    mended_by: str = ""
    back_seconds: float | None = None
    lost: int | None = None
    newcomer: int | None = None
    newcomer_refused: str = ""
    messages: tuple[str, ...] = ()

    @property
    def costs(self) -> bool:
        """Tell whether puts failed, objects were lost, or clients could not go on or join later."""
        lost = self.back_seconds is None or self.lost or self.gone_puts_failed
        return bool(lost) or self.newcomer != OBJECTS

    @property
    def reason(self) -> str:
        return f"what survives a killed {self.killed}: {self.statements[0]}"

    @property
    def statements(self) -> tuple[str, ...]:
        """Describe the effects of the kill, one sentence each; the last names the steps by hand."""
        dropped, back = (
            "" if seconds is None else f"after {seconds_text(seconds)}"
            for seconds in (self.dropped_seconds, self.back_seconds)
        )
        puts = f"{self.gone_puts_failed} of {self.gone_puts} puts"
        gets = f"{self.gone_gets_failed} of {self.gone_gets} gets"
        slowest = seconds_text(self.slowest_seconds)
        started = f"its start at its old address was refused: {self.restart_refused}"
        joined = f"a client that joined last got {self.newcomer} of {OBJECTS} new objects"
        rows = (
            (True, f"while it was gone {puts} and {gets} failed; the slowest call took {slowest}"),
            (self.join_refused, f"no client could join while it was gone: {self.join_refused}"),
            (self.killed == "client", f"the master dropped its segment {dropped or 'not yet'}"),
            (self.restart_refused, started),
            (True, f"started again, puts and gets worked {back or 'no more'}"),
            (self.lost is not None, f"{self.lost} of {OBJECTS} objects were lost"),
            (self.newcomer is not None, joined),
            (self.newcomer_refused, f"no client could join afterwards: {self.newcomer_refused}"),
            (True, f"by hand: {self.by_hand}"),
        )
        return tuple(text for happened, text in rows if happened)

    @property
    def by_hand(self) -> str:
        """The steps that are left to do by hand after the kill; ``nothing`` if there are none."""
        apart = self.back_seconds is None or self.newcomer not in (None, OBJECTS)
        mended = self.mended_by or "nothing that was tried lets it in at its old address"
        steps = (
            mended if self.restart_refused else "",
            "start the clients again that lived on: they and others do not meet" if apart else "",
            "nobody can join: read the log of the master" if self.newcomer_refused else "",
        )
        return "; ".join(filter(None, steps)) or "nothing"


class Killing(Measuring):
    """A small store of two clients: one process is killed, and the surviving client (witness) goes
    on.
    """

    def survival(self, killed: str) -> Survival:
        """Start the store, kill one process (client, master or metadata), and return the effects.

        Raises:
            UsageError: If the launch has no such process; MeasureError, RehearsalError,
                StoppedError or SkippedError if the test cannot be done.
        """
        usual = "http" if killed == "metadata" else PEER_TO_PEER
        self._metadata = metadata = self._wanted.metadata or usual
        if metadata not in (PEER_TO_PEER, "http"):
            raise MeasureError(f"the launch's metadata is in {metadata}, which is not started here")
        if killed == "metadata" and metadata == PEER_TO_PEER:
            raise UsageError("--kill: the launch has no metadata server: P2PHANDSHAKE")
        self._in_master = f"--{HOLDS_METADATA}=true" in self._wanted.master_words
        if killed == "metadata" and self._in_master:
            raise UsageError("--kill: the launch's master is its metadata server: --kill master")
        library = self._library
        if isinstance(library, Unknown):
            raise MeasureError(library.reason)
        self._ports = {name: free_port() for name in ("master", "metrics", "metadata", "http")}
        with ExitStack() as self._stack:
            apart = self._metadata == "http" and not self._in_master
            names = ("metadata", "master") if apart else ("master",)
            started = {name: self._program(name) for name in names}
            address = f"{LOOPBACK}:{free_port()}"
            started["client"] = self._client(address)
            witness = self._client(f"{LOOPBACK}:{free_port()}")
            for number in range(OBJECTS):
                self._ask(witness, "put", key=f"object-{number}", bytes=_OBJECT_BYTES)
            if self._readable(witness, "object") != OBJECTS:
                raise MeasureError("not all objects could be got before anything was killed")
            written = len(witness.log.read_text(errors="replace"))
            started[killed].end()
            fate = self._while_gone(killed, witness, address)
            fate = fate._replace(library=library.name, metadata=metadata)
            began = time.monotonic()
            if killed == "client":
                fate = self._client_again(fate, address)
            else:
                self._program(killed)
            late = ""
            if (works := self._wait_until_works(witness, began)) is not None:
                back, late = works
                lost = OBJECTS - self._readable(witness, "object")
                fate = fate._replace(back_seconds=back, lost=lost)
            newcomer = self._client_or_refusal(f"{LOOPBACK}:{free_port()}")
            if isinstance(newcomer, str):
                fate = fate._replace(newcomer_refused=newcomer)
            elif late:
                fate = fate._replace(newcomer=self._readable(newcomer, late))
            log = witness.log.read_text(errors="replace")[written:]
            return fate._replace(messages=_messages(log))

    def _program(self, name: str) -> Running:
        """Start the process named "master" or "metadata", and wait until it answers.

        The metadata server is a part of another mooncake_master.
        """
        assert not isinstance(self._library, Unknown)
        ports, is_master = self._ports, name == "master"
        arguments = [f"--rpc_port={ports[name]}"]
        arguments += [f"--metrics_port={ports['metrics'] if is_master else free_port()}"]
        arguments += self._wanted.master_words if is_master else [f"--{HOLDS_METADATA}=true"]
        listens = ports["master"]
        if self._in_master or not is_master:
            listens = ports["http"]
            arguments += [f"--http_metadata_server_host={LOOPBACK}"]
            arguments += [f"--http_metadata_server_port={listens}"]
        started = self._start(program=(self._library.program("mooncake_master"), *arguments))
        await_answer(started, name, f"{LOOPBACK}:{listens}")
        return started

    def _client_again(self, fate: Survival, address: str) -> Survival:
        """Start the killed client again at its old HOST:PORT, and add the outcome to ``fate``.

        If the client is refused and metadata is http, delete the client's keys from the metadata
        server and retry.
        """
        client = self._client_or_refusal(address)
        if not isinstance(client, str):
            return fate
        fate = fate._replace(restart_refused=client)
        if self._metadata != "http":
            return fate
        keys = [f"mooncake/{key_kind}/{address}" for key_kind in ("rpc_meta", "ram")]
        for key in keys:
            connection = HTTPConnection(LOOPBACK, self._ports["http"], timeout=_CALL_SECONDS)
            connection.request("DELETE", f"/metadata?key={quote(key, safe='')}")
            connection.getresponse().read()
            connection.close()
        if isinstance(self._client_or_refusal(address), str):
            return fate
        names = " and ".join(key.replace(address, "HOST:PORT") for key in keys)
        return fate._replace(mended_by=f"DELETE {names} at the metadata server (/metadata?key=)")

    def _client_or_refusal(self, address: str) -> Running | str:
        try:
            return self._client(address)
        except MeasureError as error:
            return _STAMP.sub("", str(error))

    def _client(self, address: str) -> Running:
        """Start a new client that joins the store as HOST:PORT.

        Raises:
            MeasureError: If refused.
        """
        (process,) = self._start_loaded(1)
        where = f"http://{LOOPBACK}:{self._ports['http']}/metadata"
        order = {
            "host": address,
            "metadata": where if self._metadata == "http" else PEER_TO_PEER,
            "segment_bytes": _SEGMENT_BYTES,
            "local_buffer_bytes": 2 * _OBJECT_BYTES,
            "protocol": self._wanted.protocol or "tcp",
            "devices": self._wanted.devices,
            "master": f"{LOOPBACK}:{self._ports['master']}",
            "more": {},
        }
        self._ask(process, "setup", _JOIN_SECONDS, **order)
        return process

    def _call(self, process: Running, do: str, key: str) -> tuple[bool, float]:
        """Return (success, seconds) of a put or get.

        Raises:
            MeasureError: If the process ended.
        """
        reply = process.ask({"do": do, "key": key, "bytes": _OBJECT_BYTES}, _CALL_SECONDS)
        if reply.ended is not None:
            raise MeasureError(f"the client that lived on ended: {reply.error}")
        return not reply.error, reply.seconds

    def _readable(self, process: Running, name: str) -> int:
        return sum(self._call(process, "get", f"{name}-{n}")[0] for n in range(OBJECTS))

    def _while_gone(self, killed: str, witness: Running, address: str) -> Survival:
        """Put and get by the witness while the killed process is gone; count calls and failures.

        Lasts 4 s. After a killed client it lasts longer, until the master has dropped the segment
        at ``address``, but at most 20 s more. After a killed metadata server, a new client then
        tries to join.
        """
        ttls = (word.partition("--client_ttl=")[2] for word in self._wanted.master_words)
        ttl = float(next(filter(None, ttls), _CLIENT_TTL_SECONDS))
        seconds = _AFTER_SECONDS + (ttl if killed == "client" else 0)
        began, number, slowest = time.monotonic(), 0, 0.0
        tried, failed = {"put": 0, "get": 0}, {"put": 0, "get": 0}
        dropped = None
        while (passed := time.monotonic() - began) < seconds or (
            killed == "client" and dropped is None and passed < seconds + _JOIN_SECONDS
        ):
            for do, key in (("put", f"new-{number}"), ("get", f"object-{number % OBJECTS}")):
                fine, took = self._call(witness, do, key)
                tried[do] += 1
                failed[do] += not fine
                slowest = max(slowest, took)
            if killed == "client" and dropped is None and not self._has_segment(address):
                dropped = time.monotonic() - began
            number += 1
            time.sleep(0.2)
        refused = ""
        if killed == "metadata":
            joined = self._client_or_refusal(f"{LOOPBACK}:{free_port()}")
            refused = joined if isinstance(joined, str) else ""
        numbers = (tried["put"], failed["put"], tried["get"], failed["get"], slowest)
        return Survival(killed, "", "", *numbers, refused, dropped)

    def _has_segment(self, address: str) -> bool:
        """Tell whether the master still has the segment of the client at ``address``; True if the
        master does not answer.

        A segment that was dropped has 0 bytes.
        """
        body = http(LOOPBACK, self._ports["metrics"], "/metrics", 1 << 20).get("body", "")
        rest = body.partition(f'segment_total_capacity_bytes{{segment="{address}"}} ')[2]
        return not body or rest[:1] not in ("", "0")

    def _wait_until_works(self, witness: Running, began: float) -> tuple[float, str] | None:
        """Put and get new objects until a round of ``OBJECTS`` succeeds.

        Return the seconds from ``began`` to that round, and the first part of its keys; None if
        none succeeds in 20 s.
        """
        for number in count():
            at, name = time.monotonic() - began, f"late-{number}"
            if at > _JOIN_SECONDS:
                return None
            calls = ((do, f"{name}-{n}") for n in range(OBJECTS) for do in ("put", "get"))
            if all(self._call(witness, *call)[0] for call in calls):
                return at, name
            time.sleep(0.1)
        return None


def _messages(log: str) -> tuple[str, ...]:
    """Return the first three errors of a log, without time and thread: one for each source line."""
    texts: dict[str, str] = {}
    for line in log.splitlines():
        if is_error(line):
            text = _STAMP.sub("", line).strip()
            texts.setdefault(text.partition("]")[0], text[:200])
    return tuple(texts.values())[:_MOST_MESSAGES]


def survival_text(fate: Survival) -> str:
    """Write the effects of the kill, and the first messages of the client that lived on."""
    width, word = columns(), "WARN" if fate.costs else "PASS"
    head = headed(word, f"what survives a killed {fate.killed}", width, word)
    lines = [filled(f"- {clean(line)}", width, 2) for line in fate.statements]
    lines += [filled(f"  it said: {clean(line)}", width, 4) for line in fate.messages]
    lines.append(f"- library: {fate.library}, metadata: {fate.metadata}")
    return "\n".join((head, "", *lines))


def survival_object(fate: Survival) -> Mapping[str, Any]:
    """Return the effects of the kill as plain data."""
    lists = {"messages": list(fate.messages), "statements": list(fate.statements)}
    return {"killed": {**fate._asdict(), "objects": OBJECTS, **lists}}
