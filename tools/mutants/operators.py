"""The mutation operators: how a controller goes wrong, one small change of the text at a time.

Each operator takes a Source and yields Changes. What they change is the traffic with the world: writes, their
preconditions, what is expected of the cache, when a job is looked at again, and the decisions that lead to one of
these. What a write says (fields, bounds of counts) is a family of its own, `values`, which is made on demand: tables
and fixtures judge texts better than mutants do.

Not made, because nobody could tell or because another says it already:
  - what decides about a log line alone: an `if` with nothing but a log call under it, a function log_...;
  - a guard turned round whose whole condition is one comparison that is misread or ignored anyway;
  - pauses of constants that no function reads which looks again: deadlines and time limits are no requeues.
"""

import dataclasses
import re

from mutants import cpp

# Calls that change the world, the API server's or a run directory's: by whom, and their names.
CLUSTER_WRITES = ("put_status", "create_pod", "delete_pod", "remove_member_label", "delete_job", "emit_event",
                  "keep_companions", "try_pod")
CLIENT_WRITES = ("create", "update", "update_status", "merge_patch", "remove")
OWN_WRITES = ("write", "write_outcome", "condemn", "publish", "retire", "keep_budget", "make_budget",
              "adjust_budget", "remove_budget", "write_pod_record", "remove_pod_record", "write_status",
              "write_job_files", "write_file_atomic", "kill_session", "send_signal", "release", "record",
              "begin_series")
CLIENT = r"(?:options_\.)?client_?(?:->|\.)"

WRITE = re.compile(
    rf"(?:\b(?:{'|'.join(CLUSTER_WRITES)})\()|(?:\b{CLIENT}(?:{'|'.join(CLIENT_WRITES)})\()"
    rf"|(?:(?<![\w.>:])(?:{'|'.join(OWN_WRITES)})\()|(?:\bmembership->(?:publish|retire)\()")
EXPECTATION = re.compile(
    r"\b(?:own_writes(?:_\.|\([\w.]+\)\.)\w+\(|expectations_\.(?!pending|first_end)\w+\(|remember\(|note_job\(|"
    r"companions_\.forget\(|job_gone\(|(?:created_|changes_|jobs_|deleted_jobs_|memory_|kept_|stop_requested_)"
    r"(?:\[.*?\]\s*=|\.(?:erase|insert)\())|^std::erase_if\(|\bchange_of\([^)]*\)\.\w+ =|^memory\.\w+ =|^kept\.\w+ =")
REQUEUE = re.compile(
    r"^(?:options_\.\w+->|context_\.|impl_->|queue_\.|limiter_\.|listener_)?"
    r"(?:look_in|add|add_after|add_rate_limited|wake|tell(?!\([^;]*EventType)|changed|node_changed|room_changed|enqueue|promote_due|"
    r"listener_|forget|\w*ready_\.push_back)\(|requeue_after =|^due_\[|^due_order_\.insert\(|^effects\.changed\.push_back\(")
DECISION = re.compile(
    r"\bahead_ = |^tell\([^;]*EventType|^(?:set|fail|condemn|end_attempts?|close_books|restart|resize|open_generation|plan_\w+|set_condition|"
    r"clear_condition|clear_running_conditions|count_restart|note_further_loss|create_missing|sort)\(|"
    r"plan_\.(?:create|condemn)\.push_back|plan_\.delete_job|losses\.push_back|policies::count_restart\(")
EFFECT = re.compile("|".join(p.pattern for p in (WRITE, EXPECTATION, REQUEUE, DECISION)))
LOG = re.compile(r"(?:\w+(?:\.|->))?logger_?(?:\.|->)\w+\(")

TIME = re.compile(r"Duration|\bnow\b|now_|mono|zero\(\)|deadline|elapsed|since|\bleft\b|\bwait\b|->at\b|_at\b|\bat\b|age\(|window|"
                  r"last_time|committed|limit_?\b.*time|->first\b|\.second\b")
