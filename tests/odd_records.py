"""Records as they should not be: what a full disk, an editor, another program or a mischievous one may leave."""

import dataclasses
import hashlib
import json
import os

import numpy as np
from synthetic_records import (
    compare,
    compare_train_step,
    decode,
    flops,
    largest_batch,
    latency,
    memory,
    roofline,
    sketch_error,
    spectral,
    train,
    train_step,
    under,
)

from bench.records.disk import LARGEST, compress

SKETCH, LABELS = "polysketch_random_r32", ("flash", "polysketch_random_r32", "performer")


def good(seed=0):
    """A few records from which every figure and table can be made."""
    rng = np.random.default_rng(seed)
    records = [make("flash", n, rng) for n in (512, 1024) for make in (latency, decode)]
    records += [memory("flash", n) for n in (512, 1024)]
    records += [compare(LABELS, n, rng) for n in (512, 32768)]
    records += [compare(("performer", "lucidrains_performer"), 512, rng)]
    records += [spectral("skeinformer", 1024, d, rng) for d in (64, 256)]
    attention = {"name": "skeinformer", "num_features": 64}
    records += [latency("skeinformer", 1024, rng, causal=False, attention=attention)]
    records += [sketch_error("gaussian", 4, r, rng) for r in (8, 32)]
    records += [roofline("flash", n, rng) for n in (512, 1024)]
    records += [train("polynomial_p4", 16, of_seed, rng) for of_seed in (0, 1)]
    records += [train("performer", n, 0, rng, task="language_modelling") for n in (16, 32)]
    records += [train("performer", 16, 0, rng, task=task) for task in ("induction_heads", "associative_recall")]
    records += [train_step("performer", n, rng) for n in (16, 32)]
    records += [compare_train_step(LABELS, 512, rng), largest_batch("flash", 512)]
    return [*records, flops("softmax", 1024, 10**8)]


def renamed(record, kind):
    """The record under ids of its own."""
    digest = hashlib.sha256(kind.encode()).hexdigest()
    return dataclasses.replace(record, record_id=digest[:32], cell_id=digest)


def base(kind):
    """A record that would be fine, with samples in a file of their own."""
    record = renamed(latency("flash", 777, np.random.default_rng(1)), kind)
    return dataclasses.replace(record, measurements=record.measurements | {"curve": [0.5] * 100})


# --- files that are no records: what is done to the path of a good one -----------------------------------------


def link_to(target):
    def make(path):
        path.unlink()
        path.symlink_to(target)

    return make


def replaced(old, new):
    def make(path):
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    return make


def instead(data):
    return lambda path: path.write_bytes(data)


def cut(share):
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


def sparse(size):
    return lambda path: os.truncate(path, size)


def encoded(encoding):
    return lambda path: path.write_bytes(path.read_text().encode(encoding))


def number(text):
    return replaced('"duration_s": 1.0', f'"duration_s": {text}')


def samples_of(path):
    return path.parents[1] / "samples" / f"{path.name}.gz"


def samples(change):
    return lambda path: change(samples_of(path))


def other_samples(data):
    """Samples that are other ones, and that the record vouches for."""

    def make(path):
        fields = json.loads(path.read_text())
        path.write_text(json.dumps(fields | {"samples_sha256": hashlib.sha256(data).hexdigest()}))
        samples_of(path).write_bytes(compress(data))

    return make


def copied(path):
    path.rename(path.with_name("copy of a record.json"))


def with_escapes_in_its_name(path):
    path.rename(path.with_name("\x1b[31m\nno such\u202e name.json"))


