"""Items of one job that are taken for one another."""

import json
import re

from conformance.suite.mutants import mutant

SHARED = "batch.shared_members_complete_each_input"


def submits(hooks, change):
    """Change submits whose body is an object."""

    def hook(talk):
        if talk.is_submit and isinstance(talk.json, dict) and (found := change(talk.json)):
            talk.body = json.dumps(found).encode()

    hooks.requests.append(hook)


@mutant("TW-BAT-008", SHARED)
def shared_is_led_in_deeply(hooks):
    """`shared` completes the members of members as well."""

    def lead(given, name, value):
        own = given.get(name, {})
        return (
            {**value, **own} if isinstance(value, dict) and isinstance(own, dict) else given.get(name, value)
        )

    def deeply(body):
        shared, inputs = body.get("shared"), body.get("inputs")
        if not isinstance(shared, dict) or not isinstance(inputs, list):
            return None
        return body | {"inputs": [{**each, **{name: lead(each, name, shared[name]) for name in shared if name in each}}
                                  if isinstance(each, dict) else each for each in inputs]}  # fmt: skip

    submits(hooks, deeply)


@mutant("TW-JOB-014", SHARED)
def shared_is_for_lists_alone(hooks):
    """`shared` beside `input` is ignored."""
    submits(
        hooks,
        lambda body: (
            {**body, "shared": {}} if isinstance(body.get("input"), dict) and body.get("shared") else None
        ),
    )


@mutant("TW-BAT-012", "batch.the_company_of_an_item_changes_nothing")
def rows_of_a_batch_are_mixed_up(hooks):
    """Each row of a batch gets the value of the first one."""
    first = re.compile(rb'"value":"([^"]*)"')

    def mix(talk, status, body):
        found = first.search(body) if b'"endpoint":"shout"' in body and b'"batch":true' in body else None
        return (status, first.sub(found[0], body)) if found else None

    hooks.bodies.append(mix)
