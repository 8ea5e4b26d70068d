"""A browser goes where the printed addresses say, in few clicks; its screenshots are in the test's folder."""

import dataclasses
import re
import subprocess
import time

import numpy as np
import pytest
import synthetic_records as synthetic
from needs import chromium
from test_ui import ui
from tracking_server import a_free_port

from bench.records.store import Store
from bench.tracking.ui import LOG

pytestmark = [pytest.mark.commands, pytest.mark.needs("chromium")]

MECHANISMS = ("flash", "performer", "softmax")
OTHERS = ("linformer", "skeinformer")
LENGTHS = (512, 2048, 8192)
SHOWN_WITHIN_MS = 30_000


def a_sweep():
    random = np.random.default_rng(0)
    for label in MECHANISMS + OTHERS:
        for length in LENGTHS:
            yield synthetic.latency(label, length, random)
            yield synthetic.memory(label, length)
    for label in ("performer", *OTHERS):
        for size in (64, 256):
            yield synthetic.spectral(label, 1024, size, random)
    yield synthetic.latency("softmax", 65536, random, status="oom")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Of the pages of a folder that has records alone, by name."""
    results, port = tmp_path_factory.mktemp("pages") / "runs", a_free_port()
    for record in a_sweep():
        Store(results).write(dataclasses.replace(record, sweep_id="5" * 64))
    with subprocess.Popen(ui(results, port), stdout=subprocess.PIPE, text=True) as server:
        found = {}
        for line in server.stdout:
            name, _, address = line.strip().partition(":")
            found[name] = address.strip()
            if "Ctrl-C" in line:
                break
        yield found
        server.terminate()
    log = (results / LOG).read_text()
    # MLflow's own page asks for a user, who is known with authentication only.
    wrong = [line for line in log.splitlines() if re.search(r'ERROR|CRITICAL|Traceback|Exception|HTTP/1.1" [45]', line)]
    assert [line for line in wrong if "users/current" not in line] == []


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, tmp_path):
    page = browser.new_page(viewport={"width": 1920, "height": 1080})
    page.set_default_timeout(SHOWN_WITHIN_MS)
    broken = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    yield page
    time.sleep(2)  # for charts to be drawn
    page.screenshot(path=tmp_path / "page.png")
    page.close()
    assert not broken


def see(page, *texts):
    for text in texts:
        page.get_by_text(text, exact=True).first.wait_for()


def test_a_sweep_is_one_row_and_its_cells_are_a_click_away(page, addresses):
    page.goto(addresses["runs"])
    row = page.get_by_text(re.compile(r"^sweep 555555: 37 cells"))
    row.wait_for()
    see(page, "attention", "seq_len", "bench", "status", "result", "36 ok, 1 oom")
    assert page.get_by_text("flash n=512 latency").count() == 0
    page.locator(".ag-row .is-expander, .ag-row [role=button], .ag-row button").first.click()
    see(page, "flash n=512 latency", "softmax n=65536 latency", "oom")


def test_of_many_sweeps_each_is_a_row(page, addresses):
    page.goto(addresses["sweeps"])
    page.get_by_text(re.compile(r"^sweep 555555: 37 cells")).wait_for()
    see(page, "36 ok, 1 oom")
    assert page.locator(".ag-center-cols-container .ag-row").count() == 1


def test_latency_memory_and_error_of_chosen_mechanisms_are_side_by_side_after_a_click(page, addresses):
    page.goto(addresses["curves"])
    see(page, *MECHANISMS, *OTHERS, "latency_ms/forward", "peak_mib/forward", "spectral_norm/relative")
    search = page.get_by_test_id("search-box")
    search.click()
    search.press("End")
    search.press_sequentially("".join(f" AND tags.attention != '{label}'" for label in OTHERS))
    search.press("Enter")
    page.get_by_text("linformer", exact=True).first.wait_for(state="detached")
    see(page, *MECHANISMS, "latency_ms/forward", "peak_mib/forward", "spectral_norm/relative")


def test_a_sweep_shows_its_table_after_two_clicks(page, addresses):
    page.goto(addresses["runs"])
    page.get_by_text(re.compile(r"^sweep 555555: 37 cells")).click()
    page.get_by_role("tab", name="Artifacts").click()
    see(page, "table.md", "cells.json")
