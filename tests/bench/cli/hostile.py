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


HUGE = "1" * 40
DEEP = 2000
# What is typed, and how the line begins or what it says beside the key.
SENTENCES = {
    "attention=flsh": "attention=flsh: unknown; did you mean flash",
    "attention.name=../../etc/passwd": "attention='../../etc/passwd'",
    "bench=latncy": "bench=latncy: unknown; did you mean latency",
    "seq_ln=5": "seq_ln: unknown; did you mean seq_len",
    "+x=1": "x=1: unknown",
    "seq_len=0": "seq_len=0: must be",
    "seq_len=${oc.env:HOME}": "seq_len='${oc.env:HOME}': must not use a resolver",
    "seq_len=[1,2": "seq_len=[1,2",
    "tokens_per_batch=100 batch_size=null": "tokens_per_batch=100: must be at least seq_len",
    "dtype=float8": "dtype='float8': must be one of",
    "timeout=0": "timeout=0.0: must be a number above 0",
    "results_dir=s3://bucket/runs": "results_dir='s3://bucket/runs': must be a folder",
    "tracking=mlflow tracking.experiment=": "tracking.experiment='': must be a name",
    "attention=flash.yaml": "attention=flash.yaml: must be flash, the name of a file without its ending",
    "hydra.launcher.executor=os": "hydra.launcher.executor='os': must be one of cells, devices, ray, slurm",
    "hydra/launcher=devices hydra.launcher.cores_per_worker=4096": "hydra.launcher.cores_per_worker=4096: must be at",
    "hydra/launcher=ray hydra.launcher.num_cpus=4096": "hydra.launcher.num_cpus=4096: must be at most",
    "hydra/launcher=ray hydra.launcher.address=127.0.0.1:9": "hydra.launcher.address='127.0.0.1:9': ",
    "max_cells=0": "max_cells=0: must be",
    "max_cells=abc seed=range(0,1000000000)": "max_cells='abc': must be",
    "seed=range(0,1000000)": "max_cells=10000: the sweep has 1,000,000 cells; max_cells=1000000 allows them",
    "seed=1,2,3 max_cells=2": "max_cells=2: the sweep has 3 cells",
    "seq_len=9223372036854775808": "seq_len=9223372036854775808: must fit into 64 bits",
    "results_dir=": "results_dir='': must be a folder",
    "hydra/launcher=basic": "hydra/launcher: must be one of cells, devices, ray, slurm",
    "hydra.launcher._target_=os.system": "hydra.launcher._target_: unknown; known are executor, timings_alone",
    "hydra.sweeper._target_=os.system": "hydra.sweeper._target_=os.system: not allowed",
    "+hydra.callbacks.x._target_=os.getcwd": "hydra.callbacks.x._target_=os.getcwd: not allowed",
    "seed=range(0,10,0)": "seed=range(0,10,0): a range's step must not be 0",
    "size=laptop,paper": "size=laptop,paper: must have one value",
    "experiment=[demo,decode]": "experiment=[demo,decode]: must have one value",
    "results_dir=a,b": "results_dir='b': must have one value",
    "bench=train model=transformer_tiny task=reversal training.clip=0": "training.clip=0.0: must be a number above 0",
    "inputs=pretrained inputs.weights=stolen": "inputs.weights='stolen'",
    "attention=polynomial attention.degree=3": "attention.degree=3: must be even",
    "attention=polynomial attention.degre=4": "attention.degre: unknown; did you mean degree",
    "attention=polynomial +attention.foo=4": "attention.foo=4: unknown; polynomial takes degree",
    "bench=compare attention=flash,flash": "attention=flash: bench=compare needs two or more",
    "attention=performer attention.num_features=many": "attention.num_features='many'",
}

