"""Describes the machine and the versions that were compared."""
import os
import platform
import re
import subprocess


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory_gib():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return int(file.readline().split()[1]) / (1 << 20)


def facts():
    return {"cpu": cpu_name(), "usable_cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "memory_gib": round(memory_gib(), 1)}


def label(machine):
    """The label for figures from this machine."""
    return (f"{machine['usable_cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, "
            f"Linux {machine['kernel']}")


def folder_name(machine):
    """The folder for results. The same machine always uses the same folder."""
    return re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']}-{machine['usable_cores']}-cores".lower()).strip("-")


def package_version(name):
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 and done.stdout else None


def versions():
    packages = ("libtorch-dev", "python3-torch", "libgloo-dev", "libopenblas0-pthread", "openmpi-bin", "python3", "g++",
                "libc6")
    return {name: version for name in packages if (version := package_version(name))}
