"""``vllm-fl demo``: a model answers through vLLM, and a table says what served it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_fl_dispatch.api import get_default_manager, set_global_policy
from vllm_fl_dispatch.cli.app import AsJson, app, console, show, styled, table
from vllm_fl_dispatch.config.values import parse_per_op
from vllm_fl_dispatch.logger_manager import set_log_level
from vllm_fl_dispatch.policy import SelectionPolicy

QUESTIONS = ("What is the capital of France?", "How many days are there in a week?")
#: What the demo shows when nothing else is asked for: dispatched implementations, not stock.
DISPATCHED = "flagos|vendor|reference"

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
        console.print("no layer was dispatched: is the plugin switched off?", style="red")
        raise typer.Exit(1)


def _policy(prefer: str | None, per_op: str | None) -> SelectionPolicy:
    """What the options say on top of configuration; without either, every operator dispatched."""
    manager = get_default_manager()
    policy = manager.policy
    configured = set(policy.origins) & {"prefer"} or policy.per_op_order
    if prefer is not None:
        policy = policy.with_values("option --prefer", prefer=prefer)
    elif per_op is None and not configured:
        orders: dict[str, Any] = dict.fromkeys(manager.registry.op_names(), DISPATCHED)
        policy = policy.with_values("the demo's default", per_op_order=orders)
    if per_op is not None:
        orders = parse_per_op(per_op, "--per-op")
        policy = policy.with_values("option --per-op", per_op_order=orders)
    return policy


def _ask(model: str, questions: list[str], *, compiled: bool, dtype: Any) -> list[str]:
    started = time.perf_counter()

    def step(text: str) -> None:
        console.print(f"{time.perf_counter() - started:6.1f} s  {text}", style="dim")

    with console.status("importing vLLM"):
        import vllm
    step("vLLM imported")
    with console.status(f"loading {model}" + (" and compiling it" if compiled else "")):
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
    with console.status("answering"):
        outputs = llm.chat(chats, vllm.SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    step("answered")
    return [output.outputs[0].text.strip() for output in outputs]
