"""What differs between vLLM releases for `PlatformFL`, and what vLLM lacks without its kernels."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vllm_fl_dispatch.types import DeviceSpec

#: Our name among vLLM's plugins.
NAME = "fl"
GROUP = "vllm.platform_plugins"
#: Compiled modules that modules of vLLM import without asking.
EXTENSIONS = ("vllm._C", "vllm._C_stable_libtorch")


def rival_platform() -> str | None:
    """The name of another platform plugin that claims this machine, asked as vLLM asks it."""
    from vllm.plugins import load_plugins_by_group

    return next(
        (name for name, claim in load_plugins_by_group(GROUP).items()
         if name != NAME and _claims(claim)), None
    )  # fmt: skip


def own_platforms() -> Iterator[str]:
    """Names of vLLM's own platforms that claim this machine, whether they could run or not."""
    from vllm.platforms import builtin_platform_plugins

    return (name for name, claim in builtin_platform_plugins.items() if _claims(claim))


def _claims(claim: Any) -> bool:
    try:
        return claim() is not None
    # vLLM as well takes whatever a detection raises for a no.
    except Exception:  # noqa: BLE001
        return False


@contextmanager
def stand_ins_for_kernels() -> Iterator[None]:
    """In here vLLM's compiled modules can be imported although there are none.

    The module of its CUDA platform imports them at once, before anybody could want an operator.
    """
    absent = [name for name in EXTENSIONS if importlib.util.find_spec(name) is None]
    sys.modules.update((name, types.ModuleType(name)) for name in absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def prepare(spec: DeviceSpec) -> None:
    """Once per process, before anything runs on the device."""
    if spec.device_type == "cpu":
        # vLLM frees the memory of an accelerator when it ends, whatever the platform.
        for name in ("empty_cache", "empty_host_cache"):
            setattr(torch.accelerator, name, _nothing)
    else:
        # The other runner of vLLM is made of Triton kernels; with this one PlatformFL was tried.
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def _nothing(*_: Any, **__: Any) -> None:
    pass


@contextmanager
def without_memory_binding() -> Iterator[None]:
    """In here vLLM's CPU worker binds no memory to a NUMA node: the operator for it is compiled."""
    namespace: Any = torch.ops._C
    if hasattr(namespace, "init_cpu_memory_env"):
        yield
        return
    namespace.init_cpu_memory_env = _nothing
    try:
        yield
    finally:
        del namespace.init_cpu_memory_env


@contextmanager
def without_kernel_warmup() -> Iterator[None]:
    """In here vLLM's workers do not warm up kernels of its own: they import modules of models that
    name compiled operators."""
    from vllm.v1.worker import gpu_worker

    own = getattr(gpu_worker, "kernel_warmup", None)
    if own is None:
        yield
        return
    gpu_worker.kernel_warmup = _nothing
    try:
        yield
    finally:
        gpu_worker.kernel_warmup = own


def replace_weak_references() -> None:
    """Make in torch what vLLM keeps of a captured graph's outputs, where its own is missing."""
    from vllm.utils import torch_utils

    if torch.cuda.is_available() and not hasattr(torch.ops._C, "weak_ref_tensor"):
        torch_utils.weak_ref_tensor = weak_ref_tensor


def weak_ref_tensor(tensor: Any) -> Any:
    """A tensor over the same device memory that does not keep it alive."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or not tensor.numel():
        return tensor
    whole = tensor.untyped_storage()
    metadata = {
        "nbytes": whole.nbytes(),
        "data_ptr": whole.data_ptr(),
        "size": tensor.shape,
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "storage_offset": tensor.storage_offset(),
    }
    make_storage: Any = torch._C._construct_storage_from_data_pointer
    make_tensor: Any = torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata
    storage = make_storage(metadata["data_ptr"], tensor.device, metadata["nbytes"])
    return make_tensor(metadata, storage)


def replace_slot_mapping() -> None:
    """Compute slots in torch where there is no Triton.

    vLLM's own replacement for that case is compiled, and the argument list of the kernel changes
    between releases; that of this method did not from 0.20 to 0.33.
    """
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.worker.block_table import BlockTable

    if not HAS_TRITON:
        BlockTable.compute_slot_mapping = compute_slot_mapping


def compute_slot_mapping(
    table: Any, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> None:
    """The slot in the cache of every new token: its block times the block size plus an offset.

    Args:
        table: a `BlockTable`; its `slot_mapping` is filled, -1 behind the last token.
        query_start_loc: [num_reqs + 1], where the tokens of each request begin.
        positions: position of each token in its request.
    """
    mode = getattr(table, "slot_mapping_mode", None)
    if mode is not None and mode.name == "NONE":  # a state cache, without slots
        return
    starts = query_start_loc[: num_reqs + 1].long()
    count = int(starts[-1])
    requests = torch.repeat_interleave(
        torch.arange(num_reqs, device=starts.device), starts.diff(), output_size=count
    )
    size, slots = table.block_size, table.slot_mapping.gpu
    positions = positions[:count].long()
    blocks = table.block_table.gpu[requests, positions // size].to(slots.dtype)
    slots[:count] = blocks * size + (positions % size).to(slots.dtype)
    slots[count : table.max_num_batched_tokens].fill_(-1)


def mla_prefill_in_torch() -> Any:
    """vLLM's prefill of MLA models in torch."""
    from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend

    return CPUSDPAMLAPrefillBackend


@contextmanager
def mla_without_limits(vllm_config: Any) -> Iterator[None]:
    """vLLM's CPU platform takes chunked prefill and prefix caching from MLA models, which its own
    kernels cannot do. What the selector chooses is not bound to that."""
    model = vllm_config.model_config
    if model is None or not getattr(model, "use_mla", False):
        yield
        return
    places = (
        (vllm_config.scheduler_config, "enable_chunked_prefill"),
        (vllm_config.scheduler_config, "max_num_batched_tokens"),
        (vllm_config.cache_config, "enable_prefix_caching"),
    )
    before = [getattr(owner, name) for owner, name in places]
    yield
    for (owner, name), value in zip(places, before, strict=True):
        setattr(owner, name, value)


def switch_off_fusions(vllm_config: Any) -> None:
    """Fusions with quantization replace layers by compiled operators; vLLM imports them only on
    platforms that have those, and fails where they are switched on elsewhere."""
    passes = vllm_config.compilation_config.pass_config
    for name in ("fuse_norm_quant", "fuse_act_quant"):
        if hasattr(passes, name):
            setattr(passes, name, False)
