"""Faulty clients with errors in diffs, JSON Pointers and diff operations."""

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_state import MalformedError, State, UnknownError, demand

# ---- whole diffs -------------------------------------------------------------------------------------------------


class AppliesDiffUpToInvalidOp(FaultyClient):
    """If an operation is invalid, keep the operations before it instead of discarding the whole diff."""

    scenario, kind, breaks = "half-a-diff", "never", "TW-DIF-012"

    class Halves(State):
        def apply(self, diff):
            ops, _ = self.ops_of(diff)
            root = {"": self.copied()}
            for op in ops:
                try:
                    self.op(root, op)
                except MalformedError:
                    break
            return type(self)(root[""], self.columns)


class IgnoresExtraOpElements(FaultyClient):
    scenario, kind, breaks = "op-of-another-length", "never", "TW-DIF-073"

    class Cuts(State):
        def op(self, root, op):
            super().op(root, op if op[0] == "r" else op[: 2 if op[0] == "d" else 3])


class SkipsUnknownOps(FaultyClient):
    scenario, kind, breaks = "unknown-op", "hung", "TW-DIF-074"

    class Passes(State):
        def op(self, root, op):
            if op[0] in {"r", "a", "t", "s", "i", "d"}:
                super().op(root, op)


class SkipsUnknownDiffShapes(FaultyClient):
    scenario, kind, breaks = "unknown-shape", "hung", "TW-DIF-074"

    class Passes(State):
        def ops_of(self, diff):
            try:
                return super().ops_of(diff)
            except UnknownError:
                return [], []


class ReadsNullAsEmptyDiff(FaultyClient):
    scenario, kind, breaks = "null-as-a-diff", "hung", "TW-DIF-074"
    state_type = changed(State, ops_of=lambda self, diff: State.ops_of(self, diff or []))


class AcceptsAnyBase(FaultyClient):
    scenario, kind, breaks = "on-that-is-no-base", "never", "TW-DIF-073"

    def named_base(self, data, seq):
        return min(data["on"], seq - 1)


class RejectsEmptyDiff(FaultyClient):
    scenario, kind, breaks = "ops", "count", "TW-DIF-073"

    class Refuses(State):
        def ops_of(self, diff):
            demand(diff, "a diff without operations")
            return super().ops_of(diff)


# ---- pointers ----------------------------------------------------------------------------------------------------


class AddsMissingPathSlash(FaultyClient):
    scenario, kind, breaks = "path-without-a-slash", "never", "TW-DIF-073"
    state_type = changed(
        State, place=lambda self, root, path: State.place(self, root, path and "/" + path.lstrip("/"))
    )


class UnescapesPathsInWrongOrder(FaultyClient):
    """Replace `~0` before `~1`, so that `~01` becomes a slash instead of `~1`."""

    scenario, kind, breaks = "pointers", "count", "TW-DIF-073"
    state_type = changed(State, unescaped=lambda self, token: token.replace("~0", "~").replace("~1", "/"))


class AcceptsIndexWithLeadingZero(FaultyClient):
    scenario, kind, breaks = "index-with-a-leading-zero", "never", "TW-DIF-073"
    state_type = changed(State, index=lambda self, token: int(token))


class AcceptsDashAsIndex(FaultyClient):
    """Accept `-` as the index after the last element, as JSON Patch does."""

    scenario, kind, breaks = "index-that-is-a-dash", "never", "TW-DIF-073"

    class Dashes(State):
        def set(self, parent, token, value):
            super().set(parent, str(len(parent)) if token == "-" else token, value)


class AcceptsNegativeIndex(FaultyClient):
    scenario, kind, breaks = "index-below-zero", "never", "TW-DIF-073"
    state_type = changed(
        State, index=lambda self, token: int(token) if token.startswith("-") else State.index(self, token)
    )


class IgnoresProtoMember(FaultyClient):
    """Ignore assignments to a member `__proto__`. In JavaScript, such an assignment sets the prototype."""

    scenario, kind, breaks = "ops", "order", "TW-DIF-073"

    class Spares(State):
        def set(self, parent, token, value):
            if token not in {"__proto__", "constructor"}:
                super().set(parent, token, value)


class RejectsPrototypeMemberNames(FaultyClient):
    """Reject members whose names exist on the prototype in JavaScript, as if the object already had them."""

    scenario, kind, breaks = "pointers", "count", "TW-DIF-073"

    class Asks(State):
        def set(self, parent, token, value):
            demand(token not in {"toString", "hasOwnProperty"}, "the member exists already")
            super().set(parent, token, value)


class IgnoresEmptyPathTokens(FaultyClient):
    scenario, kind, breaks = "pointers", "count", "TW-DIF-073"
    state_type = changed(
        State, tokens=lambda self, path: [token for token in State.tokens(self, path) if token or path == "/"]
    )


