"""What `make bench` computes out of measurements, and what it refuses."""
import os
import sys
import sysconfig
import tempfile
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

from collectives import part as collectives  # noqa: E402
from kit import goals, numbers, package, ranks  # noqa: E402
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


class Package(unittest.TestCase):
    def test_found_if_it_was_built_for_the_interpreter(self):
        with tempfile.TemporaryDirectory() as build:
            folder = os.path.join(build, "python")
            self.assertIsNone(package.find(build, sys.executable))
            os.makedirs(os.path.join(folder, "lockstep"))
            for suffix, found in ((".cpython-00-no-such-machine.so", None),
                                  (sysconfig.get_config_var("EXT_SUFFIX"), folder)):
                with open(os.path.join(folder, "lockstep", "_C" + suffix), "w", encoding="utf-8"):
                    self.assertEqual(package.find(build, sys.executable), found)
            self.assertIsNone(package.find(build, None))

    def test_what_python_found_before_is_still_found(self):
        for before, path in (("", "/build/python"), ("/torch", "/build/python:/torch")):
            with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": before}):
                self.assertEqual(package.environment("/build/python"), {"PYTHONPATH": path})


class PythonOverLockstep(unittest.TestCase):
    """PyTorch's DistributedDataParallel with lockstep's backend compared with Gloo."""
    SETTINGS = types.SimpleNamespace(build="/build", python="python3", package="/build/python", quick=False, rounds=1,
                                     models=["cnn", "mlp", "gpt"], worlds=[1, 2, 4])

    def without_package(self):
        return types.SimpleNamespace(**{**vars(self.SETTINGS), "package": None})

    def measured(self, settings, ms):
        """The findings if a step takes ms[variant], or 100 ms."""
        def run(its_settings, model, variant, world):
            if not training.command_of(its_settings, variant, world):
                return None
            time_ms = ms.get(variant, 100.0)
            kinds = {"bare": time_ms, "wrapped": time_ms} if world == 1 else {
                "sync": time_ms, "local": 80.0, "barrier": 90.0, "strong": time_ms}
            return {"times_ms": kinds, "cpu_ms": kinds, "peak_mib": 200.0, "share_mib": 150.0, "parameters": 10**6,
                    "rows": 32, "buckets": 2, "threads": 1, "losses": [[1.0]] * world}
        with unittest.mock.patch.multiple(training, run_variant=run, Progress=unittest.mock.DEFAULT):
            return training.present(training.measure(settings))

    def verdicts(self, findings):
        return {(figure.what, figure.unit, figure.wanted): figure.verdict for figure in findings.figures
                if training.PYTHON in figure.what}

    def test_only_the_backend_differs(self):
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": ""}):
            ours = training.command_of(self.SETTINGS, training.PYTHON, 2)
        gloo, world, env = training.command_of(self.SETTINGS, training.TUNED, 2)
        self.assertEqual(ours, (gloo + ["--backend", "lockstep"], world, {**env, "PYTHONPATH": "/build/python"}))

    def test_left_out_without_the_package_or_pytorch(self):
        for settings in (self.without_package(), types.SimpleNamespace(**{**vars(self.SETTINGS), "python": None})):
            self.assertIsNone(training.command_of(settings, training.PYTHON, 2))
        self.assertEqual(self.measured(self.SETTINGS, {}).notes, [])
        findings = self.measured(self.without_package(), {})
        self.assertEqual(findings.notes, [package.LEFT_OUT])
        self.assertEqual(findings.failures, [])
        self.assertEqual(set(self.verdicts(findings).values()), {"not measured"})
        self.assertFalse([table.title for table in findings.tables if "Python's DDP" in table.title])
        self.assertNotIn(training.PYTHON, [row[1] for table in findings.tables for row in table.rows])

    def test_worlds(self):
        self.assertEqual([training.PYTHON in training.variants_of(world) for world in (1, 2, 4)], [False, True, True])

    def test_goals(self):
        whats = {model: (f"{model}, 2 ranks, {training.PYTHON}, training throughput", f"x {training.TUNED}", least)
                 for model, least in (("cnn", 1.15), ("mlp", 1.25))}
        for ms, cnn, mlp in ((75.0, "reached", "reached"), (85.0, "reached", "NOT REACHED"),
                             (95.0, "NOT REACHED", "NOT REACHED")):
            self.assertEqual(self.verdicts(self.measured(self.SETTINGS, {training.PYTHON: ms})),
                             {whats["cnn"]: cnn, whats["mlp"]: mlp})

    def test_shown_next_to_the_others(self):
        findings = self.measured(self.SETTINGS, {training.PYTHON: 80.0})
        both, = (table for table in findings.tables if "Python's DDP over lockstep" in table.title)
        self.assertEqual([row[:2] for row in both.rows], [[model, world] for model in ("cnn", "gpt", "mlp")
                                                          for world in ("2", "4")])
        self.assertEqual(both.rows[0][2:], ["100 [100, 100]", "80.0 [80.0, 80.0]", "1.25x", "+25.0 %", "+0.0 %", "150",
                                            "150"])
        self.assertEqual(len(both.head), len(both.rows[0]))
        for table in findings.tables:
            self.assertIn(training.PYTHON if table is not both else "cnn", str(table.rows))
        for plot in findings.plots:
            self.assertIn(training.PYTHON, [series.name for series in plot.series])


