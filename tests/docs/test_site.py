"""The docs site: it builds, its links lead somewhere, and its pages work in a browser, on a phone and in the dark."""

from __future__ import annotations

import ast
import functools
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import torch.utils.data
from website import build, generated, links, versions

import headrace
import headrace.samplers
import headrace.testing
import headrace.transforms
from headrace.observe.diagnosis import diagnose, traps
from tests.observe.chromium import CHROMIUM, Page, chromium

from .pages import DOCS, ROOT

pytestmark = pytest.mark.timeout(300)  # a build takes half a minute where others need the cores too
IN_A_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (Debian's package chromium)")
TOO_WIDE = """[...document.querySelectorAll("article *")].filter((one) => one.getBoundingClientRect().right > innerWidth
    && !one.closest("pre, .md-typeset__scrollwrap, .highlight")).map((one) => one.outerHTML.slice(0, 80)).slice(0, 3)"""
FOUND = """new Promise((done) => { const look = () => {
    const root = document.activeElement.shadowRoot;
    const found = root ? [...root.querySelectorAll("a")].map((link) => link.href) : [];
    if (found.length) done(found); else requestAnimationFrame(look); }; look(); })"""
READY = """new Promise((done) => { const look = () => { const root = document.activeElement.shadowRoot;
    if (root && root.activeElement) done(1); else requestAnimationFrame(look); }; look(); })"""


class Anchors(HTMLParser):
    """What a page can be linked by, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.targets: list[str] = []
        self.edited: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {name for name in (given.get("id"), given.get("name") if tag == "a" else None) if name}
        self.targets += [value for key in ("href", "src") if (value := given.get(key)) is not None]
        if given.get("rel") == "edit":
            self.edited = given["href"]


class Quiet(SimpleHTTPRequestHandler):
    """Serves plain files, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site of one version."""
    folder = tmp_path_factory.mktemp("site")
    assert build.build(folder) == ""
    return folder


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Anchors]:
    """All pages of the version, by their addresses on a host."""
    place = site / headrace.__version__
    found = {f"/{path.relative_to(site).as_posix()}": Anchors(path.read_text()) for path in place.rglob("*.html")}
    return {address.removesuffix("index.html"): page for address, page in found.items()}


@pytest.fixture(scope="session")
def host(site: Path) -> Iterator[str]:
    """The address of a host of plain files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


IN_FRAMEWORKS = {
    "integrations.accelerate.PreparedLoader", "integrations.accelerate.prepare",
    "integrations.lightning.LoaderCallback", "integrations.transformers.LoaderMixin",
}  # fmt: skip
"""Names of modules that import a framework."""


def in_navigation() -> list[str]:
    return re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(in_navigation()) == sorted({*written, *generated.PAGES})


def test_every_public_name_is_in_the_reference_of_the_api() -> None:
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference" / "api").glob("*.md")))
    documented = re.findall(r"^::: headrace\.(\S+)$", text, re.MULTILINE)
    own = set(dir(headrace)) - set(torch.utils.data.__all__) - {"samplers", "transforms", "types", "errors"}
    expected = {name for name in own if not name.startswith("_")} | {"DataLoader"}
    for module in (headrace.samplers, headrace.testing, headrace.transforms):
        expected |= {f"{module.__name__.removeprefix('headrace.')}.{name}" for name in module.__all__}
    for name in ("types", "errors"):
        parsed = ast.parse((ROOT / "src" / "headrace" / f"{name}.py").read_text())
        # Also under TYPE_CHECKING: what is loaded later.
        imports = [node for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom)]
        expected |= {f"{name}.{alias.asname}" for node in imports for alias in node.names if alias.asname}

    assert sorted(documented) == sorted(expected | IN_FRAMEWORKS)


def test_every_finding_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "findings.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}

    found = set(traps.TRAPS)
    for path in Path(diagnose.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name("Finding"), args=[ast.Constant(str(name)), *_]):
                    found.add(name)
    assert len(found) > 10
    assert found <= documented


