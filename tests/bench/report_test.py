"""bench/report with made-up results that have every kind of table, plot and figure, and what is seldom in them."""
import copy
import dataclasses
import html.parser
import json
import os
import re
import sys
import unittest
import unittest.mock
import warnings
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

from kit.findings import Figure, Findings, Plot, Series, Table  # noqa: E402

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("skipped: python3-matplotlib is not installed")
    sys.exit(77)
from report import page, plots, results, text  # noqa: E402

ODD = 'a <b> & "c" $1_2$ id="x" url(#x) #0a62b5'  # markup, mathematics, and what is rewritten elsewhere
NOTHING = [None, None, None]
SIZES = [8, 1 << 10, 25 << 20]


def made_up_plots():
    return [
        Plot("bands", "size", "µs", [Series("ours", SIZES, [0.3, 0.5, 1700.0], [0.2, 0.4, 1600.0], [0.4, 0.6, 1800.0]),
                                     Series(ODD, SIZES, [0.4, None, 7200.0], [0.0, None, 7000.0], [0.5, None, 7300.0])],
             log_x=True, log_y=True, bytes_x=True, note=f"lower is better, `make bench`, {ODD}"),
        Plot("bars", "", "s", [Series("ours", ["first step", ODD], [0.4, 0.0], [0.3, -0.1], [0.5, 0.1]),
                               Series("peer", ["first step"], [None])], kind="bars"),
        Plot("bars on a log axis", "ranks", "s", [Series("ours", [0, 4], [0.4, 0.0]), Series("peer", [0], [3.0])],
             kind="bars", log_x=True, log_y=True),
        Plot("bars by name", "", "s", [Series("ours", ["a", None], [0.4, 1.0])], kind="bars", log_x=True),
        Plot("no point", "x", "y", [Series("ours", [], []), Series("peer", [1, 2, 3], NOTHING)], log_y=True),
        Plot("no series", "x", "y", [], kind="bars"),
        Plot("one point", "x", "y", [Series("ours", [3.0], [5.0], [4.0], [6.0])], log_x=True, log_y=True),
        Plot("zero", "x", "y", [Series("ours", [0, 1, 2], [0.0, 0.0, 3.0], [0.0], [])], log_x=True, log_y=True),
        Plot("all zero", "x", "y", [Series("ours", [0, 0], [0, 0])]),
        Plot("below zero", "bytes", "y", [Series("ours", [0, 5 << 20], [-3.0, -1.0])], bytes_x=True),
        Plot("not a number", "x", "y", [Series("ours", [1, 2], [float("nan"), float("inf")])]),
        Plot("words as x", "x", "y", [Series("ours", ["a", "b"], [1.0, 2.0])]),
        Plot("many", "x", "y", [Series(f"series {at}", list(range(100)), [at + 1] * 100) for at in range(20)]),
        Plot("many bars", "x", "y", [Series(f"series {at}", ["a", "b"], [at, 1]) for at in range(20)], kind="bars"),
    ]


def made_up_results(**more):
    full = Findings(
        f"Full {ODD}", ["How it was measured, with `lockstep bench`.", ODD],
        [Table("times", ["size", "ours µs", "the peer's µs", "fastest"],
               [["8 B", "0.332", "1.24", "ours"], ["25 MiB", "1680", "-", ODD]], note=f"what µs are, {ODD}"),
         Table(ODD, ["model", "variant", "ms"], [["cnn", "ours", "20.1"], ["a longer name", "b"]], texts=2),
         Table("no rows", ["size", "a head that takes more than one line"], [])],
        made_up_plots(),
        [Figure("far", "x PyTorch", 12.345, 5), Figure("near", "x PyTorch", 4.9981, 5), Figure(ODD, "x", None, 1.5),
         Figure("little", "% more", 0.0, 3, at_most=True), Figure("much", "% more", 57.1, 53.4, at_most=True)],
        [f"left out: {ODD}"], [f"program: exit status 1\n[rank 0] {ODD}"])
    parts = {"full": full, "empty": Findings("Empty", [])}
    found = {"machine": {"cpu": "Some CPU", "usable_cores": 2, "kernel": "6.1", "memory_gib": 23.4},
             "versions": {"libtorch-dev": "1.13", "g++": "12"}, "date": "2026-11-16 12:00 UTC", "command": "make bench",
             "rounds": 5, "quick": False, "seconds": 2400,
             "parts": {name: {"findings": dataclasses.asdict(part), "raw": {}} for name, part in parts.items()}}
    return {**json.loads(json.dumps(found)), **more}  # as it is read back


def without_goals(found):
    for part in found["parts"].values():
        for figure in part["findings"]["figures"]:
            figure["wanted"] = None
    return found


