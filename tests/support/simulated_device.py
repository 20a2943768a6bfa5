"""Simulated GPU, implemented with torch dispatch. It computes on the CPU, and records copies and waits of the host.

Tensors on the simulated device have the device `meta`, so that the engine treats them like tensors on a GPU. Operators
on such tensors run on CPU tensors. An operator with tensors of both devices fails, as it does on a GPU.
"""

from collections import Counter
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = torch.device("meta")

WAITS = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "allclose",
    "unique",
}
"""Operators that read values on the host, or whose results have a shape that depends on values."""


class DeviceTensor(torch.Tensor):
    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> Self:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=DEVICE,
        )
        tensor.on_cpu = on_cpu
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} ran outside of the simulated device")


class SimulatedDevice(TorchDispatchMode):
    """The device. Use it as a context manager around everything that creates or uses its tensors.

    `events` counts copies and waits: `to_host`, `to_device` and `wait, OPERATOR`. The suffix `, blocking` marks copies for
    which the host would wait on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        flat = tree_flatten((args, kwargs))[0]
        ours = {id(one.on_cpu): one for one in flat if isinstance(one, DeviceTensor)}
        others = [one for one in flat if isinstance(one, torch.Tensor) and not isinstance(one, DeviceTensor)]
        target = kwargs.pop("device", None)
        if target is None:
            target = next((one for one in flat if isinstance(one, torch.device)), None)
        if name == "is_pinned":
            return False
        if name in {"pin_memory", "_pin_memory"}:
            pinned = args[0].clone()
            pinned.is_pinned_memory = True
            return pinned
        args, kwargs = tree_map_only(DeviceTensor, lambda one: one.on_cpu, (args, kwargs))
        if name in {"to", "_to_copy"} and target is not None:
            return self._copy(func, args, kwargs, bool(ours), torch.device(target))
        if not ours and target is not None and torch.device(target) == DEVICE:
            return DeviceTensor(func(*args, **kwargs, device="cpu"))
        if not ours:
            return func(*args, **kwargs, **({} if target is None else {"device": target}))
        if any(one.dim() for one in others):
            raise RuntimeError(f"{name} has tensors on the host and on the device")
        indexes = [one for one in flat if isinstance(one, DeviceTensor) and one.dtype == torch.bool]
        if name in WAITS or (name in {"index", "index_put", "index_put_"} and indexes):
            self.events[f"wait, {name}"] += 1
        found = func(*args, **kwargs)
        return tree_map_only(
            torch.Tensor, lambda one: ours[id(one)] if id(one) in ours else DeviceTensor(one), found
        )

    def _copy(self, func: Any, args: Any, kwargs: Any, from_device: bool, target: torch.device) -> Any:
        source = args[0]
        is_blocking = not (kwargs.get("non_blocking") or any(one is True for one in args[1:]))
        if from_device and target == DEVICE:
            return DeviceTensor(func(*args, **kwargs))
        if from_device:
            self.events["to_host" + ", blocking" * is_blocking] += 1
            return source.clone()
        if target == DEVICE:
            is_pinned = getattr(source, "is_pinned_memory", False)
            self.events["to_device" + ", blocking" * (is_blocking or not is_pinned)] += 1
            return DeviceTensor(source.clone())
        return func(*args, **kwargs, device=target)


def move(thing: Any) -> Any:
    """Copy the tensors of a model to the simulated device, in place. Call it while the device is active."""
    if isinstance(thing, torch.Tensor):
        return thing if isinstance(thing, DeviceTensor) else thing.detach().to(DEVICE)
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*map(move, thing))
    if isinstance(thing, list):
        return [move(one) for one in thing]
    if type(thing).__module__.startswith("tidewire_server"):
        for name, value in vars(thing).items():
            if not isinstance(value, tuple) or hasattr(value, "_fields"):
                setattr(thing, name, move(value))
    return thing
