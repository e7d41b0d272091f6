#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/pipelines.json: a small tokenizer.json, parts that replace its own, texts,
and the ids that the `tokenizers` library gives them with each part; and digests of what the library does with
every code point.

Usage: python3 tools/oracle/make_pipeline_fixture.py [OUTPUT]
Needs: tokenizers 0.23.

Special tokens are encoded as text (`encode_special_tokens`), as Trainyard does. A template's tokens are kept
apart: `around` has how many the library puts before and after each text.
"""

import hashlib
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from make_added_tokens_fixture import alphabet

LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll"
         r"|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m"
         r"|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SETS = ["L", "M", "N", "P", "S", "Z", "C", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Nd", "Sm", "Zs", "Cf", "Cn"]
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def byte_level(prefix=False, words=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": words}


def split(pattern, behaviour="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behaviour, "invert": invert}


def cuts(*steps, prefix=False, words=False):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level(prefix, words)]}}


def base():
    vocabulary = {written: byte for byte, written in enumerate(alphabet())}
    merges = [["t", "h"], ["th", "e"], ["\u0120", "the"], ["i", "n"], ["in", "g"], ["1", "2"], ["\u0120", "\u0120"],
              ["\u010a", "\u010a"], ["\u00c3", "\u00a9"], ["e", "\u00cc"], [".", "."], ["a", "b"], ["ab", "c"],
              ["\u0120", "a"], ["'", "s"]]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    for whole in ("there", "\u0120abcd", "12.5"):  # no merge leads to them
        vocabulary[whole] = len(vocabulary)
    special = dict(content="<s>", special=True, normalized=False, lstrip=False, rstrip=False, single_word=False)
    added = [dict(special, id=len(vocabulary)), dict(special, id=len(vocabulary) + 1, content="</s>"),
             dict(special, id=len(vocabulary) + 2, content="<|endoftext|>")]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level(), "post_processor": None, "decoder": byte_level(),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocabulary, "merges": merges}}


def template(before, after):
    def piece(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}
    ids = {token["content"]: token["id"] for token in base()["added_tokens"]}
    return {"type": "TemplateProcessing",
            "single": [*map(piece, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(piece, after)],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]}
                               for name in {*before, *after}}}


def cases():
    start = base()
    yield "GPT-2", {}
    yield "sequence of one", cuts(words=True)
    yield "prefix space", {"pre_tokenizer": byte_level(prefix=True)}
    yield "no words", {"pre_tokenizer": byte_level(words=False)}
    yield "prefix space, no words", {"pre_tokenizer": byte_level(prefix=True, words=False)}
    yield "Llama", cuts(split(LLAMA))
    yield "Llama, inverted", cuts(split(LLAMA, invert=True))
    yield "Llama, removed, inverted", cuts(split(LLAMA, "Removed", True))
    yield "cased", cuts(split(CASED))
    yield "digits", cuts({"type": "Digits", "individual_digits": True}, words=True)
    yield "numbers", cuts({"type": "Digits", "individual_digits": False}, words=True)
    for behaviour in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"{behaviour} {invert}", cuts(split(r"[\s\.]", behaviour, invert))
    yield "string", cuts(split("ab", kind="String"))
    yield "string of signs", cuts(split("..", "MergedWithNext", kind="String"), prefix=True)
    yield "two splits", cuts(split(r"\p{N}{1,3}"), split(r"[一-龥\u3040-\x{30FF}]+|[.\-\]]"), split(r"\s+?|\d"),
                             words=True, prefix=True)
    yield "not classes", cuts(split(r"\P{L}+|(?:the|\S\D)?[^\S\n]+(?=\p{L})"))
    yield "NFC", {"normalizer": {"type": "NFC"}}
    yield "NFC in a sequence", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
    nfc_tokens = [*start["added_tokens"]]
    for content, normalized in (("e\u0301[", True), ("e\u0301]", False), ("[K", True)):
        nfc_tokens.append(dict(nfc_tokens[0], id=nfc_tokens[-1]["id"] + 1, content=content, special=False,
                               normalized=normalized))
    yield "NFC and added tokens", {"normalizer": {"type": "NFC"}, "added_tokens": nfc_tokens, **cuts(split(LLAMA))}
    yield "ignore merges", {"model": {**start["model"], "ignore_merges": True}, **cuts(split(LLAMA))}
    lacking = {written: number for number, (written, _) in
               enumerate(item for item in start["model"]["vocab"].items() if item[1] not in (4, ord("z"), 0xFF))}
    yield "bytes without a token", {"model": {**start["model"], "vocab": lacking},
                                    "added_tokens": [dict(t, id=t["id"] - 3) for t in start["added_tokens"]]}
    yield "template", {"post_processor": {"type": "Sequence", "processors": [byte_level(), template(["<s>"], [])]}}
    yield "template around", {"post_processor": template(["<s>"], ["</s>", "<|endoftext|>"])}


def texts():
    yield from ("", " ", "the there thing abcd abcabc", "  the\n\n  12.5 12345 a1b2", "it's IT'S we'll 'S'\u017f 'Re",
                "...a..b...\r\n\r\n  \n x", "<s>the</s> <|endoftext|>", "e\u0301[ \u00e9] e\u0301] \u00e9[ \u212a [\u212a",
                "\u0661\u0662 \u2167\u00b2 v2", "\u4e2d\u6587abc\u3072\u30d2-]", "\u01c5Abc aBC\u0301 D\u0323\u0307d",
                "\u1112\u1161\u11ab \ud55c\u11a8 \u0958 \u037e\u2126 \u0344", "z\u0004zz the\u0004the",
                "\u00a0the\u3000 \u2003a\u200d b", "\U0001f600\U0001f1e9 \ufe0f", "\t\tif (x):\n\t\treturn  12  ")
    generator = random.Random(41)
    pool = ["the", " ", "  ", "\n", "\r", "ab", "abc", ".", "..", "'s", "'T", "12", "5", "a", "Z", "\u00e9", "e\u0301", "\u4e2d",
            "\u0661", "_", "-", "]", "\u212b", "\u0323", "<s>", "\u00a0", "\u0085"]
    for _ in range(16):
        yield "".join(generator.choice(pool) for _ in range(generator.randrange(4, 20)))


def digest(pieces):
    return hashlib.sha256("".join(pieces).encode("utf-8")).hexdigest()


def every_code_point():
    """SHA-256 of "1" or "0" of each code point: whether it is in the set; and of the NFC of each and a line end."""
    found = {}
    for name in SETS:
        out = pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed")
        found[name] = digest("0" if out.pre_tokenize_str(chr(c)) else "1" for c in CODE_POINTS)
    out = pre_tokenizers.Split(Regex(r"\s"), "removed")
    found["white space"] = digest("0" if out.pre_tokenize_str(chr(c)) else "1" for c in CODE_POINTS)
    digits = pre_tokenizers.Digits(individual_digits=True)
    found["digits"] = digest("1" if len(digits.pre_tokenize_str("a" + chr(c))) == 2 else "0" for c in CODE_POINTS)
    nfc = normalizers.NFC().normalize_str
    found["NFC"] = digest(nfc(chr(c)) + "\n" for c in CODE_POINTS)
    found["NFC between"] = digest(nfc("e\u0323" + chr(c) + "\u0301") + "\n" for c in CODE_POINTS)
    return found


def main():
    default = pathlib.Path(__file__).parents[2] / "tests/fixtures/tokenizer/pipelines.json"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    all_texts = list(texts())
    lines = []
    for name, change in cases():
        reference = Tokenizer.from_str(json.dumps({**base(), **change}))
        reference.encode_special_tokens = True
        # A model's tables are long and change in two cases only: the members that change.
        if "model" in change:
            change = {**change, "model": {key: value for key, value in change["model"].items()
                                          if value != base()["model"][key]}}
        ids = [reference.encode(text, add_special_tokens=False).ids for text in all_texts]
        whole = reference.encode("the").ids
        lines.append(json.dumps({"name": name, "change": change, "whole": whole, "ids": ids}, separators=(",", ":")))
    header = {"reference": f"tokenizers {tokenizers.__version__}", "tokenizer": base(),
              "every_code_point": every_code_point(), "texts": all_texts}
    with open(output, "w", encoding="ascii") as file:
        file.write(json.dumps(header, separators=(",", ":"))[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{output}: {len(lines)} pipelines, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
