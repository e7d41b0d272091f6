#!/usr/bin/env python3
"""Writes what the `tokenizers` library makes of many texts with a real tokenizer, for
tokenizer_reference_test.

Usage: python3 tools/oracle/write_tokenizer_reference.py CACHE NAME FOLDER
CACHE is the folder that tools/fetch_data.sh fills; NAME is gpt2, llama3_1, qwen3 or smollm2.
Needs: tokenizers 0.23.

FOLDER gets tokenizer.json, and texts.bin and ids.bin: records of a u32 with the number of bytes or ids, and those
(i32). The texts are the State of the Union addresses, every code point alone and between letters, and 20,000
hostile strings.
"""

import json
import pathlib
import random
import shutil
import struct
import sys

from tokenizers import Tokenizer

CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
POOL = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\x85", "\x0b", "\x1c", "'s", "'LL", "'\u017f", "'Re",
        "'t", "'", "the", "The", " of", "ing", "0", "42", "1234", "\u0661", "\u00e9", "e\u0301", "\u1112\u1161\u11ab",
        "\ud55c\u11a8", "\u0958", "\u212b", "\u1e9b\u0323", "\u0344", "\u037e", "\u2126", "\U0001d15f", "\u0416", "\u4e2d",
        "\u3072", "\U0001f600", "\u200d", "\ufe0f", "\u00b2", "\u2167", "_", "-", "...", "!", "a", "B", "\u01c5", "\u00aa",
        "\U0001f1e9", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</think>", "<think>",
        "<|begin_of_text|>", "<|eot_id|>", "<|fim_prefix|>", "<tool_", "\ufb1d", "\u0327", "\u0323\u0307", "\u1100",
        "\u1161", "\u11a7", "\u11a8", "\u0f71\u0f72\u0f74", "\u0dd9\u0dcf\u0dca", "\u09c7\u09be", "\U000e0100", "\U00016fe0"]


def byte_level():
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def described(vocabulary, merges, special, pre_tokenizer):
    added = [{"id": number, "content": token, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
              "single_word": False} for token, number in special]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": byte_level(),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocabulary, "merges": merges}}


def gguf_values(path):
    """The key-value pairs at the beginning of a GGUF file."""
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:
        def number(format):
            return struct.unpack("<" + format, file.read(struct.calcsize("<" + format)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode("utf-8")
            if kind == 9:
                element = number("I")
                return [value(element) for _ in range(number("Q"))]
            return number(formats[kind])

        assert file.read(4) == b"GGUF" and number("I") == 3, path
        number("Q")
        return {value(8): value(number("I")) for _ in range(number("Q"))}


def write_tokenizer(cache, name, target):
    if name in ("llama3_1", "qwen3"):
        shutil.copy(cache / "tokenizers-1" / name / "tokenizer.json", target)
        return
    if name == "gpt2":
        vocabulary = json.loads((cache / "gpt2-bpe-0.1.5/encoder.json").read_text())
        lines = (cache / "gpt2-bpe-0.1.5/vocab.bpe").read_text(encoding="utf-8").split("\n")
        whole = described(vocabulary, [line for line in lines[1:] if line], [("<|endoftext|>", 50256)], byte_level())
    else:
        # The conversion to GGUF leaves out the splitter of digits.
        values = gguf_values(cache / "tokenizers-1/smollm2/model.gguf")
        tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        special = [(token, number) for token, number in vocabulary.items() if kinds[number] == 3]
        digits = {"type": "Digits", "individual_digits": True}
        whole = described(vocabulary, values["tokenizer.ggml.merges"], special,
                          {"type": "Sequence", "pretokenizers": [digits, byte_level()]})
    target.write_text(json.dumps(whole))


def texts(cache):
    for path in sorted((cache / "state-of-the-union-0.2.3").glob("*.txt")):
        yield path.read_text(encoding="utf-8")
    yield from CODE_POINTS
    for character in CODE_POINTS:
        yield "a" + character + "b"
    generator = random.Random(7)
    for i in range(20000):
        pool, length = (CODE_POINTS, 24) if i % 3 == 2 else (POOL, 60)
        yield "".join(generator.choice(pool) for _ in range(generator.randrange(1, length)))


def main():
    cache, name, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(cache, name, folder / "tokenizer.json")
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    with open(folder / "texts.bin", "wb") as inputs, open(folder / "ids.bin", "wb") as outputs:
        for text in texts(cache):
            data = text.encode("utf-8")
            ids = reference.encode(text, add_special_tokens=False).ids
            inputs.write(struct.pack("<I", len(data)) + data)
            outputs.write(struct.pack(f"<I{len(ids)}i", len(ids), *ids))


if __name__ == "__main__":
    main()
