"""The report as one self-contained HTML page, without scripts or other files."""
import html as markup
import re

from report.results import (HOW, QUICK, VERDICTS, counts, facts, figures_title, findings, got_text, have_goals, is_words,
                            lines_of, wanted_text)

try:
    from report import plots
except ImportError:  # the page is also useful without plots
    plots = None

TITLE = "lockstep and its peers"
STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --ink: #1b1f24; --soft: #57606a; --rule: #d8dcdf; --grid: #e4e7ea; --link: #0a58a8;
  --reached: #1a7f37; --missed: #b5330a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1318; --ink: #e6e9ec; --soft: #a3adb8; --rule: #30363d; --grid: #2a3139; --link: #79b8ff;
    --reached: #56d364; --missed: #ff8a5c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; overflow-wrap: break-word;
}
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 1rem; }
h2 { font-size: 1.4rem; line-height: 1.3; letter-spacing: -.01em; margin: 3.5rem 0 .5rem; padding-top: 1rem;
     border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; line-height: 1.4; margin: 2rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 44rem; }
a { color: var(--link); text-underline-offset: .15em; }
code, pre { font: .85em/1.5 ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; font-size: .9rem; margin: 0 0 1rem;
     max-width: 60rem; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
nav ul { list-style: none; margin: 1.25rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; }
.alert { border-left: 4px solid var(--missed); padding: .25rem 0 .25rem .9rem; margin: 1rem 0; }
pre { border-left: 4px solid var(--missed); padding: .25rem 0 .25rem .9rem; margin: 1rem 0; max-width: 60rem;
      white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5rem 0 0; }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem; line-height: 1.25rem; }
