"""Converts the dict of results.json to the kit's classes, and provides what the text and the page have in common."""
import collections
import math

from kit import goals, machine, numbers
from kit.findings import Figure, Findings, Plot, Series, Table

VERDICTS = ("reached", "NOT REACHED", "not measured")
HOW = ("Numbers are medians over the rounds, in which all variants take turns. A ratio is the median of the rounds' "
       "ratios. Bands and error bars are quartiles.")
QUICK = "This is a quick run, which only shows that everything works: its numbers are meaningless."


def findings(part):
    """The Findings of one of the `parts`."""
    found = dict(part["findings"])
    for name, shape in (("tables", Table), ("plots", plot), ("figures", Figure)):
        found[name] = [shape(**one) for one in found.get(name, [])]
    return Findings(**found)


def plot(**one):
    return Plot(**{**one, "series": [Series(**series) for series in one["series"]]})


def facts(results):
    """(name, text) pairs that apply to all numbers."""
    yield "machine", machine.label(results["machine"])
    yield "versions", ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    yield "command", results["command"]
    yield "date", results["date"]
    yield "rounds", f"{results['rounds']}, in {duration(results['seconds'])}"


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def have_goals(figures):
    return any(figure.wanted is not None for figure in figures)


def figures_title(figures):
    return "Goals" if have_goals(figures) else "Figures"


def counts(figures):
    seen = collections.Counter(figure.verdict for figure in figures)
    if not have_goals(figures):
        return (f"{seen['']} measured, {seen['not measured']} not measured. Goals exist only for {goals.WHERE}; "
                "they do not apply to other machines.")
    return ", ".join(f"{seen[verdict]} {verdict}" for verdict in VERDICTS)


def got_text(figure):
    """With as many digits as the verdict requires: if the goal is 5, 4.998 is not shown as 5.00."""
    if figure.got is None or not math.isfinite(figure.got):
        return "-" if figure.got is None else str(figure.got)
    texts = [numbers.text(figure.got), *(f"{figure.got:.{digits}g}" for digits in range(4, 17))]
    return next(text for text in (*texts, repr(figure.got)) if
                Figure(figure.what, figure.unit, float(text), figure.wanted, figure.at_most).verdict == figure.verdict)


def wanted_text(figure):
    return f"at {'most' if figure.at_most else 'least'} {figure.wanted:,.10g}"


def lines_of(table):
    """The head and the rows, padded to the same length."""
    lines = [table.head, *table.rows]
    width = max(map(len, lines))
    return [[*map(str, line), *[""] * (width - len(line))] for line in lines]


def is_words(table, column):
    """Whether a column contains text, which is left-aligned. Numbers are right-aligned."""
    return column < table.texts or column < len(table.head) and table.head[column] == "fastest"
