"""A Python program drives a training library in C++, through the group of torch.distributed that it already has."""

import ast
import json
import os
import unittest

import job
import support

HERE = os.path.dirname(os.path.abspath(__file__))


def missing_trainer():
    if reason := support.missing_backend():
        return reason
    try:
        import trainer  # noqa: F401
    except ImportError as error:
        return f"the module trainer, built from trainer.cc, is missing: {error}"
    return ""


MISSING = missing_trainer()
MISSING_NOTEBOOK = MISSING or support.missing()


class Compared(unittest.TestCase):
    def close(self, cpp, python):
        self.assertEqual(len(cpp), 12)
        self.assertLess(cpp[-1], cpp[0])  # it learns
        for step, (a, b) in enumerate(zip(cpp, python, strict=True)):
            self.assertLessEqual(abs(a - b), 1e-6, f"step {step}")


@unittest.skipIf(MISSING, MISSING)
class UnderLockstepRun(Compared):
    @classmethod
    def setUpClass(cls):
        place = support.Marked()
        cls.addClassCleanup(place.close)
        done = job.run(place, 2, os.path.join(HERE, "trainer_program.py"))
        if done.returncode != 0:
            raise AssertionError(f"status {done.returncode}\n{done.text}")
        found = dict(line.partition("<")[2].split("> ", 1) for line in done.text.splitlines() if "> {" in line)
        cls.found = [json.loads(found[str(rank)]) for rank in (0, 1)]

    def test_the_losses_are_those_of_python(self):
        for found in self.found:
            self.assertEqual(found["backend"], "lockstep")
            self.close(found["cpp"], found["python"])
        # Each rank has its own data.
        self.assertNotEqual(self.found[0]["cpp"], self.found[1]["cpp"])

    def test_the_library_may_be_called_again(self):
        for found in self.found:
            self.assertEqual(found["cpp again"], found["cpp"])

    def test_the_group_still_belongs_to_python(self):
        for found in self.found:
            self.assertEqual((found["total between"], found["total"]), (2.0, 2.0))

    def test_errors_of_the_library(self):
        for found in self.found:
            self.assertRegex(found["mismatch"], r"^MismatchError: [^\n]*0\.weight[^\n]*\nhint: ")
            self.assertNotIn("frame #", found["mismatch"])


@unittest.skipIf(MISSING_NOTEBOOK, MISSING_NOTEBOOK)
class InANotebook(Compared):
    def setUp(self):
        self.kernel = support.Kernel()
        self.addCleanup(self.kernel.close)

    def cell(self, code):
        output = self.kernel.run(code)
        self.assertIsNone(output.error, output)
        return output

    def test_cells_drive_the_library(self):
        self.assertIn("2 ranks over lockstep", self.cell("%dist_init -n 2 --timeout 120").stdout)
        self.cell(f"%%rank all\nimport sys\nsys.path.insert(0, {HERE!r})\nimport trainer_program")
        self.cell("%%rank all\ncpp = trainer_program.in_cpp()")
        self.cell("%%rank all\npython = trainer_program.in_python()\nassert trainer_program.total() == 2")
        found = ast.literal_eval(self.cell("%pull all:cpp python\nlosses = (cpp, python)\nlosses").value)
        for rank in (0, 1):
            self.close(found[0][rank], found[1][rank])
        # A cell that was run again is one more call.
        self.cell("%%rank all\nassert trainer_program.in_cpp() == cpp")
        output = self.kernel.run("%%rank all\ntrainer_program.in_cpp(hidden=8 + rank)")
        self.assertEqual(output.error[0], "CellError", output)
        self.assertIn("MismatchError", output.error[1])
        self.cell("%dist_close")


if __name__ == "__main__":
    support.main()
