"""The versions of the site that lie beside each other, and the pages that lead to the newest one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

LATEST = "latest"
REDIRECT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>headrace</title>
<link rel="canonical" href="{address}">
<script>location.replace("{address}" + location.search + location.hash)</script>
<meta http-equiv="refresh" content="0; url={address}">
</head>
<body><a href="{address}">This page has moved.</a></body>
</html>
"""


def order(version: str) -> tuple[int, ...]:
    """Returns what versions are sorted by."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def put(built: Path, into: Path, version: str) -> None:
    """Moves a site that was built to its place among the versions, and writes what leads to the newest version anew."""
    place = into / version
    before = built.with_name("before")
    if place.exists():
        place.rename(before)
    built.rename(place)

    known = [path.parent.name for path in into.glob("*/index.html") if order(path.parent.name)]
    known.sort(key=order, reverse=True)
    newest = known[0]
    listed = [{"version": one, "title": one, "aliases": [LATEST] if one == newest else []} for one in known]
    replace(into / "versions.json", json.dumps(listed, indent=2) + "\n")
    redirects = built.with_name(LATEST)
    for page in (into / newest).rglob("*.html"):
        path = page.relative_to(into / newest)
        up = "../" * len(path.parts)
        target = path.parent.as_posix() + "/" if path.name == "index.html" else path.as_posix()
        redirects.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
        redirects.joinpath(path).write_text(REDIRECT.format(address=f"{up}{newest}/{target.removeprefix('./')}"))
    shutil.rmtree(into / LATEST, ignore_errors=True)
    redirects.rename(into / LATEST)
    replace(into / "index.html", REDIRECT.format(address=f"{LATEST}/"))


def replace(path: Path, text: str) -> None:
    """Writes a file in one step."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(text)
    aside.replace(path)
