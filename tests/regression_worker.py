"""Times mechanisms of the `attention_zoo` that it imports: a question per line on stdin, an answer on stdout.

The other end is `regression.py`. This file imports nothing else of a repository, so that it runs with any commit's.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import attention_zoo

HEADS, HEAD_DIM = 4, 64
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def call_of(case: dict[str, Any]) -> Callable[[], Any]:
    """What is timed of a case: one call, on inputs that are the same in every process."""
    seq_len = case["seq_len"]
    shape = {"head_dim": HEAD_DIM, "num_heads": HEADS, "max_seq_len": seq_len}
    attention = attention_zoo.create(case["mechanism"], causal=case["causal"], **shape).to(DEVICE).eval()
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, seq_len, HEAD_DIM)
    *inputs, gradient = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(4))
    if case["measured_pass"] == "forward":
        return torch.no_grad()(lambda: attention(*inputs))
    leaves = [*(x.requires_grad_() for x in inputs), *(p for p in attention.parameters() if p.requires_grad)]
    return lambda: torch.autograd.grad(attention(*inputs), leaves, gradient, allow_unused=True)


def nanoseconds(call: Callable[[], Any], calls: int) -> float:
    """Of one call, the mean over `calls`."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / calls


def main() -> None:
    """Answer until stdin ends: `{"ns": ...}`, or `{"refused": reason}` where the case cannot be run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a mechanism may print
    case, call = None, None
    for line in sys.stdin:
        question = json.loads(line)
        calls = question.pop("calls")
        try:
            if question != case:
                call = None  # frees what the case before held
                call = call_of(question)
                case = question
            answer = {"ns": nanoseconds(call, calls)}
        except Exception as error:
            case, answer = None, {"refused": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
