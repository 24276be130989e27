"""The parts of lockstep.notebook that need no ranks."""

import contextlib
import io
import os
import re
import socket
import struct
import tempfile
import threading
import unittest
from unittest import mock

import support

import lockstep
from lockstep.notebook import admission, cell, everywhere, launcher, messages, ranks, view
from lockstep.notebook.errors import NotebookError, StartError


class Package(unittest.TestCase):
    def test_version_is_that_of_the_project(self):
        with open(os.path.join(support.ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            project = re.search(r"project\(lockstep VERSION (\S+)", file.read())
        self.assertEqual(lockstep.__version__, project[1])


class RankLists(unittest.TestCase):
    def test_forms(self):
        forms = {"0": [0], "0,2": [0, 2], "[0]": [0], "[2, 0]": [0, 2], "0-1": [0, 1], "0-1,3": [0, 1, 3],
                 "all": [0, 1, 2, 3], " 1 ": [1], "1,1": [1]}
        for text, expected in forms.items():
            self.assertEqual(ranks.parse(text, 4), expected, text)

    def test_errors_name_the_rank_and_the_next_step(self):
        errors = {"4": "there is no rank 4: this job has 4 ranks, 0-3", "0-9": "there is no rank 9",
                  "x": "'x' is not a list of ranks\nhint: write ranks as 0", "": "is not a list of ranks",
                  "-1": "is not a list of ranks", "2-1": "the range 2-1 is empty",
                  "[0": "is not a list of ranks"}
        for text, said in errors.items():
            with self.assertRaisesRegex(NotebookError, re.escape(said)):
                ranks.parse(text, 4)

    def test_description(self):
        self.assertEqual(ranks.describe([5, 0, 1, 2]), "0-2,5")
        self.assertEqual(ranks.describe([]), "")


class Frames(unittest.TestCase):
    def test_any_pieces(self):
        stream = b"".join(messages.encode({"kind": "é"}) + messages.encode({"id": 1}, b"\0" * 300))
        for size in (1, 7, len(stream)):
            reader = messages.Reader()
            reader.trusted = True
            frames = []
            for begin in range(0, len(stream), size):
                reader.feed(stream[begin:begin + size])
                while (frame := reader.next()) is not None:
                    frames.append(frame)
            self.assertEqual(frames, [({"kind": "é"}, b""), ({"id": 1}, b"\0" * 300)])

    def test_a_stranger_may_send_little(self):
        two = struct.pack(">IQ", 2, 0)
        for data in (struct.pack(">IQ", 4097, 0), struct.pack(">IQ", 10, 1), two + b"[]", two + b"{x",
                     two + b"\xff\xff"):
            reader = messages.Reader()
            reader.feed(data)
            with self.assertRaises(messages.ProtocolError):
                reader.next()


class Admission(unittest.TestCase):
    def admit(self, *sent, fds=1):
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind("\0lockstep-test-" + os.urandom(8).hex())
            listener.listen(1)
            client.connect(listener.getsockname())
            reading, writing = os.pipe()
            socket.send_fds(client, list(sent), [reading] * fds)
            client.shutdown(socket.SHUT_WR)
            os.close(reading)
            os.close(writing)
            return admission.admit(listener, "secret", {0, 1})

    def test_a_rank_with_the_token_is_admitted(self):
        [hello] = messages.encode({"token": "secret", "rank": 1})
        peer = self.admit(hello)
        self.assertEqual((peer.rank, peer.pid), (1, os.getpid()))
        peer.close()

    def test_others_are_not(self):
        valid = {"token": "secret", "rank": 1}
        for hello in ({**valid, "token": "guess"}, {**valid, "token": 1}, {"rank": 1}, {**valid, "rank": 2}):
            self.assertIsNone(self.admit(*messages.encode(hello)))
        self.assertIsNone(self.admit(b"GET / HTTP/1.0\r\n\r\n"))
        self.assertIsNone(self.admit(b"\0"))
        self.assertIsNone(self.admit(*messages.encode(valid), fds=0))


class Views(unittest.TestCase):
    def shown(self, *pieces, finish=True):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            shown = view.View()
            for rank, data in pieces:
                if rank is None:
                    with mock.patch.object(view, "IDLE_SECONDS", 0):
                        shown.show_idle()
                else:
                    shown.feed(rank, data)
            if finish:
                shown.finish()
        return out.getvalue()

    def test_lines_are_not_mixed(self):
        self.assertEqual(self.shown((0, b"a"), (1, b"b\n"), (0, b"c\n")), "[rank 1] b\n[rank 0] ac\n")

    def test_an_incomplete_line_is_shown_when_idle(self):
        self.assertEqual(self.shown((0, b".."), (None, None), (0, b"."), finish=False), "[rank 0] ..")
        self.assertEqual(self.shown((0, b".."), (None, None), (0, b".\n")), "[rank 0] ...\n")
        self.assertEqual(self.shown((0, b".."), (None, None), (1, b"x\n"), (0, b".")),
                         "[rank 0] ..\n[rank 1] x\n[rank 0] .\n")

    def test_a_progress_bar_shows_its_last_state(self):
        self.assertEqual(self.shown((0, b"\r10%\r20%"), (0, b"\r30%\n")), "[rank 0] 30%\n")
        self.assertEqual(self.shown((0, b"\r10%"), (None, None), (0, b"\r20%\n")),
                         "[rank 0] 10%\r[rank 0] 20%\n")
        self.assertEqual(self.shown((0, b"a\r\nb\n")), "[rank 0] a\n[rank 0] b\n")

    def test_a_return_after_the_text(self):
        self.assertEqual(self.shown((0, b"0%\r"), (None, None), (0, b"1%\r"), (None, None), (0, b"2%\r")),
                         "[rank 0] 0%\r[rank 0] 1%\r[rank 0] 2%\n")
        self.assertEqual(self.shown((0, b"0%\r"), (0, b"1%\r"), (0, b"\n")), "[rank 0] 1%\n")
        self.assertEqual(self.shown((0, b"abc\r"), (None, None), (None, None), (0, b"\n")), "[rank 0] abc\n")
        self.assertEqual(self.shown((0, b"0%\r"), (None, None), (1, b"x\n"), (0, b"1%\r")),
                         "[rank 0] 0%\n[rank 1] x\n[rank 0] 1%\n")

    def test_more_of_a_line_does_not_delay_it(self):
        with mock.patch.object(view, "time") as time, contextlib.redirect_stdout(io.StringIO()) as out:
            shown = view.View()
            for tenth in range(10):
                time.monotonic.return_value = tenth / 10
                shown.feed(0, b".")
                shown.show_idle()
        self.assertRegex(out.getvalue(), r"^\[rank 0\] \.{6,10}$")

    def test_any_bytes(self):
        euro = "€".encode()
        self.assertEqual(self.shown((0, euro[:1]), (0, euro[1:] + b"\xff\n")), "[rank 0] €\ufffd\n")

    def test_errors_are_labelled_with_all_ranks(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            view.View().error([0, 1, 3], "a\nb\ud800\n")
        self.assertEqual(err.getvalue(), "[rank 0-1,3] a\n[rank 0-1,3] b?\n")


class Cells(unittest.TestCase):
    def run_cell(self, source):
        out = io.StringIO()
        namespace = {"__name__": "__main__"}
        with contextlib.redirect_stdout(out):
            cell.run(source, "<cell 1>", namespace)
        return out.getvalue(), namespace

    def test_the_last_expression(self):
        self.assertEqual(self.run_cell("x = 1\nx + 1")[0], "2\n")
        self.assertEqual(self.run_cell("x = 1")[0], "")
        self.assertEqual(self.run_cell("None")[0], "")
        self.assertEqual(self.run_cell("1;\n")[0], "")
        self.assertEqual(self.run_cell("")[0], "")
        self.assertEqual(self.run_cell("2")[1]["_"], 2)

    def described(self, source):
        try:
            self.run_cell(source)
        except BaseException as error:
            return cell.describe(error)
        self.fail("the cell did not raise")

    def test_a_traceback_shows_only_lines_of_the_user(self):
        error = self.described("def f():\n    return 1 / 0\ntry:\n    f()\nexcept Exception as e:\n"
                               "    raise KeyError('x') from e")
        self.assertIn("return 1 / 0", error["text"])
        self.assertIn("raise KeyError('x') from e", error["text"])
        self.assertNotIn("cell.py", error["text"])
        self.assertEqual(error["summary"], "KeyError: 'x'")

    def test_syntax_errors(self):
        error = self.described("x = (\n")
        self.assertNotIn("cell.py", error["text"])
        self.assertIn('File "<cell 1>", line 1', error["text"])
        self.assertIn("magics and shell commands run in the kernel", self.described("1\n%pull 0:x")["hint"])

    def test_an_exception_that_cannot_be_printed(self):
        source = "class E(Exception):\n    def __str__(self): raise ValueError\nraise E"
        self.assertEqual(self.described(source)["summary"], "E")
        source = "class E(SyntaxError):\n    text = 1\nraise E"
        self.assertEqual(self.described(source)["summary"], "E")

    def test_a_long_chain_of_causes(self):
        error = self.described("error = None\nfor number in range(1200):\n    try:\n"
                               "        raise ValueError(number) from error\n"
                               "    except ValueError as caught:\n        error = caught\nraise error")
        self.assertEqual(error["summary"], "ValueError: 1199")
        self.assertIn("ValueError: 0\n", error["text"])
        self.assertNotIn("cell.py", error["text"])


class Everywhere(unittest.TestCase):
    def test_which_cells_run_on_the_ranks(self):
        for cell_text in ("x = 1\n", "# a comment\nx\n", "\nx\n", "a % b\n", "x = 1  # why?\n",
                          "f(x)  # right??\n"):
            lines = cell_text.splitlines(True)
            self.assertEqual(everywhere.to_all_ranks(lines), ["%%rank all\n", *lines])
        for cell_text in ("%pull 0:x\n", "%%rank 0\nx\n", "# fetch\n%pull 0:x\n", "!ls\n", "x?\n", "?x\n",
                          "x = 1\nx.y[0]??\n", "%pull?\n", "\n", "", "# only\n", "exit\n"):
            lines = cell_text.splitlines(True)
            self.assertEqual(everywhere.to_all_ranks(lines), lines, cell_text)


class Launchers(unittest.TestCase):
    def test_the_binary(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "lockstep")
            package = os.path.join(folder, "package", "notebook", "launcher.py")  # without a bin/lockstep
            with mock.patch.dict(os.environ, {"PATH": folder, "LOCKSTEP_BIN": ""}), \
                    mock.patch.object(launcher, "__file__", package):
                with self.assertRaisesRegex(StartError, "was not found\nhint: install lockstep, or set"):
                    launcher.find_binary()
                with open(tool, "w", encoding="utf-8"):
                    os.chmod(tool, 0o755)
                self.assertEqual(launcher.find_binary(), tool)
            with mock.patch.dict(os.environ, {"LOCKSTEP_BIN": folder}):
                with self.assertRaisesRegex(StartError, "which is not an executable"):
                    launcher.find_binary()

    def started(self, script):
        """A program in place of `lockstep run`."""
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "lockstep")
            with open(tool, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + script)
            os.chmod(tool, 0o755)
            with mock.patch.dict(os.environ, {"LOCKSTEP_BIN": tool}):
                process = launcher.Launcher(2, ["program"], {"EXTRA": "1"})
            self.addCleanup(process.close)
            self.assertTrue(process.wait(60))
            return process

    def test_its_report(self):
        process = self.started("""cat <<'END'
[rank 0] lockstep run: something that a rank printed
lockstep run: rank 1 was killed by signal 9 (Killed)
  rank 1 of 2, local rank 1, host h, pid 4711
  it printed nothing
  stopping the other ranks: 0
hint: SIGKILL comes from another process
END
exit 137""")
        self.assertEqual(process.report(), ("rank 1 was killed by signal 9 (Killed) (pid 4711)",
                                            "SIGKILL comes from another process"))

    def test_no_hint_about_its_own_options(self):
        process = self.started("echo 'lockstep run: rank 0 exited with status 3'\n"
                               "echo 'hint: --log-dir DIR keeps'")
        self.assertEqual(process.report(), ("rank 0 exited with status 3", ""))

    def test_its_own_end(self):
        self.assertEqual(self.started("echo unrelated").report(), ("", ""))
        self.assertRegex(self.started("kill -9 $$").report()[0],
                         r"^lockstep run \(pid \d+\) was killed by signal 9")

    def test_its_environment(self):
        with mock.patch.dict(os.environ, {"PET_NNODES": "2"}):
            process = self.started('echo "$PET_NNODES|$EXTRA|$PYTHONPATH|$*"')
        nnodes, extra, path, arguments = process.text.strip().split("|")
        self.assertEqual((nnodes, extra, path.split(os.pathsep)[0]), ("", "1", support.PACKAGES))
        self.assertEqual(arguments, "run --nproc-per-node 2 --grace-period 3 -- program")

    def test_from_another_thread(self):
        processes = []
        thread = threading.Thread(target=lambda: processes.append(self.started("echo $PPID")))
        thread.start()
        thread.join()
        self.assertEqual(processes[0].text.strip(), str(os.getpid()))


if __name__ == "__main__":
    support.main()
