"""What came of the mutants: the state that a later run takes up, junit.xml, and the table."""

import collections
import hashlib
import json
import time
import xml.etree.ElementTree as ElementTree

KINDS = ("caught", "survived", "hung", "explained", "broken")


def key_of(source, mutated):
    return hashlib.sha256(f"{source}\0{mutated}".encode()).hexdigest()[:24]


class State:
    """Outcomes by what was changed into what, one line of JSON each; the last one counts."""

    def __init__(self, path):
        self.path = path
        self.known = {}

    def load(self):
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["key"]] = entry

    def settled(self, key):
        """The entry of a mutant that a test has caught, or that does not compile; None for all others."""
        entry = self.known.get(key)
        return entry if entry and entry["outcome"] in ("caught", "broken") else None

    def add(self, key, name, outcome, by, seconds):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            json.dump({"key": key, "name": name, "outcome": outcome, "by": by, "seconds": round(seconds, 1)}, file)
            file.write("\n")


class Progress:
    """A line a mutant, with the time that is left."""

    def __init__(self, total):
        self.total, self.done, self.judged, self.begun = total, 0, 0, time.monotonic()

    def tell(self, name, outcome, by, seconds=None):
        self.done += 1
        left = ""
        if seconds is not None:
            self.judged += 1
            ahead = (time.monotonic() - self.begun) / self.judged * (self.total - self.done)
            left = f"  ({seconds:.0f} s, {ahead / 60:.0f} min left)"
        print(f"{self.done:4}/{self.total}  {outcome:9}  {name}  {by}{left}", flush=True)


def write_junit(folder, suite_name, results, good):
    """`good`: the outcomes that are no failure. Mutants that do not compile are none of the suite's cases, unless
    they are failures."""
    suite = ElementTree.Element("testsuite", name=suite_name)
    for result in results:
        passed = result["outcome"] in good
        if not passed and result["outcome"] == "left out":
            continue
        case = ElementTree.SubElement(suite, "testcase", name=result["name"], status="run" if passed else "fail")
        if not passed:
            ElementTree.SubElement(case, "failure", message=f"{result['outcome']}: {result['by']}")
    folder.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(folder / "junit.xml")


def count(results):
    return {kind: sum(r["outcome"] == kind for r in results) for kind in KINDS}


def table(results, column, heading):
    """Lines of a table: for each value of the column how many were made and what came of them."""
    groups = collections.defaultdict(list)
    for result in results:
        groups[result[column]].append(result)
    rows = [f"{heading:28} {'judged':>7} {'caught':>7} {'by time':>8} {'explained':>10} {'survived':>9} {'hung':>5} {'broken':>7}"]
    for name, group in [*sorted(groups.items()), ("together", results)]:
        found = count(group)
        timed_out = sum("ran out of" in r["by"] for r in group if r["outcome"] == "caught")
        rows.append(f"{name:28} {len(group):7} {found['caught']:7} {timed_out:8} {found['explained']:10} "
                    f"{found['survived']:9} {found['hung']:5} {found['broken']:7}")
    return rows
