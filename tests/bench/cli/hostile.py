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


def words(named, *typed, **more):
    return Hostile(list(typed), named, **more)


# Whole sentences: what is typed, and how the line begins or what it says beside the key.
SENTENCES = {
    "attention=flsh": "attention=flsh: unknown; did you mean flash",
    "attention=flash,flsh": "attention=flsh",
    "attention.name=../../etc/passwd": "attention='../../etc/passwd'",
    "attention.name=os.system": "attention='os.system'",
    "bench=latncy": "bench=latncy: unknown; did you mean latency",
    "experiment=nothing": "experiment=nothing",
    "tracking=wandb": "tracking=wandb",
    "inputs.name=os.system": "inputs.name='os.system'",
    "seq_ln=5": "seq_ln: unknown; did you mean seq_len",
    "+x=1": "x=1: unknown",
    "seq_len=abc": "seq_len='abc'",
    "seq_len=0": "seq_len=0: must be",
    "seq_len=-4": "seq_len=-4: must be",
    "seq_len=1.5": "seq_len=1.5",
    "seq_len=${foo}": "seq_len",
    "seq_len=${oc.env:HOME}": "seq_len='${oc.env:HOME}': must not use a resolver",
    "seq_len=[1,2": "seq_len=[1,2",
    "num_heads=0": "num_heads=0",
    "batch_size=0": "batch_size=0",
    "tokens_per_batch=100 batch_size=null": "tokens_per_batch=100: must be at least seq_len",
    "dtype=float8": "dtype='float8': must be one of",
    "causal=maybe": "causal='maybe'",
    "device=tpu": "device='tpu'",
    "impl=fast": "impl='fast'",
    "impl=reference,fast": "impl='fast'",
    "repeats=0": "repeats=0",
    "timeout=abc": "timeout='abc'",
    "timeout=-1": "timeout=-1",
    "timeout=0": "timeout=0.0: must be a number above 0",
    "results_dir=s3://bucket/runs": "results_dir='s3://bucket/runs': must be a folder",
    "tracking=mlflow tracking.experiment=": "tracking.experiment='': must be a name",
    "attention=flash.yaml": "attention=flash.yaml: must be flash, the name of a file without its ending",
    "experiment=demo.yml": "experiment=demo.yml: must be demo, the name of a file without its ending",
    "hydra.launcher.executor=os": "hydra.launcher.executor='os': must be one of cells, devices, ray, slurm",
    "hydra.launcher.executor=[cells]": "hydra.launcher.executor=['cells']: must be one of cells",
    "hydra/launcher=devices hydra.launcher.cores_per_worker=4096": "hydra.launcher.cores_per_worker=4096: must be at",
    "hydra/launcher=ray hydra.launcher.num_cpus=4096": "hydra.launcher.num_cpus=4096: must be at most",
    "hydra/launcher=ray hydra.launcher.address=127.0.0.1:9": "hydra.launcher.address='127.0.0.1:9': ",
    "hydra/launcher=ray hydra.launcher.address=h:99999": "hydra.launcher.address='h:99999': ",
    "timeout=nan": "timeout=nan",
    "rerun=sometimes": "rerun='sometimes'",
    "max_cells=0": "max_cells=0: must be",
    "max_cells=abc seed=range(0,1000000000)": "max_cells='abc': must be",
    "seed=range(0,1000000)": "max_cells=10000: the sweep has 1,000,000 cells; max_cells=1000000 allows them",
    "seed=1,2,3 max_cells=2": "max_cells=2: the sweep has 3 cells",
    "experiment=decode max_cells=5": "max_cells=5: the sweep has",
    "grids=5": "grids=5: must be grids by size",
    "seq_len=9223372036854775808": "seq_len=9223372036854775808: must fit into 64 bits",
    "seed=1,100000000000000000000000000": "seed=100000000000000000000000000: must fit into 64 bits",
    "results_dir=": "results_dir='': must be a folder",
    "hydra.mode=RUN": "hydra.mode=RUN: not allowed",
    "hydra/launcher=basic": "hydra/launcher: must be one of cells, devices, ray, slurm",
    "hydra.launcher._target_=os.system": "hydra.launcher._target_: unknown; known are executor, timings_alone",
    "hydra.sweeper._target_=os.system": "hydra.sweeper._target_=os.system: not allowed",
    "+hydra.callbacks.x._target_=os.getcwd": "hydra.callbacks.x._target_=os.getcwd: not allowed",
    "+hydra.sweeper.sampler._target_=os.system": "hydra.sweeper.sampler._target_=os.system: not allowed",
    "+hydra/callbacks=mine": "hydra/callbacks=mine: not allowed",
    "seed=range(0,10,0)": "seed=range(0,10,0): a range's step must not be 0",
    "--nope": "--nope: unknown",
    "size=huge": "size='huge'",
    "size=laptop,paper": "size=laptop,paper: must have one value",
    "experiment=demo,decode": "experiment=demo,decode: must have one value",
    "experiment=[demo,decode]": "experiment=[demo,decode]: must have one value",
    "seed=-1": "seed=-1",
    "results_dir=a,b": "results_dir='b': must have one value",
    "bench.passes=[sideways]": "bench.passes='sideways'",
    "bench.passes=[]": "bench.passes=[]",
    "bench=train model=transformer_tiny task=reversal training.clip=0": "training.clip=0.0: must be a number above 0",
    "bench.memory_limit=-1": "bench.memory_limit=-1",
    "bench.memory_limit=0": "bench.memory_limit=0.0: must be a number above 0",
    "bench=spectral_norm bench.num_features=0": "bench.num_features=0",
    "bench=compare": "attention=flash: bench=compare needs two or more",
    "inputs.score_scale=0": "inputs.score_scale=0",
    "inputs=pretrained inputs.weights=stolen": "inputs.weights='stolen'",
    "inputs=pretrained inputs.layer=-1": "inputs.layer=-1",
    "attention=polynomial attention.degree=3": "attention.degree=3: must be even",
    "attention=polynomial attention.degre=4": "attention.degre: unknown; did you mean degree",
    "attention=polynomial +attention.foo=4": "attention.foo=4: unknown; polynomial takes degree",
    "attention=polysketch attention.sketch=none": "attention.sketch='none': must be one of gaussian",
    "attention=polysketch attention.sketch_size=0": "attention.sketch_size=0",
    "attention=performer attention.num_features=many": "attention.num_features='many'",
    "attention=flash impl=fused attention.backend=warp": "attention.backend='warp'",
}


