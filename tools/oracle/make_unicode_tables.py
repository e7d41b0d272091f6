#!/usr/bin/env python3
"""Makes worker/data/text/category_tables.cc and nfc_tables.cc: what the `tokenizers` library takes each
code point for.

Usage: python3 tools/oracle/make_unicode_tables.py [FOLDER]
Needs: tokenizers 0.23 (Python's unicodedata names one mark of each combining class).

Everything is asked of the library, for every code point: the general category of its regular
expressions (Unicode 16), the numbers of its Digits splitter (Unicode 17), the word characters beside
single_word tokens, and the decompositions, combining classes and compositions of its NFC.
"""

import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

# The order is that of kNames in unicode.cc.
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co "
              "Cn").split()
WORD, DIGITS = 1 << 5, 1 << 6
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
HEAD = """// Made by tools/oracle/make_unicode_tables.py with tokenizers %s. Not edited by hand.
#include "worker/data/text/unicode_tables.h"

namespace trainyard::data {
namespace {

// clang-format off"""


def categories():
    of = {}
    for name in CATEGORIES:
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed")
        for code_point in CODE_POINTS:
            if not split.pre_tokenize_str(chr(code_point)):
                assert code_point not in of, hex(code_point)
                of[code_point] = name
    assert len(of) == len(CODE_POINTS)
    return of


def word_characters():
    """Those beside which a token of a single word is not found."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("@@", single_word=True, normalized=False)])
    return {c for c in CODE_POINTS if 1 not in tokenizer.encode(chr(c) + "@@").ids}


def digits():
    split = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CODE_POINTS if len(split.pre_tokenize_str("a" + chr(c))) == 2}


def runs(value_of):
    """(first code point << 8 | value) of each run of code points with one value."""
    found, last = [], None
    for code_point in CODE_POINTS:
        value = value_of(code_point)
        if value != last:
            found.append(code_point << 8 | value)
            last = value
    return found


def combining_classes():
    nfd = normalizers.NFD().normalize_str

    def moves(text):
        return nfd(text) != text

    def combines(c):
        """Whether a mark of class 1 or 240 changes places with it: so do those of other classes."""
        return not moves(chr(c)) and (moves(chr(c) + "\u0334") or moves("\u0345" + chr(c)))

    known = [c for c in CODE_POINTS if combines(c)]
    marks = {}  # class -> a mark of it
    for c in known:
        marks.setdefault(unicodedata.combining(chr(c)), chr(c))
    classes = {}
    for c in known:
        fitting = [number for number, mark in marks.items()
                   if not moves(chr(c) + mark) and not moves(mark + chr(c))]
        assert len(fitting) == 1, (hex(c), fitting)
        classes[c] = fitting[0]
    return classes


def decompositions():
    """(code point, first, second, whether the two compose again); second 0: none."""
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    full = {chr(c): nfd(chr(c)) for c in CODE_POINTS if c not in HANGUL and nfd(chr(c)) != chr(c)}
    by_full = {}
    for composite, parts in full.items():
        if len(parts) > 1 and (nfc(parts) == composite or parts not in by_full):
            by_full[parts] = composite
    for composite, parts in full.items():
        composes = nfc(parts) == composite
        if len(parts) == 1:
            yield ord(composite), ord(parts), 0, False
            continue
        first = parts[0] if len(parts) == 2 else by_full[parts[:-1]]
        assert nfd(first + parts[-1]) == parts
        assert not composes or nfc(first + parts[-1]) == composite
        yield ord(composite), ord(first), ord(parts[-1]), composes


def array(kind, name, values, width, per_line):
    lines = ["constexpr %s k%s[] = {" % (kind, name)]
    for begin in range(0, len(values), per_line):
        lines.append("    " + " ".join("0x%0*X," % (width, v) for v in values[begin:begin + per_line]))
    return "\n".join(lines) + "\n};\n"


def write(path, arrays):
    """`arrays`: (element type, name, values, digits, values per line) of each."""
    lines = [HEAD % tokenizers.__version__]
    lines += [array(*one) for one in arrays]
    lines.append("}  // namespace\n// clang-format on\n")
    for kind, name, *_ in arrays:
        function = "".join("_" + c.lower() if c.isupper() else c for c in name)[1:]
        lines.append("std::span<const %s> %s() { return k%s; }" % (kind, function, name))
    path.write_text("\n".join(lines) + "\n\n}  // namespace trainyard::data\n")


def main():
    default = pathlib.Path(__file__).parents[2] / "worker/data/text"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    of, word, numbers = categories(), word_characters(), digits()
    flags = runs(lambda c: CATEGORIES.index(of[c]) | (WORD if c in word else 0)
                 | (DIGITS if c in numbers else 0))
    classes = combining_classes()
    pairs = [composes << 63 | c << 42 | first << 21 | second
             for c, first, second, composes in decompositions()]
    pairs.sort(key=lambda pair: pair >> 42 & 0x1FFFFF)
    write(folder / "category_tables.cc", [("uint32_t", "CategoryRuns", flags, 8, 8)])
    write(folder / "nfc_tables.cc",
          [("uint32_t", "CombiningRuns", runs(lambda c: classes.get(c, 0)), 8, 8),
           ("uint64_t", "Decompositions", pairs, 16, 4)])
    print(len(flags), "runs of categories,", len(classes), "combining,", len(pairs), "decompositions")


if __name__ == "__main__":
    main()
