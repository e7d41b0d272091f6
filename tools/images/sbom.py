"""A bill of materials in SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/): what is in an image and where it is from."""

import datetime
import hashlib
import re
import urllib.parse


def identifier(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def moment(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def package_entry(facts):
    """One Debian package; `facts` as packages.describe gives them."""
    name, version, architecture = facts["Package"], facts["Version"], facts["Architecture"]
    locator = f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe='.-~')}?arch={architecture}"
    return {
        "SPDXID": identifier("Package", name),
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: Debian",
        "originator": f"Person: {facts['Maintainer']}",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"terms: /usr/share/doc/{name}/copyright",
        "sourceInfo": f"built from the source package {facts['source:Package']} {facts['source:Version']}",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}],
    }


def wheel_entry(wheel):
    """One package of PyPI."""
    name, version = wheel["name"], wheel["version"]
    return {
        "SPDXID": identifier("Package", name),
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: NVIDIA",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"terms: /usr/share/doc/{name}/License.txt",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:pypi/{name}@{version}"}],
    }


def file_entry(path, content):
    return {
        "SPDXID": identifier("File", path.lstrip("/")),
        "fileName": "." + path,
        "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(content).hexdigest()},
                      {"algorithm": "SHA256", "checksumValue": hashlib.sha256(content).hexdigest()}],
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }


def document(image, version, epoch, programs, shared, compiled_in, from_wheels=()):
    """The whole of it. `programs` {path: content} are ours; `shared` [(facts, {path: content})] Debian packages whose files are in
    the image; `from_wheels` [(wheel, {path: content})] those of PyPI; `compiled_in` [facts] those whose headers or static libraries are in our programs."""
    ours = identifier("Image", image)
    packages = [{
        "SPDXID": ours, "name": image, "versionInfo": version, "primaryPackagePurpose": "CONTAINER",
        "supplier": "Organization: Trainyard", "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
    }]
    files, relations = [], []

    def relate(one, how, other):
        relations.append({"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other})

    relate("SPDXRef-DOCUMENT", "DESCRIBES", ours)
    for path, content in sorted(programs.items()):
        files.append(file_entry(path, content))
        relate(ours, "CONTAINS", files[-1]["SPDXID"])
    parts = [(package_entry(facts), contents) for facts, contents in sorted(shared, key=lambda entry: entry[0]["Package"])]
    parts += [(wheel_entry(wheel), contents) for wheel, contents in from_wheels]
    for entry, contents in parts:
        packages.append(entry)
        relate(ours, "CONTAINS", packages[-1]["SPDXID"])
        for path, content in sorted(contents.items()):
            files.append(file_entry(path, content))
            relate(packages[-1]["SPDXID"], "CONTAINS", files[-1]["SPDXID"])
    for facts in sorted(compiled_in, key=lambda entry: entry["Package"]):
        packages.append(package_entry(facts) | {"comment": "compiled in"})
        relate(packages[-1]["SPDXID"], "BUILD_DEPENDENCY_OF", ours)
    made_of = hashlib.sha256("".join(entry["checksums"][1]["checksumValue"] for entry in files).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{image}-{version}",
        # A name that is another for other contents; nothing need be there.
        "documentNamespace": f"https://trainyard.dev/spdx/{image}-{version}-{made_of[:32]}",
        "creationInfo": {"created": moment(epoch), "creators": ["Tool: trainyard-tools-images"]},
        "packages": packages, "files": files, "relationships": relations,
    }
