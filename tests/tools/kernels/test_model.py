"""The model's arithmetic in cases that can be done by hand, and the table that it made."""

import dataclasses
import re

import pytest

from tools.kernels import clocks, model
from tools.kernels.call import catalogue
from tools.kernels.clocks import CLOCK_HZ, DEVICES, FILL, NEXT_KERNEL_S, SMS, Code, Kernel, Loop, seconds
from tools.kernels.product_work import Product, polysketch
from tools.kernels.work import H, compiled, decoding, networks, polynomial, tutorial

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


def test_a_loop_of_products_takes_32_clocks_for_each():
    assert clocks.busy(kernel(PRODUCTS))["tensor cores"] == 32e6
    assert clocks.alone(kernel(PRODUCTS)) == FILL + 32e6


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


def test_the_left_operand_in_shared_memory_is_all_its_bandwidth():
    shared = Loop(Code(1, products=1, in_registers=0), 1, PRODUCTS.flops, 0.0)
    assert clocks.busy(kernel(shared))["shared memory"] == 32
    assert clocks.busy(kernel(PRODUCTS))["shared memory"] == 16 * PRODUCTS.iterations


@pytest.mark.parametrize("field", ["instructions", "drains", "specials"])
def test_more_of_anything_is_not_faster(field):
    for call, each in CODE.items():
        if each.loops:
            more = each._replace(loops=tuple(c._replace(**{field: getattr(c, field) + 10_000}) for c in each.loops))
            before, after = (_whole(CODE | {call: version}) for version in (each, more))
            assert all(a >= b for a, b in zip(after, before, strict=True)) and sum(after) > sum(before), call


def test_more_blocks_on_a_multiprocessor_are_not_slower_and_faster_memory_neither():
    more = {call: each._replace(resident=each.resident + 1) for call, each in CODE.items()}
    assert all(a <= b for a, b in zip(_whole(more), _whole(CODE), strict=True))
    for line in model.lines(CODE):
        faster = H100._replace(copy_bytes=H200.copy_bytes)
        assert model.predicted(line, faster)[1] <= model.predicted(line, H100)[1]


def _whole(code):
    return [model.predicted(line, H100)[1] for line in model.lines(code)]


def test_softmax_of_tritons_tutorial_is_as_fast_as_was_published():
    """363 TFLOP/s on an H100, causal, n = 16k, h = 64: the measurement that ISSUE_ALONE is set by."""
    work = tutorial(24, 16384)
    assert work.flops / seconds(work.kernels[0], H100).seconds == pytest.approx(363e12, rel=0.03)


@pytest.mark.parametrize("n", [1024, 16384])
def test_exact_kernels_multiply_the_lower_triangle_and_half_of_their_diagonal(n):
    for name, factor, own in (("forward", 2, 128), ("backward_keys", 4, 64), ("backward_queries", 3, 128)):
        (each,) = (k for k in polynomial(24, n, 4, CODE, backward=True).kernels if k.name == name)
        flops = each.blocks * sum(loop.times * loop.iterations * loop.flops for loop in each.loops)
        assert flops == pytest.approx(24 * n * (n + own) * factor * H)


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


def test_time_of_a_token_is_the_same_in_a_longer_sequence():
    for r in (32, 64):
        times = {}
        for n in (32768, 131072):
            line = model.Line("", polysketch(12, n, r, CODE, backward=True))
            times[n] = model.predicted(line, H100)[1] / n
        # Its parts are longer and its waves fuller, and the last chunk of a part is summed once less.
        assert 0.9 < times[131072] / times[32768] < 1.05


def test_networks_move_less_than_a_kilobyte_a_token_and_head():
    for r in (32, 64):
        work = networks(1000, r, CODE, backward=False)
        assert work.kernels[0].hbm_bytes / 1000 < 1000
        done = sum(k.blocks * sum(loop.times * loop.iterations * loop.flops for loop in k.loops) for k in work.kernels)
        assert done == pytest.approx(work.flops, rel=0.2)


def test_a_decoding_step_reads_and_writes_its_state():
    # 4 parts of 16 dimensions and a normaliser, 528 features, float32, of 192 heads.
    assert decoding(192, 32, CODE).kernels[0].hbm_bytes == 2 * 27_574_272


def test_a_caller_waits_for_the_host_where_that_takes_longer():
    launches = [kernel(descriptors=0), kernel(descriptors=4)]
    assert clocks.eager_seconds(1.0, 10, launches) == 1.0 + clocks.WAIT_S
    host = 10 * clocks.OPERATION_S + 2 * clocks.TRITON_S + 4 * clocks.DESCRIPTOR_S
    assert clocks.eager_seconds(1e-6, 10, launches) == pytest.approx(host + clocks.WAIT_S)


def test_shared_memory_is_not_busy_all_the_time():
    shared = Loop(Code(1, products=1, in_registers=0), 1e6, PRODUCTS.flops, 0.0)
    predicted = seconds(kernel(shared), H100)
    assert predicted.bound == "shared memory"
    assert predicted.seconds == pytest.approx(32e6 / clocks.SUSTAINED / CLOCK_HZ + NEXT_KERNEL_S)


def test_every_kernel_that_is_predicted_was_compiled_and_the_other_way_round():
    used = set()

    class Noted(dict):
        def __getitem__(self, key):
            used.add(key)
            return super().__getitem__(key)

    assert list(model.lines(Noted(CODE)))
    assert used == set(CODE)


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
