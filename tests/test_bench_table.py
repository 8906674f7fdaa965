"""The benchmark's figures and its table: hand-computed values, and what people read nccl-tests' output with."""

import csv
import json
import math
import re

import pytest
import torch

from tricoll.bench import collective, results, table
from tricoll.bench.measure import Case, Seen, Side

HEADER = """\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"""


def seen(seconds, wrong=0, **more):
    return Seen("tricoll", sides=(Side(list(seconds), wrong), Side(list(seconds), 0)), **more)


def row(name, n, elements, seconds, dtype=torch.float32, check=1, average=1, **more):
    """A row of ``n`` ranks that all took as long."""
    case = Case(name, elements, dtype, "sum", -1, check=check)
    ranks = [seen([seconds] * 3, **more) for _ in range(n)]
    return results.row(case, collective.named(name).counts(elements, n), ranks, average)


@pytest.mark.parametrize(
    ("n", "name", "busbw"),
    [
        (4, "all_reduce", 1.572864),
        (4, "all_gather", 0.786432),
        (4, "reduce_scatter", 0.786432),
        (4, "all_to_all", 0.786432),
        (4, "gather", 0.786432),
        (4, "scatter", 0.786432),
        (4, "broadcast", 1.048576),
        (4, "reduce", 1.048576),
        (4, "sendrecv", 1.048576),
        (8, "all_reduce", 1.835008),
        (8, "all_gather", 0.917504),
        (8, "reduce_scatter", 0.917504),
        (8, "broadcast", 1.048576),
        (1, "all_reduce", 0.0),
        (1, "all_gather", 0.0),
        (1, "broadcast", 1.048576),
    ],
)
def test_bandwidths_of_one_mebibyte_in_a_millisecond(n, name, busbw):
    found = row(name, n, 1048576 // 4, 1e-3)
    assert found.size == 1048576
    for side in (found.out_of_place, found.in_place):
        assert math.isclose(side.time, 1000)
        assert math.isclose(side.alg_bw, 1.048576)
        assert math.isclose(side.bus_bw, busbw, abs_tol=1e-12)


def test_no_time_and_no_bytes_are_no_bandwidth():
    assert results.bandwidths("all_reduce", 1024, 0.0, 4) == (0.0, 0.0)
    assert results.bandwidths("all_reduce", 0, 1e-3, 4) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "elements", "n", "count", "size"),
    [
        ("all_reduce", 10, 4, 10, 40),  # not cut
        ("reduce_scatter", 10, 4, 2, 32),  # size is what is really moved, count a rank's
        ("all_gather", 10, 4, 2, 32),
        ("all_to_all", 10, 4, 2, 32),
        ("gather", 10, 4, 2, 32),
        ("scatter", 10, 4, 2, 32),
        ("all_gather", 3, 4, 0, 0),  # fewer elements than ranks
        ("broadcast", 10, 4, 10, 40),
    ],
)
def test_size_is_of_the_whole_buffer_and_count_of_a_rank(name, elements, n, count, size):
    found = row(name, n, elements, 1e-3)
    assert (found.count, found.size) == (count, size)


def test_the_header_is_that_of_nccl_tests():
    lines = table.header(plain=True).splitlines()
    assert "\n".join(line.rstrip() for line in lines[1:]) == HEADER
    assert re.fullmatch(r"# +out-of-place +in-place +", lines[0])
    assert [line.rstrip() for line in table.header(plain=False).splitlines()][1].startswith(HEADER.splitlines()[0])
    assert "cputime   algbw" in table.header(plain=True, cpu_time=True)


def test_a_row_is_that_of_nccl_tests():
    timing = "  1000.00    1.05    1.57       0"
    plain = "     1048576        262144     float     sum      -1" + timing + timing
    found = row("all_reduce", 4, 262144, 1e-3, ulps=1.5, error=4.0, scale=1e6)
    assert table.line(found, plain=True) == plain
    assert table.line(found, plain=False) == plain + "  1000.00  1000.00       1.5  2.00e-03  tricoll"
    unchecked = table.line(row("all_reduce", 4, 262144, 1e-3, check=0), plain=True)
    assert unchecked == plain.replace("      0", "    N/A")


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.004, 6, "  0.00"),
        (999.994, 6, "999.99"),
        (1234.56, 6, "1234.6"),
        (1234.56, 7, "1234.56"),
        (12345.67, 7, "12345.7"),
        (123456.7, 7, " 123457"),
        (12345678.9, 7, "1.2e+07"),
    ],
)
def test_numbers_fit_their_columns(value, width, text):
    assert table.number(value, width) == text


