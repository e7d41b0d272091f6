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


def owner_of(path: pathlib.Path) -> str:
    """The package that a file belongs to. Debian's merge of /lib into /usr/lib leaves both names about."""
    real = path.resolve()
    for name in (path, real):
        text = str(name)
        for candidate in (text, text.removeprefix("/usr"), "/usr" + text):
            done = subprocess.run(["dpkg-query", "-S", candidate], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout.split(":")[0].strip()
    raise Fault(f"{path} belongs to no Debian package: nobody could say what is in the image")


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
