"""Configurations that must never run: what is typed, what the one line must name, and files that it needs.

`{dir}` in what is typed is a folder of the test's own, in which the files lie.
"""

from dataclasses import dataclass, field


@dataclass
class Hostile:
    typed: list[str]
    named: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    plugins: str | None = None


DEEP = 2000
# What is typed, and how the line begins or what it says beside the key.
SENTENCES = {
    "attention=flsh": "attention=flsh: unknown; did you mean flash",
    "attention=../config": "attention=config: must be the name of a file in attention/",
    "attention.name=../../etc/passwd": "attention='../../etc/passwd'",
    "seq_ln=5": "seq_ln=5: unknown; did you mean seq_len",
    "+x=1": "x=1: unknown",
    "seq_len=0": "seq_len=0: must be",
    "seq_len=${oc.env:HOME}": "seq_len='${oc.env:HOME}': must not use a resolver",
    "tokens_per_batch=100 batch_size=null": "tokens_per_batch=100: must be at least seq_len",
    "dtype=float8": "dtype='float8': must be one of",
    "timeout=0": "timeout=0.0: must be a number above 0",
    "results_dir=s3://bucket/runs": "results_dir='s3://bucket/runs': must be a folder",
    "tracking=mlflow tracking.experiment=": "tracking.experiment='': must be a name",
    "attention=flash.yaml": "attention=flash.yaml: unknown; did you mean flash",
    "hydra.launcher.executor=os": "hydra.launcher.executor='os': must be one of cells, devices, ray, slurm",
    "hydra/launcher=devices hydra.launcher.cores_per_worker=4096": "hydra.launcher.cores_per_worker=4096: must be at",
    "hydra/launcher=ray hydra.launcher.num_cpus=4096": "hydra.launcher.num_cpus=4096: must be at most",
    "hydra/launcher=ray hydra.launcher.address=127.0.0.1:9": "hydra.launcher.address='127.0.0.1:9': ",
    "max_cells=abc seed=range(0,1000000000)": "max_cells='abc': must be",
    "seed=range(0,1000000)": "max_cells=10000: the sweep has 1,000,000 combinations; max_cells=1000000 allows them",
    "seed=range(0,1000) seq_len=range(1,1001)": "1,000,000 combinations",
    "seed=1,2,3 max_cells=2": "max_cells=2: the sweep has 3 combinations",
    "seed=range(3,1)": "no cells",
    "seq_len=9223372036854775808": "seq_len=9223372036854775808: must fit into 64 bits",
    "seed='9223372036854775808'": "seed=9223372036854775808: must be",
    "inputs.score_scale=1e200": "inputs.score_scale=1e+200: must be at most 1e+150",
    "hydra/launcher=basic": "hydra/launcher: must be one of cells, devices, ray, slurm",
    "hydra.launcher._target_=os.system": "hydra.launcher._target_=os.system: unknown; known are hydra.launcher.exec",
    "hydra.sweeper._target_=os.system": "hydra.sweeper._target_=os.system: not allowed",
    "seed=range(0,10,0)": "seed=range(0,10,0): a range's step must not be 0",
    "size=laptop,paper": "size=laptop,paper: must have one value",
    "experiment=[demo,decode]": "experiment=[demo,decode]: must have one value",
    "results_dir=a,b": "results_dir='b': must have one value",
    "bench=train model=transformer_tiny task=reversal training.clip=0": "training.clip=0.0: must be a number above 0",
    "attention=polynomial attention.degree=3": "attention.degree=3: must be even",
    "attention=polynomial +attention.foo=4": "attention.foo=4: unknown; polynomial takes degree",
    "bench=compare attention=flash,flash": "attention=flash: bench=compare needs two or more",
    "attention=performer attention.num_features=many": "attention.num_features='many'",
    "bench=flops attention=polysketch attention.sketch_size=32 bench.num_features=64": (
        "attention.sketch_size=32: contradicts bench.num_features=64"
    ),
}

