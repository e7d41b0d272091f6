"""As much of C++ as making mutants takes: functions, statements, conditions and calls, by position.

It reads text formatted by this repository's .clang-format and knows no types. What it gets wrong shows
as a mutant that does not compile, which is counted apart.
"""

import dataclasses
import re

OPENING = {"(": ")", "[": "]", "{": "}"}
CONTROL = re.compile(r"(if|for|while|switch)\b")


def mask(text, comments_only=False):
    """The text with comments, literals and preprocessor lines blanked, or comments alone; every position keeps its place."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*',
        re.S | re.M)

    def blank(match):
        found = match.group()
        if comments_only and found[0] != "/":
            return found
        inner = re.sub(r"[^\n]", " ", found)
        # Quotes stay: an argument that is a literal is still an argument.
        return '"' + inner[1:-1] + '"' if found[0] in "\"'" and len(found) > 1 else inner

    # An apostrophe between digits (1'000) begins no literal.
    guarded = re.sub(r"(?<=\d)'(?=\d)", "_", text)
    return pattern.sub(blank, guarded)


def matching(code, start):
    """Position of the bracket that closes the one at `start`."""
    stack = []
    for i in range(start, len(code)):
        if code[i] in OPENING:
            stack.append(OPENING[code[i]])
        elif stack and code[i] == stack[-1]:
            stack.pop()
            if not stack:
                return i
    raise ValueError(f"a bracket at {start} is not closed")


def matching_back(code, end):
    """Position of the bracket that opens what the one at `end` closes."""
    depth = 0
    for i in range(end, -1, -1):
        if code[i] in ")]}":
            depth += 1
        elif code[i] in "([{":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"a bracket at {end} is not opened")


def arguments(code, open_at):
    """(start, end) of each argument between the brackets at `open_at` and its partner."""
    close = matching(code, open_at)
    spans, start, i = [], open_at + 1, open_at + 1
    while i < close:
        if code[i] in OPENING:
            i = matching(code, i)
        elif code[i] == ",":
            spans.append((start, i))
            start = i + 1
        i += 1
    if code[start:close].strip():
        spans.append((start, close))
    return [trimmed(code, *span) for span in spans]


def trimmed(code, start, end):
    while start < end and code[start].isspace():
        start += 1
    while end > start and code[end - 1].isspace():
        end -= 1
    return start, end


@dataclasses.dataclass
class Statement:
    """A simple statement, its semicolon included, or an `if`, loop or block with what it holds."""

    kind: str  # simple | if | loop | block
    start: int
    end: int
    condition: tuple = None  # (start, end) between the parentheses
    inner: list = dataclasses.field(default_factory=list)
    then: object = None  # of an if: the statement under it

    def walk(self):
        yield self
        for statement in self.inner:
            yield from statement.walk()


def _skip_space(code, i, end):
    while i < end and code[i].isspace():
        i += 1
    return i


def _is_lambda_body(code, brace):
    """Whether the brace within an expression opens a lambda's body: `) {`, `] {`, `-> Type {`."""
    before = code[:brace].rstrip()
    if not code[brace - 1].isspace() or not before:
        return False
    if before[-1] == ")" and not re.search(r"\b(?:if|for|while|switch)\s*$", code[: matching_back(code, len(before) - 1)]):
        return True
    return before[-1] == "]" or re.search(r"->\s*[\w:<>*& ]+$", before[-120:]) is not None


def _simple(code, start, end):
    """A statement up to its semicolon; blocks of lambdas within it are its inner statements."""
    inner, i = [], start

    def scan(i, stop):
        while i < stop:
            if code[i] == "{" and _is_lambda_body(code, i):
                close = matching(code, i)
                inner.extend(statements(code, i + 1, close))
                i = close
            elif code[i] in OPENING:
                close = matching(code, i)
                scan(i + 1, close)
                i = close
            elif code[i] == ";":
                return i + 1
            i += 1
        return stop

    return Statement("simple", start, scan(i, end), inner=inner)


def _statement(code, start, end):
    if code[start] == "{":
        close = matching(code, start)
        return Statement("block", start, close + 1, inner=statements(code, start + 1, close))
    control = CONTROL.match(code, start)
    if control:
        paren = code.index("(", start)
        close = matching(code, paren)
        body = _statement(code, _skip_space(code, close + 1, end), end)
        kind = "if" if control.group(1) == "if" and not code[start:paren].strip().endswith("constexpr") else "loop"
        result = Statement(kind, start, body.end, (paren + 1, close), [body], body)
        after = _skip_space(code, body.end, end)
        if kind == "if" and re.match(r"else\b", code[after:end]):
            other = _statement(code, _skip_space(code, after + 4, end), end)
            result.inner.append(other)
            result.end = other.end
        return result
    return _simple(code, start, end)


def statements(code, start, end):
    """The statements between two positions, in order."""
    found, i = [], start
    while True:
        i = _skip_space(code, i, end)
        if i >= end:
            return found
        label = re.compile(r"(?:case\b[^:;]*(?:::[^:;]*)*|default):(?!:)").match(code, i, end)
        if label:
            i = label.end()
            continue
        statement = _statement(code, i, end)
        found.append(statement)
        i = max(statement.end, i + 1)


@dataclasses.dataclass
class Function:
    name: str  # as it is defined: Impl::create_pod
    start: int  # of the body, after its brace
    end: int
    statements: list

    def walk(self):
        for statement in self.statements:
            yield from statement.walk()


def functions(code):
    """Every function with a body outside of other functions. `code` is masked."""
    found, i, header = [], 0, 0
    while i < len(code):
        char = code[i]
        if char in "([":
            i = matching(code, i)
        elif char in ";}":
            header = i + 1
        elif char == "{":
            head = re.sub(r"\btemplate\s*<[^>]*>", "", code[header:i]).strip()
            if i > 0 and not code[i - 1].isspace():  # an initialiser: T x{...}
                i = matching(code, i)
            elif re.search(r"\b(namespace|class|struct|enum|union)\b", head) and "(" not in head:
                if re.search(r"\benum\b", head):
                    i = matching(code, i)
                header = i + 1
            elif "(" in head and not re.search(r"=\s*$", head):
                close = matching(code, i)
                name = re.search(r"([~\w][\w:~]*|operator\S+)\s*\(", head)
                parts = name.group(1).split("::") if name else ["?"]
                found.append(Function("::".join(parts[-2:]), i + 1, close, statements(code, i + 1, close)))
                i = close
                header = i + 1
            else:
                i = matching(code, i)
        i += 1
    return found
