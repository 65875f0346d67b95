"""Which attention backend vLLM gets: the selector asked with vLLM's own requests and classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention import selector
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import AttentionSelectorConfig

from vllm_fl_dispatch import (
    BackendImplKind,
    OpImpl,
    OpManager,
    Query,
    SelectionPolicy,
    Verdict,
    api,
)
from vllm_fl_dispatch.errors import NoImplementation, RequestError
from vllm_fl_dispatch.vllm import attention, compat, compat_attention
from vllm_fl_dispatch.vllm.plugin import activate
from vllm_fl_reference import plugin as reference

from .conftest import Run

DENSE = "vllm_fl_reference.vllm.attention.ReferenceAttentionBackend"
MLA = "vllm_fl_reference.vllm.mla.ReferenceMLABackend"
STOCK = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
Choose = Callable[..., str]


class Lacking(AttentionBackend):
    """Forgets what vLLM calls."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"


class Misnamed(compat.import_path(DENSE)):  # type: ignore[misc]
    """Has a name that vLLM does not know."""

    @staticmethod
    def get_name() -> str:
        return "ACME_ATTN"


def request(**facts: Any) -> AttentionSelectorConfig:
    plain = {"head_size": 64, "dtype": torch.float32, "kv_cache_dtype": "auto", "block_size": None}
    return AttentionSelectorConfig(**{**plain, **facts})


@pytest.fixture(autouse=True)
def inside_vllm() -> Iterator[None]:
    config = VllmConfig(compilation_config=CompilationConfig(mode=0, custom_ops=["all"]))
    with set_current_vllm_config(config):
        yield


@pytest.fixture
def choose() -> Choose:
    """Asks with a vendor, whose class has this path, before the reference."""

    def ask(
        vendor: str | None = None,
        explicit: Any = None,
        own: Any = None,
        order: str = "vendor|reference",
        supports: Any = None,
        **facts: Any,
    ) -> str:
        policy = SelectionPolicy.from_dict(per_op_order={attention.NAME: order})
        manager = OpManager(policy, sources=())
        manager.ensure_built()
        kind = BackendImplKind.REFERENCE
        impls = [OpImpl(attention.NAME, "reference.torch", kind, reference.attention_backend)]
        if vendor is not None:
            kind = BackendImplKind.VENDOR
            impls.append(
                OpImpl(
                    attention.NAME,
                    "vendor.acme",
                    kind,
                    lambda *_, **__: vendor,
                    "acme",
                    supports=supports,
                )
            )
        manager.registry.register_many(impls)
        return attention.choose(manager, explicit, request(**facts), own)

    return ask


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_each_class_of_the_reference_is_one_that_this_vllm_takes(mla: bool, sparse: bool) -> None:
    if sparse:
        with pytest.raises(NotImplementedError):
            reference.attention_backend(mla, sparse)
    else:
        assert (
            compat_attention.attention_problems(
                compat.import_path(reference.attention_backend(mla, sparse))
            )
            == []
        )


def test_requests_find_their_class(choose: Choose) -> None:
    assert choose() == DENSE
    assert choose(has_sink=True, has_sliding_window=True, attn_type="encoder_only") == DENSE
    assert choose(use_mla=True, head_size=576) == MLA


def test_the_device_of_the_platform_is_part_of_the_request(choose: Choose) -> None:
    asked = []

    def supports(query: Query) -> Verdict:
        asked.append(query.device_type)
        return Verdict.no("another device")

    assert choose(MLA, supports=supports) == DENSE
    assert set(asked) == {"cpu"}


def test_what_cannot_serve_falls_through(choose: Choose) -> None:
    here = f"{__name__}."
    assert choose(f"{here}Misnamed") == DENSE
    assert choose(f"{here}Lacking") == DENSE
    assert choose("no.such.module.Class") == DENSE
    assert choose("torch.nn.Linear") == DENSE
    assert choose(DENSE, use_mla=True, head_size=576) == MLA, "a vendor without MLA"
    assert choose(MLA, use_mla=True) == MLA


def test_nothing_left_is_an_error_with_every_reason(choose: Choose) -> None:
    with pytest.raises(NoImplementation) as caught:
        choose(f"{__name__}.Lacking", use_mla=True, use_sparse=True)
    message = str(caught.value)
    assert "it lacks get_builder_cls, get_impl_cls, which this vLLM calls" in message
    assert "the reference has no sparse attention" in message
    with pytest.raises(NoImplementation, match="kv_cache_dtype not supported"):
        choose(kv_cache_dtype="fp8")


def test_sparse_without_mla_is_one_error(choose: Choose) -> None:
    for vendor in (None, DENSE):
        with pytest.raises(RequestError, match="use_sparse without use_mla"):
            choose(vendor, use_sparse=True)