FILES = {
    "fifo": (fifo, "not a regular file"),
    "folder": (folder, "not a regular file"),
    "device without end": (link_to("/dev/zero"), "not a regular file"),
    "device without content": (link_to("/dev/null"), "not a regular file"),
    "random device": (link_to("/dev/urandom"), "not a regular file"),
    "terminal": (link_to("/dev/tty"), "not a regular file"),
    "kernel's log": (
        link_to("/proc/kmsg"),
        "not strict JSON" if os.access("/proc/kmsg", os.R_OK) else "cannot be read",
    ),
    "file of the kernel's": (link_to("/proc/self/status"), "not strict JSON"),
    "dangling link": (link_to("/nowhere/at/all.json"), "No such file"),
    "link to a folder": (link_to("/"), "not a regular file"),
    "sparse 10 GB": (sparse(10**10), "larger than 64 MiB"),
    "200 MB": (sparse(2 * 10**8), "larger than 64 MiB"),
    "a byte too large": (sparse(LARGEST + 1), "larger than 64 MiB"),
    "empty": (instead(b""), "not strict JSON"),
    "zeros": (instead(b"\0" * 1000), "not strict JSON"),
    "noise": (instead(bytes(range(256))), "not strict JSON"),
    "cut early": (cut(0.01), "not strict JSON"),
    "cut in the middle": (cut(0.5), "not strict JSON"),
    "cut late": (cut(0.99), "not strict JSON"),
    "byte order mark": (encoded("utf-8-sig"), "BOM"),
    "UTF-16": (encoded("utf-16"), "not strict JSON"),
    "UTF-32": (encoded("utf-32"), "not strict JSON"),
    "Latin-1": (instead('{"schema": "é"}'.encode("latin-1")), "not strict JSON"),
    "two documents": (instead(b"{}\n{}"), "not strict JSON"),
    "text": (instead(b"Segmentation fault\nCore dumped\n"), "not strict JSON"),
    "list": (instead(b"[1, 2]"), "not a JSON object"),
    "null": (instead(b"null"), "not a JSON object"),
    "NaN": (number("NaN"), "NaN is not JSON"),
    "Infinity": (number("Infinity"), "Infinity is not JSON"),
    "1e400": (number("1e400"), "too large a number"),
    "1e200": (number("-1e200"), "too large a number"),
    "a number of 10^5 digits": (number("7" * 10**5), "not strict JSON"),
    "a number of 200 digits": (number("7" * 200), "duration_s="),
    "10^5 lists": (number("[" * 10**5 + "]" * 10**5), "nested too deeply"),
    "10^5 objects": (number('{"a":' * 10**5 + "1" + "}" * 10**5), "nested too deeply"),
    "an unknown key of 10^5 characters": (replaced('"attempt"', '"' + "a" * 10**5 + '"'), "unknown fields"),
    "another schema of 10^5 characters": (replaced('"schema": 2', '"schema": "' + "2" * 10**5 + '"'), "schema="),
    "another name": (copied, "a record that belongs into "),
    "escapes in its name": (with_escapes_in_its_name, "a record that belongs into "),
    "samples are gone": (samples(os.unlink), "its samples: cannot be read"),
    "samples are empty": (samples(instead(b"")), "its samples: torn"),
    "samples are not compressed": (samples(instead(b"{}")), "its samples: not compressed"),
    "samples are torn": (samples(cut(0.5)), "its samples: torn"),
    "samples are without end": (samples(instead(compress(b" " * (LARGEST + 1)))), "its samples: torn, or larger than"),
    "samples are others": (samples(instead(compress(b"{}"))), "its samples are not those"),
    "samples are a fifo": (samples(fifo), "its samples: not a regular file"),
    "samples are a folder": (samples(folder), "its samples: not a regular file"),
    "samples are a device": (samples(link_to("/dev/zero")), "its samples: not a regular file"),
    "samples are 10 GB": (samples(sparse(10**10)), "its samples: larger than"),
    "samples are no object": (other_samples(b"[1]"), "not a JSON object"),
    "samples are of other measurements": (other_samples(b'{"tokens": {"a": [1]}}'), "its samples are of other"),
    "samples are nested": (other_samples(b"[" * 10**5), "nested too deeply"),
}


# --- values that no reader can rely on: a path in a record, the value there (...: none), the field that is named ------

