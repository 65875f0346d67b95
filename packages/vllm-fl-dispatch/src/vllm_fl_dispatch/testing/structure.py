"""What holds for all calls of an operator: shapes, the opaque operator, compiled views."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch.contracts import describe, lowered, signature_of
from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.testing.functional import functional_form_is_right
from vllm_fl_dispatch.testing.kit import Subject, as_tuple
from vllm_fl_dispatch.testing.rows import rows_stand_alone
from vllm_fl_dispatch.testing.served import has_views, light, served
from vllm_fl_dispatch.testing.subjects import manager_of
from vllm_fl_dispatch.torch_ops import NAMESPACE, opaque
from vllm_fl_dispatch.types import Query

#: How vLLM compiles: under this setting an operator that overwrites views gives wrong numbers.
VLLM_INDUCTOR = {"enable_auto_functionalized_v2": False}


def facts_hold_no_token_count(subject: Subject) -> None:
    """What `supports` sees must be the same for one row and for many.

    Raises:
        AssertionError: with the case and both sets of facts.
    """
    spec = subject.spec
    if spec.example is None:
        return
    for case in light(subject, limit=12):
        maker = Maker("cpu")
        query = spec.query(*case.make(maker), **case.options(maker))
        args, options = spec.example(query)
        again = spec.query(*args, **options)
        assert again.facts == query.facts, f"{case.name}: {query}\nwith other rows: {again}"


def predicate_bears_what_is_not_known(subject: Subject) -> None:
    """`supports` answers where facts are unknown: a layer is built before, say, the width is.

    Raises:
        AssertionError: with the fact, and what `supports` raised.
    """
    for case in light(subject, limit=6):
        maker = Maker("cpu")
        facts = subject.spec.query(*case.make(maker), **case.options(maker)).facts
        for unknown in [[name] for name in facts] + [list(facts)]:
            known = {name: value for name, value in facts.items() if name not in unknown}
            try:
                subject.impl.answer(Query(subject.spec.name, known))
            # Whatever it raises is the finding.
            except Exception as error:
                raise AssertionError(
                    f"{subject}: supports raised {in_brief(error)} where {', '.join(unknown)} "
                    "is not known; query.get(name) is None then, and the answer should be yes: "
                    "it is asked again at each call"
                ) from error


def shape_function_is_symbolic(subject: Subject) -> None:
    """The shape function works on symbolic sizes and gives the sizes of the real results.

    Raises:
        AssertionError: with the case, or what the shape function raised.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    spec = subject.spec
    assert spec.fake is not None, f"{spec.name} has no shape function"
    for case in light(subject, limit=6):
        maker = Maker("cpu")
        args, options = case.make(maker), case.options(maker)
        expected = as_tuple(spec.fake(*args, **options))
        mode = FakeTensorMode(shape_env=ShapeEnv())
        with mode:
            fake_args = tuple(_to_fake(mode, value) for value in args)
            fake_options = {name: _to_fake(mode, value) for name, value in options.items()}
            found = as_tuple(spec.fake(*fake_args, **fake_options))
        fixed = mode.shape_env.replacements if mode.shape_env else {}
        assert not fixed, f"{case.name}: the shape function fixes sizes that vary: {fixed}"
        for have, want in zip(found, expected, strict=True):
            if want is None:
                assert have is None, f"{case.name}: {have}, expected None"
                continue
            sizes = [int(size) for size in have.shape]
            assert sizes == list(want.shape), f"{case.name}: {sizes}, expected {list(want.shape)}"
            assert have.dtype == want.dtype, f"{case.name}: {have.dtype}, expected {want.dtype}"


def _to_fake(mode: Any, value: Any) -> Any:
    """A fake tensor all of whose sizes may vary."""
    return (
        mode.from_tensor(value, static_shapes=False) if isinstance(value, torch.Tensor) else value
    )


def opaque_operator_keeps_torchs_rules(subject: Subject) -> None:
    """`torch.library.opcheck` on ``torch.ops.vllm_fl.<op>`` served by this implementation.

    Raises:
        whatever opcheck raises.
    """
    spec = subject.spec
    opaque(manager_of(subject), spec)
    op = getattr(getattr(torch.ops, NAMESPACE), spec.name).default
    for case in served(subject, limit=2):
        maker = Maker(subject.device)
        torch.library.opcheck(
            op,
            case.make(maker),
            case.options(maker),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
        )


