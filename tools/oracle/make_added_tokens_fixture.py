#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/added_tokens.json: a small tokenizer.json with added tokens of every
kind, texts, and the ids that the `tokenizers` library gives them.

Usage: python3 tools/oracle/make_added_tokens_fixture.py [OUTPUT]
Needs: tokenizers 0.23.

Special tokens are encoded as text (`encode_special_tokens`), as Trainyard does.
"""

import json
import pathlib
import random
import sys

import tokenizers


def alphabet():
    """What a byte-level vocabulary writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def make_tokenizer():
    vocabulary = {written: byte for byte, written in enumerate(alphabet())}
    for word in ("th", "the", "\u0120the", "in", "ing"):
        vocabulary[word] = len(vocabulary)
    added = []

    def add(content, **flags):
        token = dict(id=len(vocabulary) + len(added), content=content, special=False,
                     normalized=False, lstrip=False, rstrip=False, single_word=False)
        token.update(flags)
        added.append(token)

    add("<|endoftext|>", special=True)
    add("[USER]")
    add("[USER]s", normalized=True)
    add("ing the", normalized=True)
    add("[L]", lstrip=True)
    add("[R]", rstrip=True)
    add("[LR]", lstrip=True, rstrip=True, normalized=True)
    add("word", single_word=True)
    add("\u00e9t\u00e9", single_word=True, normalized=True)
    add(" x ", rstrip=True)
    add("<|end|>", special=True, lstrip=True)
    add("end")
    add("\u4e2d\u6587")
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                  "merges": [["t", "h"], ["th", "e"], ["\u0120", "the"], ["i", "n"], ["in", "g"]]},
    }


def texts(added):
    yield from ("", "hello [USER] hi", "[USER]s and [USER]", "the  [L]  [R]  [LR]  the",
                "sing the word, words, swords word", "word", "\u00e9t\u00e9 l'\u00e9t\u00e9s",
                "a x  x   x b", "<|endoftext|>the<|end|> end", "[R]\u3000\u00a0\n [L]", "[R] x  x ",
                "\u4e2d\u6587\u4e2d\u6587word\u4e2d", "word\u0301 word_ word\u200d word-")
    generator = random.Random(26)
    pool = [token["content"] for token in added]
    pool += [" ", "  ", "\n", "\u00a0", "\u3000", "a", "the", "s", "_", "7", "\u0301", "\u200d", "-",
             "\u4e2d", "[USE", "wor", "d", "x"]
    for _ in range(240):
        yield "".join(generator.choice(pool) for _ in range(generator.randrange(1, 14)))


def main():
    default = pathlib.Path(__file__).parents[2] / "tests/fixtures/tokenizer/added_tokens.json"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    described = make_tokenizer()
    reference = tokenizers.Tokenizer.from_str(json.dumps(described))
    reference.encode_special_tokens = True
    with open(output, "w", encoding="ascii") as file:
        header = {"reference": f"tokenizers {tokenizers.__version__}", "tokenizer": described}
        file.write(json.dumps(header)[:-1] + ', "samples": [\n')
        lines = [json.dumps({"text": text, "ids": reference.encode(text).ids},
                            separators=(",", ":")) for text in texts(described["added_tokens"])]
        file.write(",\n".join(lines) + "\n]}\n")
    print(f"{output}: {len(lines)} samples, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
