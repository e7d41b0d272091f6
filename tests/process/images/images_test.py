#!/usr/bin/env python3
"""The container images as tools/images/build makes them: the same twice, complete, and what they say of themselves is true.

    images_test.py FOLDER-OF-PROGRAMS

TRAINYARD_WORKER_FOR_GPUS names trainyard-worker-cuda, where nvcc has built it.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "images"))

import dockerfile  # noqa: E402
import packages  # noqa: E402
import rootfs  # noqa: E402
import wheels  # noqa: E402

PROGRAMS = {"operator": ["trainyard-operator"], "worker-cpu": ["trainyard-agent", "trainyard-worker", "trainyard"]}
FOR_GPUS = ("trainyard-cuda", "trainyard-worker-cuda")
LIMIT_BYTES = {"operator": 60_000_000, "worker-cpu": 90_000_000}
EPOCH = 1_700_000_000
binaries = None
worker_for_gpus = os.environ.get("TRAINYARD_WORKER_FOR_GPUS")


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300, **more)


class Archive:
    """An image's archive, read as a container runtime reads it: every blob against its digest."""

    def __init__(self, path):
        self.path = path
        with tarfile.open(path) as tar:
            self.files = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers() if entry.isfile()}
        self.index = json.loads(self.files["index.json"])
        self.manifest = json.loads(self.blob(self.index["manifests"][0]["digest"]))
        self.config = json.loads(self.blob(self.manifest["config"]["digest"]))

    def blob(self, digest):
        content = self.files["blobs/" + digest.replace(":", "/")]
        assert "sha256:" + hashlib.sha256(content).hexdigest() == digest, digest
        return content

    def unpack(self, folder):
        layer = gzip.decompress(self.blob(self.manifest["layers"][0]["digest"]))
        assert "sha256:" + hashlib.sha256(layer).hexdigest() == self.config["rootfs"]["diff_ids"][0]
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            self.entries = tar.getmembers()
            tar.extractall(folder, numeric_owner=True)


def library_that_needs(folder, *names):
    """A shared library, linked against others of these names."""
    source = folder / "nothing.c"
    source.write_text("")
    for name in names:
        subprocess.run(["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", folder / name, source], check=True)
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,--no-as-needed", "-o", folder / "needs.so", source, *(folder / name for name in names)], check=True)
    return (folder / "needs.so").read_bytes()


