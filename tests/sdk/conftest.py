"""Starts the server under test, or uses one that already runs.

Environment:
    LANEWAY_BASE_URL     a running server, e.g. http://127.0.0.1:8000; tests that need special
                         settings (overload, API keys, the request log) are skipped then
    LANEWAY_BIN          the binary to start otherwise (default: target/release/laneway, then debug)
    LANEWAY_TEST_MODELS  folder with the models; the first *.gguf or model folder in it is served
                         unless LANEWAY_TEST_MODEL names one
"""

import os
import pathlib
import queue
import re
import subprocess
import tempfile
import threading
import time

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY = re.compile(r"ready: (http://\S+)")
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 15


def find_binary() -> pathlib.Path:
    named = os.environ.get("LANEWAY_BIN")
    places = [named] if named else [ROOT / "target" / kind / "laneway" for kind in ("release", "debug")]
    for place in map(pathlib.Path, places):
        if place.is_file():
            return place
    pytest.skip("no server: set LANEWAY_BASE_URL or LANEWAY_BIN")


def find_model() -> pathlib.Path:
    named = os.environ.get("LANEWAY_TEST_MODEL")
    if named:
        return pathlib.Path(named)
    models = os.environ.get("LANEWAY_TEST_MODELS")
    if not models:
        pytest.skip("no model: set LANEWAY_TEST_MODELS")
    files = sorted(pathlib.Path(models).rglob("*.gguf"))
    folders = sorted(path.parent for path in pathlib.Path(models).rglob("config.json"))
    for model in files + folders:
        return model
    pytest.skip(f"no model in {models}")


class Server:
    """One server process; its stderr is kept and searched for the ready line."""

    def __init__(self, *flags: str):
        command = [find_binary(), "serve", find_model(), "--host", "127.0.0.1", "--port", "0", *flags]
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, encoding="utf-8",
        )
        self.lines: list[str] = []
        ready: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self.reader.start()
        try:
            url = ready.get(timeout=START_SECONDS_MAX)
        except queue.Empty:
            url = None
        if url is None:
            self.stop()
            pytest.fail("the server did not become ready:\n" + "".join(self.lines[-50:]))
        self.url = url.rstrip("/")

    def _read(self, ready):
        for line in self.process.stderr:
            self.lines.append(line)
            if match := READY.search(line):
                ready.put(match.group(1))
        ready.put(None)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(STOP_SECONDS_MAX)


@pytest.fixture(scope="session")
def start():
    """Starts servers with given flags; all are stopped at the end."""
    servers = []

    def start(*flags: str) -> Server:
        if os.environ.get("LANEWAY_BASE_URL"):
            pytest.skip("needs a server of its own")
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def base_url(start):
    given = os.environ.get("LANEWAY_BASE_URL")
    if given:
        return given.rstrip("/").removesuffix("/v1")
    return start("--max-context", "2048", "--max-concurrency", "2", "--threads", "2").url


def make_client(url: str, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def client(base_url):
    return make_client(base_url)


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


def eventually(condition, seconds: float = 20.0):
    """Asks again and again until `condition` returns something true."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)
    return result


def health(url: str) -> dict:
    return httpx.get(url + "/health", timeout=10).json()


@pytest.fixture
def log_path():
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder) / "requests.jsonl"
