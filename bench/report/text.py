"""The report as plain text, for the terminal and tables.txt."""
import itertools
import textwrap

from report.results import (HOW, QUICK, counts, facts, figures_title, findings, got_text, have_goals, is_words, lines_of,
                            wanted_text)

COLUMNS = 100  # width of prose; tables may be wider
NARROW = 12  # minimum width of a head


def tables_text(results):
    parts = [findings(part) for part in results["parts"].values()]
    blocks = [head(results)]
    for part in parts:
        blocks += part_blocks(part)
    blocks.append(reached(parts))
    return "\n\n".join(blocks) + "\n"


def head(results):
    lines = [prose(text, f"{name:<10}") for name, text in facts(results)]
    return "\n".join(lines + ([prose(QUICK)] if results["quick"] else []) + [prose(HOW)])


def part_blocks(part):
    yield f"{part.title}\n{'=' * len(part.title)}"
    if part.about:
        yield "\n".join(map(prose, part.about))
    for table in part.tables:
        yield "\n".join([table.title, *([prose(table.note)] if table.note else []), *aligned(table)])
    if part.notes:
        yield "\n".join(prose(note, "note: ") for note in part.notes)
    for failure in part.failures:
        yield "FAILED: " + failure.replace("\n", "\n        ")  # keeps the program's own line breaks


def prose(text, first=""):
    return textwrap.fill(text, COLUMNS, initial_indent=first, subsequent_indent=" " * len(first),
                         break_long_words=False, break_on_hyphens=False)


def aligned(table):
    """Wraps heads that are wider than their columns."""
    head_line, *rows = lines_of(table)
    widths = [max([NARROW, *map(len, column)]) for column in zip(*rows)] or [NARROW] * len(head_line)
    heads = [textwrap.wrap(text, width, break_long_words=False) for text, width in zip(head_line, widths)]
    height = max(map(len, heads))
    heads = zip(*([""] * (height - len(lines)) + lines for lines in heads))
    return columns([*heads, *rows], lambda column: is_words(table, column))


def columns(lines, words):
    """`words` returns whether a column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        yield "  ".join(cell.ljust(width) if words(at) else cell.rjust(width)
                        for at, (cell, width) in enumerate(zip(line, widths))).rstrip()


def reached(parts):
    figures = [figure for part in parts for figure in part.figures]
    lines = [figures_title(figures), "=" * len(figures_title(figures))]
    if have_goals(figures):
        rows = [[f"  {figure.verdict:<12}", figure.what, got_text(figure), figure.unit, f"({wanted_text(figure)})"]
                for figure in figures]
    else:
        rows = [["", figure.what, got_text(figure), figure.unit] for figure in figures]
    texts = columns(rows, lambda column: column != 2)
    for part in parts:
        if part.figures:
            lines += [part.title, *itertools.islice(texts, len(part.figures))]
    lines.append(prose(counts(figures)))
    failures = sum(len(part.failures) for part in parts)
    return "\n".join(lines + ([f"{failures} FAILED, see above"] if failures else []))