class CudaImageTest(unittest.TestCase):
    """What is in the image for GPUs, with small libraries in place of NVIDIA's, which need what NVIDIA's need."""

    NEEDED = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libc.so.6")

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.write_wheels(*self.NEEDED)
        (self.folder / "gpu").mkdir()
        for name in FOR_GPUS:
            shutil.copy(binaries / "trainyard-operator", self.folder / "gpu" / name)

    def write_wheels(self, *needed):
        """Pins wheels whose libraries need others of these names."""
        pins = []
        code = library_that_needs(self.folder, *needed)
        os.environ["TRAINYARD_CACHE"] = str(self.folder)
        self.addCleanup(os.environ.pop, "TRAINYARD_CACHE", None)
        (self.folder / "wheels").mkdir(exist_ok=True)
        for name, (file, _) in wheels.OPENED.items():
            path = self.folder / "wheels" / f"{name.replace('-', '_')}-9.1-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(file, code)
                wheel.writestr("nvidia/other.so", "what nobody opens")
                wheel.writestr("x-9.1.dist-info/licenses/License.txt", "terms of " + name)
            pins.append(f"{name}==9.1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")
        requirements, wheels.REQUIREMENTS = wheels.REQUIREMENTS, self.folder / "pins.txt"
        self.addCleanup(setattr, wheels, "REQUIREMENTS", requirements)
        wheels.REQUIREMENTS.write_text("# pins\n" + "\n".join(pins) + "\n")

    def assembled(self):
        programs = self.folder / "programs/bin"
        programs.mkdir(parents=True)
        (programs / "trainyard-agent").symlink_to((binaries / "trainyard-agent").resolve())
        shutil.copytree(self.folder / "gpu", self.folder / "programs/gpu")
        root = self.folder / "root"
        return root, rootfs.assemble("worker-cuda", programs, root)

    def test_it_has_what_is_opened_with_its_terms_and_the_worker_for_gpus(self):
        root, bill = self.assembled()
        self.assertEqual({path.name for path in (root / "usr/lib/nvidia").iterdir()}, {"libcublasLt.so.13", "libnccl.so.2"})
        entries = {entry["name"]: entry for entry in bill["packages"]}
        for name in wheels.OPENED:
            self.assertEqual((root / f"usr/share/doc/{name}/License.txt").read_text(), "terms of " + name)
            self.assertEqual(entries[name]["externalRefs"][0]["referenceLocator"], f"pkg:pypi/{name}@9.1")
        stated = {entry["fileName"] for entry in bill["files"]}
        self.assertLessEqual({"./usr/lib/nvidia/libcublasLt.so.13", "./usr/lib/nvidia/libnccl.so.2"}, stated)
        for name in FOR_GPUS:
            built = self.folder / "gpu" / name
            shipped = name.removesuffix("-cuda")
            self.assertEqual((root / "usr/bin" / shipped).read_bytes(), rootfs.stripped(built))
            self.assertNotEqual(built.read_bytes(), (binaries / shipped).read_bytes())
        config = dockerfile.image_config(ROOT / "docker/worker-cuda.Dockerfile", {})
        self.assertIn(f"LD_LIBRARY_PATH=/{wheels.FOLDER}:/usr/local/nvidia/lib64", config["Env"])

    @unittest.skipUnless(os.geteuid() == 0, "chroot needs root")
    def test_nvidias_libraries_and_the_drivers_load_in_there(self):
        """The driver's as NVIDIA's container runtime mounts it, and as the device plugin of GKE does."""
        root, _ = self.assembled()
        mounted = ["usr/lib/x86_64-linux-gnu/libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.1"]
        for place in mounted:
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / "needs.so", root / place)
        loader = next(root.glob("usr/lib64/ld-linux*"))
        for library in ["usr/lib/nvidia/libcublasLt.so.13", "usr/lib/nvidia/libnccl.so.2", *mounted]:
            listed = run("chroot", "--userspec=65532:65532", root, f"/lib64/{loader.name}", "--list", f"/{library}")
            self.assertEqual(listed.returncode, 0, library + listed.stdout + listed.stderr)
            for name in self.NEEDED:
                self.assertRegex(listed.stdout, rf"{re.escape(name)} => /\S+{re.escape(name)} \(")

    def test_a_library_that_nothing_in_the_image_satisfies_is_refused(self):
        self.write_wheels(*self.NEEDED, "libelsewhere.so.1")
        with self.assertRaisesRegex(packages.Fault, "libcublasLt.so.13 of nvidia-cublas needs libelsewhere.so.1, which the image lacks"):
            self.assembled()

    def test_the_container_runtime_is_told_where_the_loader_looks(self):
        root, _ = self.assembled()
        self.assertTrue((root / "etc/debian_version").read_text().strip())
        told = run("/sbin/ldconfig", "-p", "-C", root / "etc/ld.so.cache")
        self.assertEqual((told.returncode, told.stdout.split("\n")[0]), (0, f"0 libs found in cache `{root / 'etc/ld.so.cache'}'"), told.stderr)

    def test_without_a_gpu_its_worker_says_in_one_line_what_is_missing(self):
        """In the image's files and environment. Where nvcc has not built the worker for GPUs, the other one takes its place."""
        shutil.copy(worker_for_gpus or binaries / "trainyard-worker", self.folder / "gpu/trainyard-worker-cuda")
        root, _ = self.assembled()
        config = self.folder / "engine.json"
        config.write_text(json.dumps({"device": "Cuda", "model": {"family": "GPT2", "layers": 1, "hidden": 64, "heads": 1, "vocab": 67},
                                      "data": {"tokens": ["/data/tokens"], "sequenceLength": 16}, "steps": 1,
                                      "batch": {"globalSequences": 1, "microSequences": 1}}))
        stated = dict(entry.split("=", 1) for entry in dockerfile.image_config(ROOT / "docker/worker-cuda.Dockerfile", {})["Env"])
        libraries = {str(path.parent) for path in root.rglob("*.so*") if not path.is_symlink()}
        loader = next(root.glob("usr/lib64/ld-linux*"))
        said = run(loader, "--library-path", ":".join(sorted(libraries)), root / "usr/bin/trainyard-worker",
                   env={**{key: value for key, value in stated.items() if key != "LD_LIBRARY_PATH"}, "TRAINYARD_ENGINE_CONFIG": str(config)})
        errors = [line["error"] for line in map(json.loads, said.stderr.splitlines()) if line["level"] == "error"]
        self.assertEqual((said.returncode, len(errors)), (64, 1), said.stderr)
        self.assertIn("engine.device: found Cuda, ", errors[0])
        self.assertIn("no NVIDIA driver, wanted one: install it" if worker_for_gpus else "was built without CUDA", errors[0])

    def test_a_wheel_that_is_not_the_pinned_one_is_not_taken(self):
        name, version, digest = wheels.pinned()[0]
        self.assertIsNotNone(wheels.wheel_file(name, version, digest))
        with open(wheels.wheel_file(name, version, digest), "ab") as file:
            file.write(b"x")
        self.assertIsNone(wheels.wheel_file(name, version, digest))

    def test_without_a_program_for_gpus_the_image_is_refused(self):
        (self.folder / "gpu/trainyard-cuda").unlink()
        with self.assertRaisesRegex(packages.Fault, "trainyard-cuda is not there"):
            self.assembled()

    def test_real_pins_name_a_version_and_a_hash_each(self):
        self.doCleanups()
        for name, version, digest in wheels.pinned():
            self.assertIn(name, wheels.OPENED)
            self.assertRegex(version, r"^\d+(\.\d+)+$")
            self.assertRegex(digest, "^[0-9a-f]{64}$")


