"""How far a cell is: what the process that measures tells its parent now and then."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from bench.records.metrics import Point


@dataclass(frozen=True)
class Progress:
    """What the bar shows, the newest point of each curve of a training run, the seconds of compiling kernels.

    `preparing_s` are those of what a task makes before its first step: a timeout counts neither.
    """

    text: str = ""
    curves: dict[str, Point] = field(default_factory=dict)
    compiling_s: float = 0.0
    preparing_s: float = 0.0

    def encode(self) -> str:
        """As `decode` reads it."""
        return json.dumps([self.text, self.curves, self.compiling_s, self.preparing_s])

    @classmethod
    def decode(cls, encoded: str) -> Progress:
        """Read what `encode` wrote, without values that are not finite.

        Raises:
            ValueError, TypeError, AttributeError: it is not that, cut short perhaps.
        """
        text, curves, *seconds = json.loads(encoded)
        compiling_s, preparing_s = map(float, seconds)
        points = {str(name): Point(int(step), float(value)) for name, (step, value) in curves.items()}
        finite = {name: point for name, point in points.items() if math.isfinite(point.value)}
        return cls(str(text), finite, compiling_s, preparing_s)
