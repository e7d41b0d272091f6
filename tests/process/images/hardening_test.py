#!/usr/bin/env python3
"""The programs are linked so that a mistake in memory serves an attacker less.

    hardening_test.py FOLDER linked|checked PROGRAM ...

`checked`: as a release, whose code also ends with an error where it would write past a buffer.
"""

import pathlib
import subprocess
import sys
import unittest

binaries = None
kind = None
programs = []


def readelf(option, program):
    command = ["readelf", "--wide", option, str(binaries / program)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class HardeningTest(unittest.TestCase):
    def test_every_program_is_linked_hardened(self):
        for program in programs:
            with self.subTest(program):
                self.assertRegex(readelf("--file-header", program), r"Type:\s+DYN", "it lies at any address")
                segments = readelf("--program-headers", program)
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(segments, r"GNU_STACK.* RW ", "the stack is not executable")
                self.assertNotRegex(segments, r"LOAD.* RWE ", "nothing is both written and executed")
                self.assertRegex(readelf("--dynamic", program), r"BIND_NOW|FLAGS_1.*NOW", "its tables are read only")
                if kind == "checked":
                    symbols = readelf("--dyn-syms", program)
                    self.assertIn("__stack_chk_fail", symbols, "-fstack-protector-strong")
                    self.assertIn("__snprintf_chk", symbols, "-D_FORTIFY_SOURCE")
                    self.assertIn("__glibcxx_assert_fail", symbols, "-D_GLIBCXX_ASSERTIONS")


if __name__ == "__main__":
    binaries, kind, *programs = sys.argv[1:]
    binaries = pathlib.Path(binaries).resolve()
    unittest.main(argv=sys.argv[:1])