class TextTest(unittest.TestCase):
    def setUp(self):
        self.text = text.tables_text(made_up_results())

    def test_head(self):
        for said in ("2 cores of Some CPU, 23.4 GiB, Linux 6.1", "libtorch-dev 1.13, g++ 12", "make bench",
                     "2026-11-16 12:00 UTC", "5, in 40 min"):
            self.assertIn(said, self.text)
        self.assertNotIn(results.QUICK, self.text)
        self.assertIn(results.QUICK, text.tables_text(made_up_results(quick=True)))

    def test_tables_are_aligned(self):
        for table in (["                 the peer's",
                       "size    ours µs          µs  fastest",
                       "8 B       0.332        1.24  ours",
                       "25 MiB     1680           -  " + ODD],
                      ["model          variant    ms",
                       "cnn            ours     20.1",
                       "a longer name  b"],
                      ["      a head that",
                       "       takes more",
                       "         than one",
                       "size         line"]):
            self.assertIn("\n".join(table) + "\n", self.text)

    def test_parts(self):
        for said in ("How it was measured", "what µs are", "note: left out", "FAILED: program: exit status 1",
                     "        [rank 0]", "Empty\n====="):
            self.assertIn(said, self.text)

    def test_figures_and_counts(self):
        for said in (r"  reached +far +12\.3  x PyTorch +\(at least 5\)", r"  NOT REACHED +near +4\.998  x PyTorch",
                     r"  not measured +a <b>.* -  x +\(at least 1\.5\)", r"  reached +little +0  % more +\(at most 3\)",
                     r"  NOT REACHED +much +57\.1  % more +\(at most 53\.4\)",
                     r"\n2 reached, 2 NOT REACHED, 1 not measured\n1 FAILED, see above\n$"):
            self.assertRegex(self.text, said)

    def test_nothing_at_all(self):
        self.assertIn("0 measured, 0 not measured", text.tables_text(made_up_results(parts={})))

    def test_figures_without_goals(self):
        shown = text.tables_text(without_goals(made_up_results()))
        for said in (r"\nFigures\n=======\n", r"\n +far +12\.3  x PyTorch\n", r"\n +near +5\.00  x PyTorch\n",
                     r"4 measured, 1 not measured\. Goals exist only for 2 cores of AMD EPYC"):
            self.assertRegex(shown, said)
        for said in ("REACHED", "reached", "at least", "at most"):
            self.assertNotIn(said, shown)


class Reader(html.parser.HTMLParser):
    """Checks that tags are balanced; keeps ids, links, attributes and the text of each kind of tag."""
    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, source):
        super().__init__()
        self.open, self.ids, self.links, self.attributes, self.texts, self.tags = [], [], [], [], {}, []
        self.feed(source)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            self.attributes.append((tag, key, value))
            if key == "id":
                self.ids.append(value)
            if key != "aria-label":
                self.links += re.findall(r"url\(#([^)]+)\)", value)
            if key == "href":
                assert value.startswith("#"), value
                self.links.append(value[1:])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


class PageTest(unittest.TestCase):
    """Without matplotlib: everything but the plots."""

    def setUp(self):
        with unittest.mock.patch.object(page, "plots", None):
            self.source = page.html(made_up_results())
        self.page = Reader(self.source)

    def test_says_that_plots_are_left_out(self):
        self.assertIn("The plots are left out", self.source)
        self.assertNotIn("svg", self.page.tags)

    def test_contents(self):
        texts = self.page.texts
        self.assertEqual(texts["h1"], [page.TITLE])
        self.assertEqual(texts["h2"], ["Goals", f"Full {ODD}", "Empty"])
        for said in ("2 cores of Some CPU, 23.4 GiB, Linux 6.1", "libtorch-dev 1.13, g++ 12", "2026-11-16 12:00 UTC"):
            self.assertIn(said, texts["dd"])
        self.assertIn("2 reached, 2 NOT REACHED, 1 not measured", texts["p"])
        self.assertIn("lockstep bench", texts["code"])
        for cell in ("NOT REACHED", "reached", "not measured", "4.998", "at least 5", "at most 53.4", "0.332", ODD):
            self.assertIn(cell, texts["td"])
        self.assertEqual(texts["pre"], [f"program: exit status 1\n[rank 0] {ODD}"])
        self.assertIn(f"left out: {ODD}", texts["p"])

    def test_figures_without_goals(self):
        source = page.html(without_goals(made_up_results()))
        self.assertEqual(Reader(source).texts["h2"], ["Figures", f"Full {ODD}", "Empty"])
        for said in ("REACHED", ">reached<", "at least", "at most"):
            self.assertNotIn(said, source)

    def test_words_and_numbers(self):
        self.assertIn('<td class="words">8 B</td><td>0.332</td><td>1.24</td><td class="words">ours</td>', self.source)

    def test_reached_and_not_reached_differ_in_colour_only(self):
        for name in ("reached", "missed", "unmeasured"):
            self.assertRegex(page.STYLE, rf"\n\.{name} {{ color: [^;]+; }}\n")

    def test_links_lead_somewhere(self):
        self.assertEqual(set(self.page.links) - set(self.page.ids), set())
        self.assertIn("part-full-failures", self.page.links)

    def test_quick_and_nothing_at_all(self):
        self.assertNotIn(results.QUICK, self.source)
        self.assertIn(results.QUICK, page.html(made_up_results(quick=True, parts={})))


class PlotsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cls.source = page.html(made_up_results())
        cls.page = Reader(cls.source)

    def test_each_plot_is_there_with_its_caption(self):
        self.assertEqual(self.page.tags.count("svg"), len(made_up_plots()))
        self.assertEqual([value for tag, key, value in self.page.attributes if (tag, key) == ("svg", "aria-label")],
                         [plot.title for plot in made_up_plots()])
        self.assertIn(f", {ODD}", self.page.texts["figcaption"])

    def test_loads_nothing(self):
        for tag in ("script", "link", "img", "iframe", "image", "object"):
            self.assertNotIn(tag, self.page.tags)
        source = self.source.replace('xmlns="http://www.w3.org/2000/svg"', "")
        self.assertNotRegex(source, "https?://|@import|@font-face")

    def test_ids_are_unique_and_links_lead_somewhere(self):
        self.assertEqual(len(self.page.ids), len(set(self.page.ids)))
        self.assertEqual(set(self.page.links) - set(self.page.ids), set())

    def test_text_is_text(self):
        self.assertIn(ODD, " ".join(self.page.texts["text"]))
        for said in ("ours", "4 KiB", "1,000", "µs", "peer (not measured)", "nothing to show"):
            self.assertIn(said, self.page.texts["text"])
        self.assertNotIn("font-family:", " ".join(value for tag, key, value in self.page.attributes if key == "style"))

    def test_zero_on_a_log_axis_was_measured(self):
        def shown(*values):
            plot = Plot("", "", "", [Series("ours", ["a", "b"], list(values))], kind="bars", log_y=True)
            return Reader(plots.svg(plot)).texts["text"]
        self.assertIn("0", shown(0.0, 2.0))
        self.assertIn("-", shown(None, 2.0))
        self.assertIn("ours", shown(0.0, 0.0))
        self.assertIn("ours (not measured)", shown(None, None))

    def test_says_what_a_log_axis_cannot_show(self):
        for said in ("x (not above 0, so not on the log axis: 2)", "ranks (not above 0, so not on the log axis: 1)"):
            self.assertIn(said, self.page.texts["text"])

    def test_a_name_has_one_colour_on_the_page(self):
        look = plots.looks(made_up_plots())
        self.assertEqual(look["ours"].colour, plots.COLOURS[0][0])
        self.assertEqual(look["peer"].colour, plots.COLOURS[2][0])  # the second is ODD's
        kinds = {(one.colour, one.marker) for one in look.values()}
        self.assertEqual(len(kinds), len(look))

    def test_colours_are_the_pages(self):
        for stand_in in (plots.INK, plots.SOFT, plots.GRID, "#000000", "#ffffff"):
            self.assertNotIn(stand_in, self.source)
        for at in range(len(plots.COLOURS)):
            self.assertIn(f"var(--series-{at}, ", self.source)
            self.assertEqual(self.source.count(f"--series-{at}: "), 2)  # light and dark

    def test_the_same_results_give_the_same_page(self):
        self.assertEqual(self.source, page.html(copy.deepcopy(made_up_results())))

    def test_svg_by_itself(self):
        root = xml.etree.ElementTree.fromstring(plots.svg(made_up_plots()[0]))
        self.assertTrue(root.tag.endswith("svg"))

    def test_ticks(self):
        self.assertEqual(plots.byte_ticks(7, 300 << 20, True), [2.0 ** power for power in range(4, 29, 4)])
        self.assertEqual(plots.byte_ticks(0, 7 << 20, False), [at * float(1 << 20) for at in range(8)])
        for value, in_bytes, shown in ((8, True, "8 B"), (1024.0, True, "1 KiB"), (1 << 30, True, "1 GiB"),
                                       (1e-5, False, "0.00001"), (0.1, False, "0.1"), (1e4, False, "10,000")):
            self.assertEqual(plots.bytes_or_plain(value, in_bytes), shown)


if __name__ == "__main__":
    unittest.main()
