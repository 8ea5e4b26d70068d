"""What cannot be trained is one line before anything starts."""

import pytest
from refusals import refused

from bench.api import planned
from bench.plan.load import Loader

LOADER = Loader()
pytestmark = pytest.mark.usefixtures("same_code")
ENCODER = ("bench=train", "task=reversal", "model=encoder", "attention=softmax", "tracking=none", "device=cpu")
DECODER = ("bench=train", "task=induction_heads", "model=transformer_tiny", "attention=softmax", "tracking=none")
MALFORMED = [
    (("bench=train", "attention=softmax", "task=reversal"), "model=null: bench=train needs one"),
    (("bench=train", "attention=softmax", "model=encoder"), "task=null: bench=train needs one"),
    (("bench=latency", "attention=softmax", "task=reversal"), "task=reversal: bench=latency reads none"),
    (("bench=latency", "attention=softmax", "model=encoder"), "model=encoder: bench=latency reads none"),
    ((*ENCODER, "causal=true"), "causal=true: must be false"),
    ((*ENCODER, "training.accumulate=3", "batch_size=128"), "training.accumulate=3: must divide batch_size=128"),
    ((*ENCODER, "+training.momentum=0.9"), "training.momentum=0.9: unknown"),
    ((*DECODER, "task=selective_copying", "seq_len=16"), "seq_len=16"),
    ((*DECODER, "bench.memory_limit=much"), "bench.memory_limit='much'"),
    (("bench=latency", "attention=softmax", "training.steps=5"), "training.steps=5: bench=latency does not train"),
    (("bench=compare", "attention=softmax,flash", "training.clip=null"), "training.clip=None: bench=compare does not"),
    ((*ENCODER, "dtype=float16"), "dtype=float16: bench=train trains in float64, float32 or bfloat16"),
    ((*ENCODER, "inputs=pretrained", "causal=false"), "inputs=pretrained: bench=train reads a task"),
    ((*ENCODER, "inputs.score_scale=4"), "inputs.score_scale=4: bench=train reads a task"),
    ((*DECODER, "bench=compare_train_step"), "attention=softmax: bench=compare_train_step needs two or more"),
    ((*DECODER, "bench=largest_batch", "bench.largest_limit=0"), "bench.largest_limit=0: must be a number of at least"),
]


@pytest.mark.parametrize(("words", "message"), MALFORMED, ids=[words[-1] for words, _ in MALFORMED])
def test_it_is_one_line_that_names_the_key(words, message, tmp_path):
    with refused(message):
        planned(LOADER, [*words, f"results_dir={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


def test_several_learning_rates_are_cells_of_their_own_and_labels_are_not():
    sweep = planned(LOADER, [*ENCODER, "training.learning_rate=0.001,0.01", "seed=0,1"])
    assert len({cell.cell_id for cell in sweep.cells}) == 4
    assert {cell.config["training"]["learning_rate"] for cell in sweep.cells} == {0.001, 0.01}


def test_what_trains_is_part_of_the_id_and_of_no_other_benchmark():
    (cell,) = planned(LOADER, ENCODER).cells
    names = {source.name for source in cell.sources}
    assert {"bench/training/loop.py", "bench/tasks/generated.py", "bench/models/encoder.py"} <= names
    (other,) = planned(LOADER, ["bench=latency", "bench.passes=[forward]", "attention=softmax", "device=cpu"]).cells
    assert not {"model", "task", "training"} & other.config.keys()
    # Inputs know the folder of a trained model.
    trains = {source.name for source in other.sources if source.name.split("/")[1] in ("training", "tasks", "models")}
    assert trains == {"bench/training/__init__.py", "bench/training/saved.py"}