FIELDS = [
    ("record_id", "../../etc/passwd"),
    ("record_id", ""),
    ("cell_id", []),
    ("cell_id", "' OR 1=1 --" + "0" * 16),
    ("sweep_id", "' OR '1'='1"),
    ("attempt", True),
    ("attempt", 2**63),
    ("status", "fine"),
    ("status", ["ok"]),
    ("status", "oom"),
    ("started", "0000-01-01T00:00:00+00:00"),
    ("started", "0001-01-01T00:00:00+00:00"),
    ("ended", 5),
    ("ended", "99999-01-01T00:00:00+00:00"),
    ("ended", "2026-01-01T00:00:00"),
    ("ended", "2026-01-01"),
    ("ended", "20260101T000000+00:00"),
    ("ended", "2026-01-01T00:00:00+14:00"),
    ("ended", "1969-12-31T23:59:59+00:00"),
    ("ended", ...),
    ("duration_s", "1"),
    ("duration_s", None),
    ("reason", 5),
    ("stderr_tail", ["a", "b"]),
    ("overrides", 5),
    ("overrides", "a=1"),
    ("machine", None),
    ("code.sources_sha256", ["a"]),
    ("machine.cpu_model", 5),
    ("machine.cpu_count", "8"),
    ("host_state", []),
    ("host_state.disturbed", "other processes"),
    ("host_state.disturbed", [5]),
    ("machine.cpu_count", 10**30),
    ("numerics.threads", 1.5),
    ("mechanisms", []),
    ("mechanisms", {"flash": "softmax"}),
    ("mechanisms", {"flash": {"exact": "yes"}}),
    ("mechanisms", {"flash": {"size": ["a"]}}),
    ("seconds", {"check": "long"}),
    ("seconds", [1.0]),
    ("measurements", None),
    ("measurements", [1.0]),
    ("config", None),
    ("config", []),
    ("config.label", 5),
    ("config.label", ...),
    ("config.attention", "flash"),
    ("config.attention", {}),
    ("config.attention", {"name": ["flash"]}),
    ("config.bench", "latency"),
    ("config.bench", {}),
    ("config.bench", {"name": {}}),
    ("config.bench.against", 5),
    ("config.bench.against", [{"label": "flash"}]),
    ("config.inputs", []),
    ("config.inputs", {"name": 5}),
    ("config.inputs", {"name": "pretrained", "weights": ["initialised"]}),
    ("config.seq_len", "a"),
    ("config.seq_len", True),
    ("config.seq_len", 512.0),
    ("config.seq_len", 0),
    ("config.seq_len", -512),
    ("config.seq_len", 2**63),
    ("config.seq_len", 2**62),
    ("config.batch_size", None),
    ("config.batch_size", -1),
    ("config.num_heads", [12]),
    ("config.head_dim", {"a": 1}),
    ("config.dtype", 32),
    ("config.causal", 1),
    ("config.device", 0),
    ("config.impl", ["auto"]),
    ("config.seed", "0"),
]


def with_value(path, value):
    """What sets (or removes: `...`) one value of a record's file."""

    def make(file):
        fields = json.loads(file.read_text())
        *parents, name = path.split(".")
        node = fields
        for parent in parents:
            node = node[parent]
        node.pop(name) if value is ... else node.update({name: value})
        file.write_text(json.dumps(fields))

    return make


UNREADABLE = FILES | {f"{path}={value!r:.50}": (with_value(path, value), path.split(".")[0]) for path, value in FIELDS}


def spoil(store, kind):
    """Write a record that would be fine, and make it one of the kind."""
    make, message = UNREADABLE[kind]
    make(store.write(base(kind)))
    return message


# --- measurements that say nothing: a record that can be read, and what stands where its benchmark looks --------------


def unusable():
    """Readable records by their kind: their benchmarks cannot say what was measured."""
    rng = np.random.default_rng(2)
    sources = {
        "latency": latency("flash", 2048, rng),
        "memory": memory("flash", 2048),
        "decode": decode("flash", 2048, rng),
        "spectral_norm": spectral("skeinformer", 1024, 128, rng),
        "sketch_error": sketch_error("gaussian", 4, 64, rng),
        "flops": flops("softmax", 2048, 10**9),
        "compare": compare(LABELS, 2048, rng),
        "roofline": roofline("flash", 2048, rng),
        "train": train("flash", 16, 0, rng, task="language_modelling"),
        "train_step": train_step("flash", 16, rng),
        "compare_train_step": compare_train_step(LABELS, 2048, rng),
        "largest_batch": largest_batch("flash", 2048),
    }
    records = {}
    for name, source in sources.items():
        records |= {f"{name}: {kind}": (source, measured) for kind, measured in _whatever(source).items()}
        records |= {f"{name}: {kind}": (source, measured) for kind, measured in _of(name, source.measurements).items()}
    return {
        kind: renamed(dataclasses.replace(source, measurements=measured), kind)
        for kind, (source, measured) in records.items()
    }


