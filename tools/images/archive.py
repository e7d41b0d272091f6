"""An image as one file that every tool takes: an OCI layout (https://github.com/opencontainers/image-spec) which also carries
the manifest.json of `docker save`. The same content gives the same bytes."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def tar_of(root: pathlib.Path, epoch: int) -> bytes:
    """The tree as a tar whose bytes follow from names, contents and modes alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            entry = tar.gettarinfo(str(path), arcname=str(path.relative_to(root)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            if entry.islnk():  # a second name of a file; a file of its own here
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", os.path.getsize(path)
            if entry.isfile():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return buffer.getvalue()


class Image:
    """An image in memory: its blobs and what ties them together."""

    def __init__(self, root: pathlib.Path, config: dict, name: str, epoch: int, created: str):
        self.name = name
        layer = tar_of(root, epoch)
        self.size = len(layer)
        packed = gzip.compress(layer, compresslevel=6, mtime=0)
        described = {
            "architecture": ARCHITECTURES[platform.machine()], "os": "linux", "created": created, "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [{"created": created, "created_by": "tools/images/build"}],
        }
        self.blobs = {}
        self._config = self._add(as_json(described), CONFIG)
        self._layer = self._add(packed, LAYER)
        self.compressed = len(packed)
        self._manifest = self._add(as_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": self._config,
                                            "layers": [self._layer]}), MANIFEST)
        self.digest = self._manifest["digest"]
        self._epoch = epoch

    def _add(self, content, kind):
        self.blobs[digest(content)] = content
        return {"mediaType": kind, "digest": digest(content), "size": len(content)}

    def _path(self, described):
        return "blobs/" + described["digest"].replace(":", "/")

    def write(self, out: pathlib.Path):
        registry = "" if "." in self.name.split("/")[0] or self.name.startswith("localhost/") else "docker.io/"
        index = self._manifest | {"annotations": {
            "io.containerd.image.name": registry + self.name,
            "org.opencontainers.image.ref.name": self.name.rsplit(":", 1)[1],
        }}
        files = {
            "oci-layout": as_json({"imageLayoutVersion": "1.0.0"}),
            "index.json": as_json({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [index]}),
            "manifest.json": as_json([{"Config": self._path(self._config), "RepoTags": [self.name],
                                       "Layers": [self._path(self._layer)]}]),
        }
        files |= {"blobs/" + key.replace(":", "/"): content for key, content in self.blobs.items()}
        with tarfile.open(out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, content in sorted(files.items()):
                entry = tarfile.TarInfo(path)
                entry.size, entry.mtime, entry.mode = len(content), self._epoch, 0o644
                tar.addfile(entry, io.BytesIO(content))
