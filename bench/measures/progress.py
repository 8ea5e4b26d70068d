"""The progress of a cell, which the measuring process reports to its parent now and then."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from bench.records.metrics import Point


@dataclass(frozen=True)
class Progress:
    """The bar's text, the newest point of each training curve, and seconds spent compiling kernels.

    `preparing_s` are the seconds in which a task makes what it keeps, before its first step: a timeout counts neither.
    """

    text: str = ""
    curves: dict[str, Point] = field(default_factory=dict)
    compiling_s: float = 0.0
    preparing_s: float = 0.0

    def encode(self) -> str:
        """The text that `decode` reads."""
        return json.dumps([self.text, self.curves, self.compiling_s, self.preparing_s])

    @classmethod
    def decode(cls, encoded: str) -> Progress:
        """Read the output of `encode`, and drop values that are not finite.

        Raises:
            ValueError, TypeError, AttributeError: the text is something else, or incomplete.
        """
        text, curves, *seconds = json.loads(encoded)
        compiling_s, preparing_s = map(float, seconds)
        points = {str(name): Point(int(step), float(value)) for name, (step, value) in curves.items()}
        finite = {name: point for name, point in points.items() if math.isfinite(point.value)}
        return cls(str(text), finite, compiling_s, preparing_s)
