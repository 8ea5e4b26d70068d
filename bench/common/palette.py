"""The colour of each mechanism, in figures and in MLflow.

Named mechanisms differ by a CIE Lab distance of 10 or more to every eye: with all cones, and as Machado, Oliveira and
Fernandes (2009, A Physiologically-based Model for Simulation of Color Vision Deficiency) simulate eyes that lack one
kind.
"""

import zlib

# The palette `colorblind` of seaborn.
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
    # By a search for the largest of the smallest distances to all others.
    "informer": "#7f7a39",
    # The controls are grey, with a contrast of 3 to white (WCAG 2.1, success criterion 1.4.11).
    "v_mean": "#303030",
    "local": "#6c6c6c",
    "identity": "#949494",
    "nystromformer": "#694b34",
    "bigbird": "#701ce4",
    "reformer": "#b462ff",
}
# For mechanisms that somebody adds.
OTHERS = [_NAMED[name] for name in ("pink", "brown", "sky", "grey")]


def counterpart(name: str) -> str | None:
    """The mechanism that somebody else's package has under this name: that of lucidrains_performer is performer."""
    own = name.partition("_")[2]
    return own if own in COLOURS and name not in COLOURS else None


def colour(name: str) -> str:
    """Of a mechanism, as `#rrggbb`; of one without its own, that of its counterpart, else by the hash of its name."""
    own = counterpart(name) or name
    return COLOURS.get(own) or OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]
