"""%dist_mode: plain cells run on all ranks instead of in the kernel."""

import re

_LEAVES_SHELL = {"exit", "exit()", "quit", "quit()"}
_HELP = re.compile(r"%{0,2}[\w.*\[\]]+\?{1,2}")  # x? and x.y??, but not a comment that ends in a question


def _stays_in_kernel(lines):
    code = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not code:
        return True
    return code[0].startswith(("%", "!", "?")) or _HELP.fullmatch(code[-1]) or code[0] in _LEAVES_SHELL


def to_all_ranks(lines):
    """An input transformer of IPython: the lines of a cell in, the lines to execute out."""
    return lines if _stays_in_kernel(lines) else ["%%rank all\n", *lines]


# IPython then does not apply it when it checks whether a cell is complete. A cell magic is complete only
# after an empty line, but the user has typed a plain cell.
to_all_ranks.has_side_effects = True


def mode_of(shell):
    return "all" if to_all_ranks in shell.input_transformers_cleanup else "local"


def set_mode(shell, mode):
    transformers = shell.input_transformers_cleanup
    if mode == "all" and to_all_ranks not in transformers:
        transformers.append(to_all_ranks)
    elif mode == "local" and to_all_ranks in transformers:
        transformers.remove(to_all_ranks)
