"""The mutants that the operators make of the sources which tests/mutants/generated.toml names."""

import dataclasses
import datetime
import hashlib
import re
import tomllib

from mutants import cpp, operators


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
    digest: str  # of what is changed into what: with the name, the same as long as the two are
    around: str  # digest of the function that it is in, without comments and space

    def apply(self, source):
        return source[:self.start] + self.text + source[self.end:]


def one_line(text, limit=88):
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= limit else text[:limit - 3] + "..."


def digest_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def around(source, change):
    """The digest of the function that the change is in; of the change alone where it is in none."""
    start, end = next(((f.start, f.end) for f in source.functions if f.start <= change.start < f.end),
                      (change.start, change.end))
    return digest_of("".join(cpp.mask(source.text, comments_only=True)[start:end].split()))


def read_rooms(root):
    return tomllib.loads((root / "tests/mutants/generated.toml").read_text())["room"]


def families_of(room, values):
    """The room's families; with `values` also of what is written, where there are decisions."""
    return room["operators"] + (["values"] if values and "decisions" in room["operators"] else [])


def of_file(root, path, room, values):
    text = (root / path).read_text()
    source = operators.Source(path, text)
    counts = {}
    stem = path.removesuffix(".cc").removesuffix(".h")
    for function, change in operators.changes(source, families_of(room, values)):
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
            digest=digest_of(f"{text[change.start:change.end]}\0{change.text}"),
            around=around(source, change))


def make(root, values=False):
    """Every mutant, in the order of the rooms, their files and the text. A file belongs to the first room
    that names it."""
    made, taken = [], set()
    for room in read_rooms(root):
        for pattern in room["files"]:
            for path in sorted(str(p.relative_to(root)) for p in root.glob(pattern)):
                if path not in taken:
                    taken.add(path)
                    made.extend(of_file(root, path, room, values))
    return made


def sample(mutants, count, seed, name_of=lambda mutant: mutant.name):
    """`count` of them, drawn by the seed: the same draw whatever their order."""
    drawn = sorted(mutants, key=lambda m: hashlib.sha256(f"{seed}\n{name_of(m)}".encode()).hexdigest())
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


JUDGED = "tests/mutants/judged.tsv"
GAP = "-"
BROKEN = "does not compile"


@dataclasses.dataclass(frozen=True)
class Judged:
    test: str  # that caught it; GAP where none did, BROKEN where there is no program to ask
    was: str
    around: str = ""  # of the function when it was judged; "" in rows that are older than this column
    day: str = ""

    def holds(self, mutant):
        """Whether its function is what it was when it was judged."""
        return self.around == mutant.around


def read_judged(root):
    """What came of the mutants when they were judged last: {(name without ordinal, digest): Judged}. Each line of the
    file has these two and the fields of Judged."""
    judged = {}
    path = root / JUDGED
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not 4 <= len(line.split("\t")) <= 6:
            raise SystemExit(f"{JUDGED}:{number}: found {len(line.split(chr(9)))} columns, wanted 4 to 6")
        where, digest, *fields = line.split("\t")
        # Two that look the same: the worse one counts.
        if (where, digest) not in judged or judged[where, digest].test != GAP:
            judged[where, digest] = Judged(*fields)
    return judged


def stale(mutants, judged, count):
    """At least `count` of those whose function has changed since they were judged: those never judged first, then the
    longest ago. Mutants that look the same have one row, and are judged together."""
    rows = {}
    for mutant in mutants:
        rows.setdefault(row_of(mutant), []).append(mutant)

    def age(row):
        return (row in judged, judged[row].day if row in judged else "")
    chosen = []
    for row in sorted(rows, key=age):
        if len(chosen) < count and not (row in judged and all(judged[row].holds(m) for m in rows[row])):
            chosen.extend(rows[row])
    return chosen


def test_of(by):
    """The test program of an outcome: `name: Suite.Case`, `name (ran out of 20 s)`."""
    return by.split(":")[0].split(" (")[0]


def row_of(mutant):
    return mutant.name.rsplit(":", 1)[0], mutant.digest


def write_judged(root, made, caught_by):
    """Notes what came of the mutants named in `caught_by` (None: survived). Rows of mutants that are `made` no more go."""
    before = read_judged(root)
    rows = {row_of(m): dataclasses.replace(before[row_of(m)], was=m.was) for m in made if row_of(m) in before}
    fresh = {}
    for mutant in made:
        if mutant.name in caught_by:
            if row_of(mutant) not in fresh or fresh[row_of(mutant)].test != GAP:
                fresh[row_of(mutant)] = Judged(caught_by[mutant.name] or GAP, mutant.was, mutant.around,
                                               str(datetime.date.today()))
    rows.update(fresh)
    written = root / (JUDGED + ".new")
    written.write_text("".join("\t".join((*key, *dataclasses.astuple(row))).rstrip("\t") + "\n"
                               for key, row in sorted(rows.items(), key=lambda item: item[0])))
    written.replace(root / JUDGED)


def explanation_of(mutant, explanations):
    return next((e.why for e in explanations if e.fits(mutant)), None)


def check(root, known_tests):
    """What does not fit, a sentence each."""
    faults = [f"generated.toml: no test is named {test}"
              for test in sorted({t for room in read_rooms(root) for t in room["tests"]} - known_tests)]
    mutants = make(root, values=True)
    if len({m.name for m in mutants}) != len(mutants):
        faults.append("two generated mutants have one name")
    for explanation in read_explanations(root):
        if not any(explanation.fits(m) for m in mutants):
            faults.append(f"survivors.md: no mutant {explanation.where} changes `{explanation.was}`")
    return faults