def sentences():
    """Lines that say more than the key."""
    for typed, named in SENTENCES.items():
        yield words(named, *typed.split())
    yield words("$(rm -rf .)", "attention=$(rm -rf .)")


INTEGERS = ["seq_len", "tokens_per_batch", "num_heads", "head_dim", "repeats"]
BAD_INTEGERS = ["abc", "0", "-1", "1.5", "null", "[1]", "{a: 1}", "true1", "1e400", "nan", "''", "9223372036854775808"]
HUGE = "1" * 40
DEEP = 2000


def typed_values():
    """Values of the wrong type or out of bounds, of every key of a cell."""
    for key in INTEGERS:
        for value in BAD_INTEGERS:
            yield words(key, f"{key}={value}")
    for value in ["abc", "0", "-3", "2.5", "[1,2]"]:
        yield words("batch_size", f"batch_size={value}")
    for value in ["-1", "abc", "1.5", "null", HUGE, f"1,2,{HUGE}"]:
        yield words("seed", f"seed={value}")
    for value in ["abc", "-1", "nan", "inf", "1e300", "null", "[]"]:
        yield words("timeout", f"timeout={value}")
    for value in ["float8", "half", "FLOAT32", "", "1", "[float32]", "float32,float8"]:
        yield words("dtype", f"dtype={value}")
    for value in ["maybe", "x2", "null", "[true]"]:
        yield words("causal", f"causal={value}")
    for value in ["tpu", "cuda:x", "cuda:-1", "cuda:99", "CPU", "cpu:0", "''", "null", "cpu,tpu"]:
        yield words("device", f"device={value}")
    for value in ["fast", "", "null", "reference,fast"]:
        yield words("impl", f"impl={value}")
    for value in ["sometimes", "none", "1"]:
        yield words("rerun", f"rerun={value}")
    for key, value in {
        "repeats": "100000000",
        "seq_len": "1000000000000000000",
        "batch_size": "4611686018427387904",
    }.items():
        yield words(key, f"{key}={value}", *(["tokens_per_batch=2000000000000000000"] if key == "seq_len" else []))
    yield words("seq_len", "seq_len=4611686018427387904", "batch_size=1")
    yield words("num_heads", "num_heads=4611686018427387904")
    yield words("head_dim", "head_dim=4611686018427387904")
    yield words("tokens_per_batch", "tokens_per_batch=4611686018427387904", "seq_len=1")
    yield words("tokens_per_batch=100", "tokens_per_batch=100")


