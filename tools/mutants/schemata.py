"""All mutants of a file in one text: each function holds a copy of its body for every mutant of it, and the environment
chooses one when the program runs. So the sources are compiled once for all of them, not once for each."""

import re

from mutants import cpp
from mutants.tree import CHOSEN, LENIENT, REACHED

# Once a translation unit, of which a header may have mutants, too. Without optimisation the many copies compile in half
# the time; a run without a mutant is of the same programs.
PRELUDE = LENIENT + f"""#pragma GCC optimize ("O0")
#ifndef TRAINYARD_CHOSEN_MUTANT
#define TRAINYARD_CHOSEN_MUTANT
#include <cstdio>
#include <cstdlib>
namespace {{
[[maybe_unused]] inline int chosen_mutant() {{
  static const int chosen = [] {{
    const char* text = std::getenv("{CHOSEN}");
    return text == nullptr ? 0 : std::atoi(text);
  }}();
  return chosen;
}}
// Appends a line to the file that the environment names, if it does: which mutants sit in a function that was run.
[[maybe_unused]] inline bool note_reached(const char* numbers) {{
  const char* path = std::getenv("{REACHED}");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return false;
  std::fputs(numbers, file);
  std::fclose(file);
  return true;
}}
}}
#endif
"""


def _line(source, position):
    return source.count("\n", 0, position) + 1


def _with_copies(path, source, function, numbered):
    """The function's body with a copy for each of the mutants."""
    body = source[function.start:function.end]
    line = _line(source, function.start)
    cases = []
    for number, mutant in numbered:
        mutated = mutant.apply(source)[function.start:function.end + len(mutant.text) - (mutant.end - mutant.start)]
        cases.append(f'case {number}: {{\n#line {line} "mutant-{number}"\n{mutated}\n}} break;\n')
    numbers = " ".join(str(number) for number, _ in numbered)
    return ("\nswitch (chosen_mutant()) {\n" + "".join(cases) +
            f'default: {{ [[maybe_unused]] static const bool noted = note_reached("{numbers} ");\n'
            f'#line {line} "{path}"\n{body}\n}} break;\n}}\n'
            f'#line {_line(source, function.end)} "{path}"\n')


def _with_choices(source, constants):
    """(start, end, text) for each constant of which there are mutants: no compile-time constant any more."""
    by_place = {}
    for number, mutant in constants:
        by_place.setdefault((mutant.start, mutant.end), []).append((number, mutant.text))
    for (start, end), choices in by_place.items():
        value = source[start:end]
        for number, text in choices:
            value = f"chosen_mutant() == {number} ? {text} : ({value})"
        declared = source.rindex("constexpr ", 0, start)
        yield declared, end, "const " + source[declared + len("constexpr "):start] + value


def combine(path, source, numbered):
    """`source` with all the (number, mutant) in it. A mutant's number is the value of the environment variable that
    chooses it; errors of the compiler name it as the file `mutant-<number>`."""
    edits, left = [], list(numbered)
    for function in cpp.functions(cpp.mask(source)):
        inside = [(n, m) for n, m in left if function.start <= m.start and m.end <= function.end]
        if inside:
            edits.append((function.start, function.end, _with_copies(path, source, function, inside)))
            left = [entry for entry in left if entry not in inside]
    edits.extend(_with_choices(source, left))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return PRELUDE + f'#line 1 "{path}"\n' + source


def broken_in(log):
    """Numbers of the mutants that the compiler complains of."""
    return {int(number) for number in re.findall(r"^mutant-(\d+):\d+(?::\d+)?: (?:fatal )?error:", log, re.M)}
