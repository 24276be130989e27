"""Lists of ranks, as users write them and as messages show them."""

import re

from .errors import NotebookError

_ITEM = re.compile(r"(\d+)(?:-(\d+))?")
HINT = "write ranks as 0 or 0,2 or [0,2] or 0-1, or all"


def parse(text, world_size):
    """The ranks that "0,2", "[0]", "0-1" or "all" names, in ascending order."""
    plain = text.strip()
    if plain.startswith("[") and plain.endswith("]"):
        plain = plain[1:-1]
    if plain.strip() == "all":
        return list(range(world_size))
    chosen = set()
    for item in plain.split(","):
        match = _ITEM.fullmatch(item.strip())
        if not match:
            raise NotebookError(f"{text.strip()!r} is not a list of ranks", hint=HINT)
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise NotebookError(f"the range {item.strip()} is empty", hint="write the smaller rank first")
        if last >= world_size:
            raise NotebookError(f"there is no rank {last}: this job has {count(world_size)}, "
                                f"{describe(range(world_size))}", hint=HINT)
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def describe(ranks):
    """[0, 1, 2, 5] as "0-2,5"."""
    parts = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def count(number):
    return "1 rank" if number == 1 else f"{number} ranks"
