"""What stands in the figures that tests look at."""

import dataclasses

import numpy as np


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes if axes.axison}


def curves(axes):
    """(color, marker, filled, dash) -> (x, y, heights of the bars) of each errorbar series."""
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container
        heights = np.array([np.diff(segment[:, 1])[0] for segment in bars.get_segments() if len(segment)]) / 2
        look = (line.get_color(), line.get_marker(), line.get_markerfacecolor(), line.get_linestyle())
        found[look] = (line.get_xdata(), line.get_ydata(), heights)
    return found


def curve(figure, axes, label):
    handle = legend(figure)[label]
    look = (handle.get_color(), handle.get_marker(), handle.get_markerfacecolor(), handle.get_linestyle())
    return curves(axes)[look]


def legend(figure):
    return {handle.get_label(): handle for handle in figure.legends[0].legend_handles}


def caption(figure):
    (text,) = (text for text in figure.texts if text.get_gid() == "caption")
    return text.get_text().replace("\n", " ")


def gaps(axes):
    return [(t.get_text(), t.get_position()[0], t.get_color()) for t in axes.texts if t.get_gid() == "gap"]


def words(axes):
    return [text.get_text() for text in axes.texts]


def marked(axes, gid):
    """The lines, texts and areas of a panel that are of that kind."""
    return [artist for artist in (*axes.lines, *axes.texts, *axes.collections) if artist.get_gid() == gid]


def changed(record, config=(), measurements=(), **fields):
    """The record with other entries in its config and its measurements, and other fields."""
    config, measurements = {**record.config, **dict(config)}, {**record.measurements, **dict(measurements)}
    return dataclasses.replace(record, config=config, measurements=measurements, **fields)


def bars(axes):
    """(x, y, low, high) of each point of a series with upright bars, by its colour."""
    found = {}
    for line, _, (*_, upright) in axes.containers:
        ends = [(part[0][1], part[1][1]) for part in upright.get_segments()]
        found[line.get_color()] = list(zip(line.get_xdata(), line.get_ydata(), *zip(*ends, strict=True), strict=True))
    return found


def bars_of_rows(axes):
    """Row -> (value, low, high) of each point with a horizontal bar."""
    found = {}
    for line, _, (bars,) in axes.containers:
        ((x,), (y,)), (segment,) = line.get_data(), bars.get_segments()
        found[round(y)] = (x, segment[0][0], segment[1][0])
    return found
