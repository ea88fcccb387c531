"""``twophase ui`` in a real browser: what it shows, that it only reads, and whom it does not answer."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests import servers
from tests.core.bench import Bench, in_doubt, path, write
from tests.core.test_conflicts import in_thread, waits
from twophase.model import Isolation
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import clean
from twophase.ui.pages import Pages
from twophase.ui.server import application, listen, server


@contextlib.contextmanager
def serving(pages: Pages, **options: Any) -> Iterator[int]:
    """The pages on a free port, by the server of the command, in a thread."""
    with listen("127.0.0.1", 0) as listening:
        running = server(application(pages, **options))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


@contextlib.contextmanager
def chromium(directory: Path) -> Iterator[Any]:
    """A headless browser; it opens no page by itself, and its profile is thrown away."""
    options = webdriver.ChromeOptions()
    options.binary_location = servers._program("chromium", "chromium", "/usr/lib/chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,700",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={directory / 'profile'}")
    driver = servers._program("chromedriver", "chromium-driver", "/usr/lib/chromium")
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


@dataclass
class Answer:
    """What the server answered."""

    status: int
    headers: Any
    text: str


def ask(port: int, where: str = "/", method: str = "GET", **headers: str) -> Answer:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, where, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())


def statements_of(timeline: Timeline) -> list[str]:
    """The SQL statements that a timeline runs from now on."""
    found: list[str] = []
    sa.event.listen(timeline._engine, "before_cursor_execute", lambda *facts: found.append(facts[2]))
    return found


def a_busy_timeline(bench: Bench) -> dict[str, Any]:
    """A transaction in each state, one that waits for another, one that is dead, and leftovers."""
    one, two = bench.catalogs.values()
    doubtful = in_doubt(bench, name="billing", user="ann", application="billing")
    one.faults.clear()
    write(done := bench.coordinator("nightly_load", user="ann", application="nightly load").begin(), one, "daily")
    write(done, two, "weekly")
    done.commit()
    one.faults.add("abort", "error")
    left = bench.coordinator("reports", user="cleo", application="reports").begin()
    write(left, one, "broken")
    left.abort(ValueError("no space left <script>alert(1)</script>; password=hunter2"))
    one.faults.clear()
    holder = bench.coordinator("etl", user="bob", application="etl").begin(Isolation.SNAPSHOT)
    write(holder, two, "orders")
    holder.lock((two, path("orders")))
    waiting = bench.coordinator("fixes", user="cleo", application="fixes").begin(Isolation.SNAPSHOT)
    ended = in_thread(lambda: waiting.lock((two, path("orders"))))
    waits(bench.coordinator().timeline, waiting)
    return {"done": done, "doubtful": doubtful, "left": left, "holder": holder, "waiting": waiting, "ended": ended}


def test_a_browser_sees_what_runs_waits_is_in_doubt_and_was_left(bench: Bench, tmp_path: Path) -> None:
    world = a_busy_timeline(bench)
    timeline, cleaner = Timeline(bench.url, create=False), bench.coordinator("twophase")
    timeline.display_url = "sqlite:////warehouse/.twophase/timeline.db"
    pages = Pages(timeline, lambda: clean(cleaner, bench.catalogs.values(), dry_run=True))
    asked = [statements_of(line) for line in (timeline, cleaner.timeline)]
    with serving(pages, refresh=60) as port, serving(pages, refresh=1) as lively, chromium(tmp_path) as browser:
        here = f"http://127.0.0.1:{port}"

        def text(where: str) -> str:
            browser.get(here + where)
            return str(browser.find_element(By.TAG_NAME, "main").text)

        shown = text("/")
        for word in (
            world["holder"].id,
            "INFLIGHT",
            "WAITS",
            "IN_DOUBT",
            "COMPLETED",
            "ROLLED_BACK",
            "two.default.orders",
        ):
            assert word in shown
        _keep(browser, tmp_path)

        # One transaction, by its link.
        browser.find_element(By.LINK_TEXT, world["done"].id).click()
        assert browser.current_url.endswith(world["done"].id)
        shown = browser.find_element(By.ID, "participants").text
        assert "one.default.daily" in shown and "published" in shown
        events = browser.find_element(By.ID, "events").text
        assert [word for word in ("began", "decided to publish", "ended") if word in events] == [
            "began",
            "decided to publish",
            "ended",
        ]

        shown = text("/locks")
        assert world["holder"].id in shown and "WAITS since" in shown
        shown = text("/in-doubt")
        assert f"twophase recover {world['doubtful'].id} --timeline" in shown
        assert f"twophase recover {world['doubtful'].id} --assume rolled-back" in shown
        shown = text("/leftovers")
        for word in ("staging", world["left"].id, "would be removed", "twophase clean"):
            assert word in shown
        assert any(unit in shown for unit in (" B", " KiB"))
        shown = text(f"/transaction/{world['left'].id}")
        assert "no space left <script>alert(1)</script>; password=***" in shown

        # By itself.
        browser.get(f"http://127.0.0.1:{lively}/transaction/{world['holder'].id}")
        world["holder"].abort()
        wait = WebDriverWait(browser, 60, ignored_exceptions=[NoSuchElementException, StaleElementReferenceException])
        wait.until(lambda b: "ROLLED_BACK" in b.find_element(By.TAG_NAME, "main").text)
        assert browser.get_log("browser") == []
    assert all(asked)
    others = {statement for found in asked for statement in found if not statement.startswith(("SELECT", "PRAGMA"))}
    assert others <= {"BEGIN"}
    assert world["ended"]() is None
    timeline.close()


def _keep(browser: Any, directory: Path) -> None:
    """The picture of the documentation is made anew by ``TWOPHASE_SCREENSHOT=docs/images/ui.png``."""
    assert browser.save_screenshot(str(directory / "ui.png"))
    if place := os.environ.get("TWOPHASE_SCREENSHOT"):
        shutil.copy(directory / "ui.png", place)


def test_only_browsers_that_ask_for_this_host_are_answered_and_only_with_pages(bench: Bench) -> None:
    tx = in_doubt(bench)
    with serving(Pages(bench.coordinator().timeline), hosts=["twophase.example"]) as port:
        for host in ("127.0.0.1", f"localhost:{port}", f"[::1]:{port}", "twophase.example"):
            assert ask(port, Host=host).status == 200, host
        for host in ("attacker.example", "127.0.0.1.attacker.example", "", "www.twophase.example"):
            refused = ask(port, Host=host)
            assert refused.status == 400, host
            assert tx.id not in refused.text
        answer = ask(port)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["Cache-Control"] == "no-store"
        assert ask(port, method="POST").status == 405
        unknown = ask(port, "/transaction/nosuch")
        assert unknown.status == 404 and "no such transaction" in unknown.text


def test_the_command_listens_on_this_machine_only_until_it_is_interrupted(bench: Bench) -> None:
    tx = in_doubt(bench)
    command = [sys.executable, "-m", "twophase.cli", "ui", "--port", "0", "--timeline", bench.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            address = run.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            port = int(address.rstrip("/").rpartition(":")[2])
            assert tx.id in ask(port).text
            taken = subprocess.run(
                [*command[:4], "--port", str(port), *command[6:]], capture_output=True, text=True, check=False
            )
            assert taken.returncode == 1
            assert f"port {port}" in taken.stderr and "Give another --port" in taken.stderr
        finally:
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
    assert "Traceback" not in said
