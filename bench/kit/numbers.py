"""Medians and their spread over rounds, and formatting of numbers."""
import math
import statistics


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def quartiles(values):
    """The middle half of the values: (low, high)."""
    values = sorted(value for value in values if value is not None)
    if not values:
        return None, None
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratio_of_rounds(above, below):
    """The median of the rounds' ratios, because the runs of one round are close in time. Both are lists by round; None
    means that a round has no measurement."""
    return median([a / b for a, b in zip(above, below) if a is not None and b])


def fit_line(x, y):
    """(start, slope) of a least-squares fit, with weights that make small values count as much as large ones."""
    weights = [1 / max(value, 1e-12) ** 2 for value in y]
    total = sum(weights)
    mean_x = sum(w * a for w, a in zip(weights, x)) / total
    mean_y = sum(w * b for w, b in zip(weights, y)) / total
    spread = sum(w * (a - mean_x) ** 2 for w, a in zip(weights, x))
    slope = sum(w * (a - mean_x) * (b - mean_y) for w, a, b in zip(weights, x, y)) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def fit_power(x, y):
    """(factor, exponent) of y = factor * x ** exponent."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y) if a > 0 and b > 0]
    mean_x = statistics.fmean(a for a, _ in points)
    mean_y = statistics.fmean(b for _, b in points)
    exponent = sum((a - mean_x) * (b - mean_y) for a, b in points) / sum((a - mean_x) ** 2 for a, _ in points)
    return math.exp(mean_y - exponent * mean_x), exponent


def text(number, unit=""):
    """With three significant digits; "-" for a missing measurement."""
    if number is None:
        return "-"
    digits = 0 if number == 0 else max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{min(digits, 6)}f}{unit}"


def percent(value):
    return "-" if value is None else f"{100 * value:+.1f} %"


def with_spread(values, unit=""):
    """The median and the quartiles."""
    low, high = quartiles(values)
    return "-" if low is None else f"{text(median(values), unit)} [{text(low)}, {text(high)}]"


def bytes_text(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