class ImagesTest(unittest.TestCase):
    """Both images, built once for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.said = cls.build("first")
        cls.archives, cls.roots = {}, {}
        for name in PROGRAMS:
            cls.archives[name] = Archive(cls.folder / "first" / f"trainyard-{name}.tar")
            cls.roots[name] = cls.folder / f"root-{name}"
            cls.archives[name].unpack(cls.roots[name])

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def build(cls, name, *more):
        done = run(ROOT / "tools/images/build", "--binaries", binaries, "--out", cls.folder / name, *more,
                   env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH), "TMPDIR": cls.scratch.name})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def each(self):
        for name in PROGRAMS:
            with self.subTest(name):
                yield name, self.archives[name], self.roots[name]

    def inside(self, root, *command):
        """Runs a command with the image's root as its own, as the image's user."""
        return run("chroot", "--userspec=65532:65532", root, *command)

    def test_the_same_inputs_give_the_same_bytes(self):
        before = os.umask(0o077)  # a careful user's; nothing of it may get into the image
        try:
            again = self.build("second")
        finally:
            os.umask(before)
        self.assertEqual(again.replace("/second/", "/first/"), self.said)
        for name, archive, _ in self.each():
            again = self.folder / "second" / f"trainyard-{name}.tar"
            self.assertEqual(again.read_bytes(), archive.path.read_bytes())

    def test_an_image_keeps_to_its_size(self):
        for name, archive, _ in self.each():
            size = archive.manifest["layers"][0]["size"]
            self.assertLess(size, LIMIT_BYTES[name])
            self.assertIn(f"{size / 1e6:.1f} MB compressed", self.said)

    def test_the_configuration_is_the_dockerfiles(self):
        for name, archive, _ in self.each():
            config = archive.config["config"]
            self.assertEqual(config["User"], "65532:65532")
            self.assertEqual(config["Entrypoint"], ["/usr/bin/" + PROGRAMS[name][0]])
            labels = config["Labels"]
            for label in ("title", "description", "licenses", "version", "revision", "created"):
                self.assertTrue(labels["org.opencontainers.image." + label], label)
            self.assertEqual(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z")
            self.assertEqual(archive.config["created"], "2023-11-14T22:13:20Z")
            stated = dockerfile.image_config(ROOT / "docker" / f"{name}.Dockerfile", {})
            self.assertEqual(config["User"], stated["User"])
            self.assertEqual(labels["org.opencontainers.image.version"], stated["Labels"]["org.opencontainers.image.version"],
                             "the version of CMakeLists.txt and the default of the Dockerfile")

    def test_nothing_but_our_programs_can_run(self):
        for name, archive, root in self.each():
            loader = {path.name for path in root.glob("usr/lib64/ld-linux*")}
            programs = {path.name for path in root.rglob("*") if path.is_file() and not path.is_symlink() and os.access(path, os.X_OK)
                        and ".so" not in path.name}
            self.assertEqual(programs, set(PROGRAMS[name]))
            self.assertTrue(loader)
            for entry in archive.entries:
                self.assertEqual((entry.uid, entry.gid, entry.mtime), (0, 0, EPOCH), entry.name)
                self.assertFalse(entry.mode & 0o6000, f"{entry.name} would run with other rights")
                writable = entry.mode & 0o022 and not entry.issym()
                self.assertEqual(bool(writable), entry.name == "tmp", f"{entry.name}: who may write")

    @unittest.skipUnless(os.geteuid() == 0, "chroot needs root")
    def test_programs_start_in_there_with_every_library(self):
        for name, _, root in self.each():
            for program in PROGRAMS[name]:
                loader = next(root.glob("usr/lib64/ld-linux*"))
                listed = self.inside(root, f"/lib64/{loader.name}", "--list", f"/usr/bin/{program}")
                self.assertEqual(listed.returncode, 0, listed.stderr)
                self.assertNotIn("not found", listed.stdout)
        version = re.search(r"project\(trainyard VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        for image, program in (("operator", "trainyard-operator"), ("worker-cpu", "trainyard")):
            told = self.inside(self.roots[image], f"/usr/bin/{program}", "--version")
            self.assertEqual(told.returncode, 0, told.stderr)
            self.assertIn(version, told.stdout)
        # Without its environment an agent says what it lacks.
        agent = self.inside(self.roots["worker-cpu"], "/usr/bin/trainyard-agent")
        self.assertEqual(agent.returncode, 64, agent.stderr)

    def test_the_bill_of_materials_is_that_of_the_files(self):
        for name, archive, root in self.each():
            inside = (root / f"usr/share/sbom/trainyard-{name}.spdx.json").read_text()
            self.assertEqual(inside, (self.folder / "first" / f"trainyard-{name}.spdx.json").read_text())
            bill = json.loads(inside)
            self.assertEqual(bill["spdxVersion"], "SPDX-2.3")
            stated = {entry["fileName"][2:]: entry["checksums"][1]["checksumValue"] for entry in bill["files"]}
            there = {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*")
                     if path.is_file() and not path.is_symlink() and (os.access(path, os.X_OK) or path.suffix == ".crt")}
            self.assertEqual(stated, there)
            identifiers = [entry["SPDXID"] for entry in bill["packages"] + bill["files"]]
            self.assertEqual(len(identifiers), len(set(identifiers)))
            for relation in bill["relationships"]:
                for end in (relation["spdxElementId"], relation["relatedSpdxElement"]):
                    self.assertIn(end, identifiers + ["SPDXRef-DOCUMENT"])

    def test_packages_are_those_that_are_installed_and_bring_their_terms(self):
        for name, _, root in self.each():
            bill = json.loads((root / f"usr/share/sbom/trainyard-{name}.spdx.json").read_text())
            held = {relation["relatedSpdxElement"] for relation in bill["relationships"] if relation["relationshipType"] == "CONTAINS"}
            packages = [entry for entry in bill["packages"] if entry["SPDXID"] in held]
            self.assertGreater(len(packages), 5)
            for entry in packages:
                installed = run("dpkg-query", "-W", "-f", "${Version}\n", entry["name"]).stdout.splitlines()[0]
                self.assertEqual(entry["versionInfo"], installed)
                self.assertTrue((root / f"usr/share/doc/{entry['name']}/copyright").stat().st_size)
                self.assertIn(f"Package: {entry['name']}\n", (root / f"var/lib/dpkg/status.d/{entry['name']}").read_text())
                self.assertTrue(entry["externalRefs"][0]["referenceLocator"].startswith(f"pkg:deb/debian/{entry['name']}@"))

    def test_files_of_packages_are_told_from_files_of_none(self):
        # The first by both names that Debian's merge of /lib into /usr/lib gives it.
        known = {"/lib/x86_64-linux-gnu/libc.so.6": "libc6", "/usr/lib/x86_64-linux-gnu/libc.so.6": "libc6", "/usr/bin/ldd": "libc-bin"}
        known = {pathlib.Path(path): package for path, package in known.items() if pathlib.Path(path).exists()}
        self.assertTrue(known)
        self.assertEqual(packages.owners_of(known), known)
        self.assertEqual(packages.owners_of([]), {})
        stranger = self.folder / "libstranger.so"
        stranger.touch()
        with self.assertRaisesRegex(packages.Fault, f"{stranger} belongs to no Debian package"):
            packages.owners_of([*known, stranger])

    def test_docker_and_containerd_find_name_and_layers(self):
        for name, archive, _ in self.each():
            saved = json.loads(archive.files["manifest.json"])[0]
            version = archive.config["config"]["Labels"]["org.opencontainers.image.version"]
            self.assertEqual(saved["RepoTags"], [f"trainyard/{name}:{version}"])
            self.assertIn(saved["Config"], archive.files)
            self.assertEqual([layer for layer in saved["Layers"] if layer not in archive.files], [])
            self.assertEqual(archive.index["manifests"][0]["annotations"]["io.containerd.image.name"],
                             f"docker.io/trainyard/{name}:{version}")

    def test_an_image_of_a_program_has_it_where_it_is_told(self):
        def program_image(name, entry):
            done = run(ROOT / "tools/kind/program_image", "localhost/one:1", self.folder / name, entry, "--", "/usr/bin/one", cwd=binaries.parent,
                       env=os.environ | {"TMPDIR": self.scratch.name})
            if done.returncode != 0:
                return done.stderr
            with tarfile.open(self.folder / name) as image, tarfile.open(fileobj=image.extractfile("layer.tar")) as layer:
                return [entry.name for entry in layer.getmembers() if entry.isfile()]

        relative = f"{binaries.name}/trainyard"
        self.assertIn("./usr/bin/one", program_image("told.tar", f"{relative}=/usr/bin/one"))
        self.assertIn(f".{binaries}/trainyard", program_image("here.tar", relative))
        self.assertIn("wanted one that begins with /", program_image("wrong.tar", f"{relative}=bin/one"))
        self.assertEqual(list(self.folder.glob("tmp.*")), [], "nothing is left of what they were made of")

    def test_wrong_usage_is_told(self):
        missing = run(ROOT / "tools/images/build", "operator", "--binaries", self.folder / "nowhere", "--out", self.folder / "out")
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn("build it first", missing.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as file:
            file.write("FROM scratch\nENTRYPOINT /bin/sh\n")
            file.flush()
            with self.assertRaisesRegex(dockerfile.Fault, "no shell"):
                dockerfile.image_config(pathlib.Path(file.name), {})


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