# Values that a key does not take, or the last of several words: the line names it.
VALUES = {
    "seq_len": "abc 0 -1 1.5 null [1] {a:1} true1 1e400 nan '' 9223372036854775808 ( {a: ' \"x ) ???"
    " glob(*) interval(1,2) choice() range() range(1,2,3,4) nothing(1) int(abc) sort() shuffle(5) tag() json(1)"
    " ${oc.decode:1} ${now:%Y} ${hydra:job.num} ${nothing} ${ ${seq_len} ${.x} ${oc.create:{a:1}}",
    **dict.fromkeys(("tokens_per_batch", "num_heads", "head_dim", "repeats"), "abc 0"),
    "batch_size": "abc 0 -3 2.5 [1,2]",
    "seed": f"-1 abc null {HUGE} 1,2,{HUGE} range(0,inf) range(nan,1) range(0,1,1e-320) range(a,b)",
    "timeout": "abc -1 nan inf 1e300 null []",
    "dtype": "float8 FLOAT32 1 [float32] float32,float8",
    "causal": "maybe x2 null [true]",
    "device": "tpu cuda:x cuda:-1 cuda:99 CPU '' null cpu,tpu",
    "impl": "fast null reference,fast",
    "rerun": "sometimes 1 all,failed",
    "max_cells": "-1 1.5 null 1,2 [1]",
    "size": "huge [laptop] null 5",
    "grids": "[1] x {laptop:[]}",
    "attention": "nothing ../config é '' [flash] - 5 glob(*) flash,nothing",
    "bench": "nothing ../config null",
    "inputs": "nothing null",
    "tracking": "nothing none,mlflow",
    "experiment": "nothing ../config [x] demo.yml",
    "bench.passes": "[sideways] [] sideways [forward,sideways] null 5 [[forward]]",
    "bench.memory_limit": "-1 abc nan inf 1e300 [1]",
    "bench=spectral_norm bench.num_features": "0 x 1.5",
    "bench=memory bench.largest": "seq 5",
    "bench=decode bench.steps": "0",
    "bench=compare attention=flash,softmax bench.measured_pass": "all",
    "inputs.score_scale": "0 -1 abc nan inf null",
    "inputs=pretrained inputs.layer": "-1 x 1.5",
    "attention=polynomial attention.degree": "0 x",
    "attention=polynomial attention.qk_layernorm": "5",
    "attention=polysketch attention.sketch_size": "0 x",
    "attention=performer attention.num_features": "0 100000000000000000000",
    "attention=nystromformer attention.num_landmarks": "0",
    "attention=softmax attention.dropout": "2 -1",
    "attention=polynomial_square attention.coefficients": "[] x",
    "tracking=mlflow tracking.uri": "foo://x http:// http://h:99999 http://[ sqlite:// sqlite:////proc/1/nope/x.db x",
    "tracking=mlflow tracking.experiment": "[1] null",
    "hydra.job.chdir": "true",
    "+hydra.job.env_set.LD_PRELOAD": "x",
    "hydra.launcher._target_": "null 5",
    "hydra/launcher": "nothing basic,cells",
    "hydra/sweeper": "nothing",
    "hydra.searchpath": "[{dir}] [pkg://os]",
    "results_dir": "{dir}/file {dir}/file/below /dev/null /proc/1/nope null /sys/nope [x] {dir}/loop"
    " {dir}/dangling/below/file/x " + "y" * 300 + " " + "${dtype}" * 20,
}
# What is typed, where it has spaces or is long, and what the line must name.
TYPED = {
    ("dtype=",): "dtype",
    ("impl=",): "impl",
    ("results_dir=' '",): "results_dir",
    ("attention=a b",): "attention",
    ("attention=$(rm -rf .)",): "attention=$(rm -rf .)",
    ("a b=1",): "a b",
    ("seq_len",): "seq_len",
    ("=5",): "=5",
    ("seed=range(3,1)",): "no cells",
    ("seed=" + "[" * DEEP + "]" * DEEP,): "seed=" + "[" * 40,
    ("results_dir=" + "x" * 100_000,): "results_dir",
    ("x" * 100_000 + "=1",): "x" * 40,
    ("impl=" + "é" * 5_000,): "impl",
    ("impl=\udce9",): "impl",
    ("seq_len=1000000000000000000", "tokens_per_batch=2000000000000000000"): "seq_len",
    ("seq_len=4611686018427387904", "batch_size=1"): "seq_len",
    ("batch_size=4611686018427387904",): "batch_size",
    ("tokens_per_batch=4611686018427387904", "seq_len=1"): "tokens_per_batch",
    ("repeats=100000000",): "repeats",
    ("--config-dir",): "--config-dir",
    ("-r",): "--run",
    ("--config-name", "x"): "--config-name",
    ("--experimental-rerun", "x"): "--experimental-rerun",
    ("--cfg", "nothing"): "--cfg",
    ("--info", "nothing"): "--info",
    ("--cfg", "job", "--multirun"): "--cfg",
    ("--resolve",): "--resolve",
    ("--package", "attention"): "--package",
    ("--cfg", "job", "seq_ln=5"): "seq_ln",
    ("--help", "seq_ln=5"): "seq_ln",
    **{("--config-dir", folder): "--config-dir" for folder in ("{dir}/missing", "{dir}/file", "", "x" * 300)},
    ("seed=range(0,1000000000000)",): "1,000,000,000,000 cells",
    ("seed=range(0,1000)", "seq_len=range(1,1001)"): "1,000,000 cells",
    ("bench=flops", "attention=polysketch", "attention.sketch_size=32", "bench.num_features=64"): (
        "attention.sketch_size=32: contradicts bench.num_features=64"
    ),
    ("tracking.uri=http://user:hunter2@127.0.0.1:1",): "tracking.uri",
    ("tracking.uri=http://127.0.0.1:1/?token=hunter2",): "tracking.uri",
    ("inputs=pretrained", "inputs.model=https://user:hunter2@host/x"): "inputs.model",
    ("+attention={token: hunter2}",): "attention.token",
    **{(f"{key}=hunter2",): f"{key.lstrip('+')}:" for key in ("token", "+hub_token", "inputs.api_key", "++x.password")},
}
# Keys that are not there, or not so.
KEYS = {
    "a.b.c=1": "a: unknown",
    "++x=1": "x",
    "+x.y=1": "x",
    "+seq_len=5": "seq_len",
    "~seq_len=7": "seq_len",
    "~nothing": "nothing",
    "~attention.name": "attention",
    "+attention=flash": "attention",
    "attention@x=flash": "attention",
    "seq_len.x=5": "seq_len",
    "attention.scal=1": "attention.scal",
    "hydr=1": "hydr",
    "+hydra.launcher.x._target_=os.getcwd": "hydra.launcher.x",
    **{f"attention.name={name}": "attention" for name in ("5", "null", "[flash]", "os.system")},
    **{f"~{group}": group for group in ("attention", "bench", "inputs", "tracking")},
    **{f"{group}.nothing=1": group for group in ("attention", "bench", "tracking", "experiment")},
    **{f"{plus}bench.nothing=1": "bench.nothing" for plus in ("+", "++")},
    **{f"+{group}._target_=os.system": f"{group}._target_" for group in ("attention", "experiment")},
}
# What no mechanism of the sweep can do: findings with a record each, and one line where there is nothing else.
WITH_A_RECORD = {
    "attention=polysketch_srht_r32 head_dim=48": "head_dim=48: must be a power of two",
    "attention=polysketch_random_local_r32": "local=true: polysketch has exact diagonal blocks only with causal",
    "attention=linformer causal=true": "causal=true: linformer cannot",
    "attention=v_mean impl=fused": "impl=fused: v_mean has reference only",
}