th, td { padding: .375rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; position: sticky; left: 0; background: var(--paper); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; white-space: normal; max-width: 9rem; }
.words { text-align: left; }
.figures .what { white-space: normal; min-width: 13rem; }
.figures .unit { padding-left: 0; }
.figures tbody th { text-align: left; padding-top: 1.25rem; font-weight: 600; }
.reached { color: var(--reached); }
.missed { color: var(--missed); }
.unmeasured { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 2.5rem; }
figure { margin: 0; max-width: 33rem; min-width: 0; }
figure h3 { margin-bottom: .6rem; }
figcaption { margin-top: .4rem; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  h2 { font-size: 1.25rem; margin-top: 2.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; }
  th, td { padding: .375rem .5rem; }
  .figures, .figures tbody { display: block; }
  .figures thead { display: none; }
  .figures tr { display: flex; flex-wrap: wrap; gap: 0 .5rem; padding: .4rem 0; border-bottom: 1px solid var(--rule); }
  .figures th, .figures td { padding: 0; border: 0; white-space: normal; }
  .figures .verdict { min-width: 7rem; }
  .figures .what { flex-basis: 100%; order: -1; }
}
@media print {
  :root { --paper: #fff; }
  html { font-size: 9.5pt; }
  body { padding: 0; max-width: none; }
  nav { display: none; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; line-height: 1.4; }
  th, td { padding: .2rem .4rem; }
  tr, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .plots { grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
}
"""


def html(results):
    parts = {name: findings(part) for name, part in results["parts"].items()}
    look = plots.looks(plot for part in parts.values() for plot in part.plots) if plots else None
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
                      '<meta name="viewport" content="width=device-width, initial-scale=1">',
                      tag("title", TITLE), f"<style>\n{STYLE}{plots.style() if plots else ''}</style>", "</head>",
                      "<body>", *head(results, parts), "<main>", *reached(parts),
                      *(line for name, part in parts.items() for line in section(name, part, look)),
                      "</main>", "</body>", "</html>", ""])


def tag(name, text, **attributes):
    said = "".join(f' {key.rstrip("_")}="{markup.escape(value)}"' for key, value in attributes.items())
    return f"<{name}{said}>{markup.escape(text)}</{name}>"


def prose(name, text, **attributes):
    """Formats text between backticks as code."""
    return re.sub("`([^`<]+)`", r"<code>\1</code>", tag(name, text, **attributes))


def anchor(name):
    return "part-" + re.sub("[^A-Za-z0-9_]", "-", name)


def head(results, parts):
    yield "<header>"
    yield tag("h1", TITLE)
    yield "<dl>"
    for name, text in facts(results):
        yield tag("dt", name) + (f"<dd>{tag('code', text)}</dd>" if name == "command" else tag("dd", text))
    yield "</dl>"
    yield prose("p", HOW)
    if results["quick"]:
        yield tag("p", QUICK, class_="alert")
    for name, part in parts.items():
        if part.failures:
            yield (f'<p class="alert">{len(part.failures)} FAILED in '
                   f'{tag("a", part.title, href="#" + anchor(name) + "-failures")}</p>')
    if not plots and any(part.plots for part in parts.values()):
        yield prose("p", "The plots are left out: they need matplotlib (`apt-get install python3-matplotlib`).",
                    class_="alert")
    yield "</header>"
    title = figures_title([figure for part in parts.values() for figure in part.figures])
    yield '<nav aria-label="Contents"><ul>'
    yield from (f'<li>{tag("a", title, href="#" + at)}</li>'
                for at, title in [("reached", title),
                                  *((anchor(name), part.title) for name, part in parts.items())])
    yield "</ul></nav>"


def reached(parts):
    figures = [figure for part in parts.values() for figure in part.figures]
    yield tag("h2", figures_title(figures), id="reached")
    yield tag("p", counts(figures))
    if not figures:
        return
    yield scroll(figures_title(figures))
    yield '<table class="figures">'
    goals = have_goals(figures)
    yield ("<thead><tr>" + ('<th class="words">verdict</th>' if goals else "") + '<th class="words">what</th><th>got</th><th></th>'
           + ('<th class="words">wanted</th>' if goals else "") + "</tr></thead>")
    for name, part in parts.items():
        if part.figures:
            yield f'<tbody><tr><th colspan="{5 if goals else 3}">{tag("a", part.title, href="#" + anchor(name))}</th></tr>'
            for figure in part.figures:
                verdict = tag("td", figure.verdict, class_="words verdict " + verdict_class(figure.verdict)) if goals else ""
                wanted = tag("td", wanted_text(figure), class_="words") if goals else ""
                yield ("<tr>" + verdict + tag("td", figure.what, class_="words what") + tag("td", got_text(figure))
                       + tag("td", figure.unit, class_="words unit") + wanted + "</tr>")
            yield "</tbody>"
    yield "</table></div>"


def verdict_class(verdict):
    return dict(zip(VERDICTS, ("reached", "missed", "unmeasured")))[verdict]


def scroll(label):
    """A box that scrolls, also with the keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{markup.escape(label)}">'


def section(name, part, look):
    yield f'<section id="{anchor(name)}">'
    yield tag("h2", part.title)
    yield from (prose("p", text) for text in part.about)
    for table in part.tables:
        yield from table_lines(table)
    if plots and part.plots:
        yield '<div class="plots">'
        for at, plot in enumerate(part.plots):
            yield "<figure>"
            yield tag("h3", plot.title)
            yield plots.svg(plot, look, f"{anchor(name)}-{at}")
            if plot.note:
                yield prose("figcaption", plot.note)
            yield "</figure>"
        yield "</div>"
    if part.notes:
        yield tag("h3", "Notes")
        yield from (prose("p", note) for note in part.notes)
    if part.failures:
        yield tag("h3", "FAILED", id=anchor(name) + "-failures", class_="missed")
        yield from (tag("pre", failure) for failure in part.failures)
    yield "</section>"


def table_lines(table):
    yield tag("h3", table.title)
    if table.note:
        yield prose("p", table.note, class_="soft")
    first, *rows = lines_of(table)
    yield scroll(table.title)
    yield f"<table><thead><tr>{cells('th', table, first)}</tr></thead><tbody>"
    yield from (f"<tr>{cells('td', table, row)}</tr>" for row in rows)
    yield "</tbody></table></div>"


def cells(name, table, line):
    return "".join(tag(name, cell, **({"class_": "words"} if is_words(table, at) else {}))
                   for at, cell in enumerate(line))
