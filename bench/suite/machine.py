"""What the figures were measured on."""

import datetime
import os
import platform
import subprocess


def _first_line(command):
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        return out.splitlines()[0].strip() if out else "?"
    except (OSError, subprocess.TimeoutExpired):
        return "?"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def multiplies_bf16():
    """Whether the processor has instructions for bf16 products."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def distribution():
    with open("/etc/os-release", encoding="utf-8") as file:
        for line in file:
            if line.startswith("PRETTY_NAME="):
                return line.split("=", 1)[1].strip().strip('"')
    return platform.system()


def cores():
    return len(os.sched_getaffinity(0))


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def load():
    return os.getloadavg()[0]


def describe(binary, build):
    date = datetime.date.today().isoformat()
    return (f"{date}; {cores()} cores of {processor()}, {memory_gib():.0f} GiB, {distribution()}, Linux "
            f"{platform.release()}, {_first_line(['g++', '--version'])}, {build}, "
            f"{_first_line([binary, '--version'])}; load before the start {load():.1f}")
