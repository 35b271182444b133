"""`ddptop --web` in a real Chromium, where that and Python's `playwright` are installed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.made_up_run import write_recording

from .conftest import DEADLINE_S, MAIN

DRAWN = "() => [...document.querySelectorAll('canvas')].some(one => one.width > 300 && one.height > 100)"


@pytest.mark.slow
def test_a_browser_draws_the_screen_and_requests_nothing_elsewhere(
    home: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("textual_serve.server", reason="pip install 'ddptop[web]'")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("apt-get install chromium")
    kept = tmp_path / "state" / "ddptop"
    kept.mkdir(mode=0o700)
    write_recording(kept / "train-k7qf.ddptop")
    words = [sys.executable, "-c", MAIN, "train-k7qf", "--web"]
    served = subprocess.Popen(words, cwd=tmp_path, env=home, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stderr is not None
        said = served.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)
        assert found is not None, said
        address = found[0]
        here = urlsplit(address).netloc
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1000, "height": 700})
            requests: list[Any] = []
            drawn: list[bytes] = []

            def received(frame: object) -> None:
                drawn.append(frame if isinstance(frame, bytes) else str(frame).encode())

            tab.on("request", lambda request: requests.append(request))
            tab.on("websocket", lambda socket: socket.on("framereceived", received))
            page = tab.goto(f"http://{here}/")
            assert page.status == 403
            tab.goto(address)
            tab.wait_for_function(DRAWN, timeout=DEADLINE_S * 1000)
            for _ in range(int(DEADLINE_S * 10)):
                if b"train-k7qf" in b"".join(drawn):
                    break
                tab.wait_for_timeout(100)
            assert b"train-k7qf" in b"".join(drawn)
            elsewhere = [one for one in requests if urlsplit(one.url).netloc not in (here, "")]
            assert {one.failure for one in elsewhere} <= {"csp"}  # the page's policy stopped them
            browser.close()
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=DEADLINE_S)
