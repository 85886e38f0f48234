"""Why each action can be refused, read off the rules themselves: the reference lists it.

>>> from cowtail.models.actions import Execute
>>> refusals(Execute)
('no step is waiting to run',)
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from cowtail.models import (
    admission,
    device,
    environment,
    extension,
    loads,
    output,
    peers,
    planning,
    preemption,
    reports,
    requests,
    reset,
    scheduler,
    store_lookup,
    workers,
)
from cowtail.models.actions import (
    Abort,
    Action,
    Admit,
    BeginPass,
    EndPass,
    Evict,
    Execute,
    ExpireLease,
    Extend,
    FinishSend,
    ForeignPut,
    LookUp,
    Preempt,
    Promote,
    Report,
    ReportLoad,
    Reset,
    RunJob,
    RunLoad,
    SchedulePass,
    Shed,
    SpendAnswer,
    Submit,
    UpdateConnectorOutput,
    UpdateFromOutput,
)

GUARDS: dict[type[Action], tuple[Callable[..., Any], ...]] = {
    Submit: (requests.submit_guard,),
    Abort: (requests.abort_guard,),
    BeginPass: (scheduler.begin_pass_guard,),
    Admit: (
        admission.plan_admission,
        store_lookup.lookup_failed_guard,
        admission._plan_with_hit,
        planning.plan_chunk,
        loads.plan_load,
    ),
    Extend: (extension.plan_extension, planning.plan_chunk),
    SpendAnswer: (admission.spend_answer_guard,),
    Promote: (loads.promote_guard,),
    Shed: (extension.shed_guard,),
    Preempt: (preemption.preempt_guard,),
    EndPass: (scheduler.end_pass_guard,),
    SchedulePass: (),
    Execute: (device.execute_guard,),
    UpdateFromOutput: (output.update_from_output_guard,),
    RunJob: (workers.run_job_guard,),
    Report: (workers.report_guard,),
    UpdateConnectorOutput: (reports.update_connector_output_guard,),
    LookUp: (store_lookup.look_up_guard,),
    ExpireLease: (store_lookup.expire_lease_guard,),
    RunLoad: (loads.run_load_guard,),
    ReportLoad: (loads.report_load_guard,),
    FinishSend: (peers.finish_send_guard,),
    ForeignPut: (environment.foreign_put_guard,),
    Evict: (environment.evict_guard,),
    Reset: (reset.reset_guard,),
}
"""The rules that decide whether an action is enabled, in the order in which they are asked."""


def refusals(action: type[Action]) -> tuple[str, ...]:
    """Return the reasons for which an action is refused, each once, in order."""
    found = [reason for rule in GUARDS[action] for reason in _reasons(rule)]
    return tuple(dict.fromkeys(found))


def _reasons(rule: Callable[..., Any]) -> Iterator[str]:
    """Yield the texts that a rule returns, or makes a refusal or a guard of."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    values = [value for node in ast.walk(tree) for value in _values(node)]
    for value in sorted(values, key=lambda v: (v.lineno, v.col_offset)):
        text = _text(value)
        if text:
            yield text


def _values(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Return) and node.value is not None:
        if isinstance(node.value, ast.IfExp):
            return [node.value.body, node.value.orelse]
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.args[:1] if node.func.id == "Refusal" else []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return [node.value] if node.targets[0].id in ("reason", "guard") else []
    return []


def _text(value: ast.expr) -> str:
    """Return a text with its variable parts in italics, or an empty one if it is none."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else ""
    if not isinstance(value, ast.JoinedStr):
        return ""
    parts = []
    for part in value.values:
        if isinstance(part, ast.FormattedValue):
            parts.append(f"*{_named(part.value)}*")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value))
    return "".join(parts)


def _named(value: ast.expr) -> str:
    """Return a short name for an expression: its last attribute, or what is counted."""
    if isinstance(value, ast.Call):
        return "number" if ast.unparse(value.func) in ("len", "sum") else _named(value.func)
    if isinstance(value, ast.Attribute):
        return value.attr if value.attr != "value" else _named(value.value)
    return ast.unparse(value)
