"""Draws a Plot as SVG that is embedded in the page, with the page's font and colours, light and dark.

matplotlib draws the plot, and its SVG is then rewritten. Colours are replaced by the page's (`style`); outside a page,
the light colours apply. Elements that would affect the whole page (ids, a style sheet) are renamed or removed.
"""
import dataclasses
import io
import itertools
import math
import re
import textwrap
import xml.etree.ElementTree

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kit import numbers

WIDTH, HEIGHT = 440, 240  # width of the drawing, height of the axes; small, so that text is readable on a phone
FONT, SMALL = 12, 10
LETTER = 7  # width of a letter in matplotlib's font, which is a wide one
MOST_MARKERS = 20  # per line: more would hide it
BELOW_ALL = 1e-300  # replaces a quartile of 0 on a log axis: below everything that is shown

# For light and dark backgrounds. All are distinguishable from each other with any colour blindness, and from the
# background.
COLOURS = (("#0a62b5", "#3f8fe6"), ("#b5330a", "#e8602a"), ("#1a9e78", "#2fc7a0"), ("#a0407f", "#d58fc4"),
           ("#b08900", "#f0d050"), ("#4796ea", "#a5deff"), ("#4b4f56", "#8b9098"))
MARKERS = "os^Dv<>pX"
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
HATCHES = ("", "////", "....", "xxxx")
INK, SOFT, GRID = "#010203", "#010204", "#010205"  # placeholders, not used otherwise
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "lockstep", "text.parse_math": False, "font.size": FONT,
            "text.color": INK, "axes.edgecolor": SOFT, "axes.labelcolor": INK, "xtick.color": SOFT, "ytick.color": SOFT,
            "grid.color": GRID, "hatch.linewidth": 0.8, "axes.unicode_minus": True}


@dataclasses.dataclass
class Look:
    colour: str
    marker: str
    dash: object
    hatch: str


