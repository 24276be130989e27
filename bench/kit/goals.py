"""Where goals apply. They were set for one kind of machine; on others, figures are shown without goals."""

MACHINE = {"cpu": "AMD EPYC", "usable_cores": 2}
WHERE = f"{MACHINE['usable_cores']} cores of {MACHINE['cpu']}"


def hold_on(machine):
    return all(machine.get(name) == value for name, value in MACHINE.items())


def left_out(findings):
    """Returns the findings without goals."""
    for figure in findings.figures:
        figure.wanted = None
    return findings
