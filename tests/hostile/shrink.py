"""Makes a scenario that breaks a rule shorter, as long as it breaks the same rule."""
import copy
import time


def shrink(scenario, breaks, seconds):
    """`breaks(scenario)` says whether the rule is broken. Gives the shortest scenario that was found in that time."""
    end = time.monotonic() + seconds
    best = scenario
    while time.monotonic() < end:
        for simpler in simpler_ones(best):
            if time.monotonic() > end:
                break
            if breaks(simpler):
                best = simpler
                break
        else:
            break
    return best


def simpler_ones(scenario):
    """Larger steps first: without an action, without an event, without a limit, with less of something."""
    actions = scenario["actions"]
    for half in (actions[len(actions) // 2:], actions[:len(actions) // 2]):
        if len(actions) > 3:
            yield dict(scenario, actions=half)
    for i in range(len(actions)):
        if len(actions) > 1:
            yield dict(scenario, actions=actions[:i] + actions[i + 1:])
    if scenario["base"] != "gpt2":
        yield dict(scenario, base="gpt2")
    for i, action in enumerate(actions):
        for changed in simpler_actions(action):
            yield dict(scenario, actions=actions[:i] + [changed] + actions[i + 1:])


def simpler_actions(action):
    events = action.get("events", [])
    for i in range(len(events)):
        yield dict(action, events=events[:i] + events[i + 1:])
    for key in ("limits", "events", "stdin"):
        if key in action and not (key == "stdin" and "-" in action.get("words", [])):
            less = copy.copy(action)
            del less[key]
            yield less
    if action.get("count", 1) > 1:
        yield dict(action, count=action["count"] // 2)
    value = action.get("value")
    if isinstance(value, dict) and value.get("nested", 0) > 8:
        yield dict(action, value={"nested": value["nested"] // 2})
    if isinstance(value, str) and len(value) > 8:
        yield dict(action, value=value[:len(value) // 2])
    words = action.get("words", []) if action.get("flags") else []
    for i in range(len(words) - 1, 0, -1):  # a flag with its value
        if str(words[i]).startswith("-") and len(str(words[i])) > 1:
            yield dict(action, words=words[:i] + words[i + 2:])
            yield dict(action, words=words[:i] + words[i + 1:])