def looks(plots):
    """The look of each series by its name, the same in all of these plots."""
    names = dict.fromkeys(series.name for plot in plots for series in plot.series)
    return {name: Look(COLOURS[at % len(COLOURS)][0], MARKERS[at % len(MARKERS)], DASHES[at % len(DASHES)],
                       HATCHES[at // len(COLOURS) % len(HATCHES)]) for at, name in enumerate(names)}


def style():
    """CSS with the colours of the series."""
    light, dark = (" ".join(f"--series-{at}: {pair[which]};" for at, pair in enumerate(COLOURS)) for which in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def svg(plot, looks_of_page=None, name="plot"):
    """`name` is the prefix of each id, so it must be unique for each plot of a page."""
    with matplotlib.rc_context(SETTINGS):
        figure = draw(plot, looks_of_page or looks([plot]))
        file = io.BytesIO()
        figure.savefig(file, format="svg", transparent=True)
    return rewritten(file.getvalue(), plot.title, name)


# ---- What is drawn


@dataclasses.dataclass
class Points:
    """The points of one series; NaN for what cannot be drawn."""
    x: list
    y: list
    low: list
    high: list
    measured: list  # y, even if a log axis cannot show it; None if missing
    left_out: int = 0  # points that a log axis cannot show


def draw(plot, look):
    figure = Figure(figsize=(WIDTH / 72, 1.5 * HEIGHT / 72), dpi=72)
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes = figure.add_axes([0.12, 0.15, 0.86, 0.7])
    groups = group_names(plot)
    points = [points_of(series, plot, groups) for series in plot.series]
    if any(math.isfinite(y) for one in points for y in one.y):
        set_scales(axes, plot, groups, points)
        handles = (draw_bars if plot.kind == "bars" else draw_lines)(axes, plot, groups, points, look)
    else:
        axes.set(xticks=[], yticks=[], ylim=(0, 1))
        axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center", color=SOFT)
        handles = [axes.plot([], [], color=look[series.name].colour)[0] for series in plot.series]
    dress(axes, plot, sum(one.left_out for one in points))
    legend_height = legend(figure, renderer, plot, points, handles)
    unit = textwrap.fill(plot.y, int(WIDTH / LETTER))  # horizontal, above the axis, which is easier to read
    arrange(figure, axes, renderer, legend_height + FONT * (1.3 * len(unit.splitlines()) + 1.2))
    axes.annotate(unit, (0, 1), (0, 0.75 * FONT), xycoords=("figure fraction", "axes fraction"),
                  textcoords="offset points", color=SOFT)
    return figure


def group_names(plot):
    """None if x contains numbers."""
    names = dict.fromkeys(x for series in plot.series for x in series.x if x is not None)
    return list(names) if plot.kind == "bars" or any(isinstance(x, str) for x in names) else None


def points_of(series, plot, groups):
    found = Points([], [], [], [], [])
    for x, y, low, high in itertools.zip_longest(series.x, series.y, series.low, series.high):
        given = x if groups is None else groups.index(x) if x is not None else None
        x, measured = number(given, groups is None and plot.log_x), number(y, False)
        y = number(y, plot.log_y)
        if math.isfinite(number(given, False)) and math.isfinite(measured):
            found.left_out += math.isnan(x) or math.isnan(y)
        low, high = (number(value, False) if math.isfinite(y) else math.nan for value in (low, high))
        if math.isfinite(x):
            found.x.append(x)
            found.y.append(y)
            found.low.append(min(max(low, BELOW_ALL) if plot.log_y else low, y) if math.isfinite(low) else low)
            found.high.append(max(high, y) if math.isfinite(high) else high)
            found.measured.append(measured if math.isfinite(measured) else None)
    return found


def number(value, log):
    shown = value is not None and math.isfinite(value) and (value > 0 or not log)
    return float(value) if shown else math.nan


def draw_lines(axes, plot, _, points, look):
    handles = []
    for series, found in zip(plot.series, points):
        how = look[series.name]
        step = math.ceil(len(found.x) / MOST_MARKERS)
        marked = [at for at in range(len(found.x)) if at % step == 0 or alone(found.y, at)]
        line, = axes.plot(found.x, found.y, color=how.colour, linestyle=how.dash, linewidth=1.7, marker=how.marker,
                          markersize=5, markeredgewidth=0, markevery=marked)
        axes.fill_between(found.x, found.low, found.high, color=how.colour, alpha=0.18, linewidth=0)
        for at, y in enumerate(found.y):
            if math.isfinite(y) and alone(found.y, at):  # a band needs two points
                error_bar(axes, found, at, found.x[at], how.colour)
        handles.append(line)
    return handles


def alone(values, at):
    return not any(math.isfinite(value) for value in values[max(at - 1, 0):at] + values[at + 1:at + 2])


def error_bar(axes, found, at, x, colour):
    low, y, high = found.low[at], found.y[at], found.high[at]
    if math.isfinite(low) and math.isfinite(high) and low < high:
        axes.errorbar([x], [y], [[y - low], [high - y]], color=colour, linewidth=1, capsize=2.5, fmt="none")


def draw_bars(axes, plot, groups, points, look):
    thick = 0.86 / len(plot.series)
    room = 0.93 * WIDTH / len(groups) * thick
    values = [[numbers.text(value) for value in found.measured] for found in points]
    labelled = all(digits_width(text) < room for text in itertools.chain(*values))
    colours = [look[series.name].colour for series in plot.series]
    handles = []
    for order, (series, found) in enumerate(zip(plot.series, points)):
        how = look[series.name]
        middles = [x + (order - (len(points) - 1) / 2) * thick for x in found.x]
        hatch = how.hatch if colours.count(how.colour) > 1 else ""
        handles.append(axes.bar(middles, found.y, 0.92 * thick, color=how.colour, hatch=hatch, edgecolor=GRID,
                                linewidth=0))
        for at, (middle, y) in enumerate(zip(middles, found.y)):
            error_bar(axes, found, at, middle, INK)
            if labelled:
                top = max(value for value in (y, found.high[at], axes.get_ylim()[0], 0) if math.isfinite(value))
                axes.annotate(values[order][at], (middle, top), (0, 3), textcoords="offset points", ha="center",
                              fontsize=SMALL)
    return handles


def digits_width(text):
    return SMALL * sum(0.32 if letter in ".-" else 0.64 for letter in text)


# ---- Axes


def set_scales(axes, plot, groups, points):
    ys = [y for one in points for y in one.y + one.low + one.high if math.isfinite(y) and y != BELOW_ALL]
    axes.set_yscale("log" if plot.log_y else "linear")
    axes.set_ylim(log_limits(ys) if plot.log_y else limits_from_zero(ys))
    if plot.log_y and plot.kind == "bars":  # so that every bar is visible
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(axes.get_ylim()[0])))
    locate(axes.yaxis, plot.log_y)
    if groups is not None:
        room = int(0.9 * WIDTH / len(groups) / LETTER)
        texts = [bytes_or_plain(name, plot.bytes_x) for name in groups]
        axes.set_xticks(range(len(groups)), [textwrap.fill(text, max(room, 5), break_long_words=False) for text in texts])
        axes.set_xlim(-0.5, len(groups) - 0.5)
        return
    xs = sorted({x for one in points for x in one.x})
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_xlim(log_limits(xs, 0.04, 0.3) if plot.log_x else around(xs))
    if plot.bytes_x:
        axes.xaxis.set(major_locator=FixedLocator(byte_ticks(*axes.get_xlim(), plot.log_x)),
                       minor_locator=NullLocator(), major_formatter=FuncFormatter(lambda x, _: bytes_or_plain(x, True)))
        return
    locate(axes.xaxis, plot.log_x)
    if len(xs) <= 9 and have_room(axes, xs):
        axes.xaxis.set_major_locator(FixedLocator(xs))


def log_limits(values, part=0.06, least=0.8):
    """With some margin, and at least a part of a decade apart."""
    low, high = math.log10(min(values)), math.log10(max(values))
    air = max(part * (high - low), (least - (high - low)) / 2)
    return 10 ** (low - air), 10 ** (high + air)


def limits_from_zero(values):
    low, high = min(0, *values), max(0, *values)
    air = 0.1 * (high - low) or 1
    return low - air if low < 0 else 0, high + air if high > 0 or low == 0 else 0


def around(values):
    air = 0.04 * (values[-1] - values[0]) or 0.5 * abs(values[0]) or 1
    return values[0] - air, values[-1] + air


def locate(axis, log):
    low, high = axis.get_view_interval()
    wide = log and math.log10(high / low) > 2.2
    axis.set(major_locator=LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=8) if log else
             MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]), minor_locator=NullLocator(),
             major_formatter=FuncFormatter(lambda value, _: bytes_or_plain(value, False)))


