# SPDX-License-Identifier: Apache-2.0
"""The system's headless Chromium, driven by selenium."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextlib.contextmanager
def chromium(profile: Path, width: int = 1280, height: int = 900) -> Iterator:
    """Return a selenium driver with a fresh profile; skip the test if Chromium, chromedriver or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed (Debian packages: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
        session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield session
    finally:
        session.quit()


def requested_hosts(session) -> set[str]:
    """Return the hosts of all requests that the page made since the last call, failed requests included."""
    messages = [json.loads(entry["message"])["message"] for entry in session.get_log("performance")]
    urls = [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {url.split("/")[2].split(":")[0] for url in urls if url.startswith(("http", "ws"))}
