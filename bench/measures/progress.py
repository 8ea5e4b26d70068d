"""How far a cell is: what the process that measures tells its parent now and then."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from bench.records.metrics import Point


@dataclass(frozen=True)
class Progress:
    """What the bar shows, the newest point of each curve of a training run, and the seconds of compiling kernels."""

    text: str = ""
    curves: dict[str, Point] = field(default_factory=dict)
    compiling_s: float = 0.0

    def encode(self) -> str:
        """As `decode` reads it."""
        return json.dumps([self.text, self.curves, self.compiling_s])

    @classmethod
    def decode(cls, encoded: str) -> Progress:
        """Read what `encode` wrote, without values that are not finite.

        Raises:
            ValueError, TypeError, AttributeError: it is not that, cut short perhaps.
        """
        text, curves, compiling_s = json.loads(encoded)
        points = {str(name): Point(int(step), float(value)) for name, (step, value) in curves.items()}
        finite = {name: point for name, point in points.items() if math.isfinite(point.value)}
        return cls(str(text), finite, float(compiling_s))
