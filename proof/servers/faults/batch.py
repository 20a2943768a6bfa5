"""Faulty servers with errors in batches, such as items that are mixed up, missing or rejected."""

import json
import re

from proof.servers.fault_helpers import change_submits, rewrite_body, rewrite_events, rewrite_request_body
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-056", "batch.item_cancel_does_not_affect_others")
def item_cancel_cancels_all_items(hooks):
    """A request to cancel one item cancels all items."""
    rewrite_request_body(hooks, rb'^\{"items": ?\[1, ?1\]\}$', b"{}")


@faulty_server("TW-BAT-001", "batch.items_follow_input_order")
def results_assigned_to_wrong_inputs(hooks):
    """Results are assigned to the wrong inputs."""

    def reverse(exchange):
        if exchange.inputs:
            exchange.body = json.dumps(exchange.json | {"inputs": exchange.inputs[::-1]}).encode()

    hooks.requests.append(reverse)


@faulty_server("TW-BAT-004", "batch.failed_item_does_not_affect_others")
def failed_item_fails_all(hooks):
    """If one item of a batch fails, all items of the batch fail."""

    def poison(exchange):
        if exchange.is_submit and b'"fail"' in exchange.body and exchange.json and "inputs" in exchange.json:
            bad = next(each for each in exchange.json["inputs"] if "fail" in json.dumps(each))
            exchange.body = json.dumps({"inputs": [bad] * len(exchange.json["inputs"])}).encode()

    hooks.requests.append(poison)


@faulty_server("TW-BAT-012", "batch.results_do_not_depend_on_batching")
def result_differs_in_a_batch(hooks):
    """An input has a different value in a batch than in a job of its own."""

    def change(exchange, status, body):
        return status, body.replace(b"word 3", b"word 4").replace(
            b" tide", b" wave"
        ) if b'"batch":true' in body else body

    hooks.bodies.append(change)


@faulty_server("TW-BAT-007", "batch.items_follow_input_order")
def single_input_not_marked_as_batch(hooks):
    """A job whose `inputs` has only one input is not marked as a batch."""

    def one(exchange, status, body):
        return status, body.replace(b'"batch":true', b'"batch":false') if len(exchange.inputs) == 1 else body

    hooks.bodies.append(one)


@faulty_server("TW-BAT-005", "batch.items_end_independently")
def items_end_together(hooks):
    """All items end only when the last item has ended."""

    def hold(exchange, frame):
        if b'"/items/0/status","succeeded"' in frame and b"items/1" not in frame:
            return re.sub(rb'\{"ops":.*\}', b"[]", frame)
        return frame

    hooks.frames.append(hold)


@faulty_server("TW-BAT-002", "batch.inputs_return_422_without_batch_support")
def batch_support_not_declared(hooks):
    """An endpoint accepts `inputs`, but its description does not declare batches."""

    def hide(exchange, status, body):
        if exchange.path != "/v1/endpoints/talk" or status != 200:
            return None
        found = json.loads(body)
        del found["capabilities"]["batch"]
        return status, json.dumps(found).encode()

    hooks.bodies.append(hide)


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members")
def shared_overrides_input_members(hooks):
    """`shared` overrides members that are set in an input."""

    def overrule(exchange):
        body = exchange.json
        if exchange.inputs and isinstance(body.get("shared"), dict):
            body["inputs"] = [each | body["shared"] for each in body["inputs"]]
            exchange.body = json.dumps(body).encode()

    hooks.requests.append(overrule)


@faulty_server("TW-BAT-009", "batch.shared_members_fill_in_missing_members")
def pointer_names_input_instead_of_shared(hooks):
    """If a member of `shared` is invalid, the error's pointer names an input instead."""
    rewrite_body(hooks, b'"pointer":"/shared', b'"pointer":"/inputs/1')


@faulty_server("TW-BAT-003", "batch.too_many_inputs_return_422")
def excess_inputs_dropped(hooks):
    """Inputs beyond the limit are dropped silently."""

    def cut(exchange):
        if (
            exchange.is_submit
            and isinstance(exchange.json, dict)
            and len(exchange.json.get("inputs") or ()) > 32
        ):
            exchange.body = json.dumps({"inputs": exchange.json["inputs"][:32]}).encode()

    hooks.requests.append(cut)