GLOBAL = "# @package _global_\n"
BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
YAML = {
    "seq_len: [1\n": "x.yaml, line",
    "seq_len: 5\nseq_len: 6\n": "duplicate key seq_len",
    "seq_len: !!python/object/apply:os.system [exit]\n": "x.yaml, line",
    "\tseq_len: 5\n": "x.yaml, line",
    "seq_len: 5\n---\nseq_len: 6\n": "x.yaml",
    "- 1\n- 2\n": "experiment=x",
    "just text\n": "x",
    "a: &a [*a]\n": "20,000 values",
    BOMB: "20,000 values",
    "grids: " + "[" * DEEP + "]" * DEEP: "nested too deeply",
    "x: " + "y" * 100_001: "100,000 bytes",
    "seq_len: !!binary aGVsbG8=\n": "seq_len",
    "seq_len: " + "1" * 5000: "x.yaml",
    "? [1, 2]\n: 3\n": "x.yaml",
    "seq_len: 2026-99-99\n": "seq_len",
    'results_dir: "a\\0b"\n': "results_dir",
    'results_dir: "\\ud800"\n': "results_dir",
    "attention: null\n": "attention",
    "bench: {passes: {a: 1}}\n": "experiment=x",
    "attention: {_target_: os.system}\n": "attention._target_",
    "x: ${y}\ny: ${x}\n": "x",
    "".join(f"k{i}: ${{k{i + 1}}}${{k{i + 1}}}\n" for i in range(30)) + "k30: x\n": "${...}",
    "hydra: {callbacks: {x: {_target_: os.getcwd}}}\n": "hydra.callbacks",
    "hydra: {job: {env_set: {LD_PRELOAD: x}}}\n": "hydra.job",
    "hydra: {searchpath: [pkg://os]}\n": "hydra.searchpath",
    "defaults: [nothing]\n": "nothing",
    "defaults: [override /attention: nothing]\n": "attention",
    "defaults: [/attention@hydra.callbacks.x: flash]\n": "hydra.callbacks",
    "defaults: [../../etc/passwd]\n": "experiment",
    "defaults: [x]\n": "x",
    "grids: {paper: [{seq_len: 5}]}\n": "size='laptop'",
    "grids: {laptop: 5}\n": "grids.laptop",
    "grids: {laptop: [5]}\n": "grids.laptop[0]",
    "grids: {laptop: [{seq_len: {a: 1}}]}\n": "grids.laptop[0]",
    "grids: {laptop: [{experiment: demo}]}\n": "grids.laptop[0].experiment",
    "grids: {laptop: [{hydra.mode: RUN}]}\n": "grids.laptop[0].hydra.mode",
    "grids: {laptop: [{token: x}]}\n": "token",
    "grids: {laptop: [{seed: 'range(1000000)'}]}\n": "1,000,000 cells",
    "grids: {laptop: [{a b: 5}]}\n": "a b",
}

