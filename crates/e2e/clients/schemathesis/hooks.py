"""Lets the fuzzer speak of things that exist, and keeps what each operation was answered.

Without this a fuzzer guesses tokens and names, and meets nothing but refusals. Half of its calls
get the real ones, so that what it makes up reaches the code behind them. The facts come from the
test in WARRANT_FACTS; answers go to the file WARRANT_ANSWERS, one line each.
"""

import json
import os
import random

import schemathesis

FACTS = json.loads(os.environ["WARRANT_FACTS"])
ANSWERS = os.environ["WARRANT_ANSWERS"]
CHANCE = random.Random(7)
# Calls that would be accepted as they are, by operation. Each is made once.
WHOLE = FACTS["whole"]


def make_whole(case, operation):
    """Puts a call in that would be accepted; returns whether it did.

    Every other one keeps a member that the fuzzer made up, so that what is nearly accepted is
    met, too.
    """
    if not isinstance(case.body, dict) or not WHOLE.get(operation):
        return False
    made_up = dict(case.body)
    calls = WHOLE[operation]
    call = calls.pop()
    case.body.clear()
    case.body.update(call["body"])
    for name, value in call["path"].items():
        case.path_parameters[name] = value
    if len(calls) % 2 == 1 and made_up:
        name = CHANCE.choice(sorted(made_up))
        case.body[name] = made_up[name]
    return True


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = f"{case.operation.method.upper()} {case.operation.path}"
    body = case.body
    # A number with a point in it is a number, too: nobody waits half a minute for work.
    if isinstance(body, dict) and isinstance(body.get("waitMs"), (int, float)):
        body["waitMs"] = min(body["waitMs"], 20)
    # The fuzzer learns names from answers; whoever it speaks as must not lose its own token.
    if (case.path_parameters or {}).get("name") in FACTS["keep"]:
        case.path_parameters["name"] = FACTS["name"]
    if CHANCE.random() < 0.5:
        return
    if make_whole(case, operation):
        return
    if operation == "POST /v1/runs" and isinstance(body, dict):
        made_up = body.get("request")
        body["request"] = dict(FACTS["request"])
        if isinstance(made_up, dict) and made_up:
            name = CHANCE.choice(sorted(made_up))
            body["request"][name] = made_up[name]
    if isinstance(body, dict):
        for name in ("claimToken", "runnerToken", "enrollToken", "publicKeyPem", "pool"):
            if name in body:
                body[name] = FACTS[name]
    facts = {**FACTS, **FACTS["operations"].get(operation, {})}
    for name in list(case.path_parameters or {}):
        if name in facts:
            case.path_parameters[name] = facts[name]


@schemathesis.hook
def after_call(context, case, response):
    operation = f"{case.operation.method.upper()} {case.operation.path}"
    with open(ANSWERS, "a", encoding="utf-8") as file:
        file.write(f"{operation} {response.status_code}\n")
