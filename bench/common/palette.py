"""The colour of each mechanism, in figures and in MLflow.

Colours of named mechanisms differ by a CIE Lab distance of at least 10 in normal vision, and in each colour blindness
with one missing kind of cones, as Machado, Oliveira and Fernandes (2009, A Physiologically-based Model for Simulation
of Color Vision Deficiency) simulate it.
"""

import zlib

# seaborn's palette `colorblind`.
NAMES = ("blue", "orange", "green", "red", "pink", "brown", "rose", "grey", "yellow", "sky")
PALETTE = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"]
_NAMED = dict(zip(NAMES, PALETTE, strict=True))

COLOURS = {
    "softmax": "#000000",
    "flash": _NAMED["blue"],
    "polynomial": _NAMED["orange"],
    "polynomial_square": _NAMED["brown"],
    "polysketch": _NAMED["red"],
    "linear": _NAMED["sky"],
    "performer": _NAMED["green"],
    "linformer": _NAMED["pink"],
    "skeinformer": "#882255",
    # Found by a search for the largest minimal distance to all other colours.
    "informer": "#7f7a39",
    # The controls are grey, with a contrast of 3 to white (WCAG 2.1, success criterion 1.4.11).
    "v_mean": "#303030",
    "local": "#6c6c6c",
    "identity": "#949494",
    "nystromformer": "#694b34",
    "bigbird": "#701ce4",
    "reformer": "#b462ff",
}
# For mechanisms that users add.
OTHERS = [_NAMED[name] for name in ("pink", "brown", "sky", "grey")]


def counterpart(name: str) -> str | None:
    """The mechanism that another package implements under this name: `performer` for `lucidrains_performer`."""
    own = name.partition("_")[2]
    return own if own in COLOURS and name not in COLOURS else None


def colour(name: str) -> str:
    """A mechanism's colour as `#rrggbb`: its own, else its counterpart's, else one chosen by the hash of its name."""
    own = counterpart(name) or name
    return COLOURS.get(own) or OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]
