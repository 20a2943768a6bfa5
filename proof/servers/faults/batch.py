"""Faulty servers with errors in batches, such as items that are mixed up, missing or rejected."""

import json
import re

from proof.servers.expected_side_failures import DONE_WITHOUT_ERROR, READ_DIFFERS, WRONG_EVENT
from proof.servers.fault_helpers import (
    change_data,
    change_submits,
    rewrite_body,
    rewrite_events,
    rewrite_request_body,
)
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("item_cancel_cancels_all_items", "TW-JOB-056", "batch.item_cancel_does_not_affect_others",
      "A request to cancel one item cancels all items.",
      requests=rewrite_request_body(rb'^\{"items": ?\[1, ?1\]\}$', b"{}"))

fault("pointer_names_input_instead_of_shared", "TW-BAT-009", "batch.shared_members_fill_in_missing_members",
      "If a member of `shared` is invalid, the error's pointer names an input instead.",
      bodies=rewrite_body(b'"pointer":"/shared', b'"pointer":"/inputs/1'),
      also_fails={"every pointer names an input": "refused_submits.invalid_submit_body_returns_422"})
fault("shared_ignored_with_single_input", "TW-JOB-014", "batch.shared_members_fill_in_missing_members",
      "`shared` is ignored if the request has `input` instead of `inputs`.",
      requests=change_submits(lambda body: body | {"shared": {}} if "input" in body and body.get("shared") else None))

fault("batch_rows_start_at_1", "TW-BAT-017", "batch.row_is_less_than_batch_size",
      "Row numbers of a batch start at 1.",
      bodies=rewrite_body(rb'"row":(\d+)', lambda found: b'"row":%d' % (int(found[1]) + 1)),
      also_run="batch.results_do_not_depend_on_batching",
      also_fails=READ_DIFFERS)

fault("pointer_always_names_first_input", "TW-JOB-016", "batch.invalid_input_is_reported_with_pointer",
      "If any input of a batch is invalid, the error's pointer names the first input.",
      bodies=rewrite_body(rb'"pointer":"/inputs/\d+', b'"pointer":"/inputs/0'))

fault("progress_always_names_first_item", "TW-FRM-066", "batch.progress_is_sent_for_each_running_item",
      "`progress` always names the first item.",
      frames=rewrite_events(rb'"item":\d+', b'"item":0', within=b"event:progress"))
fault("only_one_item_progress_repeated", "TW-FRM-067", "batch.progress_is_sent_for_each_running_item",
      "After a new connection, the current progress of only one item is sent.",
      frames=lambda exchange, frame: b"" if b"event:progress" in frame and b'"item":1' in frame else frame)

fault("batch_support_not_declared", "TW-BAT-002", "batch.inputs_return_422_without_batch_support",
      "An endpoint accepts `inputs`, but its description does not declare batches.",
      bodies=rewrite_body(rb'"batch":\{[^}]*\},?', b"", at="/v1/endpoints/talk"))

fault("single_input_not_marked_as_batch", "TW-BAT-007", "batch.items_follow_input_order",
      "A job whose `inputs` has only one input is not marked as a batch.",
      bodies=lambda exchange, status, body:
          (status, body.replace(b'"batch":true', b'"batch":false')) if len(exchange.inputs) == 1 else None)
# fmt: on


@faulty_server(
    "TW-BAT-001",
    "batch.items_follow_input_order",
    hook="requests",
    also_fails={"the items of a batch are swapped": "deadlines.deadline_keeps_ended_items"},
)
def results_assigned_to_wrong_inputs(exchange):
    """Results are assigned to the wrong inputs."""
    if exchange.inputs:
        exchange.body = json.dumps(exchange.json | {"inputs": exchange.inputs[::-1]}).encode()


@faulty_server("TW-BAT-004", "batch.failed_item_does_not_affect_others", hook="requests")
def failed_item_fails_all(exchange):
    """If one item of a batch fails, all items of the batch fail."""
    if exchange.is_submit and b'"fail"' in exchange.body and exchange.json and "inputs" in exchange.json:
        bad = next(each for each in exchange.json["inputs"] if "fail" in json.dumps(each))
        exchange.body = json.dumps({"inputs": [bad] * len(exchange.json["inputs"])}).encode()


@faulty_server("TW-BAT-013", "batch.failed_item_does_not_affect_others", hook="requests")
def failed_item_fails_later_items(exchange):
    """If the function fails one item of a batch, the items after this item fail, too."""
    if exchange.is_submit and exchange.inputs and b'"fail"' in exchange.body:
        bad = next(at for at, each in enumerate(exchange.inputs) if "fail" in json.dumps(each))
        later = [exchange.inputs[bad]] * (len(exchange.inputs) - bad)
        exchange.body = json.dumps({"inputs": [*exchange.inputs[:bad], *later]}).encode()


@faulty_server(
    "TW-BAT-012", "batch.results_do_not_depend_on_batching", hook="bodies", also_fails=READ_DIFFERS
)
def result_differs_in_a_batch(exchange, status, body):
    """An input has a different value in a batch than in a job of its own."""
    other = body.replace(b"word 3", b"word 4").replace(b" tide", b" wave")
    return status, other if b'"batch":true' in body else body


