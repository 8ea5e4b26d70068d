"""The child process: it ends well and obeys its limit. That it ends with its parent, test_sweep.py shows by kill -9."""

from command import TINY, bench

from bench.records.store import Store


def test_a_cell_that_is_ok_ends_with_exit_code_0_and_little_overhead(tmp_path):
    result = bench("attention=v_mean", "tracking=none", f"results_dir={tmp_path}", *TINY)
    assert result.returncode == 0, result.stderr
    (record,) = Store(tmp_path).load()
    assert (record.exit_code, record.signal, record.stderr_tail) == (0, None, "")
    # The promise is 3 seconds on two free cores; a shared machine gets twice that.
    assert record.overhead_s < 6
    assert record.overhead_s <= record.duration_s


def test_it_obeys_its_memory_limit(tmp_path):
    tiny = [word for word in TINY if not word.startswith(("seq_len", "bench."))]
    arguments = ["attention=softmax,v_mean", "seq_len=4096", "bench=memory", "bench.memory_limit=0.1", *tiny]
    result = bench(*arguments, "tracking=none", f"results_dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    outcomes = {record.config["label"]: record for record in Store(tmp_path).load()}
    assert outcomes["softmax"].status == "oom" and not outcomes["softmax"].measurements
    assert outcomes["v_mean"].status == "ok"
    assert outcomes["v_mean"].numerics["memory_limit_bytes"] == int(0.1 * 2**30)
