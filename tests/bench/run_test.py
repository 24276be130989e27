"""bench/run as a command: what it says to wrong input, and that it shows old measurements as they were shown."""
import glob
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
        self.refused("which build directory?")
        self.refused("hint: `make bench` builds it", "/no/such/build")
        self.refused("x is none of collectives, training", ".", "--parts", "training,x")
        self.refused("bert is none of cnn, gpt", ".", "--models", "bert")
        self.refused("3 is none of 1, 2, 4", ".", "--worlds", "2,3")
        for rounds in ("0", "-1", "many"):
            self.refused(f"{rounds} is no number from 1 on", ".", f"--rounds={rounds}")

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            self.refused("cannot be shown: [Errno 2]", "--again", path)
            head = {"machine": {}, "versions": {}, "date": "", "command": "", "quick": False, "rounds": 1, "seconds": 1}
            for content, said in (("{", "cannot be shown"), ("{}", "no results of make bench"),
                                  (json.dumps({**head, "parts": {"training": {"raw": {}}}}), "of another version"),
                                  (json.dumps({**head, "parts": {"other": {"raw": {}}}}), "of another version")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
                self.refused(said, "--again", path)
                self.assertEqual(os.listdir(folder), ["results.json"])


class Kept(unittest.TestCase):
    def test_tables_are_what_the_measurements_give(self):
        kept = glob.glob(os.path.join(ROOT, "bench", "results", "**", "results.json"), recursive=True)
        self.assertTrue(kept)
        for path in kept:
            with tempfile.TemporaryDirectory() as folder:
                done = bench_run("--again", path, "--out", folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(os.path.join(folder, "tables.txt"), encoding="utf-8") as made, \
                     open(os.path.join(os.path.dirname(path), "tables.txt"), encoding="utf-8") as shown:
                    self.assertEqual(made.read(), shown.read())


if __name__ == "__main__":
    unittest.main()
