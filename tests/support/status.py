"""Writes docs/status.md from what tests did: ``python status.py SEEN.json ... PAGE``, or ``make status``."""

import collections
import json
import sys
from pathlib import Path

from seen import STAND_IN

from tricoll import dispatch
from tricoll.compile import KERNELS

FABRICS = {
    "sim": "all ranks in one process, adversarial delivery",
    "host": "processes of one machine",
    "openshmem": "PEs of Open MPI's library",
    "loopback": "ranks on one GPU",
    "nvshmem": "a GPU a rank",
}
PAIRS = sorted((c, a) for a, collectives in dispatch.ALGORITHMS.items() for c in collectives)
BEGIN = """# Status

What has been tested, on which fabric, with which types. This page is written by a command from what tests did
(`make status` runs all of them), not by hand: a cell is filled if calls ended well in test files without a failure.
"""


def merged(paths):
    """The records of several runs as one: of a test file the last run, and nothing if one of its tests failed there."""
    files = {}
    for path in paths:
        files.update(json.loads(Path(path).read_text()))
    outcomes, skipped = collections.Counter(), collections.Counter()
    for seen in files.values():
        outcomes.update(seen["outcomes"])
        skipped.update(seen["skipped"])
    failed = {file for file, seen in files.items() if seen["outcomes"].get("failed")}
    good = {file: seen for file, seen in files.items() if file not in failed}
    calls = {file: {tuple(call) for call in seen["calls"]} for file, seen in good.items()}
    compiled = {tuple(variant) for seen in good.values() for variant in seen["compiled"]}
    return calls, compiled, outcomes, skipped, failed


def counted(number, what):
    return f"{number:,} {what}{'s' * (number != 1)}"


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def page(calls, compiled, outcomes, skipped, failed):
    """The text of the page."""
    seen = {call for found in calls.values() for call in found}
    ran = [fabric for fabric in FABRICS if any(call[0] == fabric for call in seen)]
    never = [fabric for fabric in FABRICS if fabric not in ran]

    def cell(fabric, collective, algorithm):
        found = [call for call in seen if (call[0], call[2], call[3]) == (fabric, collective, algorithm)]
        links = [link for link in ("mapped", "put") if any(call[1] == link for call in found)]
        return f"{' and '.join(links)}, {counted(len({call[4:] for call in found}), 'type')}" if found else "no"

    def types(fabric, dtype):
        found = {call[4:] for call in seen if call[0] == fabric and call[4] == dtype}
        return ", ".join(sorted({wire for _, wire, _ in found})) or "no"

    dtypes = sorted({call[4] for call in seen if call[0] in ran})
    files = {fabric: sorted(f for f, found in calls.items() if any(c[0] == fabric for c in found)) for fabric in ran}
    missing = [f"`{c}` by `{a}` on `{f}`" for f in ran for c, a in PAIRS if cell(f, c, a) == "no"]
    arches = sorted({arch for _, _, arch, _ in compiled})
    kernels = [k for k in KERNELS if any(k == kernel for kernel, *_ in compiled)]
    here = lambda k, arch: ", ".join(sorted({link for kernel, link, a, _ in compiled if (kernel, a) == (k, arch)}))
    parts = [
        BEGIN,
        "Tests of what is below: "
        + ", ".join(f"{outcomes[what]:,} {what}" for what in ("passed", "skipped", "failed"))
        + "."
        + (f" Test files with a failure, which do not count: {', '.join(sorted(failed))}." if failed else ""),
        "## What has not run\n",
        "\n".join(
            f"- **`{fabric}`** ({FABRICS[fabric]}): no call in this run"
            + (
                ", but of its host code on stand-ins for a GPU."
                if any(c[0] == fabric + STAND_IN for c in seen)
                else "."
            )
            for fabric in never
        )
        + (
            ""
            if {"loopback", "nvshmem"} & set(ran)
            else "\n- **No kernel ran on a GPU.** What runs on `sim`, `host` and `openshmem` is the kernels' control "
            "flow, by Python, and their bulk loops, by PyTorch or Triton's interpreter; `multimem` adds in software, "
            "in place of a switch."
        ),
        "Skipped tests, by reason:\n" if skipped else "",
        "\n".join(f"- {count}: {reason}" for reason, count in sorted(skipped.items(), key=lambda item: -item[1])),
        "## Collectives and algorithms\n",
        "Kinds of links, and the number of combinations of the dtypes of input, wire and output.\n",
        table(
            ["collective", "algorithm", *FABRICS],
            [[f"`{c}`", f"`{a}`", *(cell(f, c, a) for f in FABRICS)] for c, a in PAIRS],
        ),
        f"Not tested in this run, though the fabric was: {', '.join(missing)}." if missing else "",
        "## Types\n",
        "For each dtype of the input, the dtypes that travelled.\n",
        table(["input", *FABRICS], [[f"`{d}`", *(types(f, d) for f in FABRICS)] for d in dtypes]),
        "## By which tests\n",
        table(
            ["fabric", "test files whose calls count"], [[f"`{f}`", ", ".join(f"`{x}`" for x in files[f])] for f in ran]
        ),
        "Results are compared with the [oracle](numerics.md), byte for byte, in `tests/kernels` and `tests/fabric`. "
        "[Contributing](../CONTRIBUTING.md#tests) says how tests work.",
        "## Compiled\n",
        "Kernels that were compiled to machine code in this run and passed the gates, with the links they are for."
        if compiled
        else "No kernel was compiled in this run.",
        table(
            ["kernel", *(f"sm_{arch}" for arch in arches)],
            [[f"`{k}`", *(here(k, a) or "no" for a in arches)] for k in kernels],
        )
        if compiled
        else "",
    ]
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts if part)


if __name__ == "__main__":
    *records, target = sys.argv[1:]
    Path(target).write_text(page(*merged(records)))
