"""A Python program drives a training library in C++, through the group of torch.distributed that it already has."""

import json
import os
import unittest

import job
import support

HERE = os.path.dirname(os.path.abspath(__file__))


MISSING = support.missing_backend()
if not MISSING:
    import trainer  # noqa: F401 CMake has built it from trainer.cc, so it must be there


class Compared(unittest.TestCase):
    def close(self, cpp, python):
        self.assertEqual(len(cpp), 12)
        self.assertLess(cpp[-1], cpp[0])  # it learns
        for step, (a, b) in enumerate(zip(cpp, python, strict=True)):
            self.assertLessEqual(abs(a - b), 1e-6, f"step {step}")


@unittest.skipIf(MISSING, MISSING)
class UnderLockstepRun(Compared):
    machines = "aa"

    @classmethod
    def setUpClass(cls):
        place = support.Marked()
        cls.addClassCleanup(place.close)
        done = job.run(place, 2, os.path.join(HERE, "trainer_program.py"), machines=cls.machines)
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


@unittest.skipIf(MISSING, MISSING)
class OnTwoMachines(UnderLockstepRun):
    machines = "ab"


if __name__ == "__main__":
    support.main()
