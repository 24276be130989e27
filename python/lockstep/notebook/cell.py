"""One cell in a rank: runs it, prints the value of its last expression, describes its exception."""

import ast
import linecache
import os
import traceback

from .errors import NotebookError

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(source, name, namespace):
    """Raises whatever the cell raises. `name` is its file name in tracebacks."""
    # Tracebacks and inspect.getsource find the lines of the cell here.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    body = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec", dont_inherit=True), namespace)
    if last is None:
        return
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
    if value is not None:
        namespace["_"] = value
        # As in IPython, a semicolon at the end of a cell suppresses its value.
        if not source.rstrip().endswith(";"):
            print(_pretty(value))


def describe(error):
    """What the kernel shows: the traceback without the frames of this package, a summary, perhaps a hint."""
    try:
        return {"text": _text(error), "summary": _summary(error), "hint": _hint(error)}
    except Exception as another:  # of the user's class, or because there is too much to format
        kind = type(error).__name__
        return {"text": f"{kind}: cannot be shown because of a {type(another).__name__}\n", "summary": kind,
                "hint": ""}


def _text(error):
    formatted = traceback.TracebackException.from_exception(error)
    _remove_own_frames(formatted)
    if isinstance(error, NotebookError) and formatted.stack is None:
        return ""  # an error of this package, not of the cell: the summary is the whole message
    return "".join(formatted.format())


def _summary(error):
    if isinstance(error, NotebookError):
        return str(error)  # a complete message, with its hint
    try:
        message = str(error).strip()
    except Exception:
        message = ""
    return type(error).__name__ + (f": {message.splitlines()[0]}" if message else "")


def _remove_own_frames(formatted):
    waiting = [formatted]  # not recursive: a chain of causes may be longer than Python's stack
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        others = [frame for frame in one.stack if not frame.filename.startswith(_HERE)]
        # None: a header without frames would be printed otherwise.
        one.stack = traceback.StackSummary.from_list(others) if others else None
        waiting += [one.__cause__, one.__context__]
        waiting += getattr(one, "exceptions", None) or ()  # of an exception group


def _hint(error):
    if isinstance(error, SyntaxError) and (error.text or "").lstrip().startswith(("%", "!")):
        return "magics and shell commands run in the kernel: put them into a cell without %%rank"
    return ""


def _pretty(value):
    try:
        from IPython.lib.pretty import pretty
    except ImportError:
        return repr(value)
    return pretty(value)