COUNTED = re.compile(r"restarts|budget|total|count|size|generation|kMax|most|largest|target|used|placed|room|width|"
                     r"batch|kMemory|burst|nodes|fit|failures|attempts|version|width|limit|at_once|left\b")


@dataclasses.dataclass(frozen=True)
class Change:
    operator: str
    start: int
    end: int
    text: str  # what stands there instead


@dataclasses.dataclass
class Source:
    path: str
    text: str

    def __post_init__(self):
        self.code = cpp.mask(self.text)
        self.functions = cpp.functions(self.code)

    def calls(self, function, pattern):
        """(match, open bracket) of each call in the function that the pattern, which ends in `\\(`, finds."""
        for match in re.compile(pattern).finditer(self.code, function.start, function.end):
            yield match, match.end() - 1


def _own_text(source, statement):
    """The masked text of a simple statement, without the blocks of lambdas within it."""
    text, at = "", statement.start
    for inner in statement.inner:
        text += source.code[at:inner.start]
        at = inner.end
    return text + source.code[at:statement.end]


def _is_plain(text):
    """Neither a return nor a declaration: it may be left out and the rest still compiles."""
    if re.match(r"(return|break|continue|using|const|auto|static|constexpr|case|throw|struct)\b", text):
        return False
    if re.match(r"TRAINYARD_ASSIGN\(const |TRAINYARD_ASSIGN\(\w+ \w+,|TRAINYARD_ASSIGN\([\w:<>]+ \w+,", text):
        return False
    # `Type name = ...;`, `Type name;`, `Type name{...};`
    return re.match(r"(?:[\w:]+(?:<[^;=()]*>)?[&*]?)\s+[&*]?\w+\s*(?:=|;|\{|\()", text) is None or text.startswith("++")


def _dropped(source, function, pattern, operator):
    for statement in function.walk():
        if statement.kind != "simple":
            continue
        text = _own_text(source, statement).strip()
        if pattern.search(text) and _is_plain(text):
            yield Change(operator, statement.start, statement.end, "{}")


def _only_logs(source, statement):
    """Whether nothing happens in the statement but log calls."""
    if statement.kind == "simple":
        return LOG.match(_own_text(source, statement).strip()) is not None
    return statement.kind in ("if", "block") and bool(statement.inner) and all(_only_logs(source, s) for s in statement.inner)


def _for_the_log(source, function):
    """(start, end) of what only a log hears of: conditions of log calls, and of returns before log calls."""
    def inside(block):
        for i, statement in enumerate(block):
            if statement.kind == "if":
                leaves = source.code[statement.then.start:statement.then.end].strip("{ };\n") == "return"
                rest = [s for s in block[i + 1:] if source.code[s.start:s.end].strip() != "return false;"]
                if _only_logs(source, statement) or (leaves and rest and all(_only_logs(source, s) for s in rest)):
                    yield statement.condition
            yield from inside(statement.inner)
    found = list(inside(function.statements))
    # A name that only these ask for.
    for name in {source.code[start:end].lstrip("!") for start, end in found}:
        declared = [s for s in function.walk() if re.match(rf"const bool {re.escape(name)} =", source.code[s.start:s.end])]
        asked = re.findall(rf"\b{re.escape(name)}\b", source.code[function.start:function.end])
        if len(declared) == 1 and len(asked) == 1 + sum(source.code[a:b].lstrip("!") == name for a, b in found):
            found.append((declared[0].start, declared[0].end))
    return found


# ---- Writes ------------------------------------------------------------------------------------------------


