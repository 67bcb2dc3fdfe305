# Drives the HELM door with the official SDK for Python, unmodified; the adapter's own calls, which
# are not part of it, are made in their shapes.
import json
import os

import httpx
from helm_sdk import (
    ApprovalRequest,
    ChatCompletionRequest,
    ChatMessage,
    ChatTool,
    ChatToolFunction,
    HelmApiError,
    HelmClient,
)

url, key = os.environ["HELM_URL"], os.environ["E2B_API_KEY"]
client = HelmClient(url, api_key=key)
adapter = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def rejects(work, status, reason):
    try:
        work()
    except HelmApiError as error:
        assert (error.status, error.reason_code) == (status, reason), (error.status, error.body)
        return error
    raise AssertionError(f"expected {status} {reason}")


def ask(*command, of=client):
    intent = {"type": "sandbox_exec_intent", "provider": "daytona", "sandbox_id": sandbox}
    content = json.dumps({**intent, "command": list(command)})
    function = ChatToolFunction(name="sandbox_exec", description="", parameters={})
    request = ChatCompletionRequest(
        model="helm-governance",
        messages=[ChatMessage(role="user", content=content)],
        tools=[ChatTool(type="function", function=function)],
    )
    return of.chat_completions(request).choices[0]


assert client.health()["status"] == "ok"
assert client.version().commit, "the version is the plane's own, not that of another door"

sandbox = adapter.post("/sandbox", json={"language": "python3"}).json()["sandboxId"]
allowed = ask("echo", "hello")
assert allowed.finish_reason == "tool_calls" and len(allowed.message.tool_calls) == 1
ran = adapter.post(f"/sandbox/{sandbox}/process/execute", json={"command": "echo hello"})
assert ran.json()["output"] == "hello\n", ran.text
denied = ask("sudo", "id")
assert denied.finish_reason == "stop" and not denied.message.tool_calls
assert "approval" in denied.message.content
for word in ("one", "two"):
    assert ask("echo", word).finish_reason == "tool_calls"

stranger = HelmClient(url, api_key=os.environ["OTHER_KEY"])
rejects(lambda: ask("true", of=stranger), 404, "DENY_TOOL_NOT_FOUND")
rejects(lambda: HelmClient(url, api_key="nobody").list_sessions(), 401, "DENY_TRUST_KEY_REVOKED")
assert stranger.list_sessions() == []

session = next(each for each in client.list_sessions() if each.session_id == sandbox)
receipts = client.get_receipts(sandbox)
assert session.receipt_count == len(receipts) == 6, receipts
assert [each.lamport_clock for each in receipts] == list(range(1, 7))
assert client.get_receipt(receipts[1].blob_hash).signature == receipts[1].signature
rejects(lambda: client.get_receipts("none"), 404, "DENY_TOOL_NOT_FOUND")
approval = ApprovalRequest(intent_hash="0" * 64, signature_b64="AA==", public_key_b64="AA==")
rejects(lambda: client.approve_intent(approval), 400, "DENY_SCHEMA_MISMATCH")

assert adapter.delete(f"/sandbox/{sandbox}").status_code == 200
pack = client.export_evidence(sandbox)
for check in (client.verify_evidence, client.replay_verify):
    assert check(pack).verdict == "PASS"
rejects(lambda: client.verify_evidence(pack[:100]), 400, "DENY_SCHEMA_MISMATCH")

# The first versions of the SDK send a form and say that it is JSON.
form = {"bundle": ("pack.tar.gz", pack, "application/octet-stream")}
early = {"Content-Type": "application/json"}
verified = httpx.post(f"{url}/api/v1/evidence/verify", files=form, headers=early)
assert verified.json()["verdict"] == "PASS", verified.text
wrong = httpx.post(f"{url}/api/v1/evidence/verify", content=b"no form", headers=early)
assert wrong.json()["error"]["type"] == "invalid_request", wrong.text
print("ok", sandbox)
