// Makes the calls of the HELM adapter for Mastra in its order and shapes.
import assert from 'node:assert/strict'

const base = process.env.HELM_URL
const key = process.env.E2B_API_KEY
const call = async (method, path, body, token = key) => {
  const raw = body instanceof Uint8Array
  const response = await fetch(base + path, {
    method,
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': raw ? 'application/octet-stream' : 'application/json' },
    body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
  })
  const text = await response.text()
  let json = null
  try { json = JSON.parse(text) } catch {}
  return { status: response.status, header: (name) => response.headers.get(name), json, text }
}
const decide = (id, command, extra = {}, token = key) => call('POST', '/v1/chat/completions', {
  model: 'helm-governance',
  messages: [{ role: 'user', content: JSON.stringify({ type: 'sandbox_exec_intent', provider: 'daytona', sandbox_id: id, command, ...extra }) }],
  tools: [{ type: 'function', function: { name: 'sandbox_exec' } }],
}, token)
const execute = (id, command, extra = {}) => call('POST', `/sandbox/${id}/process/execute`, { command, timeout: 20, ...extra })

const created = await call('POST', '/sandbox', { language: 'python3', timeout: 30 })
assert.equal(created.status, 200)
const id = created.json.sandboxId

// An allow has everything the adapter reads, and is good for exactly one execution.
const allowed = await decide(id, ['echo', 'hello'], { env: { SECRET: 'never-stored-value' } })
assert.equal(allowed.status, 200)
assert.equal(allowed.header('x-helm-status'), 'APPROVED')
assert.equal(allowed.json.choices[0].finish_reason, 'tool_calls')
assert.equal(allowed.json.choices[0].message.tool_calls.length, 1)
for (const name of ['receipt-id', 'decision-id', 'proofgraph-node', 'output-hash', 'lamport-clock']) {
  assert.ok(allowed.header(`x-helm-${name}`), name)
}
assert.match(allowed.header('x-helm-signature'), /^[0-9a-f]{128}$/)
const ran = await execute(id, 'echo hello', { env: { SECRET: 'never-stored-value' } })
assert.equal(ran.status, 200)
assert.deepEqual(Object.keys(ran.json).sort(), ['durationMs', 'errors', 'exitCode', 'output', 'timedOut'])
assert.deepEqual([ran.json.output, ran.json.errors, ran.json.exitCode, ran.json.timedOut], ['hello\n', '', 0, false])

// A second use, another command and another sandbox are refused and recorded.
const again = await execute(id, 'echo hello')
assert.equal(again.status, 403)
assert.equal(again.json.error.reason_code, 'DENY_IDEMPOTENCY_DUPLICATE')
assert.ok(again.header('x-receipt-id'))
await decide(id, ['echo', 'one'])
assert.equal((await execute(id, 'echo two')).status, 403)
const second = (await call('POST', '/sandbox', { language: 'python3' })).json.sandboxId
assert.equal((await execute(second, 'echo one')).status, 403)
assert.equal((await execute(id, 'echo one')).status, 200)
assert.equal((await execute(id, 'touch /tmp/ungoverned')).status, 403)

// The clock only ever runs forward.
const later = await decide(id, ['true'])
assert.ok(Number(later.header('x-helm-lamport-clock')) > Number(allowed.header('x-helm-lamport-clock')))

// Every non-allow is a denial: by words, by the line they make, and when people are asked.
for (const command of [['sudo', 'id'], ['echo', 'x;', 'sudo', 'id'], ['sh', '-c', 'sudo id']]) {
  const denied = await decide(id, command)
  assert.equal(denied.status, 200)
  assert.equal(denied.header('x-helm-status'), 'DENIED')
  assert.equal(denied.json.choices[0].finish_reason, 'stop')
  assert.equal(denied.json.choices[0].message.tool_calls, undefined)
  assert.match(denied.header('x-helm-reason-code'), /^DENY_/)
  assert.equal((await execute(id, command.join(' '))).status, 403)
}
const broken = await call('POST', '/v1/chat/completions', { messages: [{ role: 'user', content: 'hi' }] })
assert.equal(broken.status, 400)
assert.equal(broken.json.error.type, 'invalid_request')
assert.equal((await decide('sbxnone', ['true'])).status, 404)
assert.equal((await decide(id, ['true'], {}, 'nobody')).status, 401)
assert.equal((await decide(id, ['true'], {}, process.env.OTHER_KEY)).status, 404)

// Files and failures.
assert.equal((await call('PUT', `/sandbox/${id}/filesystem?path=a.txt`, new TextEncoder().encode('data'))).status, 200)
assert.equal((await call('GET', `/sandbox/${id}/filesystem?path=a.txt`)).text, 'data')
assert.equal((await call('GET', `/sandbox/${id}/filesystem?path=none`)).status, 404)
await decide(id, ['exit', '3'])
assert.equal((await execute(id, 'exit 3')).json.exitCode, 3)

for (const each of [id, second]) assert.equal((await call('DELETE', `/sandbox/${each}`)).status, 200)
console.log(`ok ${id}`)
