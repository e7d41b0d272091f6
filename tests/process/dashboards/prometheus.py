"""A Prometheus of a test's own, with its data in a folder."""

import pathlib
import socket
import subprocess
import time
import urllib.request

DEADLINE_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class PrometheusProcess:
    """Serves `folder`/data with the configuration `folder`/prometheus.yml; ready when made."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.address = f"http://127.0.0.1:{free_port()}"
        with (folder / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                             f"--web.listen-address={self.address[7:]}", "--storage.tsdb.retention.time=10y"], stdout=log, stderr=log)
        deadline = time.monotonic() + DEADLINE_S
        while not self.is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.end()
                raise RuntimeError((folder / "prometheus.log").read_text())
            time.sleep(0.1)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def end(self):
        self.process.terminate()
        self.process.wait(DEADLINE_S)