class NormalizesNumericNames(FaultyClient):
    """Normalize numeric member names such as `00`, as if they were array indexes."""

    scenario, kind, breaks = "pointers", "count", "TW-DIF-073"

    class Numbers(State):
        def set(self, parent, token, value):
            if isinstance(parent, dict) and token.isdigit():
                parent[str(int(token))] = value
            else:
                super().set(parent, token, value)


class CreatesMissingParents(FaultyClient):
    scenario, kind, breaks = "place-that-is-missing", "never", "TW-DIF-073"

    class Makes(State):
        def place(self, root, path):
            parent = root[""]
            for token in self.tokens(path)[:-1]:
                if isinstance(parent, dict):
                    parent = parent.setdefault(token, {})
                else:
                    while len(parent) <= self.index(token):
                        parent.append({})
                    parent = parent[self.index(token)]
            return (parent, self.tokens(path)[-1]) if path else (root, "")


# ---- operations --------------------------------------------------------------------------------------------------


class RejectsSetAtArrayEnd(FaultyClient):
    scenario, kind, breaks = "ops", "count", "TW-DIF-073"

    class Refuses(State):
        def set(self, parent, token, value):
            demand(isinstance(parent, dict) or self.index(token) < len(parent), "past the end")
            super().set(parent, token, value)


class PadsArraysWithNull(FaultyClient):
    scenario, kind, breaks = "index-past-the-end", "never", "TW-DIF-073"

    class Fills(State):
        def set(self, parent, token, value):
            if isinstance(parent, list):
                parent += [None] * (self.index(token) - len(parent))
            super().set(parent, token, value)

        def check(self, state):
            pass


class RejectsEmptyPath(FaultyClient):
    scenario, kind, breaks = "whole-state", "count", "TW-DIF-073"

    class Refuses(State):
        def place(self, root, path):
            demand(path, "the path is empty")
            return super().place(root, path)


class RejectsNewMembers(FaultyClient):
    scenario, kind, breaks = "ops", "count", "TW-DIF-073"

    class Replaces(State):
        def set(self, parent, token, value):
            demand(isinstance(parent, list) or token in parent, "no such member")
            super().set(parent, token, value)


class InsertsOneIndexTooHigh(FaultyClient):
    scenario, kind, breaks = "ops", "order", "TW-DIF-073"
    state_type = changed(
        State, insert=lambda self, parent, token, value: parent.insert(int(token) + 1, value)
    )


class InsertsPastTheEnd(FaultyClient):
    """Accept any index for an insertion, as `list.insert` does."""

    scenario, kind, breaks = "insertion-past-the-end", "never", "TW-DIF-073"
    state_type = changed(State, insert=lambda self, parent, token, value: parent.insert(int(token), value))


class IgnoresDeletionOfMissingMember(FaultyClient):
    scenario, kind, breaks = "half-a-diff", "never", "TW-DIF-073"

    class Deletes(State):
        def delete(self, parent, token):
            if isinstance(parent, list) or token in parent:
                super().delete(parent, token)


class IgnoresDeletionPastTheEnd(FaultyClient):
    """Ignore the deletion of an element past the end of an array, as `del array[n : n + 1]` does."""

    scenario, kind, breaks = "deletion-past-the-end", "never", "TW-DIF-073"

    class Deletes(State):
        def delete(self, parent, token):
            if isinstance(parent, dict):
                super().delete(parent, token)
            else:
                del parent[int(token) : int(token) + 1]


class IgnoresDeletionOfWholeState(FaultyClient):
    scenario, kind, breaks = "deletion-of-everything", "hung", "TW-DIF-073"

    class Deletes(State):
        def op(self, root, op):
            if op != ["d", ""]:
                super().op(root, op)


class AppendsArrayAsOneElement(FaultyClient):
    scenario, kind, breaks = "ops", "order", "TW-DIF-073"

    class Pushes(State):
        def append(self, root, path, more):
            super().append(root, path, [more] if isinstance(more, list) else more)


class AppendsNumberToText(FaultyClient):
    """Convert an appended value to text, as `+` does in JavaScript."""

    scenario, kind, breaks = "number-appended-to-a-text", "never", "TW-DIF-073"

    class Joins(State):
        def append(self, root, path, more):
            old = self.get(root[""], path)
            super().append(root, path, str(more) if isinstance(old, str) else more)


class TruncatesBeyondTheStart(FaultyClient):
    scenario, kind, breaks = "truncation-beyond-the-start", "never", "TW-DIF-073"

    class Truncates(State):
        def truncate(self, root, path, n):
            super().truncate(root, path, min(n, len(self.get(root[""], path))))


class ClearsTextOnTruncationBy0(FaultyClient):
    """Truncate a text by 0 code points with `text[:-0]`, which is the empty text."""

    scenario, kind, breaks = "truncation-by-nothing", "count", "TW-DIF-073"

    class Truncates(State):
        def truncate(self, root, path, n):
            self.put(root, f"/{path}", self.get(root[""], path)[:-n])
