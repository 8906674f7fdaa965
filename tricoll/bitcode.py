"""NVSHMEM's device functions as a file that Triton links quickly: found in the installed wheel, slimmed, cached.

The wheel ships its device library as LLVM bitcode, 30 to 50 MB an architecture, and Triton reads all of it again for
every kernel (3 to 6 s and up to 1.4 GB). :func:`slim` keeps only what tricoll's kernels call, once a machine::

    triton.compile(source, target=..., options={"extern_libs": {"libnvshmem_device": str(bitcode.slim(90))}})

The slim file is LLVM *text*, which Triton's linker takes as well as bitcode. Bitcode is read by the LLVM that wrote
it and by later ones, and Triton 3.6 has an earlier one (a snapshot from before LLVM 22) than NVSHMEM 3.8 was built
with: it rejects the wheel's own file. What the snapshot does not know are two attributes, and text can leave them out.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import re
from pathlib import Path

import platformdirs
from filelock import FileLock

FUNCTIONS = (
    "nvshmemx_putmem_signal_nbi_block",
    "nvshmemx_signal_op",
    "nvshmem_signal_fetch",
    "nvshmem_signal_wait_until",
    "nvshmem_ptr",
    "nvshmem_fence",
    "nvshmem_quiet",
    "nvshmem_my_pe",
    "nvshmem_n_pes",
)
"""The device functions that the kernels call. Everything that they do not reach is dropped."""

# Nothing is left to link for these: the library defines them (constant memory, zero until somebody fills it), every
# kernel carries a copy of its own, and its cubin exports the names. Whoever loads a kernel calls
# nvshmemx_cumodule_init(module) once, after the load and before the first launch, never during graph capture (it
# synchronises): it looks the names up in the module, compares the version with the host library's and copies the state
# in. triton.knobs.runtime.kernel_load_end_hook is the place. Wheels with InfiniBand driven by the GPU have one or two
# more (nvshmemi_ibgda_device_state_d, nvshmemi_gpunetio_device_state_d); slim() leaves all globals alone, and
# llvm.compiler.used takes these few into every kernel.
STATE = ("nvshmemi_device_state_d", "nvshmemi_device_lib_version_d")
"""The globals through which the host side tells a loaded kernel about its peers."""

SYMBOLS = FUNCTIONS + STATE

_FORMAT = 1  # of the slim file; raise it when _reduce changes what it writes
_WHEELS = ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12")
_INSTALL = 'pip install "tricoll[cu13]" (or "tricoll[cu12]" for CUDA 12)'

# Attributes that LLVM 22 writes and Triton 3.6 does not know, and what says nothing in their place. They only permit
# optimisations, so giving them up is always right; one that forbids something (convergent, noinline) must stay.
_NEWER = {r"\bmemory\([^)]*target_mem[^)]*\)": "memory(readwrite)", r" nocreateundeforpoison\b": ""}


def find(arch: int) -> Path:
    """The NVSHMEM device bitcode to use for compute capability `arch` (90 for sm_90).

    It is looked for in the installed NVSHMEM wheel, or where the environment variable TRICOLL_NVSHMEM_BITCODE says. If
    that names a file, it is taken as it is. In a folder the rule is: the file for this very architecture, else for the
    nearest lower one (such code runs on everything newer), else ``libnvshmem_device.bc``, which is for all and the only
    one in wheels before 3.7. FileNotFoundError if there is none.
    """
    if override := os.environ.get("TRICOLL_NVSHMEM_BITCODE"):
        chosen = Path(override).expanduser()
        if chosen.is_file():
            return chosen
        folders = [chosen]
    else:
        folders = _wheel_folders()
    for folder in folders:
        names = (re.fullmatch(r"libnvshmem_device_sm_(\d+)\.bc", path.name) for path in folder.glob("*.bc"))
        if usable := [shipped for name in names if name and (shipped := int(name[1])) <= arch]:
            return folder / f"libnvshmem_device_sm_{max(usable)}.bc"
        if (generic := folder / "libnvshmem_device.bc").is_file():
            return generic
    if override:
        hint = f"TRICOLL_NVSHMEM_BITCODE is {override!r}, which has no such file"
    elif folders:
        hint = f"the installed NVSHMEM ({folders[0]}) has none for this architecture or a lower one; try {_INSTALL}"
    else:
        hint = f"NVSHMEM is not installed; {_INSTALL}"
    raise FileNotFoundError(f"no NVSHMEM device bitcode for sm_{arch}: {hint}")


def slim(arch: int) -> Path:
    """The library of :func:`find`, reduced to `SYMBOLS` and what they need; made at the first call, then cached.

    Making it takes about 6 s and 1.4 GB of memory. It is kept in the user's cache folder, or in TRICOLL_CACHE_DIR. Its
    name has two hashes: of all that it is made from, and of its own content, so that a damaged file is noticed and made
    again. Any number of processes may call this at once: one does the work, the others wait for it.
    """
    source = find(arch)
    try:
        import llvmlite
    except ImportError as error:
        raise RuntimeError(f"slimming {source} needs llvmlite: {_INSTALL}") from error
    stat = source.stat()
    parts = (_FORMAT, SYMBOLS, llvmlite.__version__, _content_hash(source, stat.st_size, stat.st_mtime_ns))
    stem = "nvshmem-" + _hash(repr(parts).encode())  # `arch` counts through the content of the file chosen for it
    folder = Path(os.environ.get("TRICOLL_CACHE_DIR") or platformdirs.user_cache_dir("tricoll")).expanduser()
    if ready := _intact(folder, stem):
        return ready
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{stem}.lock"):
        if ready := _intact(folder, stem):  # made while this process waited
            return ready
        text = _reduce(source).encode()
        ready = folder / f"{stem}-{_hash(text)}.ll"
        unfinished = ready.with_suffix(f".{os.getpid()}.tmp")
        try:
            unfinished.write_bytes(text)
            os.replace(unfinished, ready)
        finally:
            unfinished.unlink(missing_ok=True)
    return ready


def _wheel_folders() -> list[Path]:
    """The library folders of the NVSHMEM wheels that are installed."""
    folders = []
    for name in _WHEELS:
        try:
            wheel = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        folders.append(Path(str(wheel.locate_file("nvidia/nvshmem/lib"))))
    return folders


def _intact(folder: Path, stem: str) -> Path | None:
    """The cached file that starts with `stem` and whose content is what its name says, if there is one."""
    for path in folder.glob(f"{stem}-*.ll"):
        if path.stem.rpartition("-")[2] == _hash(path.read_bytes()):
            return path
    return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@functools.lru_cache
def _content_hash(path: Path, size: int, mtime_ns: int) -> str:
    """The hash of a file; size and time are there to hash again when the file changes."""
    return _hash(path.read_bytes())


def _reduce(source: Path) -> str:
    """LLVM text of the module in `source` with all that `FUNCTIONS` do not need removed."""
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_bitcode(source.read_bytes())
    except RuntimeError as error:
        reader = ".".join(map(str, llvm.llvm_version_info))
        raise RuntimeError(f"llvmlite (LLVM {reader}) cannot read {source}; a newer llvmlite may: {error}") from error
    defined = {value.name for value in (*module.functions, *module.global_variables) if not value.is_declaration}
    for function in module.functions:
        if not function.is_declaration and function.name not in FUNCTIONS:
            function.linkage = "internal"
    llvm.initialize_all_targets()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine()
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.PipelineTuningOptions()))
    text = str(module)
    module.close()
    # LLVM has freed about 1 GB, but the C library would keep it for the rest of what may be a training run.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    for attribute, nothing in _NEWER.items():
        text = re.sub(attribute, nothing, text)

    module = llvm.parse_assembly(text)  # what the reader will get
    values = [*module.functions, *module.global_variables]
    if missing := set(SYMBOLS) - {value.name for value in values if not value.is_declaration}:
        raise RuntimeError(f"{source} does not define {', '.join(sorted(missing))}; tricoll needs NVSHMEM 3.3 or newer")
    if lost := defined & {value.name for value in values if value.is_declaration}:
        raise RuntimeError(f"slimming {source} lost {', '.join(sorted(lost))}; please report this")
    return text