def schema_is_that_of_the_contract(subject: Subject) -> None:
    """The torch schema has the contract's parameters, by name, order and kind.

    Raises:
        AssertionError: with both.
    """
    spec = subject.spec
    assert spec.schema is not None, f"{spec.name} has no torch schema"
    arguments = torch._C.parse_schema(f"{spec.name}{spec.schema}").arguments
    found = [(each.name, each.kwarg_only) for each in arguments]
    parameters = signature_of(spec.contract).parameters.values()
    expected = [(each.name, each.kind is each.KEYWORD_ONLY) for each in parameters]
    assert found == expected, f"{spec.name}{spec.schema} does not fit {describe(spec)}"


def traceable_code_is_traced(subject: Subject) -> None:
    """What declares `traceable` compiles as a whole, for any number of rows, to the same results.

    Raises:
        AssertionError: the results differ, or the compiler cannot look into it.
    """
    if not subject.impl.traceable:
        return
    torch.compiler.reset()
    for case in served(subject, limit=1):
        maker = Maker(subject.device)
        args, options = lowered(subject.spec, subject.fn, case.make(maker), case.options(maker))
        compiled = torch.compile(subject.fn, fullgraph=True, dynamic=True, backend="aot_eager")
        expected = as_tuple(subject.fn(*_cloned(args), **options))
        try:
            found = as_tuple(compiled(*_cloned(args), **options))
        except Exception as error:  # noqa: BLE001  # the compiler's, or the code's
            raise AssertionError(
                f"{subject} is declared traceable, and cannot be traced: {in_brief(error)}"
            ) from None
        for have, want in zip(found, expected, strict=True):
            torch.testing.assert_close(have, want, equal_nan=True)


def _cloned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in args)


def views_compile_correctly(subject: Subject) -> None:
    """The opaque operator on views, compiled as vLLM compiles, gives what it gives eagerly.

    Raises:
        AssertionError: the results differ, or a tensor was changed through a view of it.
    """
    call = opaque(manager_of(subject), subject.spec)
    torch.compiler.reset()  # what other operators compiled here does not count
    for case in served(subject, limit=1, where=has_views):
        maker = Maker(subject.device)
        args, options = case.make(maker), case.options(maker)
        plan, tensors = _plan(args)
        kept = [tensor.clone() for tensor in tensors]

        def model(
            tensors: list[torch.Tensor], plan: list[Any] = plan, options: Any = options
        ) -> Any:
            # Used before and after, so that a changed parent shows in the results.
            before = [tensor * 1 for tensor in tensors]
            results = as_tuple(call(*(_follow(step, tensors) for step in plan), **options))
            return before, [each for each in results if each is not None], [t * 1 for t in tensors]

        expected = model([tensor.clone() for tensor in tensors])[1]
        compiled = torch.compile(model, fullgraph=True, options=dict(VLLM_INDUCTOR))
        before, found, after = compiled(tensors)
        for have, want in zip(found, expected, strict=True):
            torch.testing.assert_close(have, want, equal_nan=True)
        for group in (tensors, before, after):
            for have, want in zip(group, kept, strict=True):
                assert torch.equal(have, want), f"{case.name}: a tensor was changed through a view"


def _plan(args: tuple[Any, ...]) -> tuple[list[Any], list[torch.Tensor]]:
    """How to make the arguments again from whole tensors, and these tensors."""
    plan: list[Any] = []
    tensors: list[torch.Tensor] = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            plan.append((None, value))
            continue
        whole = value if value._base is None else value._base
        number = next((i for i, each in enumerate(tensors) if each is whole), len(tensors))
        if number == len(tensors):
            tensors.append(whole)
        plan.append((number, (value.size(), value.stride(), value.storage_offset())))
    return plan, tensors


def _follow(step: tuple[int | None, Any], tensors: list[torch.Tensor]) -> Any:
    number, value = step
    return value if number is None else tensors[number].as_strided(*value)


CHECKS = (
    facts_hold_no_token_count,
    predicate_bears_what_is_not_known,
    shape_function_is_symbolic,
    schema_is_that_of_the_contract,
    opaque_operator_keeps_torchs_rules,
    traceable_code_is_traced,
    views_compile_correctly,
    rows_stand_alone,
    functional_form_is_right,
)