def _whatever(source):
    one_number_will_do = source.config["bench"]["name"] in ("spectral_norm", "flops", "largest_batch")
    return {
        "nothing": {},
        "something else": {"loss": 1.0},
        "null": dict.fromkeys(source.measurements),
        "text": dict.fromkeys(source.measurements, "a"),
        "numbers": {} if one_number_will_do else dict.fromkeys(source.measurements, 5),
        "lists": {key: [] for key in source.measurements},
        "of another": {"passes": {"forward": {"samples": [[1.0], [2.0, 3.0]]}}, "samples": {"a": 1}},
    }


def _of(name, measured):
    """Measurements nearly as they should be."""

    def timed(samples, which="forward"):
        return {**measured, "passes": {which: {**measured["passes"]["forward"], "samples": samples}}}

    if name == "latency":
        return {
            "no samples": timed([]),
            "samples are text": timed(["1", "2"]),
            "samples are truth": timed([True, False]),
            "samples are null": timed([1.0, None]),
            "samples are nested": timed([[1.0], [2.0]]),
            "samples are zero": timed([0.0] * 8),
            "a sample is zero": timed([1e6] * 7 + [0.0]),
            "samples are negative": timed([-1.0, -2.0, -3.0]),
            "samples are tiny": timed([1e-149, 1e-300, 5e-324]),
            "an unknown pass": timed([1.0, 2.0], "sideways"),
            "no tokens": {**measured, "tokens": 0},
        }
    if name == "memory":
        return {
            "a peak of text": {"passes": {"forward": {"peak_bytes": "12"}}},
            "a peak of truth": {"passes": {"forward": {"peak_bytes": True}}},
            "an unknown pass": {"passes": {"": {"peak_bytes": 5}}},
            "a negative peak": {"passes": {"forward": {"peak_bytes": -5}}},
            "no passes": {**measured, "passes": {}},
            "the largest is null": {**measured, "largest": {"axis": "seq_len", "value": None}},
        }
    if name == "roofline":
        ceilings, one = measured["ceilings"], {"work": 1, "samples": [1.0]}
        return {
            "samples are text": {**measured, "samples": ["1", "2"]},
            "a ceiling is missing": {**measured, "ceilings": {"gemm": ceilings["gemm"]}},
            "other rounds": {**measured, "ceilings": {**ceilings, "copy": one}},
            "no work": {**measured, "ceilings": {**ceilings, "gemm": {**ceilings["gemm"], "work": 0}}},
            "an unknown ceiling": {**measured, "ceilings": {**ceilings, "sky": one}},
            "no bytes": {**measured, "bytes": 0},
            "immense FLOPs": {**measured, "flops": 10**100},
            "times of a nanosecond": {**measured, "samples": [1.0] * len(measured["samples"])},
        }
    if name == "decode":
        return {
            "samples are text": {**measured, "samples": ["1", "2"]},
            "a negative state": {**measured, "state_bytes": -1},
        }
    if name == "train_step":
        whole = measured["parts"]["step"]

        def stepped(samples):
            return {**measured, "parts": {**measured["parts"], "step": {**whole, "samples": samples}}}

        return {
            "no samples": stepped([]),
            "samples are text": stepped(["1", "2"]),
            "samples are zero": stepped([0.0] * 8),
            "a peak of text": {**measured, "peak_bytes": "12"},
        }
    if name == "largest_batch":
        return {
            "a batch of text": {**measured, "largest": "3"},
            "no accumulation": {"largest": 3},
            "a limit of text": {**measured, "limit_bytes": "12"},
        }
    if name == "compare_train_step":
        times = measured["samples"]
        return {
            "other rounds": {**measured, "samples": {**times, SKETCH: times[SKETCH][:-1]}},
            "zero times": {**measured, "samples": {**times, SKETCH: [0.0] * len(times[SKETCH])}},
            "one label is missing": {**measured, "samples": {LABELS[0]: times[LABELS[0]]}},
        }
    if name == "compare":
        times = measured["samples"]
        return {
            "other rounds": {**measured, "samples": {**times, SKETCH: times[SKETCH][:-1]}},
            "zero times": {**measured, "samples": {**times, SKETCH: [0.0] * len(times[SKETCH])}},
            "negative times": {**measured, "samples": {**times, SKETCH: [-1.0] * len(times[SKETCH])}},
            "an unknown pass": {**measured, "pass": "sideways"},
            "one label is missing": {**measured, "samples": {LABELS[0]: times[LABELS[0]]}},
        }
    if name == "train":
        return {
            "never evaluated": {**measured, "validation": []},
            "no steps": {**measured, "curve": {**measured["curve"], "train_loss": []}},
            "a curve of text": {**measured, "curve": {**measured["curve"], "train_loss": ["a"]}},
            "nothing asked": {**measured, "test": {**measured["test"], "loss_by_position": [None, None]}},
            "a baseline of text": {**measured, "baselines": {"unigram": "2"}},
            "no time": {**measured, "seconds": [0.0]},
            "negative times": {**measured, "seconds": [-1.0]},
            "a negative loss": {**measured, "test": {**measured["test"], "loss": -1.0}},
            "more right than asked": {**measured, "test": {**measured["test"], "token_accuracy": 1.5}},
        }
    if name == "train_step":
        parts = measured["parts"]
        return {
            "no step": {**measured, "parts": {"forward": parts["forward"]}},
            "a step of text": {**measured, "parts": {**parts, "step": {"samples": ["1"]}}},
        }
    if name in ("spectral_norm", "sketch_error"):
        first = "absolute" if name == "spectral_norm" else "kernel_error"
        return {
            "ragged": {**measured, first: [[1.0], [1.0, 2.0]]},
            "errors are text": {**measured, first: [["1.0"], ["2.0"]]},
            "negative errors": {**measured, first: [[-number for number in row] for row in measured[first]]},
        }
    return {"counted nothing": {**measured, "counted": 0}}


