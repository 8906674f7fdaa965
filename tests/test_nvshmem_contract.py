"""What is called in other packages exists there, with these parameters: in the installed ones, without a GPU."""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
import triton
from triton.backends.nvidia import compiler as nvidia

from tricoll import bitcode, gpu
from tricoll.fabric import cuda, gpus, nvshmem, symmetric
from tricoll.kernels import ring

try:
    PACKAGES = {
        "bindings": importlib.import_module("nvshmem.bindings"),
        "core": importlib.import_module("nvshmem.core"),
        "driver": importlib.import_module("cuda.bindings.driver"),
        "Device": importlib.import_module("cuda.core").Device,
    }
except ImportError as error:
    pytest.skip(f"{error}: pip install 'tricoll[cu13]'", allow_module_level=True)

SOURCES = {path.stem: path for path in (Path(m.__file__) for m in (cuda, gpus, nvshmem, symmetric))}


def uses():
    """What the fabrics take from those packages: (file, package, name, call or None)."""
    found = []
    for stem, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            call = node if isinstance(node, ast.Call) else None
            place = call.func if call else node
            if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id in PACKAGES:
                found.append((stem, place.value.id, place.attr, call))
            elif call and isinstance(place, ast.Name) and place.id == "Device":
                found.append((stem, "Device", "__call__", call))
    return found


USES = uses()


@pytest.mark.parametrize(("stem", "package", "name", "call"), USES, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_called_is_there(stem, package, name, call):
    if name == "__call__":
        inspect.signature(PACKAGES[package]).bind(*call.args)
        return
    found = getattr(PACKAGES[package], name)
    if call is not None and not inspect.isclass(found):
        keywords = {k.arg: None for k in call.keywords}
        inspect.signature(found).bind(*call.args, **keywords)


def test_all_uses_were_found():
    names = {(package, name) for _, package, name, _ in USES}
    assert names >= {
        *(
            ("bindings", name)
            for name in ("malloc", "free", "ptr", "mc_ptr", "cumodule_init", "NVSHMEMError", "Team_id")
        ),
        *(("core", name) for name in ("get_unique_id", "init", "finalize", "init_status", "my_pe", "n_pes")),
        *(("driver", name) for name in ("cuDeviceGet", "cuDeviceGetP2PAttribute", "cuPointerGetAttribute")),
        ("core", "get_version"),
        ("Device", "__call__"),
    }


def test_numbers_mean_what_their_names_say():
    driver, bindings = PACKAGES["driver"], PACKAGES["bindings"]
    assert driver.CUdevice_P2PAttribute(gpus.NATIVE_ATOMICS).name.endswith("NATIVE_ATOMIC_SUPPORTED")
    assert driver.CUpointer_attribute(gpus.DEVICE_POINTER).name == "CU_POINTER_ATTRIBUTE_DEVICE_POINTER"
    assert driver.CUstreamCaptureMode(cuda.RELAXED).name == "CU_STREAM_CAPTURE_MODE_RELAXED"
    inspect.signature(driver.cuThreadExchangeStreamCaptureMode).bind(0)
    names = {status.name for status in bindings.Init_status if int(status) in symmetric.INITIALISED}
    assert names == {"STATUS_IS_INITIALIZED", "STATUS_LIMITED_MPG", "STATUS_FULL_MPG"}
    assert int(bindings.Team_id.TEAM_WORLD) == 0
    assert bindings.NVSHMEMError(7).status == 7


def test_a_unique_id_goes_through_the_store():
    core = PACKAGES["core"]
    library = core.get_version().libnvshmem_version
    assert tuple(map(int, library.split(".")[:2])) >= nvshmem.OLDEST
    assert int(core.init_status()) not in symmetric.INITIALISED
    ours, theirs = core.get_unique_id(), core.get_unique_id(empty=True)
    symmetric.fill(theirs, symmetric.text_of(ours))
    assert theirs == ours
    assert symmetric.text_of(theirs) == symmetric.text_of(ours)


def test_the_hook_by_which_modules_are_initialised():
    chain = triton.knobs.runtime.kernel_load_end_hook
    calls = []
    chain.add(cuda._module_loaded)
    chain.add(cuda._module_loaded)
    try:
        launcher = type("Launcher", (), {"loaded": staticmethod(calls.append)})()
        chain(5, None, "another library's", None, "hash")
        cuda._here.launcher = launcher
        chain(6, None, "ring", None, "hash")  # as triton.compiler.compiler calls it
    finally:
        cuda._here.launcher = None
        chain.remove(cuda._module_loaded)
    assert calls == [6]
    source = inspect.getsource(triton.compiler.CompiledKernel._init_handles)
    call = "kernel_load_end_hook(self.module, self.function, self.name, self.metadata_group, self.hash)"
    assert source.index("load_binary") < source.index(call), "after the module is loaded"


def test_triton_takes_the_options_of_a_launch():
    options = set(inspect.signature(nvidia.CUDAOptions).parameters)
    assert set(gpu.options("mapped", 90)) <= options
    assert {"warmup", "grid"} <= set(inspect.signature(type(ring.all_reduce).run).parameters)


# The device functions

LLVM = {"i32": {"int32"}, "i64": {"int64", "uint64"}, "ptr": {"int64"}}


def externs():
    """The NVSHMEM functions that kernels call: name, result, parameters."""
    spec = importlib.util.find_spec("tricoll.kernels.shmem")
    for function in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        values = {ast.unparse(n.targets[0]): n.value for n in function.body if isinstance(n, ast.Assign)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_extern":
                symbol, _, result, signature, _ = (values.get(getattr(a, "id", ""), a) for a in node.args)
                yield symbol.value, result.value, [element.value for element in signature.elts]


def test_device_functions_have_these_parameters():
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: pip install 'tricoll[cu13]'")
    module = llvm.parse_assembly(bitcode.slim(90).read_text())
    called = list(externs())
    assert len(called) == 4
    for name, result, parameters in called:
        function = module.get_function(name)
        declared = [str(argument.type) for argument in function.arguments]
        assert len(declared) == len(parameters), name
        for ours, theirs in zip(parameters, declared):
            assert ours in LLVM[theirs], f"{name}: {declared}, called with {parameters}"
        returns = str(function).partition("@")[0].split()[-1]
        assert returns == "void" or result in LLVM[returns], f"{name} returns {returns}, not {result}"