def test_the_users_class_is_honoured_or_refused(choose: Choose) -> None:
    explicit = AttentionBackendEnum.CPU_ATTN
    assert choose(explicit=explicit) == STOCK
    with pytest.raises(RequestError, match=r"--attention-backend CPU_ATTN .*MLA not supported"):
        choose(explicit=explicit, use_mla=True)
    assert choose(explicit=AttentionBackendEnum.CUSTOM) == DENSE, "stands for the selector"
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.Misnamed")
    try:
        with pytest.raises(RequestError, match="'ACME_ATTN' is no member"):
            choose(explicit=AttentionBackendEnum.CUSTOM)
    finally:
        AttentionBackendEnum.CUSTOM.clear_override()


def test_another_policy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(order: str) -> str:
        policy = SelectionPolicy.from_dict(per_op_order={attention.NAME: order})
        monkeypatch.setattr(api, "_default", OpManager(policy))
        activate()
        return selector.get_attn_backend(64, torch.float32, "auto").__name__

    platform = compat.platform_class()
    monkeypatch.setattr(attention, "_installed", set())
    monkeypatch.setattr(platform, "get_attn_backend_cls", platform.get_attn_backend_cls)
    assert chosen("reference|stock") == "ReferenceAttentionBackend"
    monkeypatch.undo()
    assert chosen("stock") == "CPUAttentionBackend"


def test_a_stock_platform_decides_what_is_left_to_it(choose: Choose) -> None:
    own = "own.Class"
    assert choose(own=lambda: own, order="stock|reference") == own
    assert choose(own=lambda: own, explicit=AttentionBackendEnum.CPU_ATTN) == own
    assert choose(own=lambda: own) == DENSE
    assert choose(own=lambda: own, explicit=AttentionBackendEnum.CUSTOM) == DENSE


def test_what_the_policy_leaves_to_a_stock_platform_is_no_business_of_ours(choose: Choose) -> None:
    assert choose(own=lambda: "own.Class", order="stock", use_sparse=True) == "own.Class"


def test_custom_stands_for_the_selector_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = compat.platform_class()
    monkeypatch.setattr(attention, "_installed", set())
    monkeypatch.setattr(platform, "get_attn_backend_cls", platform.get_attn_backend_cls)
    monkeypatch.setattr(api, "_default", OpManager(SelectionPolicy()))
    activate()

    def chosen(explicit: Any) -> str:
        return str(current_platform.get_attn_backend_cls(explicit, request(), num_heads=8))

    assert chosen(None) == STOCK
    assert chosen(AttentionBackendEnum.CUSTOM) == DENSE
    with monkeypatch.context() as elsewhere:
        # As where vLLM's configuration is not at hand.
        elsewhere.delattr(compat, "is_compiling_model")
        assert chosen(None) == STOCK


def test_a_choice_that_a_stock_platform_ignores_is_told(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(attention, "warning_once", lambda _, text: said.append(text))
    for explicit in (AttentionBackendEnum.CPU_ATTN, AttentionBackendEnum.TORCH_SDPA):
        assert choose(own=lambda: STOCK, explicit=explicit) == STOCK
    assert said == []
    assert choose(own=lambda: STOCK, explicit=AttentionBackendEnum.TRITON_ATTN) == STOCK
    (line,) = said
    assert "--attention-backend TRITON_ATTN is not what this platform of vLLM uses" in line


def test_a_marked_class_serves_a_stock_platform(
    run_vllm: Run, truth: Callable[[str], list[list[int]]]
) -> None:
    environ = {
        "VLLM_FL_PLUGIN_MODULES": "marked_attention",
        "VLLM_FL_PER_OP": "attention_backend=vendor:marked|reference",
    }
    marked = run_vllm(environ=environ, enforce_eager=True)
    assert marked["platform"] != "PlatformFL"
    assert marked["tokens"] != truth("qwen3")


@pytest.mark.slow
def test_by_default_nobody_asks_it(run_vllm: Run, truth: Callable[[str], Any]) -> None:
    environ = {"VLLM_FL_PLUGIN_MODULES": "marked_attention"}
    assert run_vllm(environ=environ, enforce_eager=True)["tokens"] == truth("qwen3")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"enforce_eager": True}, {}], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["qwen3", "window"])
def test_the_reference_serves_a_stock_platform_by_policy(
    run_vllm: Run, truth: Callable[[str], Any], name: str, options: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("op_backends: {attention_backend: [reference]}")
    result = run_vllm(name, environ={"VLLM_FL_CONFIG": str(policy)}, **options)
    assert result["tokens"] == truth(name)
    assert "attention_backend is served by attention_backend[reference.torch]" in result["stderr"]


@pytest.mark.slow
def test_a_choice_that_cannot_serve_ends_the_start(run_vllm: Run, empty_vllm: Path) -> None:
    failed = run_vllm(
        tree=empty_vllm, fails=True, enforce_eager=True, attention_backend="FLASH_ATTN"
    )
    assert "--attention-backend FLASH_ATTN" in failed["stderr"] + failed["stdout"]