# --- what may look odd and is a record all the same --------------------------------------------------------------

TEXTS = {
    "mathtext": r"$\frac",
    "mathtext of a file": "v$_{$.yaml",
    "mathtext, escaped": r"a\$b\$ $x$",
    "lone surrogate": "a\ud800b",
    "escapes": "\x1b[31mred\x1b[0m\x07",
    "new lines": "one\ntwo\r\nthree\u2028four",
    "null character": "nul\0l",
    "pipes": "a|b||c",
    "HTML": "<script>alert(1)</script><!--",
    "right to left": "\u202eabc",
    "underscore": "_hidden",
    "blank": "  ",
    "empty": "",
    "10^5 characters": "x" * 10**5,
    "braces": "{}%s%(a)s{0}",
    "Markdown": "**a** [b](c) `d` # e",
    "emoji": "\N{PILE OF POO}",
}


def strange(kind):
    """Records whose label, hyperparameters, machine or reason hold a text; one per benchmark, and one that failed."""
    text, rng = TEXTS[kind], np.random.default_rng(3)
    records = [
        latency("flash", 2048, rng),
        latency("flash", 4096, rng, "oom"),
        decode("flash", 2048, rng),
        memory("flash", 2048),
        spectral("skeinformer", 1024, 128, rng),
        flops("softmax", 2048, 10**9),
        sketch_error("gaussian", 4, 64, rng),
        roofline("flash", 2048, rng),
        compare(LABELS, 2048, rng),
        train("flash", 64, 0, rng),
        train("flash", 64, 0, rng, task="language_modelling", settings={"text": text}),
        train("flash", 64, 1, rng, "nonfinite", task="language_modelling", settings={"text": text}),
        train_step("flash", 64, rng),
    ]
    return [renamed(_labelled(record, text), f"{kind}{number}") for number, record in enumerate(records)]


def _labelled(record, text):
    config = record.config
    label, attention = config["label"], {**config["attention"], "note": text}
    config = {**config, "label": text, "attention": attention}
    fields = {"mechanisms": {text: record.mechanisms[label]} | record.mechanisms}
    if "against" in config["bench"]:
        times = record.measurements["samples"]
        names = [text, *record.measurements["labels"][1:]]
        renamed_times = {text: times[label]} | {key: value for key, value in times.items() if key != label}
        fields["measurements"] = {**record.measurements, "labels": names, "samples": renamed_times}
    reason = None if record.status == "ok" else text * 100
    return dataclasses.replace(record, config=config, reason=reason, stderr_tail=text, overrides=(text,), **fields)


