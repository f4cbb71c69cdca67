"""Pretended GPUs on torch's build for CPUs: tensors that lie on `fgpu:0`, `fgpu:1`, … and are computed on the CPU.

Code that takes them for GPUs walks every line that a real one would. Tensors of two devices in one operation are an
error; each device has a generator, a count of its memory and queued work of its own; `torch.cuda` answers for them.
Their arithmetic is the CPU's, but for one thing that CUDA does otherwise: a division by a number multiplies by its
reciprocal. They say nothing of CUDA's kernels, NCCL or streams.

torch calls the type of device `fgpu`, because its build for CPUs refuses autograd on `cuda`. What is installed stays as
long as the process lives: tests do it in processes of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import comm
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import pretended_graph
from relay.process import devices

NAME = "fgpu"
TOTAL_MEMORY = 80 * 2**30
aten = torch.ops.aten
# CUDA, too, takes indices and sources from the CPU here.
MAY_MIX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten.copy_, aten._to_copy}
RECIPROCALS = {aten.div: aten.mul, aten.div_: aten.mul_}
# What CUDA's autocast computes in few bits, and what in float32.
LOWERED = ("conv2d", "linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "scaled_dot_product_attention")
IN_FULL = ("layer_norm", "group_norm", "softmax.int", "cross_entropy_loss")
AUTOCAST = "AutocastPrivateUse1"
_fallback, _kernels = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_gpus: list[Gpu] = []
_current = 0


class Gpu:
    """What one device has."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.allocated, self.peak, self.limit = 0, 0, TOTAL_MEMORY
        self.storages = Counter[int]()  # how many tensors lie in each
        self.busy_until = 0.0

    def queue(self, seconds: float) -> None:
        """Let the device be busy for so long after what it has queued."""
        self.busy_until = max(self.busy_until, time.perf_counter()) + seconds

    def wait(self) -> None:
        """Wait until nothing is queued."""
        if (left := self.busy_until - time.perf_counter()) > 0:
            time.sleep(left)


class _Room:
    """A tensor's memory on its device, as long as the tensor lives. Views share theirs."""

    def __init__(self, gpu: Gpu, place: int, size: int) -> None:
        self.gpu, self.place, self.size = gpu, place, size
        gpu.allocated += size if not gpu.storages[place] else 0
        gpu.peak = max(gpu.peak, gpu.allocated)
        gpu.storages[place] += 1

    @classmethod
    def of(cls, gpu: Gpu, tensor: torch.Tensor) -> _Room:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in gpu.storages and gpu.allocated + size > gpu.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        return cls(gpu, place, size)

    def __del__(self) -> None:
        self.gpu.storages[self.place] -= 1
        if not self.gpu.storages[self.place]:
            del self.gpu.storages[self.place]
            self.gpu.allocated -= self.size


class OnGpu(torch.Tensor):
    """A tensor that says it is on a pretended GPU, and holds another one on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, number: int) -> OnGpu:
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, number),
        )
        made.held, made.room = held, _Room.of(_gpus[number], held)
        held.number = number
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: OnGpu) -> None:
        torch.Tensor.data.__set__(self, value)
        self.held, self.room = value.held, value.room

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copy: torch.Tensor = self.detach().clone()
            if isinstance(self, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """As with CUDA, what another process reads lies on the GPU of that number again."""
        return OnGpu, (self.held.detach(), self.device.index)

    def __repr__(self) -> str:
        return f"OnGpu({self.held!r}, {self.device})"

    def untyped_storage(self) -> torch.UntypedStorage:
        """FSDP frees and takes memory by it."""
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        _waited(self.device.index)
        return self.held.tolist()

    def pin_memory(self, *_: Any) -> torch.Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory")


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnGpu) else value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """As torch's `tree_map`. For what operations take and return this is several times as quick."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(change, each) for each in value])
    if kind is dict:
        return {name: _mapped(change, each) for name, each in value.items()}
    return tree_map(change, value) if isinstance(value, tuple) else change(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    """All that lie in it."""
    found: list[torch.Tensor] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)

    _mapped(look, value)
    return found


