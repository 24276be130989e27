"""The findings of a part: tables, plots, and figures with their goals.

Parts derive them from their raw measurements; bench/report shows them and does not depend on any part.
"""
import dataclasses
import typing


@dataclasses.dataclass
class Table:
    title: str
    head: typing.List[str]
    rows: typing.List[typing.List[str]]  # as shown
    note: str = ""  # explains the columns if their heads do not
    texts: int = 1  # number of text columns on the left; the others are numbers


@dataclasses.dataclass
class Series:
    """One line, or one bar per group. `low` and `high` are the quartiles over the rounds."""
    name: str
    x: typing.List[typing.Union[float, str]]
    y: typing.List[float]
    low: typing.List[float] = dataclasses.field(default_factory=list)
    high: typing.List[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plot:
    title: str
    x: str  # label of the axis, with its unit
    y: str
    series: typing.List[Series]
    kind: str = "lines"  # or "bars", where x contains the names of the groups
    log_x: bool = False
    log_y: bool = False
    bytes_x: bool = False  # x in bytes: ticks at powers of two, with B, KiB, MiB
    note: str = ""


@dataclasses.dataclass
class Figure:
    """A key figure and its goal: `got` should be at least (or at most) `wanted`."""
    what: str
    unit: str  # such as "x PyTorch", shown after the number
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
    about: typing.List[str]  # how it was measured, one or two sentences each
    tables: typing.List[Table] = dataclasses.field(default_factory=list)
    plots: typing.List[Plot] = dataclasses.field(default_factory=list)
    figures: typing.List[Figure] = dataclasses.field(default_factory=list)
    notes: typing.List[str] = dataclasses.field(default_factory=list)  # what was left out, and the reason
    failures: typing.List[str] = dataclasses.field(default_factory=list)  # with any of these, `make bench` fails
