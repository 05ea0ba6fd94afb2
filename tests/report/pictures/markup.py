"""A page taken apart: whether it is well formed, and whether it is whole by itself."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link", "wbr", "col"}
# What our pages are made of; anything else was not put there by us.
KNOWN = VOID | set(
    "html head title style body main section article footer header h1 h2 h3 p strong code pre ul li"
    " dl dt dd div span small details summary table caption thead tbody tr th td button figure"
    " figcaption script svg g rect line text circle polyline polygon path pattern defs"
    " a ol label".split()
)
# Attributes whose value is an address, in HTML and in SVG.
ADDRESSES = set(
    "src href xlink:href srcset action formaction poster data background cite ping manifest"
    " longdesc profile usemap codebase archive classid srcdoc style".split()
)


class Markup(HTMLParser):
    """elements: (name, attributes) in their order. text: all of it outside of style and script."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.styles: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(document)
        self.close()
        self.problems += [f"never closed: {name}" for name in self._open]
        if not document.startswith("<!DOCTYPE html>\n"):
            self.problems.append("no doctype")
        ids = [each["id"] for _, each in self.elements if "id" in each]
        self.problems += [f"id {each} twice" for each in set(ids) if ids.count(each) > 1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in KNOWN:
            self.problems.append(f"element {tag!r}")
        if len(attributes) != len(attrs):
            self.problems.append(f"{tag}: an attribute twice")
        for name, value in attrs:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                self.problems.append(f"{tag}: attribute {name!r}")
            within = name == "href" and (value or "").startswith("#")  # a place of this page
            if name.startswith("on") or (name in ADDRESSES and not within):
                self.problems.append(f"{tag}: attribute {name}={value!r}")
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> within {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.problems.append(f"<{tag}/>")

    def handle_data(self, data: str) -> None:
        within = self._open[-1] if self._open else ""
        if within == "style":
            self.styles.append(data)
        elif within == "script":
            self.scripts.append(data)
        else:
            self.text += data

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"comment {data[:40]!r}")

    def all(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of every element of that name."""
        return [attributes for tag, attributes in self.elements if tag == name]


def faults(document: str) -> list[str]:
    """What is not well formed, or would fetch or run anything but the page's own."""
    page = Markup(document)
    found = list(page.problems)
    for style in page.styles:
        addresses = re.findall(r"url\(([^)]*)\)", style)
        found += [f"style: url({each})" for each in addresses if not each.startswith("#")]
        found += [
            f"style: {word}" for word in ("@import", "expression(", "@font-face") if word in style
        ]
    policies = [
        each.get("content") or ""
        for each in page.all("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    if len(policies) != 1 or "default-src 'none'" not in policies[0]:
        found.append("no policy")
    hashes = set(re.findall(r"'sha256-([^']*)'", "".join(policies)))
    digests = {
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in page.scripts
    }
    if hashes != digests:
        found.append("the policy allows other scripts than the page's")
    if any("unsafe-inline" in each for each in re.findall(r"script-src[^;]*", "".join(policies))):
        found.append("the policy allows any script")
    return found
