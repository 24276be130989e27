"""bench/run as a command: what it says to wrong input, and how it shows old measurements."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def bench_run(*arguments):
    command = [sys.executable, os.path.join(ROOT, "bench", "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Wrong(unittest.TestCase):
    def refused(self, said, *arguments):
        done = bench_run(*arguments)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(said, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_arguments(self):
        self.refused("the build directory is missing")
        self.refused("hint: `make bench` builds it", "/no/such/build")
        self.refused("x is not one of collectives, training", ".", "--parts", "training,x")
        self.refused("bert is not one of cnn, gpt", ".", "--models", "bert")
        self.refused("3 is not one of 1, 2, 4", ".", "--worlds", "2,3")
        for rounds in ("0", "-1", "many"):
            self.refused(f"{rounds} is not a positive integer", ".", f"--rounds={rounds}")

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            self.refused("cannot be shown: [Errno 2]", "--again", path)
            head = {"machine": {}, "versions": {}, "date": "", "command": "", "quick": False, "rounds": 1, "seconds": 1}
            for content, said in (("{", "cannot be shown"), ("{}", "not results of make bench"),
                                  (json.dumps({**head, "parts": {"training": {"raw": {}}}}), "by another version"),
                                  (json.dumps({**head, "parts": {"other": {"raw": {}}}}), "by another version")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
                self.refused(said, "--again", path)
                self.assertEqual(os.listdir(folder), ["results.json"])


GOALS_MACHINE = {"cpu": "AMD EPYC", "usable_cores": 2, "kernel": "6.1", "memory_gib": 4.0}


def measured_on(machine):
    """Of all_reduce of 25 MiB, whose goals are 10 times PyTorch's speed, 8 times with PyTorch over lockstep, and 2.5
    times Open MPI's."""
    us = {"registered": [1000.0, 1100.0], "pytorch": [20000.0, 22000.0], "pytorch_lockstep": [2000.0, 2200.0],
          "openmpi": [2000.0, 2200.0]}
    raw = {"rounds": 2, "quick": False, "cores": 2, "versions": {}, "dtypes": [], "copies": [], "notes": [], "failures": [],
           "rows": [{"world": 2, "collective": "all_reduce", "size": 25 << 20, "dtype": "float", "us": us}]}
    return {"machine": machine, "versions": {}, "date": "2026-11-16 12:00 UTC", "command": "make bench", "rounds": 2,
            "quick": False, "seconds": 60, "parts": {"collectives": {"raw": raw}}}


class Again(unittest.TestCase):
    """Old measurements are shown anew."""

    def shown(self, results):
        """What is written of them: by the name of the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "old.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(results, file)
            done = bench_run("--again", path, "--out", os.path.join(folder, "new"))
            self.assertEqual(done.returncode, 0, done.stderr)
            files = {}
            for name in os.listdir(os.path.join(folder, "new")):
                with open(os.path.join(folder, "new", name), encoding="utf-8") as file:
                    files[name] = file.read()
            return files

    def test_the_same_each_time(self):
        files = self.shown(measured_on(GOALS_MACHINE))
        self.assertEqual(sorted(files), ["report.html", "results.json", "tables.txt"])
        self.assertEqual(self.shown(json.loads(files["results.json"])), files)

    def test_goals_where_they_were_set(self):
        tables = self.shown(measured_on(GOALS_MACHINE))["tables.txt"]
        self.assertRegex(tables, r"reached +all_reduce 25 MiB, 2 ranks, registered +20\.0  x PyTorch \+ Gloo +\(at least 10\)")
        self.assertRegex(tables, r"reached +all_reduce 25 MiB, 2 ranks, PyTorch \+ lockstep +10\.0  x PyTorch \+ Gloo"
                         r" +\(at least 8\)")
        self.assertRegex(tables, r"NOT REACHED +all_reduce 25 MiB, 2 ranks, registered +2\.00  x Open MPI +\(at least 2\.5\)")

    def test_no_goals_elsewhere(self):
        files = self.shown(measured_on({**GOALS_MACHINE, "usable_cores": 4}))
        self.assertRegex(files["tables.txt"], r"all_reduce 25 MiB, 2 ranks, registered +2\.00  x Open MPI\n")
        for name in ("tables.txt", "report.html"):
            self.assertIn("Goals exist only for 2 cores of AMD EPYC", " ".join(files[name].split()))
            self.assertNotIn("REACHED", files[name])


if __name__ == "__main__":
    unittest.main()