def groups_and_keys():
    """Files and keys that are not there."""
    for group in ["attention", "bench", "inputs", "tracking", "experiment"]:
        for name in ["nothing", "../config", "../../etc/passwd", "é", "a b", "''", "[flash]", "config.yaml", "-"]:
            if (group, name) != ("experiment", "''"):
                yield words(group, f"{group}={name}")
        yield words(group, f"{group}.nothing=1")
        yield words(f"{group}._target_", f"+{group}._target_=os.system")
        if group != "experiment":
            yield words(group, f"~{group}")
            yield words(f"{group}.nothing", f"+{group}.nothing=1")
            yield words(f"{group}.nothing", f"++{group}.nothing=1")
        yield words(f"{group}@x", f"{group}@x=flash")
    for key in ["seq_ln", "Seq_len", "attention.scal", "bench.passs", "inputs.score", "tracking.url", "hydr"]:
        yield words(key, f"{key}=1")
    for typed, named in [
        ("a.b.c=1", "a: unknown"),
        ("+x=1", "x"),
        ("++x=1", "x"),
        ("+x.y=1", "x"),
        ("+seq_len=5", "seq_len"),
        ("~seq_len=7", "seq_len"),
        ("~nothing", "nothing"),
        ("~attention.nothing", "nothing"),
        ("~attention.name", "attention"),
        ("+attention=flash", "attention"),
        ("attention.name=nothing", "nothing"),
        ("attention.name=5", "attention"),
        ("attention.name=null", "attention"),
        ("attention.name=[flash]", "attention"),
        ("bench.name=nothing", "bench"),
        ("bench.name=os.system", "bench"),
        ("inputs.name=os.system", "inputs.name"),
        ("tracking.name=wandb", "tracking.name"),
        ("seq_len.x=5", "seq_len"),
        ("attention=5", "attention"),
        ("bench=null", "bench"),
        ("inputs=null", "inputs"),
    ]:
        yield words(named, typed)


