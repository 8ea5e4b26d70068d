"""Texts in which it is planted what can be recalled and from where, and the models of the suite that learn them."""

import numpy as np
from tokenizers import Tokenizer, models

import bench
from bench.api import planned
from bench.plan.load import Loader

ALPHABETS, LETTERS, USED = 4, 32, 4
"""Alphabets that take turns, the letters of each, and how many of them a document has."""
VOCABULARY = ALPHABETS * LETTERS
FIRST = 0x100
"""The character of letter 0: each of them is one character, and none ends a line."""


def documents(count, stretch, copies, seed=0):
    """Letters of documents, `(count * copies * ALPHABETS * stretch,)`.

    A stretch is of one alphabet, and of the few letters of it that the document drew. After all alphabets had their
    turn all comes again: what a stretch is of is known from the stretch ALPHABETS * `stretch` letters before, or else
    from its own letters so far.
    """
    rng = np.random.default_rng(seed)
    own = rng.permuted(np.tile(np.arange(LETTERS), (count, ALPHABETS, 1)), axis=-1)[..., :USED]
    drawn = np.take_along_axis(own, rng.integers(USED, size=(count, ALPHABETS, stretch)), -1)
    one = (drawn + LETTERS * np.arange(ALPHABETS)[:, None]).reshape(count, 1, -1)
    return np.broadcast_to(one, (count, copies, one.shape[-1])).ravel()


def written(folder, name, letters):
    """What to type for a text of these letters, each a token."""
    characters = [chr(FIRST + letter) for letter in range(VOCABULARY)]
    text, tokenizer = folder / f"{name}.txt", folder / "letters.json"
    text.write_text("".join(characters[letter] for letter in letters), "utf-8")
    Tokenizer(models.BPE({each: number for number, each in enumerate(characters)}, [])).save(str(tokenizer))
    return (f"task.text={text}", f"task.tokenizer={tokenizer}")


def words(folder, text, attention, **settings):
    """What to type for models of one layer that learn a text; `settings` with `__` for the dots of their names."""
    known = {
        "seq_len": 400,
        "batch_size": 8,
        "num_heads": 2,
        "head_dim": 32,
        "model.layers": 1,
        "model.sinusoidal": "false",
        "training.steps": 150,
        "training.warmup": 10,
        "training.learning_rate": 0.02,
        "training.evaluate_every": 1000,
        "training.evaluation_examples": 8,
        "training.test_examples": 100,
        "seed": "0,1,2,3,4",
    }
    known |= {key.replace("__", "."): value for key, value in settings.items()}
    fixed = ["bench=train", "task=language_modelling", "model=transformer_tiny", "tracking=none", "device=cpu"]
    settings = [f"{key}={value}" for key, value in known.items()]
    return [*fixed, f"results_dir={folder}", f"attention={attention}", *text, *settings]


def trained(*arguments, **settings):
    """The records of `words`, as the suite's own function makes them."""
    records = bench.run(words(*arguments, **settings))
    assert {one.status for one in records} == {"ok"}
    return records


def configs(*arguments, **settings):
    """The configurations of the cells of `words`."""
    return [cell.config for cell in planned(Loader(), words(*arguments, **settings)).cells]
