"""The mutants that the operators make of the sources which tests/mutants/generated.toml names."""

import dataclasses
import hashlib
import re
import tomllib

from mutants import operators


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str  # file without suffix:function:operator:ordinal, the same as long as the function is
    file: str
    operator: str
    line: int
    was: str  # what stood there, on one line
    becomes: str
    start: int
    end: int
    text: str
    tests: tuple
    sampled: bool  # its room has been judged as a whole: a survivor is news

    def apply(self, source):
        return source[:self.start] + self.text + source[self.end:]


def one_line(text, limit=88):
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= limit else text[:limit - 3] + "..."


def read_rooms(root):
    return tomllib.loads((root / "tests/mutants/generated.toml").read_text())["room"]


def of_file(root, path, room):
    text = (root / path).read_text()
    source = operators.Source(path, text)
    counts = {}
    stem = path.removesuffix(".cc").removesuffix(".h")
    for function, change in operators.changes(source, room["operators"]):
        key = (function, change.operator)
        counts[key] = counts.get(key, 0) + 1
        yield Mutant(
            name=f"{stem}:{function}:{change.operator}:{counts[key]}",
            file=path,
            operator=change.operator,
            line=text.count("\n", 0, change.start) + 1,
            was=one_line(text[change.start:change.end]),
            becomes=one_line(change.text),
            start=change.start,
            end=change.end,
            text=change.text,
            tests=tuple(room["tests"]),
            sampled=room.get("sampled", False))


def make(root):
    """Every mutant, in the order of the rooms, their files and the text. A file belongs to the first room
    that names it."""
    made, taken = [], set()
    for room in read_rooms(root):
        for pattern in room["files"]:
            for path in sorted(str(p.relative_to(root)) for p in root.glob(pattern)):
                if path not in taken:
                    taken.add(path)
                    made.extend(of_file(root, path, room))
    return made


def sample(mutants, count, seed):
    """`count` of them, drawn by the seed: the same draw whatever their order."""
    drawn = sorted(mutants, key=lambda m: hashlib.sha256(f"{seed}\n{m.name}".encode()).hexdigest())
    return drawn[:count]


@dataclasses.dataclass(frozen=True)
class Explanation:
    where: str  # name without its ordinal
    was: str
    why: str

    def fits(self, mutant):
        return mutant.name.rsplit(":", 1)[0] == self.where and mutant.was == self.was


def read_explanations(root):
    """The rows `| name | what stood there | why |` of tests/mutants/survivors.md; the first two in backticks."""
    found = []
    for line in (root / "tests/mutants/survivors.md").read_text().splitlines():
        row = re.match(r"\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", line)
        if row:
            found.append(Explanation(row.group(1), row.group(2).replace("\\|", "|"), row.group(3)))
    return found


GAPS = "tests/mutants/gaps.tsv"


def read_gaps(root):
    """Mutants that are known to survive without an explanation: tests that are still to be written. Each line has
    the name without its ordinal, a tab, and what stood there."""
    path = root / GAPS
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(line.split("\t", 1)) for line in lines if "\t" in line}


def gap_of(mutant):
    return mutant.name.rsplit(":", 1)[0], mutant.was


def write_gaps(root, judged, survived):
    """Takes out the gaps of `judged` mutants and puts in those of `survived` ones."""
    gaps = (read_gaps(root) - {gap_of(m) for m in judged}) | {gap_of(m) for m in survived}
    (root / GAPS).write_text("".join(f"{where}\t{was}\n" for where, was in sorted(gaps)))


def explanation_of(mutant, explanations):
    return next((e.why for e in explanations if e.fits(mutant)), None)


def check(root, known_tests):
    """What does not fit, a sentence each."""
    faults = [f"generated.toml: no test is named {test}"
              for test in sorted({t for room in read_rooms(root) for t in room["tests"]} - known_tests)]
    mutants = make(root)
    if len({m.name for m in mutants}) != len(mutants):
        faults.append("two generated mutants have one name")
    for explanation in read_explanations(root):
        if not any(explanation.fits(m) for m in mutants):
            faults.append(f"survivors.md: no mutant {explanation.where} changes `{explanation.was}`")
    return faults
