"""The errors that the magics raise. IPython prints only the message: a traceback through this package would
not help the user."""


class _MessageOnly:
    def __init__(self, message, hint=""):
        super().__init__(f"{message}\nhint: {hint}" if hint else message)

    # IPython and ipykernel call this method in place of formatting a traceback.
    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class NotebookError(_MessageOnly, Exception):
    """The request is invalid, or cannot be executed now."""


class StartError(NotebookError):
    """The ranks could not be started."""


class CellError(NotebookError):
    """A cell raised an exception on one or more ranks. Its tracebacks have been shown already."""


class RanksEnded(NotebookError):
    """There are no ranks any more: one of them ended, and the launcher stopped the others."""


class CellInterrupted(_MessageOnly, KeyboardInterrupt):
    """The user interrupted a cell that ran on ranks."""