def _computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; raise where tensors of two devices meet."""
    packet, asked = function._overloadpacket, kwargs.get("device")
    tensors = _tensors((args, kwargs))
    numbers = {value.device.index for value in tensors if isinstance(value, OnGpu)}
    if packet is aten.copy_:
        for value in args[:2]:  # one that leaves the device waits for it
            if isinstance(value, OnGpu) and not isinstance(args[0], OnGpu):
                _waited(value.device.index)
        to, what = _held(args[0]), _held(args[1])
        pretended_graph.computed(function, (to, what), {}, lambda: to.copy_(what))
        return args[0]
    if numbers and packet not in MAY_MIX:
        strangers = any(not isinstance(value, OnGpu) and value.dim() and value.is_cpu for value in tensors)
        if strangers or len(numbers) > 1:
            found = ", ".join(sorted({str(value.device) for value in tensors}))
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} ({function})")
    goes = torch.device(asked) if asked is not None else None
    number = _number(goes) if goes is not None and goes.type == NAME else None
    if goes is None and numbers:
        number = min(numbers)
    if numbers and (packet is aten._local_scalar_dense or (goes is not None and goes.type == "cpu")):
        _waited(min(numbers))
    left = {"device", "pin_memory", "non_blocking"} if goes is not None and goes.type != "meta" else set()
    options = {name: value for name, value in kwargs.items() if name not in left}
    if numbers and packet in RECIPROCALS and _is_number(args[1]) and args[0].is_floating_point():
        function, args = RECIPROCALS[packet], (args[0], torch.ones((), dtype=args[0].dtype) / _held(args[1]))
    held, more = _mapped(_held, args), _mapped(_held, options)

    def call() -> Any:
        with _drawing(function, number):
            return function(*held, **more)

    result = pretended_graph.computed(function, held, more, call)
    returns = getattr(function, "_schema", None) and function._schema.returns
    written = returns and returns[0].alias_info is not None and returns[0].alias_info.is_write
    if written:
        return kwargs.get("out", args[0])
    return result if number is None else _mapped(lambda value: _on(value, number), result)


def _waited(number: int) -> None:
    pretended_graph.waits()
    _gpus[number].wait()


def _on(value: Any, number: int) -> Any:
    """A result, on the pretended GPU."""
    if isinstance(value, AsyncCollectiveTensor):
        value = value.trigger_wait()
    plain = isinstance(value, torch.Tensor) and not isinstance(value, OnGpu) and value.is_cpu
    return OnGpu(value, number) if plain else value


def _shown(value: Any) -> Any:
    """A tensor that a process group hands back, on its GPU again: the group's backend has seen the one on the CPU."""
    return _on(value, value.number) if hasattr(value, "number") and not isinstance(value, OnGpu) else value


def _is_number(value: Any) -> bool:
    """A number, or a tensor of one number on the CPU."""
    return isinstance(value, int | float) or (not isinstance(value, OnGpu) and value.dim() == 0)


_DRAWS = threading.Lock()  # nn.DataParallel has a thread for each GPU, and the CPU's generator is lent to one at a time


@contextlib.contextmanager
def _drawing(function: Any, number: int | None) -> Iterator[None]:
    """Draw from the device's own generator."""
    if number is None or torch.Tag.nondeterministic_seeded not in getattr(function, "tags", ()):
        yield
        return
    with _DRAWS:
        before, own = torch.default_generator.get_state(), _gpus[number].generator
        torch.default_generator.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


class Event:
    """An event of a device: the time at which what was queued before it is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = max(time.perf_counter(), _gpus[_current].busy_until)

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.at - time.perf_counter()))

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds, as CUDA's."""
        return (other.at - self.at) * 1000


