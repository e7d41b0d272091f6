"""The root file system of an image: our programs, the libraries that they map, and nothing that could run beside them."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile

import packages
import sbom
import wheels

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {
    "operator": ["trainyard-operator"],
    "worker-cpu": ["trainyard-agent", "trainyard-worker", "trainyard"],
    "worker-cuda": ["trainyard-agent", "trainyard-worker", "trainyard"],
}
ALWAYS = ["operator", "worker-cpu"]  # the others are made where they are named
# Beside the folder of programs: what goes into an image under another name.
BUILT_AS = {
    ("worker-cuda", "trainyard-worker"): "../gpu/trainyard-worker-cuda",
    ("worker-cuda", "trainyard"): "../gpu/trainyard-cuda",
}
UID = 65532  # "nonroot", as distroless images have it
# Packages of which no file is taken: what their headers and static libraries give is in our programs.
HEADERS = ["libboost-dev", "libcli11-dev", "libexpected-dev", "nlohmann-json3-dev"]
STARTER = ["libc6-dev", "libstdc++-12-dev"]  # of the agent's
COMPILED_IN = {"operator": HEADERS, "worker-cpu": HEADERS + STARTER, "worker-cuda": HEADERS + STARTER}
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/nonexistent\nnonroot:x:{UID}:{UID}:nonroot:/tmp:/nonexistent\n",
    "etc/group": f"root:x:0:\nnonroot:x:{UID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


# NVIDIA's container runtime mounts the driver's libraries where Debian's loader looks if it finds etc/debian_version
# (libnvidia-container), or else lists their folders in etc/ld.so.cache, but only if the image has one (nvidia-ctk).
FOR_THE_DRIVER = {
    "etc/debian_version": "12\n",
    "etc/ld.so.conf": "/usr/local/nvidia/lib64\n/usr/lib/x86_64-linux-gnu\n/usr/lib64\n",
    # It lists no library: glibc's sysdeps/generic/dl-cache.h, struct cache_file_new.
    "etc/ld.so.cache": struct.pack("<17s3sIIB3xI12x", b"glibc-ld.so.cache", b"1.1", 0, 0, 2, 0),
}


def version():
    """As CMakeLists.txt says."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return text.split("project(trainyard VERSION ")[1].split()[0]


def epoch():
    """SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), else the time of the last commit, else 0."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 0


class Tree:
    """A root file system that comes to be."""

    def __init__(self, out: pathlib.Path):
        self.out = out
        out.mkdir(parents=True)

    def write(self, path, content, mode=0o644):
        target = self.out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)

    def link(self, path, target):
        (self.out / path).symlink_to(target)


def stripped(program: pathlib.Path) -> bytes:
    if not program.is_file():
        raise packages.Fault(f"{program} is not there: build it first (make programs)")
    with tempfile.NamedTemporaryFile() as file:
        packages.output_of("strip", "--strip-unneeded", "-o", file.name, str(program))
        return pathlib.Path(file.name).read_bytes()


def place_of(name, path):
    """Where a library goes: /lib and /lib64 are links into /usr, as in Debian."""
    if name.startswith("/") or path.name.startswith("ld-linux"):
        return "usr/" + str(path).lstrip("/").removeprefix("usr/")
    return "usr/lib/" + path.parent.name + "/" + name


def authorities():
    """The certificates that the package brings, without what this machine has added to them."""
    folder = pathlib.Path("/usr/share/ca-certificates/mozilla")
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.crt")))


def assemble(image: str, binaries: pathlib.Path, out: pathlib.Path) -> dict:
    """Fills the new folder `out`; the bill of materials, which is in there, too."""
    before = os.umask(0o022)  # who runs the image is another user, and folders take their modes from here
    try:
        return fill(Tree(out), image, binaries)
    finally:
        os.umask(before)


def fill(tree: Tree, image: str, binaries: pathlib.Path) -> dict:
    out = tree.out
    ours, shared = {}, {}
    libraries = {}
    for name in PROGRAMS[image]:
        program = binaries / BUILT_AS.get((image, name), name)
        content = stripped(program)
        tree.write(f"usr/bin/{name}", content, 0o755)
        ours[f"/usr/bin/{name}"] = content
        libraries.update(packages.libraries_of(program))
    if "trainyard-agent" in PROGRAMS[image]:
        libraries.update(packages.former_libraries(libraries["libc.so.6"]))
    owners = packages.owners_of(libraries.values())
    for name, path in sorted(libraries.items()):
        content = path.read_bytes()
        place = place_of(name, path)
        tree.write(place, content, 0o755)
        shared.setdefault(owners[path], {})["/" + place] = content
    for link in ("lib", "lib64"):
        if (out / "usr" / link).is_dir():
            tree.link(link, f"usr/{link}")
    bundle = authorities()
    if not bundle:
        raise packages.Fault("there are no certificates in /usr/share/ca-certificates/mozilla: install ca-certificates")
    tree.write("etc/ssl/certs/ca-certificates.crt", bundle)
    shared["ca-certificates"] = {"/etc/ssl/certs/ca-certificates.crt": bundle}
    for path, text in TEXTS.items():
        tree.write(path, text)
    (out / "tmp").mkdir()
    (out / "tmp").chmod(0o1777)
    for package in sorted(shared):
        tree.write(f"usr/share/doc/{package}/copyright", packages.copyright_of(package).read_bytes())
        tree.write(f"var/lib/dpkg/status.d/{package}", packages.status_of(package))
    from_wheels = wheels.libraries() if image == "worker-cuda" else []
    for wheel, contents, terms in from_wheels:
        tree.write(f"usr/share/doc/{wheel['name']}/License.txt", terms)
        for place, content in contents.items():
            tree.write(place, content, 0o755)
            if missing := packages.needed_by(out / place) - {pathlib.PurePath(name).name for name in libraries}:
                raise packages.Fault(f"{place} of {wheel['name']} needs {', '.join(sorted(missing))}, which the image lacks: take it from its package as well (packages.py)")
    if from_wheels:
        for path, content in FOR_THE_DRIVER.items():
            tree.write(path, content)
    tree.write("usr/share/doc/LICENSE", (ROOT / "LICENSE").read_bytes())
    bill = sbom.document(f"trainyard-{image}", version(), epoch(), ours,
                         [(packages.describe(package), contents) for package, contents in shared.items()],
                         [packages.describe(package) for package in COMPILED_IN[image]],
                         [(wheel, {"/" + place: content for place, content in contents.items()})
                          for wheel, contents, _ in from_wheels])
    tree.write(f"usr/share/sbom/trainyard-{image}.spdx.json", json.dumps(bill, indent=1, sort_keys=True) + "\n")
    return bill
