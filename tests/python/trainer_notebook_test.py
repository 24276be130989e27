"""The cells of a notebook drive the C++ library of trainer_test.py."""

import ast
import unittest

import support
import trainer_test

MISSING = trainer_test.MISSING or support.missing()


@unittest.skipIf(MISSING, MISSING)
class InANotebook(trainer_test.Compared):
    def setUp(self):
        self.kernel = support.Kernel()
        self.addCleanup(self.kernel.close)

    def cell(self, code):
        output = self.kernel.run(code)
        self.assertIsNone(output.error, output)
        return output

    def test_cells_drive_the_library(self):
        self.assertIn("2 ranks over lockstep", self.cell("%dist_init -n 2 --timeout 120").stdout)
        self.cell(f"%%rank all\nimport sys\nsys.path.insert(0, {trainer_test.HERE!r})\nimport trainer_program")
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
