"""What `make bench` computes out of measurements, and what it refuses."""
import os
import sys
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

from kit import goals, numbers, ranks  # noqa: E402
from kit.findings import Figure  # noqa: E402
from training import part as training  # noqa: E402


class Numbers(unittest.TestCase):
    def test_ratios_are_of_neighbours_in_time(self):
        # The machine was twice as slow in the second round, for both.
        self.assertEqual(numbers.ratio_of_rounds([10, 20, 10], [5, 10, 5]), 2)

    def test_rounds_without_a_measurement_do_not_count(self):
        self.assertEqual(numbers.ratio_of_rounds([10, None, 30], [5, 5, None]), 2)
        self.assertIsNone(numbers.ratio_of_rounds([None], [1]))
        self.assertIsNone(numbers.median([None]))

    def test_quartiles(self):
        self.assertEqual(numbers.quartiles([5, 1, 4, 2, 3]), (2, 4))
        self.assertEqual(numbers.quartiles([7]), (7, 7))
        self.assertEqual(numbers.quartiles([]), (None, None))

    def test_fits_find_the_law(self):
        x = [1e4, 1e5, 1e6, 1e7]
        start, slope = numbers.fit_line(x, [3 + 2e-6 * value for value in x])
        self.assertAlmostEqual(start, 3)
        self.assertAlmostEqual(slope, 2e-6)
        factor, exponent = numbers.fit_power(x, [5 * value**0.5 for value in x])
        self.assertAlmostEqual(factor, 5)
        self.assertAlmostEqual(exponent, 0.5)

    def test_text_has_three_digits_that_count(self):
        self.assertEqual([numbers.text(value) for value in (1234.5, 12.345, 0.012345, 0, None)],
                         ["1234", "12.3", "0.0123", "0", "-"])
        self.assertEqual([numbers.bytes_text(size) for size in (8, 1 << 10, 25 << 20)], ["8 B", "1 KiB", "25 MiB"])


class Figures(unittest.TestCase):
    def test_verdicts(self):
        self.assertEqual(Figure("", "", 1.0, 1).verdict, "reached")
        self.assertEqual(Figure("", "", 0.999, 1).verdict, "NOT REACHED")
        self.assertEqual(Figure("", "", 1.001, 1, at_most=True).verdict, "NOT REACHED")
        self.assertEqual(Figure("", "", None, 1).verdict, "not measured")
        self.assertEqual(Figure("", "", 0.999, None).verdict, "")
        self.assertEqual(Figure("", "", None, None).verdict, "not measured")

    def test_goals_hold_on_one_kind_of_machine(self):
        there = {"cpu": "AMD EPYC", "usable_cores": 2, "kernel": "6.1", "memory_gib": 4}
        self.assertTrue(goals.hold_on(there))
        for other in ({"cpu": "AMD EPYC 9755 128-Core Processor"}, {"usable_cores": 4}):
            self.assertFalse(goals.hold_on({**there, **other}))
        self.assertFalse(goals.hold_on({}))


class Ranks(unittest.TestCase):
    PRINT = "import os, json; print(json.dumps({'rank': os.environ['RANK'], 'world': os.environ['WORLD_SIZE']}))"

    def python(self, code):
        return [sys.executable, "-c", code]

    def test_each_says_its_own(self):
        self.assertEqual(ranks.run_ranks(self.python(self.PRINT), 2, 60),
                         [{"rank": "0", "world": "2"}, {"rank": "1", "world": "2"}])

    def test_one_that_fails_is_named_with_what_it_said(self):
        code = "import os, sys; sys.exit('no luck') if os.environ['RANK'] == '1' else print('{}')"
        with self.assertRaisesRegex(ranks.Failure, r"exit status 1 of rank 1\n\[rank 1\] no luck"):
            ranks.run_ranks(self.python(code), 2, 60)

    def test_a_program_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(ranks.Failure, "/no/such/program: .*No such file"):
            ranks.run_ranks(["/no/such/program"], 2, 60)

    def test_one_that_hangs_is_ended(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(ranks.Failure, "not done after 1 s"):
            ranks.run_ranks(self.python("import time; time.sleep(100)"), 2, 1)
        self.assertLess(time.monotonic() - begin, 50)

    def test_launchers_around_are_not_seen(self):
        with unittest.mock.patch.dict(os.environ, {"SLURM_PROCID": "3", "OMP_NUM_THREADS": "7", "LOCKSTEP_BIND": "0"}):
            env = ranks.clean_environment(OMP_NUM_THREADS=1)
        self.assertEqual(env["OMP_NUM_THREADS"], "1")
        self.assertNotIn("SLURM_PROCID", env)
        self.assertNotIn("LOCKSTEP_BIND", env)


class Losses(unittest.TestCase):
    RIGHT = {"losses": [[2.0, 1.0], [4.0, 3.0]]}

    def test_the_same_are_no_difference(self):
        self.assertIsNone(training.loss_difference(self.RIGHT, {"losses": [[2.0, 1.00001], [4.0, 3.0]]}))

    def test_others_are(self):
        self.assertIn("rank 1, step 0", training.loss_difference(self.RIGHT, {"losses": [[2.0, 1.0], [4.1, 3.0]]}))
        self.assertIn("nan", training.loss_difference(self.RIGHT, {"losses": [[2.0, float("nan")], [4.0, 3.0]]}))

    def test_one_process_sees_the_mean(self):
        self.assertIsNone(training.loss_difference(self.RIGHT, {"losses": [[3.0, 2.0]]}))
        self.assertIsNotNone(training.loss_difference(self.RIGHT, {"losses": [[6.0, 4.0]]}))

    def test_a_run_that_differs_is_refused(self):
        def run(_, model, variant, world):
            loss = 2.5 if variant == training.SHM else 2.0
            return {"times_ms": {"sync": 1.0}, "losses": [[loss]] * world}
        raw = {"runs": [], "failures": []}
        settings = types.SimpleNamespace(python="python3")
        with unittest.mock.patch.object(training, "run_variant", run):
            for alternation in range(len(training.VARIANTS)):  # whoever begins
                training.measure_all(settings, raw, alternation, "cnn", 4)
        self.assertNotIn(training.SHM, [one["variant"] for one in raw["runs"]])
        self.assertEqual(len(raw["failures"]), len(training.VARIANTS))
        for failure in raw["failures"]:
            self.assertIn("rejected", failure)
            self.assertIn(training.SHM, failure)

    def test_each_alternation_begins_with_another_variant(self):
        begun = []

        def run(_, model, variant, world):
            begun.append(variant)
            return {"times_ms": {"sync": 1.0}, "losses": [[1.0]] * world}
        variants = training.variants_of(2)
        with unittest.mock.patch.object(training, "run_variant", run):
            for alternation in range(len(variants)):
                training.measure_all(types.SimpleNamespace(), {"runs": [], "failures": []}, alternation, "cnn", 2)
        self.assertEqual(set(begun[::len(variants)]), set(variants))

    def test_figures_are_those_of_the_chosen_models(self):
        def run(_, model, variant, world):
            raise ranks.Failure("out of memory")
        settings = types.SimpleNamespace(python="python3", quick=False, rounds=1, models=["gpt"], worlds=[2])
        with unittest.mock.patch.object(training, "run_variant", run), unittest.mock.patch.object(training, "Progress"):
            findings = training.present(training.measure(settings))
        self.assertTrue(findings.failures)
        self.assertEqual({figure.what.split(",")[0] for figure in findings.figures}, {"gpt"})
        self.assertEqual({figure.verdict for figure in findings.figures}, {"not measured"})


if __name__ == "__main__":
    unittest.main()