def have_room(axes, xs):
    """Whether there is room for a tick at each measured x."""
    places = [axes.transData.transform((x, axes.get_ylim()[1]))[0] for x in xs]
    widths = [LETTER * (len(bytes_or_plain(x, False)) + 1) for x in xs]
    return all(b - a > (v + w) / 2 for a, b, v, w in zip(places, places[1:], widths, widths[1:]))


def byte_ticks(low, high, log):
    if log:
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        step = next((step for step in (1, 2, 4, 5, 10) if (last - first) / step < 7), 20)
        return [2.0 ** power for power in range(first, last + 1) if power % step == 0]
    step = 2.0 ** math.ceil(math.log2((high - low) / 7))
    return [step * at for at in range(max(math.ceil(low / step), 0), math.floor(high / step) + 1)]


def bytes_or_plain(value, in_bytes):
    if isinstance(value, str):
        return value
    if in_bytes and value >= 1:
        return numbers.bytes_text(int(value))
    return f"{value:.7f}".rstrip("0") if 1e-7 <= abs(value) < 1e-3 else f"{value:,.10g}"


def dress(axes, plot, left_out):
    said = f"{plot.x} (not above 0, so not on the log axis: {left_out})" if left_out else plot.x
    axes.set_xlabel(textwrap.fill(said.strip(), int(0.85 * WIDTH / LETTER)), color=SOFT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if axes.get_ylim()[0] < 0:  # draw the axis at zero instead of at the bottom
        axes.spines["bottom"].set_visible(False)
        axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.grid(axis="y", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0 if plot.kind == "bars" else 3)
    axes.tick_params(labelcolor=INK)


# ---- Layout


def legend(figure, renderer, plot, points, handles):
    """Puts the legend above the axes, in as many columns as fit. Returns its height."""
    if not handles:
        return 0
    names = [textwrap.fill(series.name + (" (not measured)" if all(value is None for value in found.measured) else ""),
                           int(0.85 * WIDTH / LETTER)) for series, found in zip(plot.series, points)]
    for count in range(len(names), 0, -1):
        made = figure.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 1), ncol=count, frameon=False,
                             borderpad=0, borderaxespad=0, columnspacing=1.5, labelspacing=0.35,
                             handlelength=1.2 if plot.kind == "bars" else 3.2)
        box = made.get_window_extent(renderer)
        if box.width <= WIDTH or count == 1:
            return box.height
        made.remove()
    return 0