def _number(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    return _current if device is None or torch.device(device).index is None else torch.device(device).index


def gpu(device: Any = None) -> Gpu:
    """What that device has; the current one's without a device."""
    return _gpus[_number(device)]


class Stream:
    """A stream. All work is done when it is asked for, so that none is waited for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _stream: Stream) -> None:
        pass

    def wait_event(self, _event: Event) -> None:
        pass

    def record_event(self) -> Event:
        return Event()


class Generator:
    """A device's generator, and what CUDA's has beside the CPU's."""

    def __init__(self, own: torch.Generator) -> None:
        self.manual_seed, self.get_state, self.set_state = own.manual_seed, own.get_state, own.set_state
        self.clone_state, self.graphsafe_set_state = own.get_state, own.set_state


class _Answers:
    """What `torch.cuda` tells, and the module of torch's that has the devices' name."""

    Event, Stream = Event, Stream
    CUDAGraph = pretended_graph.Graph
    graph = staticmethod(pretended_graph.capture)
    set_sync_debug_mode = staticmethod(pretended_graph.set_mode)
    get_sync_debug_mode = staticmethod(pretended_graph.get_mode)

    def set_stream(self, _stream: Stream) -> None: ...

    def current_stream(self, *_: Any) -> Stream:
        return Stream()

    @contextlib.contextmanager
    def stream(self, _stream: Stream) -> Iterator[None]:
        yield

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    is_current_stream_capturing = _is_in_bad_fork

    def device_count(self) -> int:
        return len(_gpus)

    def current_device(self) -> int:
        return _current

    def set_device(self, device: Any) -> None:
        global _current  # noqa: PLW0603
        _current = _number(device)

    def get_device_name(self, _device: Any = None) -> str:
        return "Pretended"

    def get_device_properties(self, device: Any = None) -> Any:
        told = {"total_memory": TOTAL_MEMORY, "name": "Pretended", "major": 9, "minor": 0}
        return SimpleNamespace(**told, uuid=f"{_number(device):08}", multi_processor_count=1)

    def get_device_capability(self, _device: Any = None) -> tuple[int, int]:
        return 9, 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return gpu(device).limit - gpu(device).allocated, TOTAL_MEMORY

    def memory_allocated(self, device: Any = None) -> int:
        return gpu(device).allocated

    def max_memory_allocated(self, device: Any = None) -> int:
        return gpu(device).peak

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        gpu(device).peak = gpu(device).allocated

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        gpu(device).limit = int(fraction * TOTAL_MEMORY)

    def synchronize(self, device: Any = None) -> None:
        gpu(device).wait()

    def manual_seed_all(self, seed: int) -> None:
        for each in _gpus:
            each.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return gpu(device).generator.get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [each.generator.get_state() for each in _gpus]

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        gpu(device).generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _autocast(name: str, dtype: torch.dtype | None) -> None:
    """Let an operation compute in that type under autocast; None: in the few bits that are asked for."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(aten, packet), overload or "default")

    def cast(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return value
        return value.to(dtype or torch.get_autocast_dtype(NAME))

    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, AUTOCAST))):
            return function(*_mapped(cast, args), **_mapped(cast, kwargs))

    _kernels.impl(name, computed, AUTOCAST)


def install(count: int = 1) -> None:
    """Give this process so many GPUs; they stay as long as it lives."""
    _gpus.extend(Gpu() for _ in range(count))
    answers = _Answers()
    _setup_privateuseone_for_python_backend(NAME, backend_module=answers)
    _fallback.fallback(lambda function, *args, **kwargs: _computed(function, args, kwargs), "PrivateUse1")
    _fallback.fallback(torch.library.fallthrough_kernel, AUTOCAST)
    # By itself it would write into an empty tensor, whose size outside of C++ stays 0.
    for overload in ("arange", "arange.start", "arange.start_step"):
        whole = partial(_whole, getattr(aten.arange, overload.partition(".")[2] or "default"))
        _kernels.impl(overload, whole, "PrivateUse1")
    for name in (*LOWERED, *IN_FULL):
        _autocast(name, None if name in LOWERED else torch.float32)
    for name in (name for name in dir(_Answers) if not name.startswith("__")):
        setattr(torch.cuda, name, getattr(answers, name))
    torch.cuda.nccl.version = lambda: (0, 0, 0)
    torch.cuda.default_generators = tuple(Generator(each.generator) for each in _gpus)
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.tensor, to = partial(_tensor, torch.tensor), torch.Tensor.to
    # C++ takes the first one where no number is named.
    torch.Tensor.to = lambda self, *args, **kwargs: to(self, *map(_numbered, args), **kwargs)
    torch.autograd.set_multithreading_enabled(
        False
    )  # torch gives a device of this type one thread, whatever its number
    for name in ("value", "wait"):
        found = getattr(torch._C.Future, name)
        setattr(torch._C.Future, name, lambda self, found=found: _mapped(_shown, found(self)))
    torch.Tensor.data = property(torch._C.TensorBase.data.__get__, _become)
    FSDPState._root_pre_forward = _moving(FSDPState._root_pre_forward)
    devices.GPU = NAME
    _let_modules_spread()


def _become(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value`: a tensor goes to a GPU so, too."""
    if isinstance(value, OnGpu):
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(value, tensor.requires_grad))
    else:
        torch._C.TensorBase.data.__set__(tensor, value)