class CollectivesOverLockstep(unittest.TestCase):
    """PyTorch's collectives with lockstep's backend compared with Gloo."""
    SETTINGS = types.SimpleNamespace(build="/build", python="python3", package="/build/python", quick=True, rounds=1)

    def measured(self, settings, us, **more):
        """(findings, commands of PyTorch's ranks) if a call takes us[backend]. `more` is added to each row."""
        commands = []

        def run_ranks(command, world, seconds, env):
            commands.append((command, world, env))
            flags = dict(zip(command[2::2], command[3::2]))
            backend = "pytorch_lockstep" if flags.get("--backend") == "lockstep" else "pytorch"
            return [{"rows": [{"world": world, "collective": name, "size": 0 if name == "barrier" else int(size),
                               "dtype": "float", "backend": backend, "memory": "plain", "data": "ok",
                               "p50_us": us[backend], **more}
                              for name in flags["--collective"].split(",") for size in flags["--sizes"].split(",")]}]
        with unittest.mock.patch.object(ranks, "run_ranks", run_ranks), \
                unittest.mock.patch.object(ranks, "run", side_effect=ranks.Failure("not here")), \
                unittest.mock.patch.object(collectives, "Progress"):
            return collectives.present(collectives.measure(settings)), commands

    def verdicts(self, findings):
        return {(figure.what, figure.unit, figure.wanted): figure.verdict for figure in findings.figures
                if figure.what.endswith(collectives.PYTHON)}

    def test_only_the_backend_differs(self):
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": ""}):
            _, commands = self.measured(self.SETTINGS, {"pytorch": 100.0, "pytorch_lockstep": 10.0})
        ours = [one for one in commands if "lockstep" in one[0]]
        self.assertEqual([world for _, world, _ in ours], [2, 2])
        for command, world, env in ours:
            self.assertEqual(command[2:4], ["--backend", "lockstep"])
            self.assertEqual(env.pop("PYTHONPATH"), "/build/python")
            self.assertIn((command[:2] + command[4:], world, env), commands)

    def test_left_out_without_the_package(self):
        settings = types.SimpleNamespace(**{**vars(self.SETTINGS), "package": None})
        findings, commands = self.measured(settings, {"pytorch": 100.0})
        self.assertIn(package.LEFT_OUT + ".", findings.notes)
        self.assertFalse([command for command, _, _ in commands if "lockstep" in command])
        self.assertEqual(list(self.verdicts(findings).values()), ["not measured"])
        self.assertFalse([table.title for table in findings.tables if "over lockstep" in table.title])

    def test_goal(self):
        for us, verdict in ((12.0, "reached"), (13.0, "NOT REACHED")):
            findings, _ = self.measured(self.SETTINGS, {"pytorch": 100.0, "pytorch_lockstep": us})
            self.assertEqual(self.verdicts(findings), {
                (f"all_reduce 25 MiB, 2 ranks, {collectives.PYTHON}", f"x {collectives.PYTORCH}", 8): verdict})

    def test_shown_next_to_the_others(self):
        findings, _ = self.measured(self.SETTINGS, {"pytorch": 100.0, "pytorch_lockstep": 10.0})
        self.assertNotIn(package.LEFT_OUT + ".", findings.notes)
        both, = (table for table in findings.tables if "PyTorch over lockstep" in table.title)
        self.assertEqual({row[0] for row in both.rows}, set(collectives.COLLECTIVES))
        self.assertIn(["all_reduce", "25 MiB", "100", "10.0", "10.0"], both.rows)
        self.assertEqual(len(both.head), 5)
        by_title = {table.title: table for table in findings.tables}
        self.assertIn(collectives.PYTHON, by_title["all_reduce, 2 ranks: µs"].head)
        self.assertNotIn(collectives.PYTHON, by_title["all_reduce, 4 ranks: µs"].head)
        self.assertIn(collectives.PYTHON, [series.name for series in findings.plots[0].series])

    def test_a_replacement_is_noted_for_its_own_backend(self):
        times = {"pytorch": 100.0, "pytorch_lockstep": 10.0}
        findings, _ = self.measured(self.SETTINGS, times, instead="another call")
        for name in (collectives.PYTORCH, collectives.PYTHON):
            self.assertIn(f"{name} has no broadcast; measured instead: another call.", findings.notes)


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
        settings = types.SimpleNamespace(python="python3", package=None, quick=False, rounds=1, models=["gpt"],
                                         worlds=[2])
        with unittest.mock.patch.object(training, "run_variant", run), unittest.mock.patch.object(training, "Progress"):
            findings = training.present(training.measure(settings))
        self.assertTrue(findings.failures)
        self.assertEqual({figure.what.split(",")[0] for figure in findings.figures}, {"gpt"})
        self.assertEqual({figure.verdict for figure in findings.figures}, {"not measured"})


if __name__ == "__main__":
    unittest.main()
