"""docs/notebooks/ddp-from-scratch.ipynb: executed in a new kernel, what it claims holds."""

import json
import os
import re
import subprocess
import sys
import unittest

import support

MISSING = support.missing()
NOTEBOOKS = os.path.join(support.ROOT, "docs", "notebooks")
STORY = os.path.join(NOTEBOOKS, "ddp-from-scratch.ipynb")
REFUSED = "the cell failed on rank 0-1: ValueError: the parameters differ between the ranks"


def text_of(outputs):
    return "".join(output.get("text", "") for output in outputs)


class Claims:
    """What must be in the outputs of the notebook, wherever they come from."""

    cells = {}  # the outputs by the cell's id

    def printed(self, cell, pattern):
        match = re.search(pattern, text_of(self.cells[cell]))
        self.assertIsNotNone(match, f"{cell}: {self.cells[cell]}")
        return match

    def test_only_the_model_with_different_seeds_is_refused(self):
        failed = {name: output["evalue"] for name, outputs in self.cells.items() for output in outputs
                  if output["output_type"] == "error"}
        self.assertEqual(list(failed), ["seeds-differ"])
        self.assertIn(REFUSED, failed["seeds-differ"])
        # Ranks that fail at different times are shown separately.
        self.printed("seeds-differ", r"\[rank 0(-1)?\] ValueError: the parameters differ")
        for rank in (0, 1):
            self.printed("seeds-equal", rf"\[rank {rank}\] accepted")

    def test_replicas_diverge_without_an_exchange(self):
        self.printed("gap", r"\[rank 0\] gap at the start: 0\.0\n")
        self.assertGreater(float(self.printed("diverge", r"gap after step 1: (\S+)")[1]), 0)
        self.assertGreater(float(self.printed("diverge", r"gap after step 10: (\S+)")[1]), 0)

    def test_replicas_stay_identical_with_it(self):
        steps = re.findall(r"step +(\d+): loss (\S+), gap (\S+)", text_of(self.cells["train"]))
        self.assertEqual([step for step, _, _ in steps], ["1", "10", "100", "300"])
        self.assertEqual({gap for _, _, gap in steps}, {"0.0"})
        self.assertLess(float(steps[-1][1]), float(steps[0][1]) / 2)
        self.printed("identical", "replicas identical: True")

    def test_gradients_are_those_of_the_whole_batch(self):
        for cell in ("whole-batch", "accumulate", "torch-no-sync"):
            differences = re.findall(r"largest difference \D*(\S+)\n", text_of(self.cells[cell]))
            self.assertTrue(differences, cell)
            for difference in differences:
                self.assertLess(float(difference), 1e-6, cell)
        self.printed("accumulate", "without no_sync: 16 exchanges")
        self.printed("accumulate", "with no_sync: 4 exchanges")

    def test_the_times_name_the_cores(self):
        self.printed("time-define", r"\[rank 0\] \d+ of \d+ cores, \d+ thread")
        for batch in (256, 4096):
            self.printed("time-alone", rf"rank 0 alone: \d+ ms per step of {batch} examples")
            self.printed("time-together", rf"2 ranks on \d+ cores: \d+ ms per step of {batch} examples, \S+")

    def test_torch_arrives_at_the_same_parameters(self):
        difference = self.printed("torch", r"largest difference to the wrapper built by hand: (\S+)")[1]
        self.assertLess(float(difference), 1e-5)
        self.printed("torch", r"gap between the ranks: 0\.0,")

    def test_the_ranks_are_closed(self):
        self.printed("end", "2 ranks ended")


def execute(place, *arguments):
    return subprocess.run([sys.executable, os.path.join(NOTEBOOKS, "execute"), *arguments], text=True,
                          env=place.environment, capture_output=True, timeout=support.PATIENCE_SECONDS)


def outputs_in(path):
    with open(path, encoding="utf-8") as file:
        cells = json.load(file)["cells"]
    return {cell["id"]: [{**output, "text": "".join(output.get("text", ""))} for output in cell["outputs"]]
            for cell in cells if cell["cell_type"] == "code"}


@unittest.skipIf(MISSING, MISSING)
class Executed(Claims, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = support.Marked()
        cls.addClassCleanup(place.close)
        result = os.path.join(place.folder, "result.ipynb")
        done = execute(place, STORY, "--output", result)
        if done.returncode != 0:
            raise AssertionError(f"execute: status {done.returncode}\n{done.stderr}")
        cls.cells = outputs_in(result)


@unittest.skipIf(MISSING, MISSING)
class Stored(Claims, unittest.TestCase):
    """The outputs in the repository, which readers see without executing anything."""

    @classmethod
    def setUpClass(cls):
        cls.cells = outputs_in(STORY)

    def test_nothing_about_a_machine_is_stored(self):
        with open(STORY, encoding="utf-8") as file:
            text = file.read()
        metadata = json.loads(text)["metadata"]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        self.assertEqual(metadata, {"kernelspec": kernel, "language_info": {"name": "python"}})
        self.assertNotRegex(text, r"/(home|root|tmp|work|usr|var|opt|mnt)/")


@unittest.skipIf(MISSING, MISSING)
class Failing(unittest.TestCase):
    def test_a_notebook_that_fails_is_not_stored(self):
        import nbformat

        place = support.Marked()
        self.addCleanup(place.close)
        path = os.path.join(place.folder, "failing.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
        with open(path, encoding="utf-8") as file:
            before = file.read()
        done = execute(place, path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ZeroDivisionError", done.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)


if __name__ == "__main__":
    support.main()
