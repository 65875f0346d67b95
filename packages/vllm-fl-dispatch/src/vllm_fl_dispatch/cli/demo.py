"""``vllm-fl demo``: a model answers through vLLM, and a table says what served it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_fl_dispatch.api import get_default_manager, set_global_policy
from vllm_fl_dispatch.cli.app import AsJson, app, asides, show, styled, table
from vllm_fl_dispatch.config.values import parse_per_op
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import set_log_level
from vllm_fl_dispatch.policy import PLATFORM, SelectionPolicy

QUESTIONS = ("What is the capital of France?", "How many days are there in a week?")
#: What the demo shows when nothing else is asked for: dispatched implementations, not stock.
DISPATCHED = ("flagos", "vendor", "reference")

#: One process, so that the counts are here; vLLM's own talk off unless the user wants it.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@app.command()
def demo(
    model: Annotated[Path, typer.Option(help="Folder or name of a chat model.")],
    prefer: Annotated[
        str | None, typer.Option(help="flagos, vendor or reference comes first.")
    ] = None,
    per_op: Annotated[
        str | None, typer.Option(help="Orders as in VLLM_FL_PER_OP: op=token|token;op=token.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Let vLLM compile; traced calls are not counted.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="dtype of the model.")] = "auto",
    question: Annotated[list[str] | None, typer.Option(help="Ask this instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model two questions through vLLM; say which implementation served which operator."""
    _check_model(model)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if "VLLM_FL_LOG_LEVEL" not in os.environ:
        set_log_level("WARNING")
    manager = get_default_manager()
    manager.ensure_built()
    set_global_policy(_policy(prefer, per_op))
    manager.report.enabled = True
    questions = list(question or QUESTIONS)
    answers = _ask(str(model), questions, compiled=compiled, dtype=dtype)
    made = table(
        "What served what", "operator", "implementation", "kind", "mode", "layers", "calls"
    )
    rows = manager.report.rows()
    for row in rows:
        calls = str(row.calls) if not compiled or row.mode == "opaque" else "(traced)"
        made.add_row(row.op, row.impl_id, row.kind, row.mode, str(row.layers), calls)
    lines = [styled((q, "bold"), f"\n  {a}") for q, a in zip(questions, answers, strict=True)]
    data = {"answers": answers, "report": manager.report.as_dicts()}
    show(as_json, data, *lines, made)
    if not rows:
        asides.print("no layer was dispatched: is the plugin switched off?", style="red")
        raise typer.Exit(1)


def _check_model(model: Path) -> None:
    """Complain now about a path where no model is. Whether a name is one of a model is vLLM's to
    say: it may be downloaded.

    Raises:
        PolicyError: nothing is there, or a folder without a configuration.
    """
    is_path = model.is_absolute() or len(model.parts) > 2 or model.parts[:1] in ((".",), ("..",))
    if is_path and not model.exists():
        raise PolicyError(f"--model: {model} is not there; accepted: a folder or name of a model")
    configurations = ("config.json", "params.json")
    if model.is_dir() and not any((model / name).is_file() for name in configurations):
        raise PolicyError(f"--model: {model} has no {' or '.join(configurations)}: it is no model")


def _policy(prefer: str | None, per_op: str | None) -> SelectionPolicy:
    """What the options say on top of configuration; where neither of the two speaks of an
    operator, it is dispatched."""
    manager = get_default_manager()
    policy = manager.policy
    named = {} if per_op is None else parse_per_op(per_op, "--per-op")
    if prefer is not None:
        policy = policy.with_values("option --prefer", prefer=prefer)
    elif not _is_configured(policy):
        specs = [manager.registry.spec(op) for op in manager.registry.op_names()]
        # The members of a group that is named follow it.
        orders = {spec.name: DISPATCHED for spec in specs if spec.group not in named}
        policy = policy.with_values("the demo's default", per_op_order=orders)
    return policy.with_orders("option --per-op", named) if named else policy


def _is_configured(policy: SelectionPolicy) -> bool:
    """Did the user say who serves? What a backend ships for its platform does not count."""
    settings = ["prefer", *(f"per_op_order.{op}" for op in policy.per_op_order)]
    origins = [policy.origin_of(setting) for setting in settings]
    return any(origin != "default" and not origin.startswith(PLATFORM) for origin in origins)


def _ask(model: str, questions: list[str], *, compiled: bool, dtype: Any) -> list[str]:
    started = time.perf_counter()

    def step(text: str) -> None:
        asides.print(f"{time.perf_counter() - started:6.1f} s  {text}", style="dim")

    with asides.status("importing vLLM"):
        import vllm
    step("vLLM imported")
    with asides.status(f"loading {model}" + (" and compiling it" if compiled else "")):
        llm: Any = vllm.LLM(
            model=model,
            dtype=dtype,
            enforce_eager=not compiled,
            max_model_len=1024,
            max_num_seqs=8,
            distributed_executor_backend="uni",
        )
    step("model loaded")
    chats: Any = [[{"role": "user", "content": text}] for text in questions]
    with asides.status("answering"):
        outputs = llm.chat(chats, vllm.SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    step("answered")
    return [output.outputs[0].text.strip() for output in outputs]
