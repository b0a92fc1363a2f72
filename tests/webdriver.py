"""A real browser, driven by chromedriver's wire protocol: no library between."""

import base64
import http.client
import json
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

DRIVER = shutil.which("chromedriver")
needs_driver = pytest.mark.skipif(DRIVER is None, reason="no chromedriver on this machine")
_FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--force-prefers-reduced-motion",
]  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window; ``run`` executes JavaScript in it."""

    def __init__(self, url):
        self.url = url

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        host, _, base = self.url.partition("/")
        connection = http.client.HTTPConnection(host, timeout=120)
        connection.request(method, f"/{base}{path}", data, {"content-type": "application/json"})
        reply = connection.getresponse()
        found = reply.read()
        connection.close()
        assert reply.status == 200, found.decode()
        return json.loads(found)["value"]

    def go(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script, *, within_s=60):
        """Wait until the script gives something true; gives that back."""
        ends_s = time.monotonic() + within_s
        while time.monotonic() < ends_s:
            found = self.run(script)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(
            f"not within {within_s} s: {script}; {self.run('return document.body.innerText.slice(0, 500)')}"
        )

    def keys(self, text):
        """Type into what has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    def size(self, width, height):
        """Of the page as a phone or a screen of this width would show it."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def dark(self, is_dark):
        value = "dark" if is_dark else "light"
        self.cdp(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": value}]},
        )

    def cdp(self, command, parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def shot(self, path, *, whole=False):
        found = self.cdp("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))

    def console(self):
        """What the console said, and what was refused to load, since the last call."""
        return [
            one["message"]
            for one in self.call("POST", "/se/log", {"type": "browser"})
            if one["level"] in {"SEVERE", "WARNING"}
        ]


@contextmanager
def browser(folder):
    """A browser with a profile of its own in this folder."""
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    opened = None
    try:
        port = next(
            line.rsplit(" ", 1)[1].strip().rstrip(".")
            for line in driver.stdout
            if "successfully on port" in line
        )
        opened = Browser(f"127.0.0.1:{port}/session")
        options = {
            "goog:chromeOptions": {"args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = opened.call("POST", "", {"capabilities": {"alwaysMatch": options}})
        opened.url += f"/{session['sessionId']}"
        yield opened
    finally:
        if opened is not None:
            with suppress(OSError, AssertionError):
                opened.call("DELETE", "")
        driver.terminate()
        driver.wait(timeout=20)
        driver.stdout.close()
