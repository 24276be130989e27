"""The magics, and what they print."""

import argparse
import atexit
import pickle
import re
import shlex

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from . import everywhere, properties
from . import ranks as rank_lists
from .cluster import Cluster
from .errors import CellError, NotebookError, RanksEnded
from .view import Silent, View


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise NotebookError(f"{self.prog}: {message}", hint=f"{self.prog}? shows its options")


def _init_parser():
    parser = _Parser(prog="%dist_init", add_help=False)
    parser.add_argument("-n", "--num-processes", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "lockstep"])
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--gpu-ids")
    parser.add_argument("--all", action="store_true")
    return parser


@magics_class
class LockstepMagics(Magics):
    def __init__(self, shell):
        super().__init__(shell)
        self._cluster = None
        self._cell_names = {}
        self.get = properties.of_kernel(self._running)

    # -- the ranks -----------------------------------------------------------------------------------------

    @line_magic
    def dist_init(self, line):
        """Start the ranks of a job on this machine.

        %dist_init [-n N | --num-processes N] [--backend gloo|lockstep] [--timeout S] [--gpu-ids 1,2] [--all]

        -n N           the number of ranks (default 2)
        --backend B    the backend of torch.distributed (default: lockstep if registered, otherwise gloo)
        --timeout S    seconds that the start and each collective may take (default 300)
        --gpu-ids IDS  one GPU for each rank; without it, the device of the ranks is the CPU
        --all          plain cells run on all ranks, as after `%dist_mode all`
        """
        options = _init_parser().parse_args(_split(line))
        if options.num_processes < 1:
            raise NotebookError(f"%dist_init: {options.num_processes} is not a number of ranks")
        if not options.timeout > 0:
            raise NotebookError("%dist_init: --timeout must be a positive number of seconds")
        gpu_ids = _gpu_ids(options.gpu_ids, options.num_processes)
        self._check_none_running()
        self._cell_names = {}
        self._cluster = Cluster(options.num_processes, View(), options.backend, options.timeout, gpu_ids)
        if options.all:
            everywhere.set_mode(self.shell, "all")
        print(self._headline())
        for peer in self._cluster.peers:
            print(f"  rank {peer.rank}: pid {peer.pid}, {peer.facts['device']}")

    @line_magic
    def dist_close(self, line):
        """End the ranks. Plain cells run in the kernel again."""
        _no_arguments("%dist_close", line)
        everywhere.set_mode(self.shell, "local")
        if self._cluster is None or self._cluster.end:
            print("there are no ranks")
            return
        view = View()
        try:
            self._cluster.check(view)
        except RanksEnded as ended:
            print(ended)
            return
        self._cluster.close(view)
        print(f"{rank_lists.count(self._cluster.size)} ended")

    @line_magic
    def dist_status(self, line):
        """Show the ranks: process, device, and what they are doing."""
        _no_arguments("%dist_status", line)
        if self._cluster is None:
            print("there are no ranks: %dist_init starts them")
            return
        try:
            self._cluster.check(View())
        except RanksEnded as ended:
            print(ended)
            return
        print(self._headline())
        for peer in self._cluster.peers:
            state = "idle" if peer.request is None else "still running an interrupted cell"
            print(f"  rank {peer.rank}: pid {peer.pid}, {peer.facts['device']}, {state}")

    @line_magic
    def dist_mode(self, line):
        """Choose where plain cells run: `%dist_mode all` on all ranks, `%dist_mode local` in the kernel."""
        mode = line.strip()
        if mode not in ("all", "local", ""):
            raise NotebookError(f"%dist_mode: {mode!r} is not a mode", hint="use all or local")
        if mode == "all":
            self._running()
        if mode:
            everywhere.set_mode(self.shell, mode)
        print(self._mode_text())

    # -- cells ---------------------------------------------------------------------------------------------

    @cell_magic
    def rank(self, line, cell):
        """Run a cell on ranks: %%rank 0   %%rank 0,2   %%rank [0]   %%rank 0-1   %%rank all"""
        cluster = self._running()
        if not line.strip():
            raise NotebookError("%%rank needs the ranks to run the cell on", hint=rank_lists.HINT)
        ranks = rank_lists.parse(line, cluster.size)
        request = {"kind": "run", "source": cell, "name": self._cell_name()}
        _, errors = cluster.request(ranks, request, View())
        _raise_for("the cell", errors)

    def _cell_name(self):
        """The name of a cell in tracebacks: its number in the notebook. If one cell of the notebook runs
        several (in a loop), also a second number: a name must not stand for two sources."""
        number = self.shell.execution_count
        runs = self._cell_names[number] = self._cell_names.get(number, 0) + 1
        return f"<cell {number}>" if runs == 1 else f"<cell {number}, run {runs}>"

    # -- values --------------------------------------------------------------------------------------------

    @line_magic
    def pull(self, line):
        """Copy variables of ranks to the kernel.

        %pull 1:x       x of rank 1
        %pull 0,1:x     a dict by rank; also 0-1:x, all:x
        %pull 1:x y     several variables
        """
        cluster = self._running()
        where, colon, names = line.partition(":")
        if not colon:
            raise NotebookError("%pull needs a rank and a variable", hint="write %pull 0:x or %pull all:x")
        ranks = rank_lists.parse(where, cluster.size)
        values = {name: self._pull(cluster, ranks, name) for name in _names("%pull", names)}
        for name, by_rank in values.items():
            self.shell.user_ns[name] = by_rank[ranks[0]] if where.strip().isdigit() else by_rank

    def _pull(self, cluster, ranks, name):
        replies, errors = cluster.request(ranks, {"kind": "pull", "name": name}, View())
        _raise_for(f"%pull of {name}", errors)
        return {rank: _load(name, rank, payload) for rank, (_, payload) in replies.items()}

    @line_magic
    def push(self, line):
        """Copy variables of the kernel to ranks: %push x   %push x y   %push 0,2:x"""
        cluster = self._running()
        where, colon, names = line.rpartition(":")
        ranks = rank_lists.parse(where if colon else "all", cluster.size)
        values = {}
        for name in _names("%push", names):
            if name not in self.shell.user_ns:
                raise NotebookError(f"%push: the kernel has no variable {name}")
            values[name] = self.shell.user_ns[name]
        _, errors = cluster.request(ranks, {"kind": "push"}, View(), _dump(values))
        _raise_for("%push", errors)

    # -- inside --------------------------------------------------------------------------------------------

    def close(self):
        everywhere.set_mode(self.shell, "local")
        if self._cluster is not None:
            self._cluster.close(Silent())

    def _running(self):
        if self._cluster is None:
            raise NotebookError("there are no ranks", hint="%dist_init -n 2 starts two")
        self._cluster.check(View())
        return self._cluster

    def _check_none_running(self):
        try:
            cluster = self._running()
        except NotebookError:
            return
        raise NotebookError(f"{rank_lists.count(cluster.size)} are running already",
                            hint="%dist_close ends them; then run %dist_init again")

    def _headline(self):
        backend = self._cluster.peers[0].facts["backend"]
        return f"{rank_lists.count(self._cluster.size)} over {backend}; {self._mode_text()}"

    def _mode_text(self):
        where = {"all": "on all ranks", "local": "in the kernel"}[everywhere.mode_of(self.shell)]
        return f"plain cells run {where}"