def test_paragraphs_within_lists_are_as_python_markdown_wants_them() -> None:
    """It wants four spaces, and an empty line before the next item; GitHub takes less."""
    wrong = []
    for path in [*DOCS.rglob("*.md"), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        wrong += [(path.name, line) for line in re.findall(r"\n\n( {1,3}[^ \n].*)", text)]
        wrong += [(path.name, line) for line in re.findall(r"\n    [^ \n].*\n(- .*)", text)]
    assert wrong == []


def test_links_out_of_the_docs_lead_to_the_repository() -> None:
    text = "[a](../../README.md) [b](other.md#x) [c](#y) [d](../../src/headrace/) [e](../../README.md#z)"
    made = links.absolute(text, DOCS / "howto")
    blob = f"{links.REPOSITORY}/blob/main/README.md"
    assert made == f"[a]({blob}) [b](other.md#x) [c](#y) [d]({links.REPOSITORY}/tree/main/src/headrace) [e]({blob}#z)"


def made_up(folder: Path, text: str) -> Path:
    """Makes what a build leaves: two pages."""
    (folder / "site" / "howto" / "order").mkdir(parents=True)
    (folder / "site" / "index.html").write_text(text)
    (folder / "site" / "howto" / "order" / "index.html").write_text(text)
    return folder / "site"


def test_versions_lie_beside_each_other_and_the_newest_is_the_latest(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    for number, version in enumerate(("0.9.0", "0.10.0", "0.2.0", "0.9.0")):
        versions.put(made_up(tmp_path / f"build{number}", f"{version}, build {number}"), into, version)

    listed = json.loads((into / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
        ("0.2.0", []),
    ]
    assert (into / "0.9.0" / "index.html").read_text() == "0.9.0, build 3"
    assert 'replace("../0.10.0/"' in (into / "latest" / "index.html").read_text()
    assert 'replace("../../../0.10.0/howto/order/"' in (into / "latest" / "howto" / "order" / "index.html").read_text()
    assert 'replace("latest/"' in (into / "index.html").read_text()
    assert sorted(path.name for path in into.iterdir()) == sorted(
        ["0.10.0", "0.9.0", "0.2.0", "latest", "versions.json", "index.html"]
    )


@pytest.mark.thorough
def test_a_link_to_a_page_that_is_not_there_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = generated.pages()
    pages["about/changelog.md"] += "\n\n[nowhere](nowhere.md)\n"
    monkeypatch.setattr(generated, "pages", lambda: pages)
    failed = build.build(tmp_path)
    assert "page does not exist" in failed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_links_of_the_site_lead_to_pages_and_anchors_that_exist(site: Path, pages: dict[str, Anchors]) -> None:
    broken = []
    for address, page in pages.items():
        for target in page.targets:
            if urlparse(target).scheme:
                continue
            found = urlparse(urljoin(address, target))
            path = unquote(found.path)
            if path in pages:
                there = not found.fragment or unquote(found.fragment) in pages[path].names or found.fragment == "__skip"
            else:
                there = (site / path.removeprefix("/")).is_file()
            if not there:
                broken.append((address, target))
    assert len(pages) > 50
    assert broken == []


@pytest.mark.thorough
def test_every_page_links_to_the_file_that_it_is_made_from(pages: dict[str, Anchors]) -> None:
    begin = f"{links.REPOSITORY}/edit/main/"
    edited = {address: page.edited for address, page in pages.items()}
    assert [address for address, edit in edited.items() if edit is None or not edit.startswith(begin)] == []
    sources = {edit.removeprefix(begin) for edit in edited.values() if edit}
    assert len(sources) == len(edited)
    assert [source for source in sources if not (ROOT / source).is_file()] == []


@pytest.mark.thorough
@IN_A_BROWSER
@pytest.mark.parametrize("folder", sorted({str(Path(page).parent) for page in in_navigation()}))
def test_pages_work_on_a_phone(host: str, browser: Page, folder: str) -> None:
    """No page scrolls sideways, gives an error, or asks another host for anything, in light and in dark colours."""
    wrong: dict[str, object] = {}
    backgrounds: dict[bool, set[str]] = {False: set(), True: set()}
    for page in in_navigation():
        if str(Path(page).parent) != folder:
            continue
        address = page.removesuffix(".md").removesuffix("index").rstrip("/")
        browser.open(f"{host}/{headrace.__version__}/{address}", 400, touch=True)
        for dark in (False, True):
            browser.prefer(dark)
            browser.settle()
            width = browser.run("document.scrollingElement.scrollWidth")
            if width > 400:
                wrong[address] = width, browser.run(TOO_WIDE)
            backgrounds[dark].add(browser.run("getComputedStyle(document.body).backgroundColor"))
        if troubles := [one for one in browser.troubles() if not one.startswith(host)]:
            wrong[f"{address}: troubles"] = troubles
    assert wrong == {}
    for dark, (background,) in backgrounds.items():
        brightness = [int(part) for part in re.findall(r"\d+", background)[:3]]
        assert max(brightness) < 60 if dark else min(brightness) > 200


@pytest.mark.thorough
@IN_A_BROWSER
def test_search_finds_a_class(host: str, browser: Page) -> None:
    browser.open(f"{host}/{headrace.__version__}/", 1200)
    browser.run("document.querySelector('.md-search__button').click()")
    browser.run(READY)
    browser.call("Input.insertText", text="DataLoader")
    found = browser.run(FOUND)
    assert any(urlparse(address).fragment == "headrace.DataLoader" for address in found), found


@pytest.mark.thorough
@IN_A_BROWSER
def test_the_address_of_the_latest_version_leads_to_the_same_place_of_it(host: str, browser: Page) -> None:
    browser.open(f"{host}/latest/howto/order/#samplers", 1200, still=True)
    browser.wait_for("Page.frameNavigated", f"{host}/{headrace.__version__}/howto/order/")
    assert browser.run("location.hash") == "#samplers"
