"""What dpkg knows of the files that go into an image."""

import pathlib
import re
import subprocess


class Fault(Exception):
    """The machine lacks something that an image needs."""


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    if done.returncode != 0:
        raise Fault(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def libraries_of(program: pathlib.Path) -> dict:
    """{name: path} of all libraries that the loader maps for a program, the loader itself included."""
    found = {}
    for line in output_of("ldd", str(program)).splitlines():
        if "not found" in line:
            raise Fault(f"{program}: {line.strip()}")
        match = re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            path = pathlib.Path(match.group(2))
            found[match.group(1) or path.name] = path
    return found


def former_libraries(libc: pathlib.Path) -> dict:
    """{name: path} of what glibc 2.34 has merged into libc.so.6 and keeps as files for older libraries, NVIDIA's among them."""
    found = {name: libc.parent / name for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1")}
    for path in found.values():
        if not path.is_file():
            raise Fault(f"{path} is not there: NVIDIA's libraries need it (package libc6)")
    return found


def needed_by(library: pathlib.Path) -> set:
    """Names of the libraries that a library asks for itself."""
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", output_of("readelf", "--dynamic", "--wide", str(library))))


def owners_of(paths) -> dict:
    """{path: the package that it belongs to}. Debian's merge of /lib into /usr/lib leaves both names about. One question for all
    of them: dpkg reads the lists of every package for each."""
    names = {}
    for path in paths:
        for text in (str(path), str(path.resolve())):
            for candidate in (text, text.removeprefix("/usr"), "/usr" + text):
                names.setdefault(candidate, []).append(path)
    if not names:
        return {}
    # It fails for the names that are not the package's; what it says of the others stands.
    done = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    found = {}
    for line in done.stdout.splitlines():
        packages, _, name = line.rpartition(": ")
        if name in names and not packages.startswith("diversion "):
            found.update({path: re.split("[:,]", packages)[0] for path in names[name]})
    for path in paths:
        if path not in found:
            raise Fault(f"{path} belongs to no Debian package: nobody could say what is in the image")
    return found


FIELDS = ("Package", "Version", "Architecture", "Maintainer", "source:Package", "source:Version")


def describe(package: str) -> dict:
    """Name, version and source of an installed package."""
    form = "\\n".join("${" + field + "}" for field in FIELDS) + "\\n\\n"
    values = output_of("dpkg-query", "-W", "-f", form, package).split("\n\n")[0].split("\n")
    return dict(zip(FIELDS, values))


def status_of(package: str) -> str:
    """The package's own record, as scanners look for it in /var/lib/dpkg/status.d."""
    text = output_of("dpkg-query", "-s", package)
    return text.split("\n\n")[0].rstrip("\n") + "\n"


def copyright_of(package: str) -> pathlib.Path:
    path = pathlib.Path("/usr/share/doc") / package / "copyright"
    if not path.is_file():
        raise Fault(f"{path} is missing: the terms of {package} must go with its files (was it installed with path-exclude?)")
    return path