def _numbered(value: Any) -> Any:
    """The current device for one without a number."""
    return devices.gpu(_current) if isinstance(value, str | torch.device) and str(value) == NAME else value


def _whole(function: Any, *args: Any, **kwargs: Any) -> Any:
    return _computed(function, args, kwargs)


def _moving(enter: Any) -> Any:
    """What FSDP does before the root's forward pass; as torch before 2.13, it moves the arguments, also if none is."""

    def moving(state: FSDPState, module: Any, args: Any, kwargs: Any) -> Any:
        (args, *_), (kwargs, *_) = _to_kwargs(args, kwargs, state._device, False)
        return enter(state, module, args, kwargs)

    return moving


def _tensor(make: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """`torch.tensor`, whose C++ asks a device of this type for what Python cannot give it."""
    made: torch.Tensor = make(*args, **kwargs)
    return made if device is None else made.to(device)


def _let_modules_spread() -> None:
    """What nn.DataParallel asks of CUDA in C++: copies from device to device, and sums of them."""

    def moved(tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor.detach().to(devices.gpu(number), copy=True)

    def scatter(tensor: torch.Tensor, numbers: Sequence[int], sizes: Any, dim: int, _streams: Any) -> Any:
        parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(numbers), dim)
        return tuple(moved(part, number) for part, number in zip(parts, numbers, strict=False))

    def added(inputs: Sequence[Sequence[torch.Tensor]], number: int) -> Any:
        return tuple(sum(moved(tensor, number) for tensor in alike) for alike in zip(*inputs, strict=True))

    def broadcast(tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> Any:
        """As CUDA's, the first device gets no copies: what is written into buffers there, stays."""
        assert all(tensor.device.index == numbers[0] for tensor in tensors)
        return [list(tensors), *([moved(tensor, number) for tensor in tensors] for number in numbers[1:])]

    comm.broadcast_coalesced = broadcast
    comm.scatter, comm.reduce_add_coalesced = scatter, added
    comm.gather = lambda tensors, dim, number: torch.cat([moved(tensor, number) for tensor in tensors], dim)
    # A function of the same name hides the module `data_parallel`.
    import_module("torch.nn.parallel.data_parallel")._get_available_device_type = lambda: NAME
    torch.accelerator.current_stream = lambda *_: contextlib.nullcontext()
    torch.accelerator.device_index = lambda *_: contextlib.nullcontext()