def _success(source, name, spans):
    """An expression that looks like the call's success, or None where nobody knows one."""
    texts = [source.text[a:b] for a, b in spans]
    if name in ("delete_pod", "remove_member_label", "delete_job", "emit_event"):
        return "::trainyard::Status()"
    if name == "put_status" and len(texts) == 4:
        return f"::trainyard::Result<std::string>({texts[3]})"
    if name in ("keep_companions", "try_pod"):
        return ("::trainyard::Result<std::optional<::trainyard::control::Refusal>>("
                "std::optional<::trainyard::control::Refusal>())")
    if name == "create_pod":
        return ("::trainyard::Result<::trainyard::control::CreateReply>(::trainyard::control::CreateReply"
                '{::trainyard::control::CreateReply::Outcome::kCreated, "never-made", {}, {}})')
    if name in ("create", "update", "update_status"):
        sent = texts[2] if name == "create" and len(texts) > 2 else texts[1] if len(texts) > 1 else None
        if sent is None:
            return None
        return ("[&] { nlohmann::json mutant_reply = " + sent + '; mutant_reply["metadata"]["uid"] = "never-made"; '
                'mutant_reply["metadata"]["resourceVersion"] = "1"; '
                "return ::trainyard::kube::ApiResult<nlohmann::json>(std::move(mutant_reply)); }()")
    if name in ("merge_patch", "remove"):
        return "::trainyard::kube::ApiResult<nlohmann::json>(nlohmann::json::object())"
    return None


def drop_write(source, function):
    """A write that never leaves this process, and looks like one that was done."""
    taken = []
    for change in _dropped(source, function, WRITE, "drop-write"):
        taken.append((change.start, change.end))
        yield change
    names = "|".join(CLUSTER_WRITES + CLIENT_WRITES)
    for match, bracket in source.calls(function, rf"(?:[\w.]+(?:->|\.))?({names})\("):
        if any(a <= match.start() < b for a, b in taken):
            continue
        name, owner = match.group(1), match.group()[: match.start(1) - match.start()]
        if name in CLIENT_WRITES and not re.search(r"client_?(->|\.)$", owner):
            continue
        if name in CLUSTER_WRITES and not re.search(r"cluster_?(->|\.)$", owner):
            continue
        success = _success(source, name, cpp.arguments(source.code, bracket))
        if success:
            yield Change("drop-write", match.start(), cpp.matching(source.code, bracket) + 1, success)


def twice_write(source, function):
    """A write that goes out twice."""
    for statement in function.walk():
        if statement.kind != "simple" or statement.inner:
            continue
        text = _own_text(source, statement).strip()
        once = re.match(rf"(?:TRAINYARD_TRY\()?(?:{'|'.join(OWN_WRITES[:4])})\(", text)
        if once and _is_plain(text):
            whole = source.text[statement.start:statement.end]
            yield Change("twice-write", statement.start, statement.end, "{ " + whole + " " + whole + " }")


def swap_order(source, function):
    """Two neighbouring statements with effects, the other way round."""
    blocks = [function.statements] + [s.inner for s in function.walk() if s.kind in ("block", "simple")]
    for block in blocks:
        for first, second in zip(block, block[1:]):
            if "return" in source.code[first.start:second.end]:
                continue
            texts = [source.code[s.start:s.end] for s in (first, second)]
            if not all(WRITE.search(t) or EXPECTATION.search(t) for t in texts):
                continue
            if not any(WRITE.search(t) for t in texts):
                continue
            between = source.text[first.end:second.start]
            yield Change("swap-order", first.start, second.end,
                         source.text[second.start:second.end] + between + source.text[first.start:first.end])


# ---- Preconditions -----------------------------------------------------------------------------------------