def syntax():
    """Command lines that Hydra cannot read, or reads as something else."""
    for typed in [
        "seq_len",
        "=5",
        "seq_len=[1,2",
        "seq_len=(",
        "seq_len={a:",
        "seq_len='",
        'seq_len="x',
        "a b=1",
        "seq_len=)",
    ]:
        yield words(typed.split("=")[0] or "=5", typed)
    for value in [
        "glob(*)",
        "interval(1,2)",
        "choice()",
        "range()",
        "range(1,2,3,4)",
        "nothing(1)",
        "int(abc)",
        "sort()",
    ]:
        yield words("seq_len", f"seq_len={value}")
    for value in ["range(0,10,0)", "range(0,inf)", "range(nan,1)", "range(0,1,1e-320)", "range(3,1)", "range(a,b)"]:
        yield words("seed" if value != "range(3,1)" else "no cells", f"seed={value}")
    for value in ["shuffle(5)", "float(abc)", "interval()", "tag()", "choice(1,range(2))", "json(1)"]:
        yield words("seq_len", f"seq_len={value}")
    yield words("attention", "attention=glob(*)")
    yield words("attention", "attention=glob()")
    for value in [
        "${oc.env:HOME}",
        "${oc.decode:1}",
        "${now:%Y}",
        "${hydra:job.num}",
        "${nothing}",
        "${",
        "${seq_len}",
        "${.x}",
    ]:
        yield words("seq_len", f"seq_len={value}")
    yield words("seq_len", "seq_len=${oc.create:{a: 1}}")
    yield words("seq_len", "seq_len=???")
    yield words("results_dir", "results_dir=" + "${dtype}" * 20)
    yield words("seed=" + "[" * 40, "seed=" + "[" * DEEP + "]" * DEEP)
    yield words("results_dir", "results_dir=" + "x" * 100_000)
    yield words("dtype", "dtype=" + "x" * 100_000)
    yield words("x" * 40, "x" * 100_000 + "=1")
    yield words("impl", "impl=" + "é" * 5_000)


def sweeps():
    """Sweeps that are too large, contradict themselves, or are none."""
    yield words("max_cells=10000: the sweep has 1,000,000 cells", "seed=range(0,1000000)")
    yield words("1,000,000,000,000 cells", "seed=range(0,1000000000000)")
    yield words("1,000,000 cells", "seed=range(0,1000)", "seq_len=range(1,1001)")
    yield words("max_cells=2", "seed=1,2,3", "max_cells=2")
    for value in ["0", "-1", "abc", "1.5", "null", "1,2", "[1]"]:
        yield words("max_cells", f"max_cells={value}")
    for value in ["huge", "laptop,paper", "[laptop]", "null", "5"]:
        yield words("size", f"size={value}")
    for value in ["5", "[1]", "x", "{laptop: []}"]:
        yield words("grids", f"grids={value}")
    yield words("experiment", "experiment=demo,decode")
    yield words("size", "experiment=demo", "size=huge")
    yield words("max_cells=5", "experiment=decode", "max_cells=5")
    yield words("results_dir", "results_dir=a,b")
    yield words("rerun", "rerun=all,failed")
    yield words("tracking", "tracking=none,mlflow")
    yield words("bench=compare needs two or more", "bench=compare")
    yield words("bench=compare needs two or more", "bench=compare", "attention=flash,flash")


def flags():
    """What is not an override."""
    for typed in [
        "--nope",
        "--config-dir",
        "--run",
        "-r",
        "--config-name x",
        "--config-path .",
        "--experimental-rerun x",
    ]:
        yield words(typed.split()[0] if len(typed) > 2 else "--run", *typed.split())
    yield words("--cfg", "--cfg", "nothing")
    yield words("--info", "--info", "nothing")
    yield words("--cfg", "--cfg", "job", "--multirun")
    yield words("--resolve", "--resolve")
    yield words("--package", "--package", "attention")
    yield words("seq_ln", "--cfg", "job", "seq_ln=5")
    yield words("seq_ln", "--help", "seq_ln=5")
    for folder in ["{dir}/missing", "{dir}/file", "", "/dev/null", "/proc/1/nope", "x" * 300]:
        yield words("--config-dir", "--config-dir", folder, files={"file": ""})