# Values that a key does not take, or the last of several words: the line names it.
VALUES = {
    "seq_len": "abc -1 1.5 null [1] {a:1} 1e400 '' ( {a: ??? 1000000000000000000"
    " glob(*) interval(1,2) choice() range() nothing(1) int(abc) shuffle(5) ${nothing} ${ ${seq_len}",
    "batch_size": "0 4611686018427387904",
    "tokens_per_batch": "0 9000000000000000000",
    "repeats": "0 100000000",
    "seed": "-1 1,2,1111111111111111111111 range(0,inf) range(nan,1) range(0,1,1e-320) range(a,b)",
    "timeout": "abc nan 1e300 []",
    "dtype": "'' 1 float32,float8",
    "causal": "maybe null",
    "device": "tpu cuda:99 null cpu,tpu",
    "max_cells": "0 null 1,2",
    "size": "huge null",
    "grids": "[1] x {laptop:[]}",
    "attention": "é '' [flash] - 5 flash,nothing $(rm",
    "bench": "nothing null",
    "experiment": "../config [x] demo.yml",
    "bench.passes": "[sideways] [] forward,sideways 5 [[forward]]",
    "bench.memory_limit": "-1 inf [1]",
    "inputs.score_scale": "0 nan null",
    "attention=performer attention.num_features": "0 100000000000000000000",
    "attention=softmax attention.dropout": "2",
    "tracking=mlflow tracking.uri": "foo://x http:// http://h:99999 http://[ sqlite:// sqlite:////proc/1/nope/x.db x",
    "tracking=mlflow tracking.experiment": "[1]",
    "+hydra.job.env_set.LD_PRELOAD": "x",
    "hydra/launcher": "nothing basic,cells",
    "hydra.searchpath": "[{dir}] [pkg://os]",
    "results_dir": "{dir}/file {dir}/file/below /dev/null /proc/1/nope null '' [x] {dir}/loop"
    " {dir}/dangling/below/file/x " + "y" * 300,
}
# What is typed, where it has spaces or is long, and what the line must name.
TYPED = {
    ("results_dir=' '",): "results_dir",
    ("a b=1",): "a b",
    ("attention", "flash"): "'attention': must be key=value",
    ("=5",): "=5",
    ("seed=" + "[" * DEEP + "]" * DEEP,): "seed=" + "[" * 40,
    ("impl=\udce9",): "impl",
    ("--config-dir",): "--config-dir",
    ("-r",): "-r: unknown",
    ("--config-name", "x"): "--config-name: unknown",
    ("--cfg", "nothing"): "--cfg",
    ("--resolve",): "--resolve",
    ("--help", "seq_ln=5"): "seq_ln",
    **{("--config-dir", folder): "--config-dir" for folder in ("{dir}/file", "")},
    ("tracking.uri=http://user:hunter2@127.0.0.1:1",): "tracking.uri",
    ("tracking.uri=http://127.0.0.1:1/?token=hunter2",): "tracking.uri",
    ("+attention={token: hunter2}",): "attention.token",
    **{(f"{key}=hunter2",): f"{key.lstrip('+')}:" for key in ("token", "+hub_token", "inputs.api_key")},
}
# Keys that are not there, or not so.
KEYS = {
    "a.b.c=1": "a: unknown",
    "degree=2": "degree=2: unknown; did you mean attention.degree (of ",
    "attention=performer,flash attention.num_features=64": (
        "attention.num_features=64: unknown to attention.name=flash; known are attention.backend, "
    ),
    "bench.foo=3": "bench.foo=3: unknown to bench.name=latency; known are bench.memory_limit, ",
    "task.num_pairs=2": "task: none is chosen; task=NAME is one of associative_recall,",
    "+x.y=1": "x",
    "+seq_len=5": "seq_len",
    "~seq_len=7": "seq_len",
    "~attention.name": "attention",
    "attention@x=flash": "attention",
    "seq_len.x=5": "seq_len",
    "attention=skeinformer attention.nfeatures=3": (
        "attention.nfeatures=3: unknown to attention.name=skeinformer; did you mean attention.num_features?"
    ),
    **{f"attention.name={name}": "attention" for name in ("null", "[flash]")},
    **{f"~{group}": group for group in ("attention", "bench", "inputs", "tracking")},
    "experiment.nothing=1": "experiment",
    "+attention._target_=os.system": "attention._target_",
}
# What no mechanism of the sweep can do: findings with a record each, and one line where there is nothing else.
WITH_A_RECORD = {
    "attention=polysketch_srht_r32 head_dim=48": "head_dim=48: must be a power of two",
    "attention=linformer causal=true": "causal=true: linformer cannot",
    "attention=linear,performer dtype=float16": "dtype=float16: linear takes float64, float32, bfloat16 only",
    "bench=decode attention=reformer": "bench=decode: reformer cannot decode",
    "attention=v_mean impl=fused": "impl=fused: v_mean has reference only",
}

