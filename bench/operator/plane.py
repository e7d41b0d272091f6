"""The control plane that the operator is measured on, and requests to it."""

import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools" / "kubernetes"
OPERATOR_USER = "system:serviceaccount:trainyard-system:trainyard-operator"
CALL_LIMIT_S = 300
IDLE_LIMIT_S = 30  # the server closes connections that say nothing for longer than some time
GONE_LIMIT_S = 600


class ApiError(RuntimeError):
    """The server's answer to a request that it refused."""

    def __init__(self, status, message):
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


def wait_for(what, limit_s, condition, period_s=0.5):
    """Polls until `condition` returns something true, and returns that; RuntimeError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(period_s)


class Plane:
    """A control plane of its own with fake nodes and this repository's manifests. A context manager: it ends with it."""

    def __init__(self, folder, nodes):
        self.folder = pathlib.Path(folder)
        self.nodes = nodes
        self.audit_log = self.folder / "audit.log"
        self._local = threading.local()

    def __enter__(self):
        try:
            self._script("up", str(self.folder), "--guard", str(os.getpid()), "--audit", "metadata")
            self._script("kwok", str(self.folder), str(self.nodes), "--jobs-run")
            self._connect()
            self._script("install", str(self.folder))
            self.wait_for_kind("trainingjobs.trainyard.dev")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run([str(TOOLS / "down"), str(self.folder), "--wipe"], check=False, stdout=subprocess.DEVNULL)

    def _script(self, name, *arguments):
        done = subprocess.run([str(TOOLS / name), *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"tools/kubernetes/{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def kubectl(self, *arguments, text=None):
        done = subprocess.run([str(self.folder / "kubectl"), "--kubeconfig", str(self.folder / "admin.kubeconfig"),
                               "--cache-dir", str(self.folder / "kubectl-cache"), *arguments],
                              input=text, capture_output=True, text=True, check=False, timeout=CALL_LIMIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def wait_for_kind(self, name):
        """Until the server takes objects of a custom resource definition."""
        def established():
            found = self.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
            return any(one["type"] == "Established" and one["status"] == "True"
                       for one in found.get("status", {}).get("conditions") or [])
        wait_for(f"the kind {name}", 60, established, 0.2)

    def _connect(self):
        self.config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        cluster, user = self.config["clusters"][0]["cluster"], self.config["users"][0]["user"]
        self._server = urllib.parse.urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile(dir=self.folder / "pki") as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)

    def call(self, method, path, body=None, content_type="application/json"):
        """One request as the administrator, on this thread's connection; the answer's JSON."""
        connection = getattr(self._local, "connection", None)
        if connection is None or time.monotonic() - self._local.used > IDLE_LIMIT_S:
            connection = http.client.HTTPSConnection(self._server.hostname, self._server.port, context=self._tls,
                                                     timeout=CALL_LIMIT_S)
            self._local.connection = connection
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": content_type})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._local.connection = None
            raise
        self._local.used = time.monotonic()
        if answer.status >= 300:
            raise ApiError(answer.status, text[:500].decode(errors="replace"))
        return json.loads(text)

    def call_many(self, calls, at_once=8):
        """`calls` of (method, path, body), several at a time."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda call: self.call(*call), calls))

    def write_operator_kubeconfig(self, path):
        """Credentials of the operator's ServiceAccount."""
        config = json.loads(json.dumps(self.config))
        token = self.kubectl("create", "token", "trainyard-operator", "-n", "trainyard-system", "--duration", "3h").strip()
        config["users"] = [{"name": "operator", "user": {"token": token}}]
        config["contexts"][0]["context"].update(user="operator", namespace="trainyard-system")
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")

    def make_namespace(self, name):
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

        def account():
            try:
                return self.call("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")
            except ApiError:
                return None
        wait_for(f"the service account of namespace {name}", 60, account, 0.1)

    def _remove_pods(self, pods):
        """All of a namespace, and waits until they are gone: a namespace that finds pods on their way out looks again only after
        their grace. The server ends a request after a minute, in which it deletes some thousands."""
        def none_left():
            try:
                self.call("DELETE", pods, {"gracePeriodSeconds": 0})
            except ApiError as error:
                if error.status not in (500, 504):
                    raise
            except (OSError, http.client.HTTPException):
                pass
            return not self.call("GET", pods + "?limit=1")["items"]
        wait_for(f"no pods in {pods}", GONE_LIMIT_S, none_left)

    def remove_namespace(self, name):
        """With all that is in it, and waits for the end: nothing of one measurement reaches into the next."""
        for kind in ("trainyard.dev/v1alpha1/*/trainingjobs", "jobset.x-k8s.io/v1alpha2/*/jobsets", "batch/v1/*/jobs"):
            try:
                self.call("DELETE", "/apis/" + kind.replace("*", f"namespaces/{name}"), {"propagationPolicy": "Background"})
            except ApiError as error:
                if error.status != 404:  # a kind that is not installed
                    raise
        self._remove_pods(f"/api/v1/namespaces/{name}/pods")
        self.call("DELETE", f"/api/v1/namespaces/{name}")

        def gone():
            try:
                self.call("GET", f"/api/v1/namespaces/{name}")
            except ApiError as error:
                return error.status == 404
            return False
        wait_for(f"namespace {name} to be gone", GONE_LIMIT_S, gone, 1)

    def pids(self):
        """Of the parts of the control plane, by name."""
        return {file.name: int(file.read_text().split()[0]) for file in (self.folder / "pid").iterdir() if file.name != "guard"}