@faulty_server("TW-JOB-082", "batch.item_cancel_does_not_affect_others")
def cancel_with_duplicate_index_refused(hooks):
    """A request to cancel items is rejected if it lists an index twice."""

    def refuse(exchange):
        items = (
            exchange.json.get("items")
            if exchange.path.endswith("/cancel") and isinstance(exchange.json, dict)
            else None
        )
        twice = isinstance(items, list) and len(items) == 2 and items[0] == items[1]
        return problem(422, "invalid_input", pointer="/items/1") if twice else None

    hooks.instead.append(refuse)


@faulty_server("TW-BAT-017", "batch.row_is_less_than_batch_size", "batch.results_do_not_depend_on_batching")
def batch_rows_start_at_1(hooks):
    """Row numbers of a batch start at 1."""
    more = lambda found: b'"row":%d' % (int(found[1]) + 1)  # noqa: E731
    rewrite_body(hooks, rb'"row":(\d+)', more)


@faulty_server("TW-BAT-001", "batch.items_follow_input_order")
def submit_body_ignored(hooks):
    """The body of a request to submit a job is ignored, and every job runs an empty script."""

    def empty(exchange):
        if exchange.is_submit and exchange.json is not None:
            exchange.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(empty)


@faulty_server("TW-JOB-016", "batch.invalid_input_is_reported_with_pointer")
def pointer_always_names_first_input(hooks):
    """If any input of a batch is invalid, the error's pointer names the first input."""
    rewrite_body(hooks, rb'"pointer":"/inputs/\d+', b'"pointer":"/inputs/0')


@faulty_server("TW-FRM-066", "batch.progress_is_sent_for_each_running_item")
def progress_always_names_first_item(hooks):
    """`progress` always names the first item."""
    rewrite_events(hooks, rb'"item":\d+', b'"item":0', within=b"event:progress")


@faulty_server("TW-FRM-067", "batch.progress_is_sent_for_each_running_item")
def only_one_item_progress_repeated(hooks):
    """After a new connection, the current progress of only one item is sent."""
    hooks.frames.append(
        lambda exchange, frame: b"" if b"event:progress" in frame and b'"item":1' in frame else frame
    )


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members")
def shared_merged_recursively(hooks):
    """`shared` is merged recursively into the members of an input."""

    def lead(input_value, name, value):
        own = input_value.get(name, {})
        return (
            {**value, **own}
            if isinstance(value, dict) and isinstance(own, dict)
            else input_value.get(name, value)
        )

    def deeply(body):
        shared, inputs = body.get("shared"), body.get("inputs")
        if not isinstance(shared, dict) or not isinstance(inputs, list):
            return None
        return body | {"inputs": [{**each, **{name: lead(each, name, shared[name]) for name in shared if name in each}}
                                  if isinstance(each, dict) else each for each in inputs]}  # fmt: skip

    change_submits(hooks, deeply)


@faulty_server("TW-JOB-014", "batch.shared_members_fill_in_missing_members")
def shared_ignored_with_single_input(hooks):
    """`shared` is ignored if the request has `input` instead of `inputs`."""
    change_submits(
        hooks,
        lambda body: (
            {**body, "shared": {}} if isinstance(body.get("input"), dict) and body.get("shared") else None
        ),
    )


@faulty_server("TW-BAT-012", "batch.results_do_not_depend_on_batching")
def all_rows_get_first_value(hooks):
    """Every item of a batch gets the value of the first item."""
    first = re.compile(rb'"value":"([^"]*)"')

    def mix(exchange, status, body):
        found = first.search(body) if b'"endpoint":"shout"' in body and b'"batch":true' in body else None
        return (status, first.sub(found[0], body)) if found else None

    hooks.bodies.append(mix)


@faulty_server("TW-BAT-001", "batch.items_follow_input_order")
def items_sorted_by_index_as_string(hooks):
    """Items are sorted by their indexes as strings, so `10` comes before `2`."""

    def sort(body):
        inputs = body.get("inputs")
        many = isinstance(inputs, list) and len(inputs) > 10
        return body | {"inputs": [inputs[at] for at in sorted(range(len(inputs)), key=str)]} if many else None

    change_submits(hooks, sort)


@faulty_server("TW-BAT-008", "batch.shared_members_fill_in_missing_members")
def shared_overrides_falsy_members(hooks):
    """`shared` overrides an input's members that are null, 0, false or empty, as `own or shared` does in Python."""

    def lead(body):
        shared, inputs = body.get("shared"), body.get("inputs", [body.get("input")])
        if not isinstance(shared, dict) or not isinstance(inputs, list):
            return None
        for each in inputs:
            if isinstance(each, dict):
                each |= {name: shared[name] for name in shared if name in each and not each[name]}
        return body

    change_submits(hooks, lead)
