"""Styles of series: colour and marker show the mechanism, dashes and fill its variant."""

import zlib
from typing import Any

import pandas as pd
from matplotlib.colors import to_hex, to_rgb

from analysis.plots.layout import in_a_column, shown
from analysis.selection import exact_softmax
from bench.common.palette import COLOURS, colour, counterpart
from bench.common.palette import OTHERS as OTHER_COLOURS
from bench.common.palette import PALETTE as PALETTE

_TALL = ((-0.5, -1.0), (0.5, -1.0), (0.5, 1.0), (-0.5, 1.0), (-0.5, -1.0))
_FLAT = tuple((y, x) for x, y in _TALL)
_MARKERS: tuple[Any, ...] = ("o", "s", "D", "d", "^", "v", "P", "X", "*", "<", "h", _TALL, _FLAT, ">", "p", "8")
MECHANISMS: dict[str, tuple[str, Any]] = {
    name: (shade, marker) for (name, shade), marker in zip(COLOURS.items(), _MARKERS, strict=True)
}
# For mechanisms that users add: stars and triangles that no built-in mechanism has.
OTHERS = [(shade, marker) for marker in ((4, 1, 0), (6, 1, 0), (3, 1, 0), (4, 1, 45)) for shade in OTHER_COLOURS]
_LINES = ("-", "--", ":", "-.")
THICK = 2.0
"""Line width in points of exact softmax, the baseline."""


def of_series(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Line2D properties for each `series` of a frame, in the order given to `choose` (`place`), else by name.

    Exact softmax is thick; controls come last. A package's version of a mechanism of the zoo has the same colour, with
    dashes.
    """
    by_mechanism = _of_mechanisms(set(frame["mechanism"].dropna()))
    properties: dict[str, dict[str, Any]] = {}
    for mechanism, variants in frame.groupby("mechanism")["series"].unique().items():
        for i, name in enumerate(sorted(variants), start=counterpart(mechanism) is not None):
            properties[name] = line(name, *by_mechanism[mechanism], i)
    for name in set(frame.loc[exact_softmax(frame), "series"]) & properties.keys():
        properties[name]["linewidth"] = THICK
    by_series = frame.groupby("series")
    places, controls = by_series["place"].min(), by_series["control"].any()
    order = sorted(properties, key=lambda name: (places[name], controls[name], name))
    return {name: properties[name] for name in order}


def line(name: str, colour: str, marker: Any, variant: int = 0) -> dict[str, Any]:
    """Line2D properties of one series; sixteen variants of a colour and marker differ, four also without lines."""
    red, green, blue = to_rgb(colour)
    light, dark = (to_hex((of + red * by, of + green * by, of + blue * by)) for of, by in ((0.6, 0.4), (0.0, 0.45)))
    fills = (colour, "white", light, dark)
    return {
        "label": shown(name),
        "color": colour,
        "marker": marker,
        "linestyle": _LINES[variant % len(_LINES)],
        # Fills are shifted by one after every four variants.
        "markerfacecolor": fills[(variant + variant // len(_LINES)) % len(fills)],
        "markersize": (8 if marker == "*" or len(marker) == 3 else 5) * (0.8 if in_a_column() else 1),
    }


def _of_mechanisms(names: set[str]) -> dict[str, tuple[str, Any]]:
    """Colour and marker of each mechanism; one not in `MECHANISMS` gets its colour with the next free marker."""
    styles: dict[str, tuple[str, Any]] = {name: MECHANISMS[name] for name in names & MECHANISMS.keys()}
    for name in sorted(names - MECHANISMS.keys()):
        first = zlib.crc32(name.encode())
        candidates = [OTHERS[(first + step) % len(OTHERS)] for step in range(len(OTHERS))]
        if counterpart(name):
            candidates = [(colour(name), marker) for _, marker in candidates]
        candidates.sort(key=lambda one: one[0] != colour(name))
        styles[name] = next((one for one in candidates if one not in styles.values()), candidates[0])
    return styles
