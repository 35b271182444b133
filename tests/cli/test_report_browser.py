"""The HTML report in a real Chromium, where that and Python's `playwright` are installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "recording" / "data"
WIDTHS = (360, 1600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["straggler", "stall"])
def test_a_browser_shows_it_at_any_width_without_a_request(
    name: str, browser: Any, ddptop: Any, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    assert ddptop("report", str(DATA / f"{name}.ddptop"), "--html", str(path)).returncode == 0
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
            said: list[str] = []
            requests: list[str] = []
            tab = context.new_page()
            tab.on("console", lambda message, said=said: said.append(message.text))
            tab.on("pageerror", lambda error, said=said: said.append(str(error)))
            tab.on("request", lambda request, requests=requests: requests.append(request.url))
            tab.goto(path.as_uri())
            assert (said, requests) == ([], [path.as_uri()])
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            grounds = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert grounds == {"light": "rgb(251, 251, 248)", "dark": "rgb(18, 19, 22)"}[scheme]
            box = tab.locator("svg.high").bounding_box()
            assert box["width"] > width / 2 - 100 and box["height"] > 50
            context.close()
