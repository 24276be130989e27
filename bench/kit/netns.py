"""Machines that share this one's cores: network namespaces, each with one link of a limited rate to a common switch."""
import contextlib
import os
import subprocess

from kit.ranks import Failure

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "..", "..", "tests", "support", "network-namespaces")
PREFIX = f"lockstep-{os.getpid()}-"
SWITCH = PREFIX + "switch"


def why_not():
    """Why namespaces cannot be made here; None if they can."""
    done = subprocess.run([CHECK], capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else done.stdout.strip()


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr.strip()}")


def limit(namespace, device, mbit):
    # The queue holds 20 ms. A larger burst than a few packets is needed: the kernel passes on up to 64 KiB at once.
    command("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb",
            "latency", "20ms")


class Machines:
    """`count` namespaces. A machine's link has `mbit` Mbit/s in each direction; its address is that of the first word."""

    SUBNET = "10.77.0.0/24"
    INTERFACE = "link0"

    def __init__(self, count):
        self.names = [f"{PREFIX}{machine}" for machine in range(count)]

    def address(self, machine):
        return f"10.77.0.{machine + 1}"

    def inside(self, machine):
        """The words that run a command on the machine."""
        return ["ip", "netns", "exec", self.names[machine]]


@contextlib.contextmanager
def machines(count, mbit):
    """Makes them, and removes them at the end of the block."""
    made = Machines(count)
    names = [SWITCH] + made.names
    try:
        for name in names:
            command("ip", "netns", "add", name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", SWITCH, "link", "add", "switch", "type", "bridge")
        command("ip", "-n", SWITCH, "link", "set", "switch", "up")
        for machine, name in enumerate(made.names):
            port = f"port{machine}"
            command("ip", "link", "add", Machines.INTERFACE, "netns", name, "type", "veth", "peer", "name", port, "netns", SWITCH)
            command("ip", "-n", SWITCH, "link", "set", port, "master", "switch")
            command("ip", "-n", name, "addr", "add", f"{made.address(machine)}/24", "dev", Machines.INTERFACE)
            for namespace, device in ((name, Machines.INTERFACE), (SWITCH, port)):
                command("ip", "-n", namespace, "link", "set", device, "up")
                limit(namespace, device, mbit)
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60, check=False)
