"""Barriers stop a CTA for good unless all of its threads come to them, so the branches around them must be uniform."""

import collections
import itertools
import re

INSTRUCTION = re.compile(r"(?:\{ )?(?:@!?(?P<guard>%\w+)\s+)?(?P<name>[a-z][\w.:]*)\s*(?P<operands>.*);")
# What each thread sees for itself. Other loads count as uniform, as they read what does not change during a kernel, or
# what one thread has left for all (shared memory; the status block's scratch word, by ld.volatile.global).
DIFFERS = re.compile(r"%tid\b|%laneid|%globaltimer|%clock|^elect|^shfl|^activemask|^atom|^ld\.volatile\.b|\.acquire\b")
NO_RESULT = re.compile(r"st\.|bra|ret|bar|call|red\.|fence|membar|cp\.|mbarrier|trap|exit")


class Flow:
    """The basic blocks of a kernel in PTX, the blocks after each, and those that every path from it comes through."""

    def __init__(self, ptx):
        body = ptx[ptx.index(".entry") :]
        self.blocks, labels = [[]], {}
        for line in body[: body.index("$L__func_end")].splitlines():
            line = line.split("//")[0].strip()
            if label := re.match(r"(\$L__BB\w+):", line):
                labels[label[1]] = len(self.blocks)
                self.blocks.append([])
            elif (match := INSTRUCTION.match(line)) and not line.startswith("."):
                self.blocks[-1].append(match.group("guard", "name", "operands"))
                if match["name"].startswith(("bra", "ret")):
                    self.blocks.append([])
        self.end = len(self.blocks)
        self.after = []
        for i, block in enumerate(self.blocks):
            guard, name, operands = block[-1] if block else (None, "", "")
            jump = [labels[operands.strip()]] if name.startswith("bra") else [self.end] if name == "ret" else []
            self.after.append(jump if jump and guard is None else [*jump, i + 1])
        self.before = collections.defaultdict(set)
        for i, after in enumerate(self.after):
            for j in after:
                self.before[j].add(i)
        everything = set(range(self.end + 1))
        self.always = [everything] * self.end + [{self.end}]
        changed = True
        while changed:
            changed = False
            for i in reversed(range(self.end)):
                new = {i}.union(set.intersection(*(self.always[j] for j in self.after[i])))
                changed |= new != self.always[i]
                self.always[i] = new

    def either(self, i):
        """The blocks that a thread may come through after block i, and may not."""
        found, todo = set(), list(self.after[i])
        while todo:
            j = todo.pop()
            if j not in found and (j == i or j not in self.always[i]):
                found.add(j)
                todo += self.after[j]
        return found


def split(name, operands):
    """The registers that an instruction sets, and those that it reads."""
    registers = re.findall(r"[%\w.]+", operands)
    if NO_RESULT.match(name):
        return [], registers
    vector = re.match(r"\{([^}]*)\}", operands)
    count = len(vector[1].split(",")) if vector else 2 if "|" in operands.split(",")[0] else 1
    return registers[:count], registers[count:]


def divergent_barriers(ptx):
    """The branches that threads of a CTA may take differently and that have a barrier on one side only."""
    flow = Flow(ptx)
    code = [[(guard, name, operands, *split(name, operands)) for guard, name, operands in b] for b in flow.blocks]
    own = set()  # registers that may differ from thread to thread

    def values(register, i, inside):
        """What a register can hold where the ways through ``inside`` that part after block i meet again."""
        found, seen = set(), set()
        todo = [j for j in inside | {i} if any(k not in inside for k in flow.after[j])]
        while todo:
            j = todo.pop()
            if j not in seen:
                seen.add(j)
                setters = [(name.split(".")[0], operands) for _, name, operands, to, _ in code[j] if register in to]
                if setters or j == i:
                    found.add(setters[-1] if setters else None)
                else:
                    todo += flow.before[j] & (inside | {i})
        return found

    while True:
        known, bad = len(own), []
        for guard, name, operands, to, read in itertools.chain(*code):
            if DIFFERS.search(name) or DIFFERS.search(operands) or guard in own or own.intersection(read):
                own.update(to)
        for i, block in enumerate(flow.blocks):
            if not block or not block[-1][1].startswith("bra") or block[-1][0] not in own:
                continue
            inside = flow.either(i)
            for register in {r for j in inside for *_, to, _ in code[j] for r in to} - own:
                ends = values(register, i, inside)
                if len(ends) > 1 or any(end and end[0] != "mov" for end in ends):
                    own.add(register)
            if any(re.match(r"bar\.sync|barrier", name) for j in inside for _, name, _ in flow.blocks[j]):
                bad.append(block[-1])
        if len(own) == known:
            return bad