def precondition(source, function):
    """A write that guards nothing, or guards something else; an owner who is not asked for."""
    body = slice(function.start, function.end)
    patterns = (
        (r"\.preconditions = \{\.uid = [^{}]*\}", ".preconditions = {}", '.preconditions = {.uid = "swapped"}'),
        (r"(?<=, )\{\.uid = [^{}]*\}(?=\))", "{}", '{.uid = "swapped"}'),
        (r"(?<=[ (])unchanged\(\*?[\w.]+\)(?=[})])", "kube::Preconditions()",
         'kube::Preconditions{.uid = "swapped", .resource_version = {}}'),
    )
    for pattern, without, swapped in patterns:
        for match in re.finditer(pattern, source.text[body]):
            start, end = function.start + match.start(), function.start + match.end()
            yield Change("drop-precondition", start, end, without)
            yield Change("swap-precondition", start, end, swapped)
    for match in re.finditer(r'(,\s*)\{"(uid|resourceVersion)", (\w+)\}', source.text[body]):
        start, end = function.start + match.start(), function.start + match.end()
        yield Change("drop-precondition", start, end, "")
        yield Change("swap-precondition", start, end, f'{match.group(1)}{{"{match.group(2)}", "1"}}')
    for statement in function.walk():
        if statement.kind == "if" and re.search(r"\bpreconditions\b", source.code[slice(*statement.condition)]):
            yield Change("drop-precondition", statement.start, statement.end, "{}")
    for match in re.finditer(r"\bversion_(?=\)\))", source.code[body]):
        start = function.start + match.start()
        yield Change("swap-precondition", start, start + len("version_"), "observed_.metadata.resource_version")
    # Whose is it? A comparison of UIDs that is always in favour.
    operand = r"[\w:*]+(?:(?:\.|->|::)\w+)*(?:\([^()]*\))?(?:(?:\.|->)\w+)*"
    for match in re.finditer(rf"({operand}) (==|!=) ({operand})", source.code[body]):
        if not re.search(r"uid|owner\b|holder\b|identity", match.group(1) + match.group(3)):
            continue
        if "end()" in match.group() or match.group(3).startswith("std::"):
            continue
        start, end = function.start + match.start(), function.start + match.end()
        yield Change("ignore-uid", start, end, "true" if match.group(2) == "==" else "false")


def _comparisons_of_codes(source, function):
    pattern = r"[\w.]+(?:\(\))?(?:(?:\.|->)\w+(?:\(\))?)* (==|!=) (?:kube::)?(?:Reason|ErrorCode)::k\w+"
    for match in re.finditer(pattern, source.code[function.start:function.end]):
        yield function.start + match.start(), function.start + match.end(), match


def misread_code(source, function):
    """An answer that is not told from another: 404, 409, no answer at all."""
    for start, end, match in _comparisons_of_codes(source, function):
        equal = match.group(1) == "=="
        yield Change("misread-code", start, end, "false" if equal else "true")
        yield Change("misread-code", start, end, "true" if equal else "false")


# ---- What is expected, and when it is looked at again ------------------------------------------------------


def forget_expectation(source, function):
    """What was written, and what the cache has shown of it, is not remembered."""
    yield from _dropped(source, function, EXPECTATION, "forget-expectation")


def drop_requeue(source, function):
    """Nobody looks again."""
    yield from _dropped(source, function, REQUEUE, "drop-requeue")


def wrong_delay(source, _function=None):
    """A pause a thousand times as long, and none: of the constants outside of functions that one reads which looks
    again."""
    pattern = r"constexpr (?:std::chrono::\w+|Duration) (k\w+)\{(\d+)\};"
    bodies = [source.code[f.start:f.end] for f in source.functions if any(
        REQUEUE.search(_own_text(source, s).strip()) for s in f.walk() if s.kind == "simple")]
    for match in re.finditer(pattern, source.code):
        start, end = match.span(2)
        if not any(re.search(rf"\b{match.group(1)}\b", body) for body in bodies):
            continue
        if source.text[start:end] != "0":
            yield Change("wrong-delay", start, end, source.text[start:end] + "000")
            yield Change("wrong-delay", start, end, "0")


# ---- Decisions ---------------------------------------------------------------------------------------------


def negate_condition(source, function):
    """The opposite of a condition in a function that has an effect."""
    if not EFFECT.search(source.code[function.start:function.end]):
        return
    said = {(start, end) for start, end, _ in _comparisons_of_codes(source, function)}
    said.update((c.start, c.end) for c in precondition(source, function))
    for statement in function.walk():
        if statement.kind != "if":
            continue
        start, end = statement.condition
        text = source.text[start:end]
        if ";" in source.code[start:end] or re.match(r"(const )?[\w:<>]+[&*]? [&*]?\w+ = ", text):
            continue
        # A precondition's own `if` is dropped elsewhere; a guard against null would only crash.
        if re.search(r"[!=]= nullptr$", text) or (start, end) in said:
            continue
        yield Change("negate-condition", start, end, f"!({text})")


