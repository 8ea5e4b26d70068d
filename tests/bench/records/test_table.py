"""What a sweep says at its end."""

import dataclasses

from synthetic_records import compare, latency

from bench.records.table import crossovers, line, table


def at(length, flash_ms, sketch_ms, rng):
    """A comparison whose times are known: 20 rounds with one percent of noise."""
    source = compare(("flash", "polysketch_random_r32"), length, rng)
    samples = {
        label: [ms * 1e6 * (1 + 0.01 * ((index * step) % 7 - 3) / 3) for index in range(20)]
        for label, ms, step in (("flash", flash_ms, 2), ("polysketch_random_r32", sketch_ms, 3))
    }
    return dataclasses.replace(source, measurements={**source.measurements, "samples": samples})


def test_crossover_of_quadratic_and_linear_time(rng):
    records = [at(n, n**2 / 1e6, n / 1e3, rng) for n in (512, 2048, 4096)]
    (said,) = crossovers(records)
    # n^2 / 1e6 = n / 1e3 at n = 1000.
    name, length = said.split(" at n = ")
    assert name == "polysketch_random_r32 overtakes flash"
    assert abs(int(length.split()[0]) - 1000) < 15


def test_no_crossover_is_said_where_there_is_none(rng):
    assert crossovers([at(n, n, 2 * n, rng) for n in (512, 1024)]) == []
    assert crossovers([]) == []


def test_verdicts_and_reasons_are_in_the_table(rng):
    failed = latency("softmax", 2048, rng, "oom")
    failed = dataclasses.replace(failed, reason="no | memory")
    text = table([at(1024, 2, 1, rng), failed])
    assert "polysketch_random_r32 2x [" in text and "flash: faster" in text
    assert "no \\| memory" in text
    assert line(failed).startswith("oom  latency  softmax  2048")