def extreme():
    """Records of values that nobody expects, by their kind."""
    rng = np.random.default_rng(4)

    def measuring(source, /, **changes):
        measured = {key: value for key, value in {**source.measurements, **changes}.items() if value is not ...}
        return dataclasses.replace(source, measurements=measured)

    def configured(source, **changes):
        config = {key: value for key, value in {**source.config, **changes}.items() if value is not ...}
        return dataclasses.replace(source, config=config)

    def timed(samples, **changes):
        source = latency("flash", 2048, rng, **changes)
        passes = {"forward": {**source.measurements["passes"]["forward"], "samples": samples}}
        return measuring(source, passes=passes)

    error, sketch = spectral("skeinformer", 1024, 128, rng), sketch_error("gaussian", 4, 64, rng)
    ratio, failed = compare(LABELS, 2048, rng), compare(LABELS, 4096, rng, "oom")
    steps, zeros = decode("flash", 2048, rng), [[0.0] * 12] * 8
    records = {
        "longest": latency("flash", 2**40, rng, batch_size=1),
        "one token": latency("flash", 1, rng, batch_size=1),
        "immense times": timed([1e149, 1e149, 1e148]),
        "times of a nanosecond": timed([1.0, 1.0, 1.0]),
        "one time": timed([1.0]),
        "whole numbers": timed([1, 2, 3]),
        "no heads": configured(
            latency("flash", 2048, rng), num_heads=..., head_dim=..., dtype=..., causal=..., device=...
        ),
        "null settings": configured(latency("flash", 2048, rng), num_heads=None, causal=None, seed=None, impl=None),
        "no implementation": configured(latency("flash", 2048, rng), impl=...),
        "inputs of no name": configured(latency("flash", 2048, rng), inputs={}),
        "another benchmark": configured(steps, bench={"name": "accuracy", "passes": 5, "measured_pass": {}}),
        "a module that is no benchmark": configured(steps, bench={"name": "gate"}),
        "a benchmark of a path": configured(steps, bench={"name": "../../os"}),
        "10^3 numbers": configured(
            measuring(steps, many={f"m{k}|": k for k in range(10**3)}), bench={"name": "accuracy"}
        ),
        "an unknown mechanism": configured(latency("flash", 2048, rng), attention={"name": "who", "passes": [[]]}),
        "no machine": dataclasses.replace(
            latency("flash", 2048, rng), machine={}, numerics={}, mechanisms={}, seconds={}
        ),
        "year 9999": dataclasses.replace(latency("flash", 2048, rng), ended="9999-12-31T23:59:59.999999+00:00"),
        "ended before it started": dataclasses.replace(timed([1.0]), started="2099-01-01T00:00:00+00:00"),
        "a disturbance of no name": under(latency("flash", 2048, rng), ""),
        "disturbances without end": under(latency("flash", 2048, rng), *[f"|{k}: $x; <b>" for k in range(10**3)]),
        "a host of text": dataclasses.replace(
            latency("flash", 2048, rng), host_state={"during": "long", "disturbed": None}
        ),
        "no duration": dataclasses.replace(latency("flash", 2048, rng), duration_s=0.0, seconds={"check": 0.0}),
        "a negative duration": dataclasses.replace(latency("flash", 2048, rng), duration_s=-1.0),
        "no error": measuring(error, absolute=zeros, relative=zeros),
        "one trial": measuring(error, sequences=1, absolute=[[1.0]], relative=[[1.0]]),
        "one trial of one head": measuring(error, sequences=1, absolute=[1.0], relative=[1.0]),
        "immense errors": measuring(error, sequences=1, absolute=[[1e149, 1.0]], relative=[[1e149, 1.0]]),
        "size 0": measuring(error, features=0),
        "a size of text": measuring(error, features="64"),
        "an immense size": measuring(error, features=2**62),
        "a size of 10^30": measuring(error, features=10**30),
        "a fraction for a size": measuring(error, features=64.5),
        "a list for a hyperparameter": configured(error, attention={"name": "skeinformer", "num_features": [64]}),
        "text for a hyperparameter": configured(
            latency("skeinformer", 1024, rng, causal=False), attention={"name": "skeinformer", "num_features": "64"}
        ),
        "a sketch without error": measuring(sketch, kernel_error=zeros, sketch_error=zeros),
        "a sketch of one trial": measuring(sketch, sequences=1, kernel_error=[[1.0]], sketch_error=[[1.0]]),
        "a sketch of no name": configured(sketch, attention={"name": "polysketch"}),
        "an unknown sketch": configured(sketch, attention={"name": "polysketch", "sketch": "x", "degree": "y"}),
        "an expectation of zero": measuring(sketch, kernel_expected=zeros, sketch_expected=[[-1.0]]),
        "no size of a sketch": measuring(sketch, features=None),
        "unknown labels": measuring(ratio, labels=["a", "b"], samples={"a": [1.0, 2.0], "b": [1.0, 2.0]}),
        "one round": measuring(ratio, samples={label: [1.0] for label in LABELS}),
        "immense ratios": measuring(ratio, samples={label: [10.0 ** (70 * k)] * 9 for k, label in enumerate(LABELS)}),
        "a pass that nobody knows": configured(failed, bench={**failed.config["bench"], "measured_pass": "sideways"}),
        "a candidate like the baseline": configured(
            ratio, bench={**ratio.config["bench"], "against": [{"label": "flash", "attention": {"name": "flash"}}] * 2}
        ),
        "against nobody": configured(ratio, bench={**ratio.config["bench"], "against": []}),
        "no state": measuring(steps, state_bytes=0),
        "no peak": measuring(memory("flash", 2048), passes={"forward": {"peak_bytes": 0}}),
        "no FLOPs": measuring(flops("softmax", 2048, 10**9), analytic=0, counted=1),
        "immense FLOPs": measuring(flops("softmax", 2048, 10**9), analytic=10**100),
        "another kind of FLOPs": measuring(flops("softmax", 2048, 10**9), counted=5.5),
    }
    source = roofline("flash", 2048, rng)
    records |= {
        "one round under a roof": roofline("flash", 2048, rng, rounds=1),
        "no masks under a roof": configured(source, causal=..., head_dim=...),
    }
    text, pairs = train("flash", 64, 0, rng, task="language_modelling"), {"task": "associative_recall"}
    records |= {
        "a model that learned of no settings": configured(text, model=..., task=..., training=...),
        "settings of text": configured(text, model="a", task=5, training=[]),
        "settings of lists": configured(text, model={"layers": [2]}, task={"text": []}, training={"learning_rate": {}}),
        "a rate of text": configured(text, training={**text.config["training"], "learning_rate": "high"}),
        "an immense rate": configured(text, training={**text.config["training"], "learning_rate": 1e149}),
        "no seed": configured(text, seed=None),
        "no source": measuring(text, source=...),
        "a source of a list": measuring(text, source=["kjv"]),
        "immense losses": train("flash", 64, 0, rng, task="language_modelling", final=1e149),
        "a loss of zero": measuring(text, test={**text.measurements["test"], "loss": 0.0}),
        "immense baselines": measuring(text, baselines={"unigram": 1e149, "bigram": 1e149}),
        "an unknown baseline": measuring(text, baselines={"trigram": 1.0}),
        "one position": measuring(text, test={**text.measurements["test"], "loss_by_position": [1.0]}),
        "one evaluation": train("polynomial_p4", 64, 0, rng, evaluations=1),
        "one step": measuring(text, curve={"train_loss": [1.0]}),
        "pairs of text": train("flash", 64, 0, rng, settings={"num_pairs": "4"}, **pairs),
        "no pairs": train("flash", 64, 0, rng, settings={"num_pairs": 0}, **pairs),
        "nothing learned": train("flash", 64, 0, rng, "timeout", task="language_modelling"),
        "a step that failed": train_step("flash", 64, rng, "oom"),
        "a step of no settings": configured(train_step("flash", 64, rng), model=..., task=..., training=...),
    }
    records |= {f"failed: {status}": latency("flash", 2048, rng, status) for status in ("oom", "incorrect", "timeout")}
    return {kind: renamed(record, kind) for kind, record in records.items()}
