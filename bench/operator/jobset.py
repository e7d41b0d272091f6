"""JobSet, whose controller makes Jobs, whose pods kube-controller-manager makes: built from its Go module by
`tools/kubernetes/build --jobset`. It runs beside the control plane as administrator and without its webhooks: what they would
fill in is written out here, so that it has less to do than in a cluster."""

import json
import os
import socket
import subprocess

import process
from plane import wait_for

BEGIN_LIMIT_S = 60


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def job_set(name, job):
    """One replicated Job, with the defaults of JobSet's own webhook."""
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
            "spec": {"network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                     "successPolicy": {"operator": "All"}, "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
                     "replicatedJobs": [{"name": "w", "groupName": "default", "replicas": 1, "template": {"spec": job["spec"]}}]}}


class JobSet:
    """The controller. A context manager: it ends with it."""

    def __init__(self, folder, plane, work):
        self._binary, self._crd = folder / "bin" / "jobset", folder / "crd.yaml"
        self._plane = plane
        self._work = work / "jobset"

    def is_built(self):
        return self._binary.exists() and self._crd.exists()

    def __enter__(self):
        self._work.mkdir(exist_ok=True)
        self._plane.kubectl("apply", "--server-side", "-f", str(self._crd))
        self._plane.wait_for_kind("jobsets.jobset.x-k8s.io")
        certificates = self._work / "k8s-webhook-server" / "serving-certs"  # where it looks, below TMPDIR
        certificates.mkdir(parents=True, exist_ok=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
                        "-subj", "/CN=jobset", "-keyout", str(certificates / "tls.key"), "-out", str(certificates / "tls.crt")],
                       check=True, capture_output=True)
        config = self._work / "config.yaml"
        config.write_text(json.dumps({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration", "webhook": {"port": _free_port()},
            "internalCertManagement": {"enable": False}, "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 1000, "burst": 1000}}), encoding="utf-8")
        self.log = self._work / "log"
        with open(self.log, "wb") as out:
            self._process = subprocess.Popen(
                [str(self._binary), "--config", str(config), "--metrics-bind-address", "0", "--health-probe-bind-address", "0"],
                env={**os.environ, "KUBECONFIG": str(self._plane.folder / "admin.kubeconfig"), "TMPDIR": str(self._work)},
                stdout=out, stderr=subprocess.STDOUT)
        self.pid = self._process.pid
        try:
            wait_for("the JobSet controller to work", BEGIN_LIMIT_S, self._works, 0.2)
        except RuntimeError:
            self.__exit__()
            raise RuntimeError(f"the JobSet controller did not begin to work:\n{self.log.read_text()[-2000:]}") from None
        return self

    def _works(self):
        if self._process.poll() is not None:
            raise RuntimeError("it has ended")
        text = self.log.read_text()
        return text.count("Starting workers") >= 1

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(process.STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
