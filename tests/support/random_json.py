"""Random JSON values from a seeded generator, and equality that distinguishes types, for property tests."""

import json

SCALARS = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    0.0,
    -0.0,
    -1,
    1.5,
    2**53,
    -(2**53),
    "",
    "a",
    "ab",
    "b🎉",
    "🎉é",
    "1",
]
NAMES = ["a", "b", "", "/", "~", "~1", "__proto__", "0", "01", "-", "é🎉"]
PIECES = ["", "x", "yz", "🎉", " world", "\n"]


def canonical_text(value):
    """Return a canonical text of a value: 1, 1.0 and true differ, and the order of members does not matter."""
    return json.dumps(value, sort_keys=True)


def random_value(random, depth=4):
    kind = random.random()
    if depth == 0 or kind < 0.45:
        return random.choice(SCALARS)
    if kind < 0.75:
        return [random_value(random, depth - 1) for _ in range(random.randrange(6))]
    return {random.choice(NAMES): random_value(random, depth - 1) for _ in range(random.randrange(5))}


def random_change_of(random, value):
    """Return a value with a small random change, like the next value that a program might yield."""
    if random.random() < 0.1:
        return random_value(random, 2)
    if isinstance(value, str):
        return value[: random.randrange(len(value) + 1)] + random.choice(PIECES)
    if isinstance(value, list):
        value = value[:]
        for _ in range(random.randrange(4)):
            kind = random.random()
            if kind < 0.4 or not value:
                value.insert(random.randrange(len(value) + 1), random_value(random, 1))
            elif kind < 0.7:
                del value[random.randrange(len(value))]
            else:
                at = random.randrange(len(value))
                value[at] = random_change_of(random, value[at])
        return value
    if isinstance(value, dict):
        value = value.copy()
        for _ in range(random.randrange(3)):
            kind = random.random()
            if kind < 0.4 or not value:
                value[random.choice(NAMES)] = random_value(random, 1)
            elif kind < 0.6:
                del value[random.choice(list(value))]
            else:
                name = random.choice(list(value))
                value[name] = random_change_of(random, value[name])
        return value
    return random.choice(SCALARS)
