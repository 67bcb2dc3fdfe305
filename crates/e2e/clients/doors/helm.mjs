// Makes the calls of the HELM adapter for Mastra in its order and shapes, then those of its SDK.
// The private key of an approver is the first argument.
import assert from 'node:assert/strict'
import { createHash, createPrivateKey, createPublicKey, sign } from 'node:crypto'

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
const second = (await call('POST', '/sandbox', { language: 'python3', timeout: 1 })).json.sandboxId
assert.equal((await execute(second, 'echo one')).status, 403)
assert.equal((await execute(id, 'echo one')).status, 200)
assert.equal((await execute(id, 'touch /tmp/ungoverned')).status, 403)

// The clock only ever runs forward.
const later = await decide(id, ['true'])
assert.ok(Number(later.header('x-helm-lamport-clock')) > Number(allowed.header('x-helm-lamport-clock')))

// Every non-allow is a denial: by words, by the script they hold, and when people are asked.
for (const command of [['sudo', 'id'], ['sh', '-c', 'echo x; sudo id'], ['echo x; sudo id']]) {
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
await decide(id, ['sh', '-c', 'exit 3'])
assert.equal((await execute(id, 'sh -c exit 3')).json.exitCode, 3)
await decide(id, ['no-such-program', 'x'])
const absent = await execute(id, 'no-such-program x')
assert.deepEqual([absent.status, absent.json?.exitCode], [200, 127], absent.text)

// The time given at creation is that of an execution that names none.
await decide(second, ['sleep', '30'])
const late = await execute(second, 'sleep 30', { timeout: undefined })
assert.deepEqual([late.status, late.json?.exitCode, late.json?.timedOut], [200, 124, true], late.text)

// What people approve runs once: they sign the very intent, with a key that is registered here.
const key25519 = createPrivateKey(process.argv[2])
const publicKey = Buffer.from(createPublicKey(key25519).export({ format: 'jwk' }).x, 'base64url').toString('base64')
const approve = (hash, { key = key25519, pub = publicKey } = {}) => call('POST', '/api/v1/kernel/approve', {
  intent_hash: hash, signature_b64: sign(null, Buffer.from(hash), key).toString('base64'), public_key_b64: pub,
})
const asked = await decide(id, ['sudo', 'true'])
assert.equal(asked.header('x-helm-reason-code'), 'DENY_APPROVAL_REQUIRED')
const intent = asked.header('x-helm-intent-hash')
assert.equal((await approve('sha256:' + '0'.repeat(64))).status, 404)
assert.equal((await approve(intent, { pub: Buffer.alloc(32).toString('base64') })).json.error.reason_code, 'DENY_TRUST_KEY_REVOKED')
const forged = await call('POST', '/api/v1/kernel/approve', { intent_hash: intent, signature_b64: Buffer.alloc(64).toString('base64'), public_key_b64: publicKey })
assert.equal(forged.status, 403)
assert.equal((await execute(id, 'sudo true')).status, 403)
const approved = await approve(intent)
assert.equal(approved.status, 200, approved.text)
assert.deepEqual([approved.json.status, approved.json.principal], ['APPROVED', 'human:ann'])
assert.equal((await approve(intent)).status, 404, 'an approval counts once')
assert.equal((await decide(second, ['sudo', 'true'])).header('x-helm-status'), 'DENIED', 'for another sandbox it counts nothing')
const yes = await decide(id, ['sudo', 'true'])
assert.equal(yes.header('x-helm-status'), 'APPROVED', yes.text)
assert.equal((await execute(id, 'sudo true')).status, 200)
assert.equal((await execute(id, 'sudo true')).status, 403)
const anew = await decide(id, ['sudo', 'true'])
assert.equal(anew.header('x-helm-status'), 'DENIED', 'it is asked about again')

// People approved the command, not what a variable makes of its words.
assert.equal((await approve(anew.header('x-helm-intent-hash'))).status, 200)
assert.equal((await decide(id, ['sudo', 'true'])).header('x-helm-status'), 'APPROVED')
const elsewhere = await execute(id, 'sudo true', { env: { PATH: '/tmp' } })
assert.equal(elsewhere.status, 403, elsewhere.text)

// A decision is no permission for variables that it was not asked about, and stays for what it allows.
assert.equal((await decide(id, ['ls'])).header('x-helm-status'), 'APPROVED')
const smuggled = await execute(id, 'ls', { env: { 'BASH_FUNC_ls%%': '() { touch smuggled; }' } })
assert.deepEqual([smuggled.status, smuggled.json.error.reason_code], [403, 'DENY_IDEMPOTENCY_DUPLICATE'])
assert.ok(smuggled.header('x-receipt-id'))
assert.equal((await execute(id, 'ls')).status, 200)
assert.equal((await execute(id, 'ls')).status, 403)
assert.equal((await call('GET', `/sandbox/${id}/filesystem?path=smuggled`)).status, 404)

// No other door leads around the decisions.
const around = [
  ['POST', `/toolbox/${id}/process/execute`, { Authorization: `Bearer ${key}` }, { command: 'touch around' }],
  ['GET', `/api/sandbox/${id}`, { Authorization: `Bearer ${key}` }],
  ['POST', `/sandboxes/${id}/connect`, { 'X-API-KEY': key }, {}],
  ['POST', `/v2/sandboxes/${id}/connect`, { 'X-API-KEY': key }, {}],
  ['POST', `/sandboxes/${id}/timeout`, { 'X-API-KEY': key }, { timeout: 60 }],
  ['POST', `/sandboxes/${id}/pause`, { 'X-API-KEY': key }, {}],
  ['PUT', `/sandboxes/${id}/network`, { 'X-API-KEY': key }, {}],
  ['GET', `/sandboxes/${id}/metrics`, { 'X-API-KEY': key }],
  ['DELETE', `/sandboxes/${id}`, { 'X-API-KEY': key }],
  ['DELETE', `/api/sandbox/${id}`, { Authorization: `Bearer ${key}` }],
  ['DELETE', `/v1/sandboxes/${id}`, { 'OPEN-SANDBOX-API-KEY': key }],
  ['GET', `/v1/sandboxes/${id}/endpoints/44772`, { 'OPEN-SANDBOX-API-KEY': key }],
  ['POST', `/v1/sandboxes/${id}/proxy/44772/command`, { 'OPEN-SANDBOX-API-KEY': key }, { command: 'touch around' }],
]
for (const [method, path, headers, body] of around) {
  const response = await fetch(base + path, { method, headers: { ...headers, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body) })
  assert.equal(response.status, 404, `${path} ${await response.text()}`)
}

// A client that goes away while its command runs takes no record with it.
await decide(id, ['sleep', '1'])
const gone = new AbortController()
const left = fetch(`${base}/sandbox/${id}/process/execute`, {
  method: 'POST', signal: gone.signal, headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' },
  body: JSON.stringify({ command: 'sleep 1' }),
}).catch((error) => error.name)
await new Promise((resolve) => setTimeout(resolve, 300))
gone.abort()
assert.equal(await left, 'AbortError')
const sleeper = 'sha256:' + createHash('sha256').update('sleep 1').digest('hex')
const isKept = async () => (await call('GET', `/api/v1/proofgraph/sessions/${id}/receipts`)).json
  .some((each) => each.effect_id === sleeper && each.decision_id !== each.receipt_id)
for (let i = 0; i < 100 && !(await isKept()); i++) await new Promise((resolve) => setTimeout(resolve, 100))
assert.ok(await isKept(), 'the execution is recorded')

// Sessions and receipts: one chain, real signatures, nobody else's.
const sessions = (await call('GET', '/api/v1/proofgraph/sessions?limit=50&offset=0')).json
assert.deepEqual(new Set(sessions.map((each) => each.session_id)), new Set([id, second]))
assert.deepEqual((await call('GET', '/api/v1/proofgraph/sessions', undefined, process.env.OTHER_KEY)).json, [])
assert.equal((await call('GET', '/api/v1/proofgraph/sessions?limit=x')).status, 400)
const receipts = (await call('GET', `/api/v1/proofgraph/sessions/${id}/receipts`)).json
const session = sessions.find((each) => each.session_id === id)
assert.deepEqual([session.receipt_count, session.last_lamport_clock], [receipts.length, receipts.at(-1).lamport_clock])
let previous = ''
for (const receipt of receipts) {
  assert.deepEqual(Object.keys(receipt).sort(), ['blob_hash', 'decision_id', 'effect_id', 'lamport_clock', 'output_hash', 'prev_hash', 'principal', 'reason_code', 'receipt_id', 'signature', 'status', 'timestamp'])
  assert.equal(receipt.prev_hash, previous)
  previous = receipt.blob_hash
}
const first = receipts.find((each) => each.receipt_id === allowed.header('x-helm-receipt-id'))
assert.deepEqual([first.blob_hash, first.signature, first.status], [allowed.header('x-helm-proofgraph-node'), allowed.header('x-helm-signature'), 'APPROVED'])
assert.equal(first.output_hash, allowed.header('x-helm-output-hash'))
assert.equal(first.output_hash, 'sha256:' + createHash('sha256').update(allowed.text).digest('hex'))
const execution = receipts.find((each) => each.receipt_id === ran.header('x-receipt-id'))
assert.equal(execution.decision_id, first.receipt_id)
assert.deepEqual((await call('GET', `/api/v1/proofgraph/receipts/${first.blob_hash}`)).json, first)
assert.equal((await call('GET', `/api/v1/proofgraph/receipts/${first.blob_hash}`, undefined, process.env.OTHER_KEY)).status, 404)
assert.equal((await call('GET', `/api/v1/proofgraph/sessions/${id}/receipts`, undefined, process.env.OTHER_KEY)).status, 404)

for (const each of [id, second]) assert.equal((await call('DELETE', `/sandbox/${each}`)).status, 200)

// Evidence: exported, verified and replayed as the SDK does it, without a token; a changed byte shows.
const exported = await fetch(`${base}/api/v1/evidence/export`, {
  method: 'POST', headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' },
  body: JSON.stringify({ session_id: id, format: 'tar.gz' }),
})
assert.equal(exported.status, 200)
const pack = Buffer.from(await exported.arrayBuffer())
const verify = async (path, bytes) => {
  const form = new FormData()
  form.append('bundle', new Blob([bytes]))
  const response = await fetch(base + path, { method: 'POST', body: form })
  return { status: response.status, json: await response.json() }
}
for (const path of ['/api/v1/evidence/verify', '/api/v1/replay/verify']) {
  const good = await verify(path, pack)
  assert.deepEqual(good.json, { verdict: 'PASS', checks: { signatures: 'PASS', causal_chain: 'PASS', policy_compliance: 'PASS' }, errors: [] })
}
const { gunzipSync, gzipSync } = await import('node:zlib')
const tar = gunzipSync(pack)
const forgedTar = Buffer.from(tar.toString('latin1').replaceAll('"decision":"DENY"', '"decision":"FINE"'), 'latin1')
const bad = await verify('/api/v1/evidence/verify', gzipSync(forgedTar))
assert.deepEqual([bad.json.verdict, bad.json.checks.signatures], ['FAIL', 'FAIL'])
assert.equal((await verify('/api/v1/evidence/verify', Buffer.from('no pack'))).status, 400)
assert.equal((await call('POST', '/api/v1/evidence/export', { session_id: id }, process.env.OTHER_KEY)).status, 404)
assert.equal((await call('POST', '/api/v1/evidence/export', { format: 'zip' })).status, 400)

const health = await fetch(`${base}/healthz`)
assert.deepEqual(Object.keys(await health.json()).sort(), ['status', 'version'])
assert.deepEqual(Object.keys((await (await fetch(`${base}/version`, { headers: { 'Content-Type': 'application/json' } })).json())).sort(), ['build_time', 'commit', 'go_version', 'version'])
for (const wrong of [await call('GET', '/v1/chat/completions'), await call('PATCH', `/sandbox/${id}`, {})]) {
  assert.deepEqual([wrong.status, wrong.json.error.type], [405, 'invalid_request'])
}
const lost = await call('GET', '/api/v1/nothing')
assert.deepEqual([lost.status, lost.json.error.type], [404, 'not_found'])
assert.equal((await call('GET', '/api/v1/proofgraph/sessions', undefined, 'nobody')).json.error.type, 'authentication_error')
console.log(`ok ${id}`)
