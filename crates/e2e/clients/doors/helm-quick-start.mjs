// The quick start of HELM's adapter for Mastra, typed as its documentation has it, but for the two
// addresses. The adapter is on no registry, so this is the smallest client that makes its calls in
// their order and shapes.
import assert from 'node:assert/strict'

class HelmMastraSandbox {
  constructor({ baseUrl, apiKey, daytonaApiKey, daytonaUrl, execTimeout = 30_000 }) {
    Object.assign(this, { baseUrl, apiKey, daytonaApiKey, daytonaUrl, execTimeout })
  }

  async call(method, url, key, body) {
    const headers = { 'Content-Type': 'application/json', ...(key && { Authorization: `Bearer ${key}` }) }
    return fetch(url, { method, headers, body: body && JSON.stringify(body) })
  }

  async init() {
    const timeout = Math.floor(this.execTimeout / 1000)
    const created = await this.call('POST', `${this.daytonaUrl}/sandbox`, this.daytonaApiKey, { language: 'python3', timeout })
    if (!created.ok) throw new Error(`Daytona sandbox creation failed: ${created.status}`)
    this.sandboxId = (await created.json()).sandboxId
  }

  async exec({ command, env, workDir }) {
    if (!this.sandboxId) await this.init()
    const intent = { type: 'sandbox_exec_intent', provider: 'daytona', sandbox_id: this.sandboxId, command, env }
    const parameters = { type: 'object', properties: { command: { type: 'array', items: { type: 'string' } } } }
    const decided = await this.call('POST', `${this.baseUrl}/v1/chat/completions`, this.apiKey, {
      model: 'helm-governance',
      messages: [{ role: 'user', content: JSON.stringify(intent) }],
      tools: [{ type: 'function', function: { name: 'sandbox_exec', description: 'Execute command in Daytona sandbox', parameters } }],
    })
    const body = await decided.json()
    if (!decided.ok) throw Object.assign(new Error(body.error.message), { status: decided.status, error: body.error })
    const [choice] = body.choices
    if (decided.headers.get('X-Helm-Status') === 'DENIED' || !choice.message.tool_calls) throw new Error(choice.message.content)
    const ran = await this.call('POST', `${this.daytonaUrl}/sandbox/${this.sandboxId}/process/execute`, this.daytonaApiKey, {
      command: command.join(' '), env, cwd: workDir, timeout: Math.floor(this.execTimeout / 1000),
    })
    if (!ran.ok) throw new Error(`Daytona exec failed: ${ran.status}`)
    return { stdout: (await ran.json()).output }
  }

  destroy() {
    return this.call('DELETE', `${this.daytonaUrl}/sandbox/${this.sandboxId}`, this.daytonaApiKey)
  }
}

const url = process.env.HELM_URL

const sandbox = new HelmMastraSandbox({
  baseUrl: url,
  daytonaApiKey: process.env.DAYTONA_API_KEY,
  daytonaUrl: url,
});

const result = await sandbox.exec({
  command: ["python3", "-c", 'print("governed exec")'],
});

console.log(result.stdout); // "governed exec\n"

// Without a key: about no sandbox that does not live, not through a proxy, and nothing but decisions.
const refused = async (id, headers = {}) => {
  const content = JSON.stringify({ type: 'sandbox_exec_intent', provider: 'daytona', sandbox_id: id, command: ['true'] })
  const body = JSON.stringify({ model: 'helm-governance', messages: [{ role: 'user', content }] })
  const answer = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body })
  const { error } = await answer.json()
  assert.deepEqual([answer.status, error?.type, error?.reason_code], [401, 'authentication_error', 'DENY_TRUST_KEY_REVOKED'], id)
  assert.equal(answer.headers.get('X-Helm-Status'), 'DENIED')
  assert.match(error.message, /apiKey.*warrant doors issue/)
}
const id = sandbox.sandboxId
await refused('sbx' + '0'.repeat(20))
await refused(id.slice(0, -1))
await refused(id, { 'X-Forwarded-For': '203.0.113.7' })
await refused(id, { Authorization: 'Bearer nobody' })
for (const [method, path] of [['POST', `/sandbox/${id}/process/execute`], ['GET', `/sandbox/${id}/filesystem?path=a`], ['DELETE', `/sandbox/${id}`], ['GET', `/api/v1/proofgraph/sessions/${id}/receipts`]]) {
  assert.equal((await sandbox.call(method, url + path, undefined, method === 'POST' ? { command: 'true' } : undefined)).status, 401, path)
}
assert.equal((await sandbox.destroy()).status, 200)
await refused(id)
