"""The bugs of tests/mutants/mutants.toml: which they are, and what comes of them."""

import hashlib
import time
import tomllib

from mutants import report, tree


def read(root):
    mutants = tomllib.loads((root / "tests/mutants/mutants.toml").read_text())["mutant"]
    if len({m["name"] for m in mutants}) != len(mutants):
        raise SystemExit("mutants.toml: found a name twice, wanted each once")
    return mutants


def check(root, mutants, known):
    """What does not fit, a sentence each."""
    faults = []
    for mutant in mutants:
        found = (root / mutant["file"]).read_text().count(mutant["find"])
        if found != 1:
            faults.append(f"{mutant['name']}: `find` occurs {found} times in {mutant['file']}, wanted once")
        faults += [f"{mutant['name']}: no test is named {test}" for test in mutant["tests"] if test not in known]
    return faults


def room_of(mutant):
    return "/".join(mutant["file"].split("/")[:2])


def sample(mutants, count, seed):
    """`count` of them, drawn by the seed: of each room one before there is a second of any."""
    def drawn(text):
        return hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest()
    before, ordered = {}, []
    for mutant in sorted(mutants, key=lambda m: drawn(m["name"])):
        room = room_of(mutant)
        before[room] = before.get(room, 0) + 1
        ordered.append((before[room], drawn(room), mutant))
    return [mutant for _, _, mutant in sorted(ordered, key=lambda entry: entry[:2])[:count]]


def judge_all(copy, root, mutants, logs):
    """The results, in the order of the mutants. The first of them all is the one that changes nothing: the files as
    they are, compiled as each bug is. Where a test catches that, what it catches means nothing, and no other is asked."""
    log = logs / "baseline.log"
    tests = sorted({test for mutant in mutants for test in mutant["tests"]})
    texts = {mutant["file"]: (root / mutant["file"]).read_text() for mutant in mutants}
    copy.prepare(log, {path: tree.lenient(text) for path, text in texts.items()})
    print(f"== {len(tests)} tests of the mutant that changes nothing", flush=True)
    if not copy.build(tests, log):
        raise SystemExit(f"does not build; see {log}")
    failed = {test: copy.vet(test, log) for test in tests}
    results = [{"name": f"nothing changed: {test}", "outcome": "false alarm", "by": by} for test, by in failed.items() if by]
    if results:
        return results
    progress = report.Progress(len(mutants))
    for mutant in mutants:
        started = time.monotonic()
        outcome, by = copy.judge(mutant["file"], texts[mutant["file"]].replace(mutant["find"], mutant["replace"]),
                                 mutant["tests"], logs / f"{mutant['name']}.log", mutant.get("hang", False))
        results.append({"name": mutant["name"], "outcome": outcome, "by": by})
        progress.tell(mutant["name"], outcome, by, time.monotonic() - started)
        if outcome != "caught":
            print(f"repeat: tools/run_mutants --only {mutant['name']}", flush=True)
    return results
