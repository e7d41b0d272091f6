"""Programs under measurement and what they cost."""

import os
import signal
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
START_LIMIT_S = 60
STOP_LIMIT_S = 30


def processor_seconds(pid):
    """User and system time of a process and its threads (proc(5))."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid, field="VmHWM"):
    """Resident memory in 10^6 bytes: VmHWM the peak, VmRSS now."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


class Operator:
    """A trainyard-operator of its own. A context manager: it ends in order with it."""

    def __init__(self, binary, kubeconfig, folder, level="info", arguments=()):
        self._command = [str(binary), "--kubeconfig", str(kubeconfig), "--leader-elect", "--metrics-bind-address", "0",
                         "--health-probe-bind-address", "0", "--log-level", level, *arguments]
        self.log = folder / "operator.log"

    def __enter__(self):
        with open(self.log, "wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)
        self.pid = self._process.pid
        deadline = time.monotonic() + START_LIMIT_S
        while b'"working"' not in self.log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"the operator did not begin to work:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
