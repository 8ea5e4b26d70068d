"""What a benchmark works with inside the child process: the cell's mechanism and its inputs, on the device."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attention_zoo
from bench import inputs as input_sources
from bench.common.errors import say
from bench.common.mechanism import SEEDS, build_attention
from bench.inputs.base import Inputs
from bench.measures.correctness import CorrectnessCheck
from bench.measures.device_state import DeviceState
from bench.measures.progress import Point, Progress
from bench.measures.reference import Reference

PROGRESS_INTERVAL_S = 0.5


class CellContext:
    """Builds mechanisms and inputs of one resolved configuration, and keeps account of phases and time.

    Args:
        config: of the cell, resolved.
        cache_dir: where inputs and texts are kept.
        memory_limit: bytes that the cell may allocate; None is no limit.
        report: tells the parent how far the cell is.
        keep: the cell's own folder for what outlives an attempt at it, there or not; None keeps nothing.
    """

    def __init__(
        self,
        config: dict[str, Any],
        cache_dir: Path,
        memory_limit: int | None = None,
        report: Callable[[Progress], None] = lambda progress: None,
        keep: Path | None = None,
    ) -> None:
        self.config, self.cache_dir, self.memory_limit, self.keep = config, cache_dir, memory_limit, keep
        self.device, self.dtype = torch.device(config["device"]), getattr(torch, config["dtype"])
        self.phase = "setup"
        self.seconds: dict[str, float] = {}
        self.implementations: dict[str, dict[str, str | None]] = {}
        self.correctness: dict[str, dict[str, Any]] = {}
        self.trained: set[str] = set()
        """Labels of mechanisms whose weights come from the trained model that also gave the inputs."""
        self.inputs_sha256: str | None = None
        self.said: list[str] = []
        """Lines for the user, whatever the cell's end."""
        self.device_state = DeviceState(self.device)
        self.device_state.note("start")
        self._report, self._entered, self._reported = report, time.perf_counter(), 0.0
        self._preparing_s = 0.0

    def enter(self, phase: str) -> None:
        """Begin a phase of `bench.records.record.PHASES`."""
        if phase == "measure" and "before" not in self.device_state.moments:
            self.device_state.note("before")
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._entered
        self.phase, self._entered = phase, now

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase inside another one, which goes on afterwards unless it ended in an exception."""
        before = self.phase
        self.enter(phase)
        yield
        self.enter(before)

    def progress(self, done: int, total: int, note: str = "", curves: Mapping[str, Point] | None = None) -> None:
        """Tell the parent how far the cell is, perhaps in what state, and the newest points of its curves."""
        self._tell(f"{done}/{total} {note}".strip(), dict(curves or {}))

    def prepared(self, text: str, seconds: float) -> None:
        """Tell the parent how far a task is with what it makes before the first step, for so many seconds more."""
        self._preparing_s += seconds
        self._tell(text, {})

    def _tell(self, text: str, curves: dict[str, Point]) -> None:
        now = time.perf_counter()
        if now - self._reported > PROGRESS_INTERVAL_S:
            self._reported = now
            self._report(Progress(text, curves, preparing_s=self._preparing_s))

    def say(self, line: str) -> None:
        """Tell the user something about this cell, in one line."""
        self.said.append(line)
        say(line)  # a child that is killed leaves this only

    def attention(self, **changes: Any) -> attention_zoo.Attention:
        """The cell's mechanism, ready to run; `changes` as `build_attention` takes them."""
        return self._built(self.config, **changes).to(self.device, self.dtype).eval()

    def configs(self) -> list[dict[str, Any]]:
        """The cell's configuration, and in a comparison that of every other mechanism."""
        return [self.config, *({**self.config, **other} for other in self.config["bench"].get("against", ()))]

    def attentions(self) -> dict[str, attention_zoo.Attention]:
        """All mechanisms of the cell by label, each in its dtype: several in a comparison, else one."""
        return {c["label"]: self._built(c).to(self.device, getattr(torch, c["dtype"])).eval() for c in self.configs()}

    def reference(self, label: str) -> attention_zoo.Attention:
        """The reference implementation of one of the cell's mechanisms."""
        return self._built(next(c for c in self.configs() if c["label"] == label), impl="reference")

    def _built(self, config: dict[str, Any], **changes: Any) -> attention_zoo.Attention:
        """A mechanism of the cell, the one that the inputs were made for where it is that one."""
        trained = input_sources.source(config["inputs"]).mechanism(config, **changes)
        if trained is None:
            return build_attention(config, **changes)
        self.trained.add(config["label"])
        return trained

    def correctness_check(self, inputs: Inputs, positions: Tensor | None = None) -> CorrectnessCheck:
        """The check of the cell's mechanisms on these inputs; `positions` are the rows to compare, None some of all."""
        return CorrectnessCheck(self, inputs, positions)

    def require_causal(self) -> None:
        """Raise `IncorrectError` if the mechanism is causal, but sees later tokens, which would be its targets."""
        with torch.random.fork_rng():
            attention = build_attention(self.config, impl="reference")
            length = min(self.config["seq_len"], attention.min_test_length)
            tokens = torch.randn(3, 1, self.config["num_heads"], length, self.config["head_dim"])
            Reference(attention, attention, with_gradients=False).require_causal(self.config["label"], tuple(tokens))

    def note_implementation(self, label: str, attention: attention_zoo.Attention) -> None:
        """Remember for the record which implementation and backend ran."""
        executed = attention.executed
        self.implementations[label] = {} if executed is None else executed._asdict()
        if label in self.trained:
            self.implementations[label]["weights"] = "trained"

    def exact(self) -> attention_zoo.Attention:
        """The exact function that the cell's mechanism approximates, in at least float32, with the weights of both."""
        attention = self.attention()
        name = "polynomial" if attention.info.approximates == "polynomial" else "flash"
        precision = torch.promote_types(self.dtype, torch.float32)
        common = {key: self.config[key] for key in ("head_dim", "num_heads", "causal")}
        own = self.config["attention"]
        shared = {key: own[key] for key in attention_zoo.hyperparameters(name) if key in own and key != "backend"}
        # The fused kernels of a GPU do not take float64.
        impl = "reference" if precision == torch.float64 else "auto"
        exact = attention_zoo.create(name, **common, **shared, impl=impl)
        weights = attention.state_dict()
        exact.load_state_dict({key: weights.get(key, value) for key, value in exact.state_dict().items()})
        return exact.to(self.device, precision).eval()

    def inputs(self, dtype: str | None = None) -> Inputs:
        """Query, key and value on the device; `dtype` replaces the config's."""
        precision = self.dtype if dtype is None else getattr(torch, dtype)
        loaded = input_sources.source(self.config["inputs"]).load(self.config, self.cache_dir)
        query, key, value = (x.to(precision) for x in loaded)
        if precision == self.dtype:
            digest = hashlib.blake2b(digest_size=32)
            for tensor in (query, key, value):
                digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
            self.inputs_sha256 = digest.hexdigest()
        return query.to(self.device), key.to(self.device), value.to(self.device)


def num_features(attention: attention_zoo.Attention) -> int | None:
    """The papers' d of a mechanism: columns, rows, projection dimension or features; None where it has none."""
    size = attention.info.size
    return None if size is None else int(getattr(attention, size))


def held_bytes(module: torch.nn.Module) -> int:
    """Those of its parameters and buffers."""
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers()))


def redraws(
    context: CellContext, attention: attention_zoo.Attention, sequences: int, *, is_random: bool
) -> Iterator[tuple[slice, bool]]:
    """The trials of an error: `repeats` draws of a mechanism for each sequence, side by side, each drawn when it comes.

    One draw where the mechanism is not random or is the trained one of the model that the inputs are taken from. Yields
    which sequence of the batch it is, and whether it is its first draw.
    """
    is_drawn = is_random and context.config["label"] not in context.trained
    draws = context.config["repeats"] if is_drawn else 1
    for trial in range(sequences * draws):
        if is_drawn:
            # Multiplied, so that cells that differ in their seed alone share no draw either.
            attention.resample((context.config["seed"] * sequences * draws + trial) % SEEDS)
        yield slice(trial // draws, trial // draws + 1), trial % draws == 0
        context.progress(trial + 1, sequences * draws)