def hydra():
    """Hydra's own node: what it says might run code, or write elsewhere."""
    for typed in [
        "hydra.mode=RUN",
        "hydra.run.dir=/tmp/x",
        "hydra.sweep.dir=/tmp/x",
        "hydra.output_subdir=x",
        "hydra.job.chdir=true",
        "+hydra.job.env_set.LD_PRELOAD=x",
        "hydra.verbose=true",
        "hydra/job_logging=default",
        "+hydra.callbacks.x._target_=os.getcwd",
        "+hydra/callbacks=mine",
        "hydra.help.template=x",
    ]:
        yield words(typed.partition("=")[0].lstrip("+"), typed)
    for key in ["launcher", "sweeper"]:
        for value in ["os.system", "hydra_plugins.nothing.X", "null", "5"]:
            yield words(f"hydra.{key}._target_", f"hydra.{key}._target_={value}")
        yield words(f"hydra/{key}", f"hydra/{key}=nothing")
        yield words(f"hydra.{key}", f"+hydra.{key}.x._target_=os.getcwd")
        yield words(f"hydra/{key}", f"hydra/{key}=basic,{'cells' if key == 'launcher' else 'grids'}")
    for value in ["5", "x", "[5]", "[{dir}/missing]", "[pkg://nothing.at.all]", "[nothing://x]"]:
        yield words("hydra.searchpath", f"hydra.searchpath={value}")


def secrets():
    """What records would keep for ever."""
    for key in ["token", "+hub_token", "inputs.api_key", "++x.password", "tracking.passwd", "+aws.secret_access_key"]:
        yield words(key.lstrip("+") + ":", f"{key}=hunter2")
    yield words("tracking.uri", "tracking.uri=http://user:hunter2@127.0.0.1:1")
    yield words("tracking.uri", "tracking.uri=http://127.0.0.1:1/?token=hunter2")
    yield words("inputs.model", "inputs=pretrained", "inputs.model=https://user:hunter2@host/x")
    yield words("attention.token", "+attention={token: hunter2}")
    yield words(
        "tracking.uri",
        "tracking=mine",
        "--config-dir",
        "{dir}",
        files={"tracking/mine.yaml": "name: mlflow\nuri: http://user:hunter2@h"},
    )
    yield words(
        "token",
        "experiment=x",
        "--config-dir",
        "{dir}",
        files={"experiment/x.yaml": "# @package _global_\nattention: {token: hunter2}"},
    )


def tracking():
    """Stores that MLflow cannot have."""
    for uri in [
        "foo://x",
        "http://",
        "http://h:99999",
        "http://[",
        "sqlite://",
        "sqlite:////proc/1/nope/x.db",
        "x",
        "''",
    ]:
        yield words("tracking.uri", f"tracking.uri={uri}", "tracking=mlflow")
    yield words("tracking.experiment", "tracking=mlflow", "tracking.experiment=[1]")
    yield words("tracking.experiment", "tracking=mlflow", "tracking.experiment=null")


def benchmarks():
    """Settings of the benchmarks and the inputs."""
    for value in ["[sideways]", "[]", "sideways", "[forward,sideways]", "null", "5", "[[forward]]"]:
        yield words("bench.passes", f"bench.passes={value}")
    for value in ["-1", "abc", "nan", "inf", "1e300", "[1]"]:
        yield words("bench.memory_limit", f"bench.memory_limit={value}")
    for value in ["-1", "abc", "nan", "inf", "null"]:
        yield words("bench.min_sample_ms", f"bench.min_sample_ms={value}")
    for value in ["0", "-1", "x", "1.5"]:
        yield words("bench.num_features", "bench=spectral_norm", f"bench.num_features={value}")
    for value in ["seq", "5"]:
        yield words("bench.largest", "bench=memory", f"bench.largest={value}")
    yield words("bench.largest_limit", "bench=memory", "bench.largest_limit=0")
    yield words("bench.steps", "bench=decode", "bench.steps=0")
    yield words("bench.measured_pass", "bench=compare", "attention=flash,softmax", "bench.measured_pass=all")
    yield words(
        "attention.sketch_size=32: contradicts bench.num_features=64",
        "bench=flops",
        "attention=polysketch",
        "attention.sketch_size=32",
        "bench.num_features=64",
    )
    for value in ["0", "-1", "abc", "nan", "inf", "null"]:
        yield words("inputs.score_scale", f"inputs.score_scale={value}")
    for typed in ["weights=stolen", "layer=-1", "layer=x", "layer=1.5", "window=0", "window=x"]:
        yield words(f"inputs.{typed.partition('=')[0]}", "inputs=pretrained", f"inputs.{typed}")


