"""How series are told apart: a colour and marker for each mechanism, dashes and fill for each of its variants.

Named mechanisms differ in colour by a CIE Lab distance of 10 or more to every eye: with all cones, and as Machado,
Oliveira and Fernandes (2009, A Physiologically-based Model for Simulation of Color Vision Deficiency) simulate eyes
that lack one kind. Their markers differ too.
"""

import zlib
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.colors import to_hex, to_rgb

from analysis.plots.layout import in_a_column, shown
from analysis.selection import exact_softmax

PALETTE = sns.color_palette("colorblind").as_hex()
_COLOURS = dict(
    zip(
        ("blue", "orange", "green", "red", "pink", "brown", "rose", "grey", "yellow", "sky"),
        PALETTE,
        strict=True,
    )
)

_TALL = ((-0.5, -1.0), (0.5, -1.0), (0.5, 1.0), (-0.5, 1.0), (-0.5, -1.0))
_FLAT = tuple((y, x) for x, y in _TALL)

MECHANISMS: dict[str, tuple[str, Any]] = {
    "softmax": ("#000000", "o"),
    "flash": (_COLOURS["blue"], "s"),
    "polynomial": (_COLOURS["orange"], "D"),
    "polynomial_square": (_COLOURS["brown"], "d"),
    "polysketch": (_COLOURS["red"], "^"),
    "linear": (_COLOURS["sky"], "v"),
    "performer": (_COLOURS["green"], "P"),
    "linformer": (_COLOURS["pink"], "X"),
    "skeinformer": ("#882255", "*"),
    # By a search for the largest of the smallest distances to all others.
    "informer": ("#7f7a39", "<"),
    # The controls are grey, with a contrast of 3 to white (WCAG 2.1, success criterion 1.4.11).
    "v_mean": ("#303030", "h"),
    "local": ("#6c6c6c", _TALL),
    "identity": ("#949494", _FLAT),
    "nystromformer": ("#694b34", ">"),
    "bigbird": ("#701ce4", "p"),
    "reformer": ("#b462ff", "8"),
}
# For mechanisms that somebody adds: stars and triangles that no other has.
OTHERS = [
    (_COLOURS[colour], marker)
    for marker in ((4, 1, 0), (6, 1, 0), (3, 1, 0), (4, 1, 45))
    for colour in ("pink", "brown", "sky", "grey")
]
_LINES = ("-", "--", ":", "-.")
THICK = 2.0
"""Points of the line of an exact softmax, which others are compared with."""


def of_series(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Line2D properties for each `series` of a frame, in the order that was asked for (`place`), else by name.

    Exact softmax is thick; controls are the last. What a package has that the zoo has, too, has the same colour, with
    dashes.
    """
    by_mechanism = _of_mechanisms(set(frame["mechanism"].dropna()))
    properties: dict[str, dict[str, Any]] = {}
    for mechanism, variants in frame.groupby("mechanism")["series"].unique().items():
        for i, name in enumerate(sorted(variants), start=_counterpart(mechanism) is not None):
            properties[name] = line(name, *by_mechanism[mechanism], i)
    for name in set(frame.loc[exact_softmax(frame), "series"]) & properties.keys():
        properties[name]["linewidth"] = THICK
    by_series = frame.groupby("series")
    places, controls = by_series["place"].min(), by_series["control"].any()
    order = sorted(properties, key=lambda name: (places[name], controls[name], name))
    return {name: properties[name] for name in order}


def _counterpart(name: str) -> str | None:
    """The mechanism that somebody else's package has under this name: that of lucidrains_performer is performer."""
    own = name.partition("_")[2]
    return own if own in MECHANISMS and name not in MECHANISMS else None


def line(name: str, colour: str, marker: Any, variant: int = 0) -> dict[str, Any]:
    """Line2D properties of one series; the first twelve variants of a colour and marker differ in dashes or fill."""
    red, green, blue = (0.6 + 0.4 * part for part in to_rgb(colour))
    fills = (colour, "white", to_hex((red, green, blue)))
    return {
        "label": shown(name),
        "color": colour,
        "marker": marker,
        "linestyle": _LINES[variant % len(_LINES)],
        # Three fills, shifted after each round of dashes.
        "markerfacecolor": fills[(variant + variant // len(_LINES)) % 3],
        "markersize": (8 if marker == "*" or len(marker) == 3 else 5) * (0.8 if in_a_column() else 1),
    }


def _of_mechanisms(names: set[str]) -> dict[str, tuple[str, Any]]:
    """Colour and marker of each; one without its own has that of its name's hash, or the next that is free."""
    styles: dict[str, tuple[str, Any]] = {name: MECHANISMS[name] for name in names & MECHANISMS.keys()}
    for name in sorted(names - MECHANISMS.keys()):
        first = zlib.crc32(name.encode())
        candidates = [OTHERS[(first + step) % len(OTHERS)] for step in range(len(OTHERS))]
        if own := _counterpart(name):
            candidates = [(MECHANISMS[own][0], marker) for _, marker in candidates]
        styles[name] = next((one for one in candidates if one not in styles.values()), candidates[0])
    return styles