def arrange(figure, axes, renderer, above):
    """Gives the axes the width that the texts around them leave, and makes the figure as high as needed."""
    for _ in range(2):  # twice, because the ticks depend on the size of the axes
        inner, outer = axes.get_window_extent(renderer), axes.get_tightbbox(renderer)
        left, right = inner.x0 - outer.x0 + 1, max(outer.x1 - inner.x1, 0) + 1
        below = inner.y0 - outer.y0 + 1
        height = below + HEIGHT + above
        figure.set_size_inches(WIDTH / 72, height / 72)
        axes.set_position([left / WIDTH, below / height, 1 - (left + right) / WIDTH, HEIGHT / height])


# ---- Embedding in a page


def rewritten(source, title, name):
    root = xml.etree.ElementTree.fromstring(source)
    used = set(re.findall(r"#([\w.-]+)", " ".join(value for one in root.iter() for value in one.attrib.values())))
    for parent in list(root.iter()):
        for child in list(parent):
            if local(child.tag) in ("metadata", "style"):  # the style sheet would apply to the whole page
                parent.remove(child)
    for one in root.iter():
        one.tag = local(one.tag)
        one.attrib = {local(key): rewritten_value(local(key), value, name) for key, value in one.attrib.items()
                      if key != "id" or value in used}
    _, _, width, height = root.get("viewBox").split()
    root.attrib = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": root.get("viewBox"), "width": width,
                   "height": height, "font-family": "sans-serif", "stroke-linejoin": "round", "role": "img",
                   "aria-label": title}
    return xml.etree.ElementTree.tostring(root, encoding="unicode")


def local(tag):
    return tag.rsplit("}", 1)[-1]


def rewritten_value(key, value, name):
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    if key == "style":
        # The page defines the font family. matplotlib writes it with the size, newer versions write it separately.
        value = re.sub(r"font: (?:normal )*(\d+ )?([\d.]+px)[^;]*", r"font-size: \2", value)
        value = re.sub(r"font-family:[^;]*;? *", "", value)
        for at, (light, _) in enumerate(COLOURS):
            value = value.replace(light, f"var(--series-{at}, {light})")
        value = value.replace(INK, "currentColor").replace(SOFT, "var(--soft, #777)")
        value = value.replace(GRID, "var(--grid, #8884)")
    return value
