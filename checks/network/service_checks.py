"""Checks of what a launch talks to: the master, metadata servers, clients, workers."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Status, skip, unknown
from checks.base.needs import LaunchNeeds, Service
from checks.base.unknown import Unknown
from checks.network.judge import is_loopback
from checks.network.services import (
    ABSENT_KEY,
    METADATA_PATH,
    NOT_FOUND,
    Answer,
    has_no_address,
    key_of,
)
from checks.run.facts import Facts

CHECKS = CheckSet()
_NONE = "the launch talks to nothing"


def _services(check: str, needs: LaunchNeeds | None) -> tuple[Service, ...] | Finding:
    if needs is None:
        return skip(check)
    found = tuple(service for service in needs.services if service.kind != "advertised")
    return found or skip(check, _NONE)


def _subject(service: Service) -> str:
    port = "" if service.port is None else f":{service.port}"
    host = "?" if isinstance(service.host, Unknown) else service.host
    return f"{service.kind} {host}{port}"


_ADDRESS = "service.address"


@CHECKS.declare(_ADDRESS, "services")
def address(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each service."""
    services = _services(_ADDRESS, needs)
    if isinstance(services, Finding):
        yield services
        return
    hosts = 1 if needs is None else needs.hosts
    for service in services:
        yield _address(service, facts.services.answers.get(key_of(service)), hosts)


def _address(service: Service, answer: Answer | None, hosts: int) -> Finding:
    subject, evidence = _subject(service), (Evidence(service.origin, str(service.host)),)
    if isinstance(service.host, Unknown):
        return unknown(_ADDRESS, subject, service.host.reason)
    if service.port is None:
        text = "there is no port in the address"
        advice = "write host:port"
        return Finding(_ADDRESS, Status.FAIL, subject, "", "", "", text, evidence, advice)
    found = Unknown("not resolved") if answer is None else answer.addresses
    if isinstance(found, Unknown):
        if has_no_address(found):
            text = f"the name does not resolve here ({found.reason})"
            return Finding(_ADDRESS, Status.FAIL, subject, "", "", "", text, evidence)
        return unknown(_ADDRESS, subject, found.reason)
    have = ", ".join(found)
    if hosts > 1 and is_loopback(found[0]):
        text = f"the launch runs on {hosts} hosts, and each would talk to itself"
        return Finding(_ADDRESS, Status.WARN, subject, have, "", "", text, evidence)
    return Finding(_ADDRESS, Status.PASS, subject, have, "", "", "", evidence)


_REACHABLE = "service.reachable"


@CHECKS.declare(_REACHABLE, "services")
def reachable(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each service that the launch does not start itself."""
    services = _services(_REACHABLE, needs)
    if isinstance(services, Finding):
        yield services
        return
    for service in services:
        yield _reachable(service, facts.services.answers.get(key_of(service)))


def _reachable(service: Service, answer: Answer | None) -> Finding:
    subject = _subject(service)
    if service.own:
        return Finding(_REACHABLE, Status.PASS, subject, "the launch itself starts it")
    if isinstance(service.host, Unknown) or answer is None:
        reason = service.host.reason if isinstance(service.host, Unknown) else "not asked"
        return unknown(_REACHABLE, subject, reason)
    if isinstance(answer.open, Unknown):
        why = answer.addresses if isinstance(answer.addresses, Unknown) else answer.open
        return unknown(_REACHABLE, subject, why.reason)
    if not answer.open:
        text = f"nothing answers there ({answer.refusal})"
        evidence = (Evidence(f"connect {subject}", answer.refusal),)
        advice = "start it, or correct the address"
        return Finding(
            _REACHABLE, Status.FAIL, subject, "no answer", "", "", text, evidence, advice
        )
    if service.kind == "metadata-http":
        return _metadata(subject, answer)
    if service.kind == "master-admin":
        return _admin(subject, answer)
    if service.kind == "master":
        return _master(subject, answer)
    return Finding(_REACHABLE, Status.PASS, subject, "something listens")


def _metadata(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return Finding(_REACHABLE, Status.FAIL, subject, "open", "", "", text)
    have = f"HTTP {answer.status}"
    evidence = (Evidence(f"GET {METADATA_PATH}{ABSENT_KEY}", f"{answer.status} {answer.body}"),)
    if answer.status == 404 and NOT_FOUND in answer.body:
        return Finding(_REACHABLE, Status.PASS, subject, "a metadata server", "", "", "", evidence)
    need = f"404 {NOT_FOUND}"
    text = "an HTTP server, and no metadata server at this path"
    if answer.status == 401:
        text = "the metadata server wants a token: set MC_METADATA_HTTP_TOKEN"
    return Finding(_REACHABLE, Status.FAIL, subject, have, need, "", text, evidence)


def _admin(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return Finding(_REACHABLE, Status.FAIL, subject, "open", "", "", text)
    body = "".join(answer.body.split())
    evidence = (Evidence("GET /health", answer.body[:200]),)
    have = f"HTTP {answer.status}"
    if answer.status == 200 and '"service_ready":true' in body:
        return Finding(_REACHABLE, Status.PASS, subject, "service_ready", "", "", "", evidence)
    # "status" is always ok there: what counts is service_ready.
    text = "the master does not say service_ready: it is not serving, or it is something else"
    return Finding(_REACHABLE, Status.FAIL, subject, have, "service_ready true", "", text, evidence)


def _master(subject: str, answer: Answer) -> Finding:
    if answer.refusal:
        text = f"something listens, and gives Mooncake's own client {answer.refusal}"
        return Finding(_REACHABLE, Status.FAIL, subject, "open", "a master", "", text)
    if isinstance(answer.code, Unknown):
        reason = f"something listens; whether it is a master is not known ({answer.code.reason})"
        return unknown(_REACHABLE, subject, reason, have="open")
    evidence = (Evidence("setup with rpc_only", f"returned {answer.code}"),)
    if answer.code == 0:
        return Finding(_REACHABLE, Status.PASS, subject, "a master, ready", "", "", "", evidence)
    text = "Mooncake's own client gets no service from it: another program, or another version"
    have = f"open, setup returned {answer.code}"
    return Finding(_REACHABLE, Status.FAIL, subject, have, "0", "", text, evidence)
