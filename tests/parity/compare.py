"""Compares the output of two programs for the same training. Exits with 1 and prints the differences if there are any.

    compare.py STEPS RANKS EXPECTED_DIR ACTUAL_DIR

Losses must agree to 1e-5, parameters and buffers to 1e-4: relative, or absolute below 1. Within one program, all ranks
must have the same parameters to the last digit.
"""
import json
import sys

LOSS, TENSOR = 1e-5, 1e-4


def load(directory, steps, ranks):
    """Losses by (rank, step) and tensors by (rank, kind), in the order of the log."""
    losses, tensors = {}, {(rank, kind): [] for rank in range(ranks) for kind in ("parameter", "buffer")}
    for rank in range(ranks):
        with open(f"{directory}/rank_{rank}.log", encoding="utf-8") as lines:
            for text in lines:
                if not text.startswith("{"):
                    continue  # a message
                entry = json.loads(text)
                assert entry["rank"] == rank, text
                if "loss" in entry:
                    losses[rank, entry["step"]] = entry["loss"]
                else:
                    kind = "parameter" if "parameter" in entry else "buffer"
                    tensors[rank, kind].append((entry[kind], entry["shape"], entry["values"]))
    assert sorted(losses) == [(rank, step) for rank in range(ranks) for step in range(steps)], \
        f"{directory}: losses of {len(losses)} steps instead of {steps * ranks}"
    return losses, tensors


def difference(expected, actual):
    return abs(expected - actual) / max(1, abs(expected))


def main(steps, ranks, expected_directory, actual_directory):
    wrong = []
    programs = [load(directory, steps, ranks) for directory in (expected_directory, actual_directory)]
    (expected_losses, expected_tensors), (losses, tensors) = programs

    worst_loss = 0
    for (rank, step), loss in sorted(losses.items()):
        error = difference(expected_losses[rank, step], loss)
        worst_loss = max(worst_loss, error)
        if not error <= LOSS:  # also true for NaN
            wrong.append(f"rank {rank} step {step}: loss {loss} instead of {expected_losses[rank, step]}")
    if any(losses[rank, step] == losses[0, step] for rank in range(1, ranks) for step in range(steps)):
        wrong.append("two ranks have the same loss: they should not have the same data")

    worst = {"parameter": 0, "buffer": 0}
    for (rank, kind), items in tensors.items():
        expected_items = expected_tensors[rank, kind]
        shapes = [[shape for _, shape, _ in side] for side in (expected_items, items)]
        if shapes[0] != shapes[1]:
            wrong.append(f"rank {rank}: {kind}s of shapes {shapes[1]} instead of {shapes[0]}")
            continue
        for (_, _, expected_values), (name, _, values) in zip(expected_items, items):
            errors = [difference(*pair) for pair in zip(expected_values, values, strict=True)]
            worst[kind] = max(worst[kind], *errors)
            at = next((i for i, error in enumerate(errors) if not error <= TENSOR), None)
            if at is not None:
                wrong.append(f"rank {rank}: {kind} {name}, element {at}: {values[at]} instead of {expected_values[at]}")

    for directory, (_, of) in zip((expected_directory, actual_directory), programs):
        if not of[0, "parameter"]:
            wrong.append(f"{directory}: no parameters")
        for rank in range(1, ranks):
            for (name, _, mine), (_, _, first) in zip(of[rank, "parameter"], of[0, "parameter"]):
                if mine != first:
                    wrong.append(f"{directory}: {name} of rank {rank} is not that of rank 0")

    count = {kind: len(tensors[0, kind]) for kind in worst}
    print(f"{len(losses)} losses, largest difference {worst_loss:.1e}; "
          f"{count['parameter']} parameters, {worst['parameter']:.1e}; {count['buffer']} buffers, {worst['buffer']:.1e}")
    for text in wrong:
        print("wrong:", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
