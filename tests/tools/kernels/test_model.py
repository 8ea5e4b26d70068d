"""The model's arithmetic in cases that can be done by hand, and the table that it made."""

import dataclasses
import re

import pytest

from tools.kernels import clocks, model
from tools.kernels.call import catalogue
from tools.kernels.clocks import CLOCK_HZ, DEVICES, FILL, NEXT_KERNEL_S, SMS, Code, Kernel, Loop, seconds
from tools.kernels.product_work import Product, polysketch
from tools.kernels.work import H, compiled, tutorial

write = model.write

H100, H200 = DEVICES
CODE = compiled()
PAGE = model.PAGE
# A block whose products are all that takes time: 64 x 64 x 16 for 32 clocks, again and again.
PRODUCTS = Loop(Code(instructions=1, products=1, in_registers=1), 1e6, 2.0 * 64 * 64 * 16, 0.0)


def kernel(*loops, **others):
    return Kernel("kernel", **{"blocks": SMS, "warps": 4, "resident": 1, "hbm_bytes": 0.0, "loops": loops} | others)


def test_the_committed_table_is_what_the_code_says():
    written = model.read()
    told = model.table(CODE, written[0].predicted, written[0].commit)
    assert written == told, "write it again with `python -m tools.kernels.model`, unless something was measured since"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written[0].predicted) and re.fullmatch("[0-9a-f]{12}", written[0].commit)


def test_the_page_has_every_constant():
    text = PAGE.read_text()
    for name, value in vars(clocks).items():
        if name.isupper() and isinstance(value, int | float):
            row = re.search(rf"\| `{name}` \| ([^|]+) \|", text)
            assert row and float(row[1].replace(",", "")) == value, name


def test_the_page_says_what_is_asked_and_what_is_predicted():
    assert PAGE.read_text() == model.page(PAGE.read_text(), model.read())
    assert len([row for row in model.read() if row.target_ms]) == 9


def test_bytes_alone_take_the_time_of_a_copy():
    predicted = seconds(kernel(hbm_bytes=3e9), H100)
    assert predicted.seconds == pytest.approx(1e-3 + NEXT_KERNEL_S) and predicted.bound == "memory"
    assert seconds(kernel(hbm_bytes=4.3e9), H200).seconds == pytest.approx(1e-3 + NEXT_KERNEL_S)


def test_products_alone_reach_the_measured_rate_where_the_clock_would_allow_more():
    predicted = seconds(kernel(PRODUCTS), H100)
    flops = SMS * PRODUCTS.iterations * PRODUCTS.flops
    assert predicted.bound == "product rate"
    assert predicted.seconds == pytest.approx(flops / H100.product_flops + NEXT_KERNEL_S)


def test_behind_a_wait_for_all_products_nothing_overlaps_them():
    code = Code(instructions=100, products=16, in_registers=16, drains=1)
    one = Loop(code, 1, 16 * PRODUCTS.flops, 0.0)
    together = 512 + 100 * clocks.ISSUE_ALONE + clocks.DRAIN
    assert clocks.alone(kernel(one)) == FILL + together
    assert clocks.alone(kernel(dataclasses.replace(one, code=code._replace(drains=0)))) == FILL + 512


@pytest.mark.parametrize(
    ("blocks", "rounds"), [(1, 1), (SMS, 1), (SMS + 1, 1), (2 * SMS, 1), (2 * SMS + 1, 2), (4 * SMS, 2)]
)
def test_blocks_come_in_rounds_of_what_fits(blocks, rounds):
    waiting = Loop(Code(instructions=1000), 1, 0.0, 0.0)
    given = kernel(waiting, blocks=blocks, resident=2)
    predicted = seconds(given, H100)
    assert predicted.bound == "latency"
    assert predicted.seconds == pytest.approx(rounds * clocks.alone(given) / CLOCK_HZ + NEXT_KERNEL_S)


def test_softmax_of_tritons_tutorial_is_as_fast_as_was_published():
    """363 TFLOP/s on an H100, causal, n = 16k, h = 64: the measurement that ISSUE_ALONE is set by."""
    work = tutorial(24, 16384)
    assert work.flops / seconds(work.kernels[0], H100).seconds == pytest.approx(363e12, rel=0.03)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("r", "n"), [(32, 2048), (32, 32768), (64, 2048), (64, 32768)])
def test_kernels_of_polysketch_multiply_what_is_needed_and_a_little_more(r, n, backward):
    work = polysketch(12, n, r, CODE, backward=backward)
    done = sum(k.blocks * sum(loop.times * loop.iterations * loop.flops for loop in k.loops) for k in work.kernels)
    assert work.flops <= done < 1.6 * work.flops


def test_sums_are_read_and_written_once():
    *_, columns, prefixes, parts, scan, output = polysketch(12, 32768, 32, CODE, backward=False).kernels
    p = Product(12, 32768, 32, CODE)
    assert p.width == 768 and p.chunks == 64
    sums = 12 * 64 * 768 * H * 2
    # 72 programs for a device of 264 at once: eleven parts of a sequence, each of which begins with what is before it;
    # nobody begins with what is in the last. The tiles of what is before are twice as tall.
    assert (p.parts, scan.blocks, parts.blocks) == (11, 792, 360)
    assert parts.hbm_bytes == pytest.approx(p.rows * 2 * (32 + H) * 10 / 11 + 12 * 10 * 768 * H * 4)
    assert scan.hbm_bytes == p.rows * 2 * (32 + H) + sums + 12 * 10 * 768 * H * 4
    assert Product(48, 8192, 32, CODE).parts == Product(12, 32768, 64, CODE).parts == 1
    assert output.hbm_bytes == pytest.approx(p.rows * (2 * 32 + 4 * H + 4) + sums * 63 / 64)
    assert columns.blocks == 12 * 64  # a program for each chunk
    assert columns.hbm_bytes == p.rows * 4 * 32 + 12 * 64 * 32 * 32 * 4
    assert prefixes.hbm_bytes == 2 * 12 * 64 * 32 * 32 * 4


def test_every_call_of_the_machine_code_can_be_compiled_again():
    assert {call for call, _ in CODE} <= {call.name for calls in catalogue().values() for call in calls}


def test_the_command_writes_table_and_page(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    (tmp_path / "page.md").write_text(text.replace("| 0.45 |", "| 0.44 |"))
    monkeypatch.setattr(model, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(model, "write", lambda rows: write(rows, tmp_path / "table.csv"))
    assert model.main([]) == 0
    assert "predicted and not measured" in capsys.readouterr().out
    assert (tmp_path / "page.md").read_text() == text
    assert len(model.read(tmp_path / "table.csv")) == len(model.read())
