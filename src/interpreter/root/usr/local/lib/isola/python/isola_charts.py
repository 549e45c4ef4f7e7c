"""A matplotlib figure as data: what was plotted, not how it looks.

    {"type": "line", "title": "Load", "x_label": "time", "x_unit": "s", "x_scale": "linear", "x_ticks": [...], …,
     "elements": [{"label": "cpu", "points": [[0, 0.1], [1, 0.4]]}]}

Types: line, scatter, bar, pie, box_and_whisker; several axes are a superchart whose elements are charts; what is none of
these is unknown. What else was drawn into the same axes is in `also`: [{"type": "line", "elements": […]}]. Of more than
MOST_POINTS points of a series, or bars of a group, the first ones are there, with `truncated` and their `count`. The
field names are those that E2B's clients read. A label that ends in a unit is there as it was written, too (`x_text`).
"""
import math
import re

MOST_POINTS = 20000


def remember_boxes(axes):
    """Makes Axes.bxp keep the statistics that it draws."""
    inner = axes.bxp

    def bxp(self, bxpstats, *args, **kwargs):
        drawn = inner(self, bxpstats, *args, **kwargs)
        try:
            kept = getattr(self, "_isola_boxes", [])
            for i, stats in enumerate(bxpstats):
                parts = [id(line) for key in ("boxes", "medians", "means") for line in drawn.get(key, [])[i:i + 1]]
                parts += [id(line) for key in ("whiskers", "caps") for line in drawn.get(key, [])[2 * i:2 * i + 2]]
                parts += [id(line) for line in drawn.get("fliers", [])[i:i + 1]]
                kept.append((dict(stats), parts))
            self._isola_boxes = kept
        except Exception:
            pass
        return drawn

    bxp.__doc__, bxp.__name__ = inner.__doc__, inner.__name__
    axes.bxp = bxp


def whole(value):
    """A whole number; as a text where readers of JSON have no room for it."""
    return value if -(1 << 63) <= value < 1 << 64 else str(value)


def number(value):
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return whole(value)
    return value if math.isfinite(value) else None


def clean(text):
    text = "" if text is None else str(text)
    return "" if text.startswith("_") else text


def label_and_unit(text):
    """("time", "s") of "time (s)" or "time [s]"."""
    found = re.search(r"\s*(?:\(([^()]*)\)|\[([^\[\]]*)\])\s*$", text or "")
    if not found or not text[:found.start()].strip():
        return text or None, None
    return text[:found.start()].strip(), found.group(1) or found.group(2)


def is_dates(axis):
    from matplotlib import dates
    return isinstance(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter,
                      (dates.DateConverter, dates.ConciseDateConverter, dates._SwitchableDateConverter))


def is_categories(axis):
    from matplotlib.category import StrCategoryConverter
    return isinstance(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter, StrCategoryConverter)


def scale(axis):
    if is_dates(axis):
        return "datetime"
    if is_categories(axis):
        return "categorical"
    return axis.get_scale()


def values(axis, data):
    """Numbers as they were before the axis made positions of dates and categories."""
    data = list(data)[:MOST_POINTS]
    if is_dates(axis):
        from matplotlib import dates
        return [one.isoformat() if hasattr(one, "isoformat") else dates.num2date(one).replace(tzinfo=None).isoformat()
                for one in data]
    if is_categories(axis) and axis.units is not None:
        names = {place: name for name, place in axis.units._mapping.items()}
        return [one if isinstance(one, str) else names.get(int(round(float(one))), number(one)) for one in data]
    return [number(one) for one in data]


def ticks(axis):
    places = [number(one) for one in axis.get_ticklocs()]
    labels = [one.get_text() for one in axis.get_ticklabels()]
    low, high = sorted(axis.get_view_interval())
    kept = [(place, label) for place, label in zip(places, labels)
            if place is not None and low - 1e-9 <= place <= high + 1e-9]
    shown = values(axis, [place for place, _ in kept]) if is_dates(axis) else [place for place, _ in kept]
    return shown, [label for _, label in kept]


def two_axes(ax, kind, elements):
    out = {"type": kind, "title": ax.get_title() or None}
    for name, axis, label in (("x", ax.xaxis, ax.get_xlabel()), ("y", ax.yaxis, ax.get_ylabel())):
        out[name + "_label"], out[name + "_unit"] = label_and_unit(label)
        if out[name + "_unit"]:
            out[name + "_text"] = label
        out[name + "_scale"] = scale(axis)
        out[name + "_ticks"], out[name + "_tick_labels"] = ticks(axis)
    out["elements"] = elements
    return out


