"""A run's report in a real browser: on the screen, on paper, and with hostile texts."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from midstream.report.page import page
from support.reports import hostile, report

pytestmark = [pytest.mark.slow, pytest.mark.system]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
CURVE_COLOURS = {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)}  # of two attempts


@pytest.fixture(scope="module")
def browser() -> str:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    return program


@pytest.fixture
def requests() -> Iterator[tuple[int, list[str]]]:
    """Port of a server of this machine, and the paths that were requested from it."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, paths
    server.shutdown()
    thread.join()
    server.server_close()


def opened(browser: str, profile: Path, *flags: str) -> str:
    command = [browser, *FLAGS, f"--user-data-dir={profile / 'profile'}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_browser_draws_the_curve(browser: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    text = page(report())
    file.write_text(text)
    opened(browser, tmp_path, "--window-size=1100,1400", f"--screenshot={picture}", file.as_uri())
    with Image.open(io.BytesIO(picture.read_bytes())) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert {colour for _, colour in colours} >= CURVE_COLOURS


def test_browser_executes_and_loads_nothing_of_a_hostile_host(
    browser: str, tmp_path: Path, requests: tuple[int, list[str]]
) -> None:
    port, paths = requests
    address = f"http://127.0.0.1:{port}"
    words = (
        f"</title></svg></table></style><script>document.title='owned';fetch('{address}/script')</script>"
        f"<img src={address}/image onerror=\"document.title='owned'\"><style>@import '{address}/style';</style>"
    )
    file = tmp_path / "report.html"
    text = page(hostile(report(), words))
    file.write_text(text)
    shown = opened(browser, tmp_path, "--dump-dom", file.as_uri())
    assert paths == []
    assert "<title>owned" not in shown
    for tag in ("svg", "polyline", "table", "td", "section", "script", "img"):
        assert len(re.findall(rf"<{tag}\b", shown)) == len(re.findall(rf"<{tag}\b", text)), tag
    # The same words do all of that where they are not escaped: the server and the browser notice it.
    (tmp_path / "unescaped.html").write_text(f"<title>{words}")
    shown = opened(browser, tmp_path, "--dump-dom", (tmp_path / "unescaped.html").as_uri())
    assert paths
    assert "<title>owned" in shown


def test_browser_prints_all_sections(browser: str, tmp_path: Path) -> None:
    file, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(page(report()))
    opened(browser, tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer", file.as_uri())
    data = paper.read_bytes()
    assert data.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", data)) >= 2