def mechanisms():
    """Hyperparameters that a mechanism refuses, and what it cannot do."""
    for name, typed in [
        ("polynomial", "degree=3"),
        ("polynomial", "degree=0"),
        ("polynomial", "degree=x"),
        ("polynomial", "scale=x"),
        ("polynomial", "qk_layernorm=5"),
        ("polynomial", "foo=4"),
        ("flash", "backend=warp"),
        ("flash", "scale=x"),
        ("polysketch", "sketch=none"),
        ("polysketch", "sketch_size=0"),
        ("polysketch", "sketch_size=x"),
        ("polysketch", "degree=3"),
        ("polysketch", "block_size=0"),
        ("performer", "num_features=many"),
        ("performer", "num_features=0"),
        ("performer", "num_features=100000000000000000000"),
        ("linformer", "projection_dim=0"),
        ("skeinformer", "num_features=0"),
        ("informer", "num_features=-1"),
        ("nystromformer", "num_landmarks=0"),
        ("bigbird", "block_size=0"),
        ("bigbird", "num_random_blocks=-1"),
        ("softmax", "dropout=2"),
        ("softmax", "dropout=-1"),
        ("polynomial_square", "coefficients=[]"),
        ("polynomial_square", "coefficients=x"),
    ]:
        key = typed.partition("=")[0]
        plus = "+" if key == "foo" else ""
        yield words(f"attention.{key}", f"attention={name}", f"{plus}attention.{typed}")


def unsupported():
    """What no mechanism of the sweep can do: findings with a record each, and one line where there is nothing else."""
    yield words("head_dim=48: must be a power of two", "attention=polysketch_srht_r32", "head_dim=48")
    yield words(
        "local=true: polysketch has exact diagonal blocks only with causal", "attention=polysketch_random_local_r32"
    )
    yield words("causal=true: linformer cannot", "attention=linformer", "causal=true")
    yield words("impl=fused: v_mean has reference only", "attention=v_mean", "impl=fused")