def off_by_one(source, function):
    """A bound of a count moved by one, a count that is not counted."""
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
    for match in re.finditer(r"(?<= )(<=|>=|<|>)(?= )", source.code[function.start:function.end]):
        start, end = function.start + match.start(), function.start + match.end()
        begin = max(source.code.rfind(c, 0, start) for c in ";{}")
        stop = min(i for c in ";{}" if (i := source.code.find(c, end)) >= 0)
        left = re.split(r"&&|\|\||[?;]|return|\bif \(|, ", source.code[begin + 1:start])[-1]
        right = re.split(r"&&|\|\||[?;]|, ", source.code[end:stop])[0]
        # A loop's bound: one more reads past an end, which only the sanitizers' builds see for certain.
        if re.search(r"\bfor \([^()]*(?:\([^()]*\)[^()]*)*$", source.code[max(0, start - 200):start]) or TIME.search(left + " " + right):
            continue
        if COUNTED.search(left + " " + right):
            yield Change("off-by-one", start, end, other[match.group()])
    for statement in function.walk():
        text = source.code[statement.start:statement.end]
        if statement.kind == "simple" and re.match(r"\+\+[\w.>\-]+;$", text) and not re.match(r"\+\+(i|it|from)\b", text):
            yield Change("drop-count", statement.start, statement.end, "{}")


FIELD = re.compile(r"^(?:next_|status|seen|plan_|attempt|loss|order|result|reconciled|observed|record|pod|spec|progress|"
                   r"nodes|view|report|lease|job_|exit|metadata|restarts|entry|found|condition)(?:(?:\.|->)\w+|\[[^]]*\])+"
                   r"(?: = |\.push_back\(|\.emplace_back\()")


def ignore_field(source, function):
    """A field of a decision or a view that nobody fills in or looks at."""
    for change in _dropped(source, function, FIELD, "ignore-field"):
        if not REQUEUE.search(source.code[change.start:change.end]):
            yield change
    for match in re.finditer(r"(?<![\w.>])[\w]+(?:(?:\.|->)\w+)*\.value_or\(", source.code[function.start:function.end]):
        start = function.start + match.start()
        bracket = function.start + match.end() - 1
        close = cpp.matching(source.code, bracket)
        yield Change("ignore-field", start, close + 1, "(" + source.text[bracket + 1:close] + ")")


def drop_decision(source, function):
    """A decision that is not taken."""
    yield from _dropped(source, function, DECISION, "drop-decision")


def skip_generation(source, function):
    """A generation that is left out."""
    for match in re.finditer(r"generation \+ 1\b", source.code[function.start:function.end]):
        start = function.start + match.end() - 1
        yield Change("skip-generation", start, start + 1, "2")


OF_FUNCTIONS = {
    "writes": (drop_write, twice_write, swap_order),
    "preconditions": (precondition, misread_code),
    "expectations": (forget_expectation,),
    "requeues": (drop_requeue,),
    "decisions": (negate_condition, drop_decision, skip_generation),
    "values": (off_by_one, ignore_field),
}
OF_FILES = {"requeues": (wrong_delay,)}
OF_GUARDS = (negate_condition, misread_code)  # not of what only a log hears


def changes(source, families):
    """(function name, Change) in the order of the text, each change once."""
    seen = set()
    for family in families:
        for operator in OF_FILES.get(family, ()):
            for change in operator(source):
                if (change.start, change.end, change.text) not in seen:
                    seen.add((change.start, change.end, change.text))
                    yield "constants", change
    for function in source.functions:
        if function.name.split("::")[-1].startswith("log_"):
            continue
        unheard = _for_the_log(source, function)
        found = [change for family in families for operator in OF_FUNCTIONS[family]
                 for change in operator(source, function)
                 if operator not in OF_GUARDS
                 or not any(start <= change.start and change.end <= end for start, end in unheard)]
        for change in sorted(found, key=lambda c: (c.start, c.end, c.operator, c.text)):
            if (change.start, change.end, change.text) not in seen:
                seen.add((change.start, change.end, change.text))
                yield function.name, change
