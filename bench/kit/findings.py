"""The shape of what a part found: tables, plots, and figures with the goals that were to be reached.

Parts make these out of their raw measurements; bench/report shows them and knows nothing of any part.
"""
import dataclasses
import typing


@dataclasses.dataclass
class Table:
    title: str
    head: typing.List[str]
    rows: typing.List[typing.List[str]]  # as they are shown
    note: str = ""  # what the columns mean, where their heads do not tell
    texts: int = 1  # columns on the left that are words; the rest are numbers


@dataclasses.dataclass
class Series:
    """One line, or one bar of each group. `low` and `high` are the quartiles over the rounds."""
    name: str
    x: typing.List[typing.Union[float, str]]
    y: typing.List[float]
    low: typing.List[float] = dataclasses.field(default_factory=list)
    high: typing.List[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plot:
    title: str
    x: str  # what the axis shows, with its unit
    y: str
    series: typing.List[Series]
    kind: str = "lines"  # or "bars", whose x are names of groups
    log_x: bool = False
    log_y: bool = False
    bytes_x: bool = False  # x in bytes: ticks at powers of two, with B, KiB, MiB
    note: str = ""


@dataclasses.dataclass
class Figure:
    """A number that the rest comes down to, and its goal: `got` is to be at least (or at most) `wanted`."""
    what: str
    unit: str  # "x PyTorch" and the like, after the number
    got: typing.Optional[float]  # None: not measured
    wanted: typing.Optional[float]  # None: no goal on this machine (kit/goals.py)
    at_most: bool = False

    @property
    def verdict(self):
        if self.got is None:
            return "not measured"
        if self.wanted is None:
            return ""
        reached = self.got <= self.wanted if self.at_most else self.got >= self.wanted
        return "reached" if reached else "NOT REACHED"


@dataclasses.dataclass
class Findings:
    title: str
    about: typing.List[str]  # how it was measured, a sentence or two each
    tables: typing.List[Table] = dataclasses.field(default_factory=list)
    plots: typing.List[Plot] = dataclasses.field(default_factory=list)
    figures: typing.List[Figure] = dataclasses.field(default_factory=list)
    notes: typing.List[str] = dataclasses.field(default_factory=list)  # what was left out, and why
    failures: typing.List[str] = dataclasses.field(default_factory=list)  # any of these, and `make bench` fails