# Files of a folder of the user's: what is typed, the file, what it holds, and what the line must name.
FILES = [
    *(("experiment=x", "experiment/x.yaml", GLOBAL + text, named) for text, named in YAML.items()),
    ("experiment=x", "experiment/x.yaml", b"\xff\xfe\x00seq", "not UTF-8"),
    ("experiment=x", "experiment/x.yaml", b"seq_len: \x00", "x.yaml"),
    ("experiment=x", "experiment/x.yaml/y", "", "experiment=x"),
    ("experiment=x", "experiment/x.yaml", GLOBAL + "attention: {token: hunter2}", "token"),
    ("attention=mine", "attention/mine.yaml", "", "attention"),
    ("attention=mine", "attention/mine.yaml", "name: nothing\n", "attention"),
    ("attention=mine", "attention/mine.yaml", "name: flash\nfoo: 5\n", "foo"),
    ("attention=mine", "attention/mine.yaml", "name: [1\n", "mine.yaml, line"),
    ("attention=mine", "attention/mine.yaml", "# @package hydra.callbacks\nx: {a: 1}\n", "hydra.callbacks"),
    ("hydra/launcher=mine", "hydra/launcher/mine.yaml", "_target_: os.system\n", "hydra/launcher"),
    ("tracking=mine", "tracking/mine.yaml", "name: mlflow\nuri: http://user:hunter2@h", "tracking.uri"),
]
# Modules in ATTENTION_ZOO_PLUGINS that cannot be imported, each in a process of its own.
MODULES = {
    "raises": "raise RuntimeError('boo\\nmore')",
    "ends": "raise SystemExit(0)",
    "interrupts": "raise GeneratorExit",
    "half": "x = (",
    "duplicate": "from attention_zoo import register\nfrom attention_zoo.flash import Flash\n"
    "register(type('Other', (Flash,), {}))",
}
PLUGINS = [
    *(Hostile(["seed=1"], "ATTENTION_ZOO_PLUGINS", plugins=name) for name in ("nothere.x", "a b", ",")),
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
