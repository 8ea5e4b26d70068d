"""A browser goes where the printed addresses say, in few clicks; its screenshots are in the test's folder."""

import dataclasses
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic
from needs import chromium
from test_ui import ui
from tracking_server import a_free_port

from bench.tracking.ui import LOG

pytestmark = [pytest.mark.commands, pytest.mark.needs("chromium")]

MECHANISMS = ("flash", "performer", "softmax")
OTHERS = ("linformer", "skeinformer")
LENGTHS = (512, 2048, 8192)
SHOWN_WITHIN_MS = 60_000
SWEEP = "flash, linformer, performer and 2 more: latency, memory, spectral_norm"
LAPTOP = Path(__file__).parents[3] / "results" / "laptop"


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


@contextmanager
def served(results):
    """The addresses of the pages of a folder that has records alone, by name."""
    with subprocess.Popen(ui(results, a_free_port()), stdout=subprocess.PIPE, text=True) as server:
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
def addresses(tmp_path_factory):
    """Of one made-up sweep."""
    results = tmp_path_factory.mktemp("pages") / "runs"
    synthetic.written(results, [dataclasses.replace(record, sweep_id="5" * 64) for record in a_sweep()])
    with served(results) as found:
        yield found


@pytest.fixture(scope="module")
def laptop(tmp_path_factory):
    """Of the records that are in the repository."""
    results = tmp_path_factory.mktemp("laptop") / "runs"
    for part in ("records", "samples"):
        shutil.copytree(LAPTOP / part, results / part)
    with served(results) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, tmp_path):
    page = browser.new_page(viewport={"width": 1920, "height": 2000})
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
    row = page.get_by_text(SWEEP, exact=True)
    row.wait_for()
    see(page, "attention", "seq_len", "bench", "status", "result", "36 ok, 1 oom")
    assert page.get_by_text("flash, n=512, causal, latency").count() == 0
    page.locator(".ag-row .is-expander, .ag-row [role=button], .ag-row button").first.click()
    see(page, "flash, n=512, causal, latency", "softmax, n=65,536, causal, latency", "oom")


def test_of_many_sweeps_each_is_a_row(page, addresses):
    page.goto(addresses["sweeps"])
    page.get_by_text(SWEEP, exact=True).wait_for()
    see(page, "36 ok, 1 oom")
    assert page.locator(".ag-center-cols-container .ag-row").count() == 1


def titles(page):
    texts = page.locator("h1, h2, h3, h4, span").all_inner_texts()
    return [text for text in texts if re.fullmatch(r"[\w ]+/[\w ]+", text)]


def test_chosen_mechanisms_are_side_by_side_on_the_bare_address(page, addresses):
    page.goto(addresses["comparison"])
    see(page, *MECHANISMS, *OTHERS, "microseconds per token/causal forward pass", "relative error/whole output")
    assert page.get_by_text("sequence length", exact=True).count()
    search = page.get_by_test_id("search-box")
    search.click()
    search.press("End")
    search.press_sequentially("".join(f" AND tags.attention != '{label}'" for label in OTHERS))
    search.press("Enter")
    page.get_by_text("linformer", exact=True).first.wait_for(state="detached")
    see(page, *MECHANISMS, "microseconds per token/causal forward pass")


def test_a_sweep_leads_to_its_lines_under_every_condition(page, addresses):
    page.goto(addresses["runs"])
    page.get_by_text(SWEEP, exact=True).click()
    link = page.get_by_role("link", name=f"Compare the mechanisms of {SWEEP}").get_attribute("href")
    page.goto(addresses["comparison"] + "/" + link[link.index("#") :])
    see(page, "flash, causal, 32,768 tokens", "microseconds per token/forward pass", "peak memory in MiB/training pass")


@pytest.mark.parametrize("path", ["", "/", "/#/"])
def test_a_port_opens_on_the_comparison_of_all_records_speed_first_and_the_baselines(page, laptop, path):
    page.goto(laptop["comparison"] + path)
    see(page, "times as fast as softmax/forward pass", "microseconds per token/forward pass", "skeinformer", "reformer")
    rows = page.locator(".ag-row [role=gridcell] a, .ag-row a").all_inner_texts()
    assert [name for name in rows if name][:2] == ["flash", "softmax"]
    assert page.evaluate("localStorage['mlflow.workflowType_v1']") == '"machine_learning"'
    see(page, "sequence length")
    assert page.get_by_text("Ask a question").count() == 0, "MLflow's assistant is closed"
    found, names = titles(page), ("times as fast as softmax/forward pass", "microseconds per token/forward pass")
    order = [name for name in names if name in found]
    assert order == sorted(order, key=found.index) and len(order) == 2


def test_a_sweep_shows_its_table_after_two_clicks(page, addresses):
    page.goto(addresses["runs"])
    page.get_by_text(SWEEP, exact=True).click()
    page.get_by_role("tab", name="Artifacts").click()
    see(page, "table.md", "cells.json")