READERS = [  # the ways in which scripts take rows apart
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)",
    r"\s+(\d+)\s+\d+\s+float\s+sum\s+-1\s+(\d+\.?\d*)\s+(\d+\.\d+)\s+(\d+\.\d+)\s+(?:0|N/A)\s",
    r"^ +[0-9]+ +[0-9]+ +[a-z0-9]+ +[a-z]+ +-?[0-9]+( +[0-9.]+){3} +[0-9]+( +[0-9.]+){3} +[0-9]+",
]


@pytest.mark.parametrize("plain", [True, False])
def test_what_reads_nccl_tests_reads_this(plain):
    for seconds, elements in ((1.5e-6, 2), (0.0123, 1 << 22), (1.2, 1 << 30)):
        line = table.line(row("all_reduce", 8, elements, seconds), plain)
        for pattern in READERS:
            assert re.match(pattern, line), (pattern, line)
        fields = line.split()  # awk '{print $8, $12}'
        assert fields[0] == str(elements * 4)
        assert (fields[8], fields[12]) == ("0", "0")
        algbw = elements * 4 / seconds / 1e9
        assert math.isclose(float(fields[6]), algbw, abs_tol=0.05)
        assert math.isclose(float(fields[7]), algbw * 1.75, abs_tol=0.05)


def test_the_footer_is_that_of_nccl_tests():
    good = list(table.footer(0, 1.25, [("gloo", 1.0)]))
    assert good[0] == "# Out of bounds values : 0 OK"
    assert float(re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", "\n".join(good))[1]) == 1.25
    assert len(re.findall(r"# Avg bus bandwidth\s*:", "\n".join(good))) == 1
    assert next(table.footer(3, 1.25)) == "# Out of bounds values : 3 FAILED"


def test_a_slow_rank_is_in_the_last_columns_and_in_a():
    case = Case("all_reduce", 256, torch.float32, "sum", -1)
    ranks = [seen([1e-3, 1e-3, 1e-3]), seen([3e-3, 3e-3, 3e-3]), seen([2e-3, 2e-3, 2e-3])]
    for average, microseconds in enumerate((1000, 2000, 1000, 3000)):
        found = results.row(case, (256, 256, 256), ranks, average)
        assert math.isclose(found.out_of_place.time, microseconds)
        assert (round(found.out_of_place.min), round(found.out_of_place.max)) == (1000, 3000)
        assert table.line(found, plain=False).split()[13:15] == ["1000.00", "3000.00"]


def test_wrong_elements_of_all_ranks_are_added():
    case = Case("all_reduce", 256, torch.float32, "sum", -1)
    found = results.row(case, (256, 256, 256), [seen([1e-3], 1), seen([1e-3], 2)], 1)
    assert found.out_of_place.nwrong == 3
    assert table.line(found, plain=True).split()[8] == "3"


def test_files(tmp_path):
    report = results.Report("all_reduce", "tricoll bench all_reduce", {"ranks": 4})
    report.add(row("all_reduce", 4, 256, 1e-3, sent=1536))
    report.write_json(tmp_path / "new" / "r.json")
    read = results.read_json(tmp_path / "new" / "r.json")
    assert read["results"][0]["out_of_place"]["alg_bw"] == pytest.approx(1024 / 1e-3 / 1e9)
    assert read["results"][0]["sent"] == 1536
    assert read["out_of_bounds"] == {"count": 0, "okay": True}
    assert read["average_bus_bandwidth"]["bandwidth"] == pytest.approx(1.536e-3)
    assert read["machine"]["torch"] == torch.__version__.partition("+")[0] or "+" in read["machine"]["torch"]
    report.write_csv(tmp_path / "r.csv")
    (line,) = csv.DictReader((tmp_path / "r.csv").open())
    assert line["size"] == "1024"
    assert float(line["in_place_time"]) == pytest.approx(1000)
    (tmp_path / "other.json").write_text(json.dumps({"results": []}))
    with pytest.raises(ValueError, match="was not written by tricoll bench"):
        results.read_json(tmp_path / "other.json")