@faulty_server("TW-BAT-005", "batch.items_end_independently", hook="frames", also_fails=WRONG_EVENT)
def items_end_together(exchange, frame):
    """All items end only when the last item has ended."""
    if b'"/items/0/status","succeeded"' in frame and b"items/1" not in frame:
        return re.sub(rb'\{"ops":.*\}', b"[]", frame)
    return frame


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members", hook="requests")
def shared_overrides_input_members(exchange):
    """`shared` overrides members that are set in an input."""
    body = exchange.json
    if exchange.inputs and isinstance(body.get("shared"), dict):
        body["inputs"] = [each | body["shared"] for each in body["inputs"]]
        exchange.body = json.dumps(body).encode()


@faulty_server("TW-BAT-003", "batch.too_many_inputs_return_422", hook="requests")
def excess_inputs_dropped(exchange):
    """Inputs beyond the limit are dropped silently."""
    if exchange.is_submit and isinstance(exchange.json, dict) and len(exchange.json.get("inputs") or ()) > 32:
        exchange.body = json.dumps({"inputs": exchange.json["inputs"][:32]}).encode()


@faulty_server("TW-JOB-082", "batch.item_cancel_does_not_affect_others", hook="instead")
def cancel_with_duplicate_index_refused(exchange):
    """A request to cancel items is rejected if it lists an index twice."""
    items = (
        exchange.json.get("items")
        if exchange.path.endswith("/cancel") and isinstance(exchange.json, dict)
        else None
    )
    twice = isinstance(items, list) and len(items) == 2 and items[0] == items[1]
    return problem(422, "invalid_input", pointer="/items/1") if twice else None


@faulty_server(
    "TW-BAT-001",
    "batch.items_follow_input_order",
    hook="requests",
    also_fails={"every submit runs the wrong input": "*"},
)
def submit_body_ignored(exchange):
    """The body of a request to submit a job is ignored, and every job runs an empty script."""
    if exchange.is_submit and exchange.json is not None:
        exchange.body = json.dumps({"input": {"script": []}}).encode()


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members", hook="requests")
@change_submits
def shared_merged_recursively(body):
    """`shared` is merged recursively into the members of an input."""
    shared, inputs = body.get("shared"), body.get("inputs")
    if not isinstance(shared, dict) or not isinstance(inputs, list):
        return None
    for each in (each for each in inputs if isinstance(each, dict)):
        for name in shared.keys() & each.keys():
            if isinstance(shared[name], dict) and isinstance(each[name], dict):
                each[name] = shared[name] | each[name]
    return body


@faulty_server(
    "TW-BAT-012", "batch.results_do_not_depend_on_batching", hook="bodies", also_fails=READ_DIFFERS
)
def all_rows_get_first_value(exchange, status, body):
    """Every item of a batch gets the value of the first item."""
    first = re.compile(rb'"value":"([^"]*)"')
    found = first.search(body) if b'"endpoint":"shout"' in body and b'"batch":true' in body else None
    return (status, first.sub(found[0], body)) if found else None


@faulty_server("TW-BAT-001", "batch.items_follow_input_order", hook="requests")
@change_submits
def items_sorted_by_index_as_string(body):
    """Items are sorted by their indexes as strings, so `10` comes before `2`."""
    inputs = body.get("inputs")
    many = isinstance(inputs, list) and len(inputs) > 10
    return body | {"inputs": [inputs[at] for at in sorted(range(len(inputs)), key=str)]} if many else None


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members", hook="requests")
@change_submits
def shared_overrides_falsy_members(body):
    """`shared` overrides an input's members that are null, 0, false or empty, as `own or shared` does in Python."""
    shared, inputs = body.get("shared"), body.get("inputs", [body.get("input")])
    if not isinstance(shared, dict) or not isinstance(inputs, list):
        return None
    for each in inputs:
        if isinstance(each, dict):
            each |= {name: shared[name] for name in shared if name in each and not each[name]}
    return body


@faulty_server(
    "TW-FRM-053",
    "batch.failed_batch_has_an_error",
    also_fails={
        "the state of the job, which repeats the end of the job, lacks the error, too": "state.each_id_has_one_state"
    }
    | DONE_WITHOUT_ERROR,
)
def failed_batch_without_error(hooks):
    """The `done` of a batch whose items have all failed lacks `error`."""

    def without_error(exchange, kind, value):
        if kind == "snapshot":
            exchange.own["items"] = len(value["state"]["items"])
        if kind == "done" and exchange.own.get("items", 1) > 1:
            value.pop("error", None)
        return value

    hooks.frames.append(change_data(without_error))


@faulty_server(
    "TW-FRM-053",
    "batch.failed_batch_has_an_error",
    hook="bodies",
    also_fails=READ_DIFFERS | DONE_WITHOUT_ERROR,
)
def failed_batch_read_without_error(exchange, status, body):
    """The member `done` of a failed batch lacks `error`."""
    found = json.loads(body) if status == 200 and b'"batch":true' in body else {}
    if not isinstance(found.get("done"), dict) or found["done"].get("status") != "failed":
        return None
    found["done"].pop("error", None)
    return status, json.dumps(found).encode()