def _split(line):
    try:
        return shlex.split(line)
    except ValueError as error:
        raise NotebookError(f"%dist_init: {error}") from None


def _no_arguments(magic, line):
    if line.strip():
        raise NotebookError(f"{magic} takes no arguments, but got {line.strip()!r}")


def _names(magic, text):
    names = re.split(r"[,\s]+", text.strip())
    for name in names:
        if not name.isidentifier():
            raise NotebookError(f"{magic}: {name!r} is not the name of a variable",
                                hint=f"write {magic} {'0:x' if magic == '%pull' else 'x'}")
    return names


def _gpu_ids(text, size):
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise NotebookError(f"%dist_init: {text!r} is not a list of GPUs", hint="write --gpu-ids 0,1")
    ids = [int(number) for number in text.split(",")]
    import torch

    if not torch.cuda.is_available():
        raise NotebookError("%dist_init: --gpu-ids needs CUDA, which this torch or machine does not have",
                            hint="leave out --gpu-ids to run the ranks on the CPU")
    if len(ids) != size or max(ids) >= torch.cuda.device_count():
        raise NotebookError(f"%dist_init: --gpu-ids {text} is not one GPU for each of {size} ranks: this "
                            f"machine has {torch.cuda.device_count()} GPUs")
    return ids


def _raise_for(what, errors):
    """One short error in the kernel, so that the cells after it do not run. Tracebacks have been shown."""
    if not errors:
        return
    first = min(errors)
    raise CellError(f"{what} failed on rank {rank_lists.describe(errors)}: {errors[first]['summary']}",
                    hint=errors[first]["hint"])


def _dump(values):
    pickles = {}
    for name, value in values.items():
        try:
            pickles[name] = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            kind = type(value).__name__
            raise NotebookError(f"%push of {name}: its type, {kind}, cannot be pickled: {error}",
                                hint="create it on the ranks, or push the data it is made from") from None
    return pickle.dumps(pickles)


def _load(name, rank, payload):
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise NotebookError(f"%pull: {name} of rank {rank} cannot be loaded in the kernel: {error}",
                            hint="run the cell that defines its class in the kernel, too, or pull tensors, "
                                 "for example a state_dict()") from None


def load(shell):
    magics = LockstepMagics(shell)
    shell.register_magics(magics)
    shell.user_ns.setdefault("get", magics.get)
    shell.lockstep_magics = magics
    # The ranks would end anyway, when they notice that the kernel has; this way they leave in order.
    atexit.register(magics.close)


def unload(shell):
    magics = shell.lockstep_magics
    magics.close()
    atexit.unregister(magics.close)
    for kind, names in (("line", ("dist_init", "dist_close", "dist_status", "dist_mode", "pull", "push")),
                        ("cell", ("rank",))):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    if shell.user_ns.get("get") is magics.get:
        del shell.user_ns["get"]
    del shell.lockstep_magics
