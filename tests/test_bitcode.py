"""The NVSHMEM device library: where it is found, what the slim copy of it holds, and that a kernel links with it."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import core

from tricoll import bitcode

try:
    WHEEL: Path | None = bitcode.find(90)
except FileNotFoundError:
    WHEEL = None
needs_wheel = pytest.mark.skipif(WHEEL is None, reason="NVSHMEM is not installed: pip install 'tricoll[cu13]'")
llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: pip install 'tricoll[cu13]'")
DRIVER = {"vprintf", "__assertfail"}
"""Functions that the CUDA driver supplies when it loads a kernel."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder for this test."""
    monkeypatch.setenv("TRICOLL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Returns a function that writes a small stand-in for NVSHMEM's library, without some symbols, and selects it."""

    def write(*without):
        lines = ['target triple = "nvptx64-nvidia-cuda"']
        lines += [f"@{name} = addrspace(4) constant i32 7" for name in bitcode.STATE if name not in without]
        functions = [name for name in bitcode.FUNCTIONS if name not in without]
        lines += [f"define void @{name}() #0 {{ call void @helper() ret void }}" for name in functions]
        lines += ["define void @helper() #1 { call i32 @llvm.umin.i32(i32 1, i32 2) call void @elsewhere() ret void }"]
        lines += ["declare void @elsewhere()", "declare i32 @llvm.umin.i32(i32, i32)"]
        lines += ["define void @unused() { call void @unused_too() ret void }", "declare void @unused_too()"]
        lines += ["attributes #0 = { alwaysinline convergent }", "attributes #1 = { memory(read, target_mem0: none) }"]
        path = tmp_path / "library.bc"
        path.write_bytes(llvm.parse_assembly("\n".join(lines)).as_bitcode())
        monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(path))
        return path

    return write


@pytest.fixture(scope="session")
def slim90():
    """The slim library of the installed wheel, in the user's own cache: made by the first run, there for later ones."""
    return bitcode.slim(90)


def values(path):
    """Names defined and names declared in a module, LLVM's own intrinsics aside."""
    module = llvm.parse_assembly(path.read_text())
    every = [v for v in (*module.functions, *module.global_variables) if not v.name.startswith("llvm.")]
    return {v.name for v in every if not v.is_declaration}, {v.name for v in every if v.is_declaration}


# find


@pytest.mark.parametrize(("arch", "want"), [(80, 80), (86, 80), (90, 90), (100, 100), (103, 100), (120, 100)])
def test_find_takes_this_architecture_or_the_nearest_lower(tmp_path, monkeypatch, arch, want):
    for name in ("_sm_80", "_sm_90", "_sm_100", "_sm_90a", ""):
        (tmp_path / f"libnvshmem_device{name}.bc").touch()
    monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(tmp_path))
    assert bitcode.find(arch) == tmp_path / f"libnvshmem_device_sm_{want}.bc"


def test_find_falls_back_to_the_file_for_every_architecture(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(tmp_path))
    (tmp_path / "libnvshmem_device.bc").touch()
    (tmp_path / "libnvshmem_device_sm_90.bc").touch()
    assert bitcode.find(80).name == "libnvshmem_device.bc"
    assert bitcode.find(90).name == "libnvshmem_device_sm_90.bc"


def test_find_takes_a_file_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "any.bc"
    path.touch()
    monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(path))
    assert bitcode.find(80) == bitcode.find(100) == path


def test_find_says_that_the_override_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"sm_90: TRICOLL_NVSHMEM_BITCODE is '.*nowhere'"):
        bitcode.find(90)