GLOBAL = "# @package _global_\n"
BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
YAML = {
    "seq_len: [1\n": "x.yaml, line",
    "seq_len: 5\nseq_len: 6\n": "duplicate key seq_len",
    "seq_len: !!python/object/apply:os.system [exit]\n": "x.yaml, line",
    "seq_len: !mine 5\n": "x.yaml, line",
    "a: b: c\n": "x.yaml, line",
    "\tseq_len: 5\n": "x.yaml, line",
    "seq_len: *nothing\n": "x.yaml, line",
    "seq_len: 5\n---\nseq_len: 6\n": "x.yaml",
    "- 1\n- 2\n": "experiment=x",
    "just text\n": "x",
    "5\n": "x",
    "a: &a [*a]\n": "20,000 values",
    "a: &a {b: *a}\n": "20,000 values",
    BOMB: "20,000 values",
    "a: &a {x: 1, y: 2}\n" + "".join(f"k{i}: [{','.join(['*a'] * 900)}]\n" for i in range(10)): "20,000 values",
    "grids: " + "[" * DEEP + "]" * DEEP: "nested too deeply",
    "grids: " + "{a: " * DEEP + "1" + "}" * DEEP: "nested too deeply",
    "x: " + "y" * 100_001: "100,000 bytes",
    "seq_len: !!int abc\n": "x.yaml",
    "seq_len: !!float abc\n": "x.yaml",
    "seq_len: !!binary aGVsbG8=\n": "seq_len",
    "seq_len: " + "1" * 5000: "x.yaml",
    "? [1, 2]\n: 3\n": "x.yaml",
    "null: 5\n": "x",
    "1: 5\n": "1",
    "seq_len: 2026-99-99\n": "seq_len",
    "seq_len: yes please\n": "seq_len",
    'results_dir: "a\\0b"\n': "results_dir",
    'results_dir: "\\ud800"\n': "results_dir",
    "attention: 5\n": "attention",
    "attention: null\n": "attention",
    "attention: [1]\n": "experiment=x",
    "bench: {passes: {a: 1}}\n": "experiment=x",
    "attention: {_target_: os.system}\n": "attention._target_",
    "seq_len: ${oc.env:HOME}\n": "seq_len",
    "seq_len: ${nothing}\n": "seq_len",
    "seq_len: ${seq_len}\n": "seq_len",
    "new_key: 5\n": "new_key",
    "x: ${y}\ny: ${x}\n": "x",
    "".join(f"k{i}: ${{k{i + 1}}}${{k{i + 1}}}\n" for i in range(30)) + "k30: x\n": "${...}",
    "".join(f"k{i}: [" + f"'${{k{i + 1}}}'," * 10 + "]\n" for i in range(10)) + "k10: x\n": "${...}",
    "hydra: {callbacks: {x: {_target_: os.getcwd}}}\n": "hydra.callbacks",
    "hydra: {launcher: {_target_: os.system}}\n": "hydra.launcher._target_",
    "hydra: {launcher: {x: {_target_: os.getcwd}}}\n": "hydra.launcher",
    "hydra: {sweeper: {_target_: os.system}}\n": "hydra.sweeper",
    "hydra: {mode: RUN}\n": "hydra.mode",
    "hydra: {job: {env_set: {LD_PRELOAD: x}}}\n": "hydra.job",
    "hydra: {job: {chdir: true}}\n": "hydra.job",
    "hydra: {run: {dir: /tmp/x}}\n": "hydra.run",
    "hydra: {sweep: {dir: /tmp/x}}\n": "hydra.sweep",
    "hydra: {job_logging: {handlers: {x: {(): os.getcwd}}}}\n": "hydra.job_logging",
    "hydra: {output_subdir: x}\n": "hydra.output_subdir",
    "hydra: {searchpath: [pkg://os]}\n": "hydra.searchpath",
    "defaults: [nothing]\n": "nothing",
    "defaults: [override /attention: nothing]\n": "attention",
    "defaults: [/attention@hydra.callbacks.x: flash]\n": "hydra.callbacks",
    "defaults: [../../etc/passwd]\n": "experiment",
    "defaults: 5\n": "x",
    "defaults: [5]\n": "x",
    "defaults: {attention: flash}\n": "x",
    "defaults: [x]\n": "x",
    "size: huge\n": "size",
    "max_cells: many\n": "max_cells",
    "grids: 5\n": "grids",
    "grids: [1]\n": "experiment=x",
    "grids: {paper: [{seq_len: 5}]}\n": "size='laptop'",
    "grids: {laptop: 5}\n": "grids.laptop",
    "grids: {laptop: []}\n": "grids.laptop",
    "grids: {laptop: {seq_len: 5}}\n": "grids.laptop",
    "grids: {laptop: [5]}\n": "grids.laptop[0]",
    "grids: {laptop: [{seq_len: {a: 1}}]}\n": "grids.laptop[0]",
    "grids: {laptop: [{seq_len: [1, 2]}]}\n": "seq_len",
    "grids: {laptop: [{seq_ln: 5}]}\n": "seq_ln",
    "grids: {laptop: [{seq_len: '1,x'}]}\n": "seq_len",
    "grids: {laptop: [{seq_len: 'range(1,'}]}\n": "seq_len",
    "grids: {laptop: [{experiment: demo}]}\n": "grids.laptop[0].experiment",
    "grids: {laptop: [{size: paper}]}\n": "grids.laptop[0].size",
    "grids: {laptop: [{hydra.mode: RUN}]}\n": "grids.laptop[0].hydra.mode",
    "grids: {laptop: [{token: x}]}\n": "token",
    "grids: {laptop: [{seed: 'range(1000000)'}]}\n": "1,000,000 cells",
    "grids: {laptop: [{5: 5}]}\n": "5",
    "grids: {laptop: [{a b: 5}]}\n": "a b",
    "grids: {laptop: [{rerun: 'all,failed'}]}\n": "rerun",
}


