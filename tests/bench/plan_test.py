"""bench/plan: which cases are compared, what the prediction is told, and how errors are counted."""
import json
import os
import sys
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

from kit import netns, ranks  # noqa: E402
from plan import part  # noqa: E402

SETTINGS = types.SimpleNamespace(build="/build", quick=False)
CONSTANTS = {"source": "measured on 2 cores of a CPU", "trip_s": 6e-5}


class Cases(unittest.TestCase):
    def test_all_worlds_and_links(self):
        cases = list(part.cases(False, [part.SHM, part.HYBRID, part.GLOO]))
        self.assertEqual(len(cases), len(set(cases)))
        for backend in (part.SHM, part.HYBRID):
            worlds = {machines * each for machines, each, _, its, _ in cases if its == backend}
            self.assertEqual(worlds, {2, 4, 8}, backend)
        self.assertEqual({mbit for machines, _, mbit, _, _ in cases if machines > 1}, {1000, 300, 100})
        self.assertTrue(all(mbit is None for machines, _, mbit, _, _ in cases if machines == 1))

    def test_only_possible_ones(self):
        self.assertEqual({case[3] for case in part.cases(False, [part.SHM, part.GLOO])}, {part.SHM, part.GLOO})
        self.assertEqual({case[0] for case in part.cases(False, [])}, {1})


class Places(unittest.TestCase):
    def test_ranks_are_divided(self):
        machines = netns.Machines(2)
        places = [ranks.place_of(rank, 4, machines) for rank in range(4)]
        self.assertEqual([words[-1] for words, _ in places], [machines.names[0]] * 2 + [machines.names[1]] * 2)
        self.assertEqual([place["LOCAL_RANK"] for _, place in places], [0, 1, 0, 1])
        self.assertEqual({place["LOCAL_WORLD_SIZE"] for _, place in places}, {2})
        self.assertEqual({place["MASTER_ADDR"] for _, place in places}, {machines.address(0)})

    def test_one_machine(self):
        self.assertEqual(ranks.place_of(1, 2, None), ([], {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}))


class Measured(unittest.TestCase):
    """What is made of programs that say the same each time."""

    def findings(self, backends=("shm", "hybrid", "gloo"), why_not=None, predicted_s=0.11):
        self.commands = []

        def run(command, seconds, env=None):
            self.commands.append(command[1:])
            if command[1] == "info":
                return json.dumps({"backends": {name: {"available": True} for name in backends}})
            if command[1] == "plan":
                return json.dumps({"job": {"constants": CONSTANTS}, "prediction": {"step_s": predicted_s},
                                   "alternatives": {"ring_s": 2 * predicted_s}})
            return ""

        def run_ranks(command, world, seconds, env=None, cpus=None, machines=None):
            if world == 8 and machines is None:
                raise ranks.Failure("out of memory")
            times = {"local": [90.0, 90.0], "sync": [100.0, 100.0]}
            return [{"times_ms": times, "cpu_ms": times, "peak_mib": 1, "share_mib": 1, "parameters": 12595200, "rows": 1,
                     "buckets": 1, "threads": 1, "losses": [1.0]}] * world
        with unittest.mock.patch.multiple(ranks, run=run, run_ranks=run_ranks), \
                unittest.mock.patch.multiple(netns, machines=unittest.mock.MagicMock(), why_not=lambda: why_not), \
                unittest.mock.patch.object(part, "Progress"):
            return part.present(part.measure(SETTINGS))

    def test_what_the_prediction_is_told(self):
        self.findings()
        told = [command for command in self.commands if command[0] == "plan" and "300Mbit" in command]
        self.assertTrue(told)
        flags = dict(zip(told[0][2::2], told[0][3::2]))
        cores = len(os.sched_getaffinity(0))
        self.assertEqual((flags["--params"], flags["--step-ms"], flags["--nodes"], flags["--ranks-per-node"]),
                         ("12595200", "90", "2", "1"))
        self.assertEqual(float(flags["--cores"]), cores / 2)
        local = next(command for command in self.commands if command[0] == "plan")
        self.assertNotIn("--link", local)

    def test_errors(self):
        findings = self.findings()
        figure, = findings.figures
        self.assertAlmostEqual(figure.got, 10)
        self.assertEqual((figure.wanted, figure.verdict), (15, "reached"))
        self.assertEqual(self.findings(predicted_s=0.08).figures[0].verdict, "NOT REACHED")
        summary, cases = findings.tables
        self.assertIn(["lockstep", "100 Mbit/s", "18", "10.0 %", "+10.0 %", "mlp, 2 x 1"], summary.rows)
        self.assertIn(["one TCP ring (Gloo)", "one machine", "6", "120.0 %", "+120.0 %", "mlp, 2"], summary.rows)
        for table in findings.tables:
            self.assertEqual({len(row) for row in table.rows}, {len(table.head)})
        self.assertEqual(cases.rows[0], ["one machine", "2", "shm", "mlp", "90.0", "100", "110", "+10.0 %", "10.0", "20.0"])
        self.assertEqual(len(findings.failures), 2 * len(part.TENSORS))
        self.assertIn("out of memory", findings.failures[0])

    def test_what_is_left_out_is_said(self):
        findings = self.findings(backends=("shm", "gloo"))
        self.assertTrue([note for note in findings.notes if note.startswith("hybrid is left out")])
        findings = self.findings(why_not="ip is not installed")
        self.assertTrue([note for note in findings.notes if "ip is not installed" in note])
        self.assertEqual({row[0] for row in findings.tables[1].rows}, {"one machine"})

    def test_nothing_measured(self):
        findings = part.present({"runs": [], "constants": None, "notes": [], "failures": ["all"]})
        self.assertEqual(findings.figures[0].verdict, "not measured")


if __name__ == "__main__":
    unittest.main()