def series(label, points, count):
    out = {"label": label, "points": points}
    if count > len(points):
        out["truncated"], out["count"] = True, count
    return out


def lines_of(ax):
    parts = {part for _, parts in getattr(ax, "_isola_boxes", []) for part in parts}
    parts |= {id(cap) for one in ax.containers if hasattr(one, "has_yerr") for cap in one.lines[1]}  # of error bars
    out = []
    for i, line in enumerate(line for line in ax.get_lines() if id(line) not in parts):
        xs, ys = line.get_xdata(orig=False), line.get_ydata(orig=False)
        if len(xs) == 0:
            continue
        points = [list(pair) for pair in zip(values(ax.xaxis, xs), values(ax.yaxis, ys))]
        out.append(series(clean(line.get_label()) or f"Line {i + 1}", points, len(xs)))
    return out


def scatters_of(ax):
    from matplotlib.collections import PathCollection
    out = []
    for i, one in enumerate(c for c in ax.collections if isinstance(c, PathCollection)):
        spots = one.get_offsets()
        points = [list(pair) for pair in zip(values(ax.xaxis, (x for x, _ in spots)),
                                             values(ax.yaxis, (y for _, y in spots)))]
        out.append(series(clean(one.get_label()) or f"Series {i + 1}", points, len(spots)))
    return out


def bars_of(ax):
    from matplotlib.container import BarContainer
    out = []
    for i, bars in enumerate(c for c in ax.containers if isinstance(c, BarContainer)):
        lying = getattr(bars, "orientation", "vertical") == "horizontal"
        axis = ax.yaxis if lying else ax.xaxis
        labels = dict(zip(*(lambda places, texts: (places, texts))(*ticks(axis)))) if not is_dates(axis) else {}
        group = clean(bars.get_label()) or f"Group {i + 1}"
        for bar in list(bars)[:MOST_POINTS]:
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            if is_categories(axis) or is_dates(axis):
                label = values(axis, [middle])[0]
            else:
                label = next((text for place, text in labels.items() if abs(place - middle) < 1e-6 and text), number(middle))
            value = number(bar.get_width() if lying else bar.get_height())
            out.append({"label": str(label), "group": group, "value": value})
    return out


def wedges_of(ax):
    from matplotlib.patches import Wedge
    out = []
    for i, one in enumerate(p for p in ax.patches if isinstance(p, Wedge)):
        out.append({"label": clean(one.get_label()) or f"Part {i + 1}", "angle": number(abs(one.theta2 - one.theta1)),
                    "radius": number(one.r)})
    return out


def boxes_of(ax):
    out = []
    for i, (stats, _) in enumerate(getattr(ax, "_isola_boxes", [])):
        out.append({"label": str(stats.get("label") or f"Box {i + 1}"), "min": number(stats["whislo"]),
                    "first_quartile": number(stats["q1"]), "median": number(stats["med"]),
                    "third_quartile": number(stats["q3"]), "max": number(stats["whishi"]),
                    "outliers": [number(one) for one in stats.get("fliers", [])]})
    return out


def axes_chart(ax):
    kinds = (("pie", wedges_of), ("box_and_whisker", boxes_of), ("bar", bars_of), ("scatter", scatters_of), ("line", lines_of))
    drawn = [(kind, elements) for kind, read in kinds if (elements := read(ax))]
    if not drawn:
        return {"type": "unknown", "title": ax.get_title() or None, "elements": []}
    kind, elements = drawn[0]
    out = {"type": kind, "title": ax.get_title() or None, "elements": elements} if kind == "pie" else two_axes(ax, kind, elements)
    if len(drawn) > 1:
        out["also"] = [{"type": kind, "elements": elements} for kind, elements in drawn[1:]]
    bars = max((len(c) for c in ax.containers if isinstance(c, tuple)), default=0)
    if bars > MOST_POINTS:
        out["truncated"], out["count"] = True, bars
    return out


def chart(figure):
    # Colour bars are axes, too, but nothing is plotted in them.
    axes = [ax for ax in figure.axes if ax.get_visible() and not hasattr(ax, "_colorbar")]
    charts = [axes_chart(ax) for ax in axes]
    if len(charts) == 1:
        one = charts[0]
        if not one["title"] and figure.get_suptitle():
            one["title"] = figure.get_suptitle()
        return one
    if not charts:
        return {"type": "unknown", "title": figure.get_suptitle() or None, "elements": []}
    return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": charts}