def test_find_says_what_to_install(tmp_path, monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("TRICOLL_NVSHMEM_BITCODE", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", none)
    with pytest.raises(FileNotFoundError, match=r'sm_90: NVSHMEM is not installed; pip install "tricoll\[cu13\]"'):
        bitcode.find(90)


@needs_wheel
def test_find_in_the_wheel(monkeypatch):
    monkeypatch.delenv("TRICOLL_NVSHMEM_BITCODE", raising=False)
    found = [bitcode.find(arch) for arch in (80, 90, 100)]
    assert all(path.stat().st_size > 10e6 for path in found)
    if "_sm_" in found[0].name:
        with pytest.raises(FileNotFoundError, match="none for this architecture or a lower one"):
            bitcode.find(50)


# slim, with the stand-in


def test_all_that_the_kernels_call_is_kept():
    spec = importlib.util.find_spec("tricoll.kernels")
    sources = [path.read_text() for folder in spec.submodule_search_locations for path in Path(folder).glob("*.py")]
    called = {name for source in sources for name in re.findall(r'"(nvshmemx?_\w+)"', source)}
    assert "nvshmemx_putmem_signal_nbi_block" in called
    assert called <= set(bitcode.FUNCTIONS), "add what is missing to FUNCTIONS"


def test_slim_keeps_the_symbols_and_what_they_need(library, cache):
    library()
    made = bitcode.slim(90)
    assert made.parent == cache
    assert values(made) == ({*bitcode.SYMBOLS, "helper"}, {"elsewhere"})
    text = made.read_text()
    assert "define internal void @helper()" in text
    assert "alwaysinline convergent" in text
    assert not re.search("target_mem|nocreateundeforpoison", text), "Triton 3.6 cannot read these"
    assert bitcode.slim(90) == bitcode.slim(80) == made, "one library file, one slim copy"
    assert {p.suffix for p in cache.iterdir()} <= {".ll", ".lock"}


@pytest.mark.parametrize("name", ["nvshmem_quiet", "nvshmemi_device_state_d"])
def test_slim_names_what_is_missing_and_caches_nothing(library, cache, name):
    path = library(name)
    with pytest.raises(RuntimeError, match=f"{re.escape(str(path))} does not define {name};"):
        bitcode.slim(90)
    assert not [p for p in cache.iterdir() if p.suffix != ".lock"]


def test_slim_says_that_the_library_is_not_bitcode(library, cache):
    path = library()
    path.write_bytes(b"BC\xc0\xde" + bytes(64))
    with pytest.raises(RuntimeError, match=re.escape(f"cannot read {path}")):
        bitcode.slim(90)


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty"])
def test_a_damaged_slim_file_is_made_again(library, cache, damage):
    library()
    made = bitcode.slim(90)
    content = made.read_bytes()
    flipped = content.replace(b"i32 7", b"i32 6", 1)
    made.write_bytes({"cut short": content[:-9], "one bit": flipped, "empty": b""}[damage])
    assert bitcode.slim(90) == made
    assert made.read_bytes() == content


def test_another_library_and_another_symbol_list_get_another_file(library, cache, monkeypatch):
    path = library()
    first = bitcode.slim(90)
    monkeypatch.setattr(bitcode, "SYMBOLS", (*bitcode.SYMBOLS, "helper"))
    monkeypatch.setattr(bitcode, "FUNCTIONS", (*bitcode.FUNCTIONS, "helper"))
    second = bitcode.slim(90)
    assert "define void @helper()" in second.read_text()
    module = llvm.parse_bitcode(path.read_bytes())
    module.get_function("unused").linkage = "internal"
    path.write_bytes(module.as_bitcode())
    os.utime(path, ns=(0, 0))  # two writes can be closer together than the clock of the file system ticks
    assert len({first, second, bitcode.slim(90)}) == 3


def test_processes_at_the_same_time_make_one_file(library, cache, tmp_path):
    library()
    program = (
        "import os, runpy, sys, time\n"
        "slim = runpy.run_path(sys.argv[1])['slim']\n"
        "open(sys.argv[2] + '.' + str(os.getpid()), 'w').close()\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.001)\n"
        "path = slim(90)\n"
        "print(path, path.stat().st_ino)\n"
    )
    go = tmp_path / "go"
    command = [sys.executable, "-c", program, bitcode.__file__, str(go)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("go.*"))) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        go.touch()
        said = {child.communicate(timeout=60)[0] for child in children}
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(said) == 1, "all were given one path, and the file was written once"
    made = bitcode.slim(90)
    assert said == {f"{made} {made.stat().st_ino}\n"}
    assert {p.name for p in cache.iterdir() if p.suffix != ".lock"} == {made.name}


# slim, with the wheel's own library


@needs_wheel
def test_slim_of_the_wheel(slim90):
    assert slim90.stat().st_size < 3e6 < bitcode.find(90).stat().st_size / 10
    defined, declared = values(slim90)
    assert defined >= set(bitcode.SYMBOLS)
    assert declared <= DRIVER


int32, int64 = core.dtype("int32"), core.dtype("int64")


@core.extern
def put_signal(target, source, nbytes, flag, value, operation, peer, _semantic=None):
    types = (int64, int64, int64, int64, int64, int32, int32)
    symbol = ("nvshmemx_putmem_signal_nbi_block", int32)
    arguments = [target, source, nbytes, flag, value, operation, peer]
    return core.extern_elementwise("", "", arguments, {types: symbol}, is_pure=False, _semantic=_semantic)


@core.extern
def signal_fetch(flag, _semantic=None):
    symbol = ("nvshmem_signal_fetch", int64)
    return core.extern_elementwise("", "", [flag], {(int64,): symbol}, is_pure=False, _semantic=_semantic)


def put_and_fetch(target, source, nbytes, flag, out, peer):
    put_signal(target.to(tl.int64), source.to(tl.int64), nbytes, flag.to(tl.int64), nbytes, 9, peer)
    tl.store(out, signal_fetch(flag.to(tl.int64)))


@needs_wheel
def test_a_kernel_links_with_the_slim_library(slim90, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))  # compile, whatever an earlier run left
    types = {"target": "*i8", "source": "*i8", "nbytes": "i64", "flag": "*i64", "out": "*i64", "peer": "i32"}
    # JITFunction and not @triton.jit: this one is compiled in a run with TRITON_INTERPRET=1 too.
    kernel = ASTSource(triton.JITFunction(put_and_fetch), signature=types, constexprs={})
    options = {"extern_libs": {"libnvshmem_device": str(slim90)}, "enable_fp_fusion": False}
    compiled = triton.compile(kernel, target=GPUTarget("cuda", 90, 32), options=options)

    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(cuobjdump), "--dump-elf-symbols", str(cubin)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = [line.split() for line in printed.splitlines() if line.startswith("STT_")]
    # The last word is the name, a "U" before it marks it as undefined; ptxas itself adds names that begin with ".nv.".
    undefined = {words[-1] for words in symbols if "U" in words and not words[-1].startswith(".nv.")}
    assert undefined <= DRIVER
    exported = {words[-1] for words in symbols if "STB_GLOBAL" in words} - undefined
    assert exported >= {"put_and_fetch", *bitcode.STATE}, "nvshmemx_cumodule_init looks these up in the loaded module"