GLOBAL = "# @package _global_\n"
YAML = {
    "seq_len: [1\n": "x.yaml, line",
    "seq_len: 5\nseq_len: 6\n": "duplicate key seq_len",
    "seq_len: !!python/object/apply:os.system [exit]\n": "x.yaml, line",
    "seq_len: 5\n---\nseq_len: 6\n": "x.yaml",
    "- 1\n- 2\n": "experiment=x",
    "grids: " + "[" * DEEP + "]" * DEEP: "nested too deeply",
    "seq_len: !!binary aGVsbG8=\n": "seq_len",
    "? [1, 2]\n: 3\n": "x.yaml",
    'results_dir: "a\\0b"\n': "results_dir",
    'results_dir: "\\ud800"\n': "results_dir",
    "attention: null\n": "attention",
    "bench: {passes: {a: 1}}\n": "experiment=x",
    "x: ${y}\ny: ${x}\n": "x",
    "hydra: {callbacks: {x: {_target_: os.getcwd}}}\n": "hydra.callbacks",
    "defaults: [nothing]\n": "nothing",
    "defaults: [/attention@hydra.callbacks.x: flash]\n": "hydra.callbacks",
    "defaults: [../../etc/passwd]\n": "experiment",
    "defaults: [x]\n": "x",
    "grids: {paper: [{seq_len: 5}]}\n": "size='laptop'",
    "grids: {laptop: 5}\n": "grids.laptop",
    "grids: {laptop: [{seq_len: {a: 1}}]}\n": "grids.laptop[0]",
    "grids: {laptop: [{experiment: demo}]}\n": "grids.laptop[0].experiment",
    "grids: {laptop: [{hydra.mode: RUN}]}\n": "grids.laptop[0].hydra.mode",
    "grids: {laptop: [{token: x}]}\n": "token",
}

# Files of a folder of the user's: what is typed, the file, what it holds, and what the line must name.
FILES = [
    *(("experiment=x", "experiment/x.yaml", GLOBAL + text, named) for text, named in YAML.items()),
    ("experiment=x", "experiment/x.yaml", b"\xff\xfe\x00seq", "not UTF-8"),
    ("experiment=x", "experiment/x.yaml/y", "", "experiment=x"),
    ("attention=mine", "attention/mine.yaml", "", "attention"),
    ("attention=mine", "attention/mine.yaml", "name: nothing\n", "attention"),
    ("attention=mine", "attention/mine.yaml", "# @package hydra.callbacks\nx: {a: 1}\n", "hydra.callbacks"),
    ("hydra/launcher=mine", "hydra/launcher/mine.yaml", "_target_: os.system\n", "hydra/launcher"),
    ("tracking=mine", "tracking/mine.yaml", "name: mlflow\nuri: http://user:hunter2@h", "tracking.uri"),
]
# Modules in ATTENTION_ZOO_PLUGINS that cannot be imported, each in a process of its own.
MODULES = {"raises": "raise RuntimeError('boo\\nmore')", "ends": "raise SystemExit(0)"}
PLUGINS = [
    Hostile(["seed=1"], "ATTENTION_ZOO_PLUGINS", plugins="nothere.x"),
    *(
        Hostile(["seed=1"], f"ATTENTION_ZOO_PLUGINS='{name}'", {f"{name}.py": text}, name)
        for name, text in MODULES.items()
    ),
]
LINKS = {"file": "", "loop": b"-> loop", "dangling": b"-> /proc/1/nope"}


def _rows():
    for typed, named in (SENTENCES | KEYS).items():
        yield Hostile(typed.split(), named)
    for typed, named in TYPED.items():
        yield Hostile([*typed], named, LINKS)
    for key, values in VALUES.items():
        *before, key = key.split()
        for value in values.split():
            yield Hostile([*before, f"{key}={value}"], key.lstrip("+"), LINKS if key == "results_dir" else {})
    for typed, path, content, named in FILES:
        yield Hostile([typed, "--config-dir", "{dir}"], named, {path: content})


UNSUPPORTED = [Hostile(typed.split(), named) for typed, named in WITH_A_RECORD.items()]
WITHOUT_A_RECORD = list(_rows())
