"""Where goals hold. They were set on one kind of machine, and say nothing of another: there a figure is just a figure."""

MACHINE = {"cpu": "AMD EPYC", "usable_cores": 2}
WHERE = f"{MACHINE['usable_cores']} cores of {MACHINE['cpu']}"


def hold_on(machine):
    return all(machine.get(name) == value for name, value in MACHINE.items())


def left_out(findings):
    """The same without its goals."""
    for figure in findings.figures:
        figure.wanted = None
    return findings
