"""Reads what a Dockerfile says about the image that its last stage makes: no more of the language than ours use."""

import json
import pathlib
import re
import shlex

KNOWN = {"ARG", "COPY", "LABEL", "ENV", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD"}


class Fault(Exception):
    """The Dockerfile says something that is not understood here."""


def instructions(text):
    """(word, rest) of each instruction, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\s*\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def exec_form(word, rest):
    try:
        value = json.loads(rest)
    except ValueError:
        value = None
    if not isinstance(value, list):
        raise Fault(f"{word}: found {rest}, wanted a list in brackets: there is no shell in the image")
    return value


def image_config(path: pathlib.Path, arguments: dict) -> dict:
    """The configuration, in OCI's words, of the image that the last stage makes. `arguments` go over the defaults of ARG."""
    config = {"Labels": {}, "Env": []}
    values = {}
    base = None
    for word, rest in instructions(path.read_text(encoding="utf-8")):
        if word == "FROM":
            base, config, values = rest, {"Labels": {}, "Env": []}, {}
            continue
        if base != "scratch":
            continue
        if word not in KNOWN:
            raise Fault(f"{path}: {word} in the last stage, wanted one of {', '.join(sorted(KNOWN))}")
        rest = re.sub(r"\$\{(\w+)\}", lambda match: values[match.group(1)], rest)
        if word == "ARG":
            name, _, default = rest.partition("=")
            values[name] = arguments.get(name, default)
        elif word == "LABEL":
            config["Labels"].update(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "ENV":
            config["Env"] += shlex.split(rest)
        elif word == "USER":
            config["User"] = rest
        elif word == "WORKDIR":
            config["WorkingDir"] = rest
        elif word == "EXPOSE":
            config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.capitalize()] = exec_form(word, rest)
    if base != "scratch":
        raise Fault(f"{path}: the last stage is FROM {base}, wanted FROM scratch")
    return {key: value for key, value in config.items() if value}