def files():
    """Files of a folder of the user's."""
    for text, named in YAML.items():
        yield words(named, "experiment=x", "--config-dir", "{dir}", files={"experiment/x.yaml": GLOBAL + text})
    for data, named in {
        b"\xff\xfe\x00seq": "not UTF-8",
        b"seq_len: \xe9": "not UTF-8",
        b"seq_len: \x00": "x.yaml",
    }.items():
        yield words(named, "experiment=x", "--config-dir", "{dir}", files={"experiment/x.yaml": data})
    yield words("experiment=x", "experiment=x", "--config-dir", "{dir}", files={"experiment/x.yaml/y": ""})
    yield words("attention", "attention=mine", "--config-dir", "{dir}", files={"attention/mine.yaml": ""})
    yield words(
        "attention", "attention=mine", "--config-dir", "{dir}", files={"attention/mine.yaml": "name: nothing\n"}
    )
    yield words(
        "foo", "attention=mine", "--config-dir", "{dir}", files={"attention/mine.yaml": "name: flash\nfoo: 5\n"}
    )
    yield words(
        "mine.yaml, line", "attention=mine", "--config-dir", "{dir}", files={"attention/mine.yaml": "name: [1\n"}
    )
    package = "# @package hydra.callbacks\nx: {_target_: os.getcwd}\n"
    yield words("hydra.callbacks", "attention=mine", "--config-dir", "{dir}", files={"attention/mine.yaml": package})
    launcher = {"hydra/launcher/mine.yaml": "_target_: os.system\n"}
    yield words("hydra/launcher", "hydra/launcher=mine", "--config-dir", "{dir}", files=launcher)


def results():
    """Folders of results that cannot be."""
    for folder in [
        "''",
        "' '",
        "{dir}/file",
        "{dir}/file/below",
        "/dev/null",
        "/proc/1/nope",
        "/proc/nope",
        "y" * 300,
        "null",
        "5.5.5/../\\0",
    ]:
        if "\\0" not in folder:
            yield words("results_dir", f"results_dir={folder}", files={"file": ""})
    yield words("results_dir", "results_dir={dir}/loop", files={"loop": b"-> loop"})
    yield words("results_dir", "results_dir={dir}/dangling/below/file/x", files={"dangling": b"-> /proc/1/nope"})
    yield words("results_dir", "results_dir=/sys/nope")
    yield words("results_dir", "results_dir=[x]")


def plugins():
    """Modules in ATTENTION_ZOO_PLUGINS that cannot be imported; run in a process of their own only."""
    yield from (
        words("ATTENTION_ZOO_PLUGINS", "seed=1", plugins=name)
        for name in ["nothere.x", "a b", "..", "5", "os.nothing", "é", ",", "os,"]
    )
    for name, text in {
        "raises": "raise RuntimeError('boo\\nmore')",
        "ends": "raise SystemExit(0)",
        "exits": "import sys; sys.exit('bye')",
        "interrupts": "raise GeneratorExit",
        "half": "x = (",
        "binary": "\0",
        "deep": "x = " + "(" * 500 + ")" * 500,
        "duplicate": "from attention_zoo import register\nfrom attention_zoo.flash import Flash\n"
        "register(type('Other', (Flash,), {}))",
    }.items():
        yield words(f"ATTENTION_ZOO_PLUGINS='{name}'", "seed=1", plugins=name, files={f"{name}.py": text})


FAMILIES = (
    sentences,
    typed_values,
    groups_and_keys,
    syntax,
    sweeps,
    flags,
    hydra,
    secrets,
    tracking,
    benchmarks,
    mechanisms,
    unsupported,
    files,
    results,
)


def _once():
    """What two families have in common is tried once, with what the first of them expects."""
    cases = {}
    for family in FAMILIES:
        for hostile in family():
            cases.setdefault((*hostile.typed, *hostile.files.items()), (family.__name__, hostile))
    return list(cases.values())


IN_PROCESS = _once()
PLUGINS = [(plugins.__name__, hostile) for hostile in plugins()]
