"""Checks of what a launch talks to: the master, metadata servers, clients, workers."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, UnjudgedError, passed, skip, unknown
from checks.base.needs import LaunchNeeds, Service
from checks.base.unknown import Unknown
from checks.network.judge import is_loopback
from checks.network.services import (
    ABSENT_KEY,
    METADATA_PATH,
    NOT_FOUND,
    Answer,
    ServiceFacts,
    has_no_address,
    key_of,
)

CHECKS = CheckSet()
_NONE = "the launch talks to nothing"


def _talking(needs: LaunchNeeds | None) -> LaunchNeeds:
    launch = the_launch(needs)
    if not _called(launch):
        raise UnjudgedError(skip(_NONE))
    return launch


def _called(needs: LaunchNeeds) -> list[Service]:
    return [service for service in needs.services if service.kind != "advertised"]


def _subject(service: Service) -> str:
    port = "" if service.port is None else f":{service.port}"
    host = "?" if isinstance(service.host, Unknown) else service.host
    return f"{service.kind} {host}{port}"


@CHECKS.check("service.address", _talking)
def address(needs: LaunchNeeds, services: ServiceFacts) -> Iterator[Finding]:
    """Each service."""
    for service in _called(needs):
        yield _address(service, services.answers.get(key_of(service)), needs.hosts)


def _address(service: Service, answer: Answer | None, hosts: int) -> Finding:
    subject, evidence = _subject(service), (Evidence(service.origin, str(service.host)),)
    if isinstance(service.host, Unknown):
        return unknown(subject, service.host.reason)
    if service.port is None:
        text = "there is no port in the address"
        advice = "write host:port"
        return passed(subject, evidence=evidence).failed(text, advice)
    found = Unknown("not resolved") if answer is None else answer.addresses
    if isinstance(found, Unknown):
        if has_no_address(found):
            text = f"the name does not resolve here ({found.reason})"
            return passed(subject, evidence=evidence).failed(text)
        return unknown(subject, found.reason)
    have = ", ".join(found)
    if hosts > 1 and is_loopback(found[0]):
        text = f"the launch runs on {hosts} hosts, and each would talk to itself"
        return passed(subject, have, evidence=evidence).warned(text)
    return passed(subject, have, evidence=evidence)


@CHECKS.check("service.reachable", _talking)
def reachable(needs: LaunchNeeds, services: ServiceFacts) -> Iterator[Finding]:
    """Each service that the launch does not start itself."""
    for service in _called(needs):
        yield _reachable(service, services.answers.get(key_of(service)))


def _reachable(service: Service, answer: Answer | None) -> Finding:
    subject = _subject(service)
    if service.own:
        return passed(subject, "the launch itself starts it")
    if isinstance(service.host, Unknown) or answer is None:
        reason = service.host.reason if isinstance(service.host, Unknown) else "not asked"
        return unknown(subject, reason)
    if isinstance(answer.open, Unknown):
        why = answer.addresses if isinstance(answer.addresses, Unknown) else answer.open
        return unknown(subject, why.reason)
    if not answer.open:
        text = f"nothing answers there ({answer.refusal})"
        evidence = (Evidence(f"connect {subject}", answer.refusal),)
        advice = "start it, or correct the address"
        return passed(subject, "no answer", evidence=evidence).failed(text, advice)
    if service.kind == "metadata-http":
        return _metadata(subject, answer)
    if service.kind == "master-admin":
        return _admin(subject, answer)
    if service.kind == "master":
        return _master(subject, answer)
    return passed(subject, "something listens")


def _metadata(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return passed(subject, "open").failed(text)
    have = f"HTTP {answer.status}"
    evidence = (Evidence(f"GET {METADATA_PATH}{ABSENT_KEY}", f"{answer.status} {answer.body}"),)
    if answer.status == 404 and NOT_FOUND in answer.body:
        return passed(subject, "a metadata server", evidence=evidence)
    need = f"404 {NOT_FOUND}"
    text = "an HTTP server, and no metadata server at this path"
    if answer.status == 401:
        text = "the metadata server wants a token: set MC_METADATA_HTTP_TOKEN"
    return passed(subject, have, need, evidence=evidence).failed(text)


def _admin(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return passed(subject, "open").failed(text)
    body = "".join(answer.body.split())
    evidence = (Evidence("GET /health", answer.body[:200]),)
    have = f"HTTP {answer.status}"
    if answer.status == 200 and '"service_ready":true' in body:
        return passed(subject, "service_ready", evidence=evidence)
    # "status" is always ok there: what counts is service_ready.
    text = "the master does not say service_ready: it is not serving, or it is something else"
    return passed(subject, have, "service_ready true", evidence=evidence).failed(text)


def _master(subject: str, answer: Answer) -> Finding:
    if answer.refusal:
        text = f"something listens, and gives Mooncake's own client {answer.refusal}"
        return passed(subject, "open", "a master").failed(text)
    if isinstance(answer.code, Unknown):
        reason = f"something listens; whether it is a master is not known ({answer.code.reason})"
        return unknown(subject, reason, have="open")
    evidence = (Evidence("setup with rpc_only", f"returned {answer.code}"),)
    if answer.code == 0:
        return passed(subject, "a master, ready", evidence=evidence)
    text = "Mooncake's own client gets no service from it: another program, or another version"
    have = f"open, setup returned {answer.code}"
    return passed(subject, have, "0", evidence=evidence).failed(text)
