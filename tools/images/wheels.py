"""NVIDIA's libraries for an image, from wheels of PyPI that are pinned by hash: the files that our programs open, and no other."""

import hashlib
import os
import pathlib
import subprocess
import zipfile

import packages

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[1] / "requirements/cuda_libraries.txt"
FOLDER = "usr/lib/nvidia"  # LD_LIBRARY_PATH of the image
# {wheel: (the file that is taken, why)}
OPENED = {
    "nvidia-cublas": ("nvidia/cu13/lib/libcublasLt.so.13", "products of matrices; code for every kind of GPU"),
    "nvidia-nccl-cu13": ("nvidia/nccl/lib/libnccl.so.2", "exchanges between GPUs; code for every kind of GPU"),
}


def cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("TRAINYARD_CACHE") or pathlib.Path.home() / ".cache/trainyard") / "wheels"


def pinned() -> list:
    """(name, version, SHA-256) of each wheel."""
    lines = [line.split() for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [(*wheel.split("=="), digest.removeprefix("--hash=sha256:")) for wheel, digest in lines]


def wheel_file(name, version, digest) -> pathlib.Path:
    """The wheel in the cache, if it is the pinned one."""
    found = [path for path in cache().glob(f"{name.replace('-', '_')}-{version}-*.whl")
             if hashlib.sha256(path.read_bytes()).hexdigest() == digest]
    return found[0] if found else None


def fetched() -> list:
    """(name, version, file) of each wheel, fetched where one is not there yet (730 MB)."""
    cache().mkdir(parents=True, exist_ok=True)
    found = [(name, version, wheel_file(name, version, digest)) for name, version, digest in pinned()]
    if all(path for _, _, path in found):
        return found
    done = subprocess.run(["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes",
                           "--disable-pip-version-check", "--dest", str(cache()), "-r", str(REQUIREMENTS)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise packages.Fault(f"pip download -r {REQUIREMENTS}: {done.stderr.strip() or 'failed'}")
    return [(name, version, wheel_file(name, version, digest)) for name, version, digest in pinned()]


def libraries() -> list:
    """[(name and version of the wheel, {place in the image: content}, terms)]."""
    found = []
    for name, version, path in fetched():
        file, _ = OPENED[name]
        with zipfile.ZipFile(path) as wheel:
            terms = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/licenses/License.txt"))
            place = f"{FOLDER}/{pathlib.PurePath(file).name}"
            found.append(({"name": name, "version": version}, {place: wheel.read(file)}, wheel.read(terms)))
    return found
