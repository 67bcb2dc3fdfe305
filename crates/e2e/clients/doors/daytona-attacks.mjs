// Attacks on the Daytona door by somebody who holds one of its tokens. Which one is the argument.
import assert from 'node:assert/strict'
import { Agent, request } from 'node:http'
import { Daytona } from '@daytonaio/sdk'
import WebSocket from 'ws'

const api = process.env.DAYTONA_API_URL
const root = api.replace(/\/api$/, '')
const [own, other] = [process.env.DAYTONA_API_KEY, process.env.OTHER_KEY]
const MIB = 1024 * 1024
const agent = new Agent({ maxSockets: Infinity })

// One request with exactly these headers.
const call = (method, url, { key = own, body, headers = {} } = {}) => new Promise((resolve, reject) => {
  const isText = body === undefined || typeof body === 'string' || Buffer.isBuffer(body)
  const all = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...(isText ? {} : { 'content-type': 'application/json' }), ...headers }
  const sent = request(url, { method, headers: all, agent }, (response) => {
    const pieces = []
    response.on('data', (piece) => pieces.push(piece))
    response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(pieces) }))
  })
  sent.on('error', reject)
  sent.end(isText ? body : JSON.stringify(body))
})
const create = async (body = {}, key = own) => {
  const made = await call('POST', `${api}/sandbox`, { body, key })
  assert.equal(made.status, 200, String(made.body))
  return JSON.parse(made.body).id
}
const destroy = (id, key = own) => call('DELETE', `${api}/sandbox/${id}`, { key })
const execute = async (id, command) => {
  const done = await call('POST', `${root}/toolbox/${id}/process/execute`, { body: { command } })
  assert.equal(done.status, 200, String(done.body))
  return JSON.parse(done.body)
}
const soon = async (promise, ms, what) => {
  let timer
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`${what} took more than ${ms} ms`)), ms) })
  try { return await Promise.race([promise, late]) } finally { clearTimeout(timer) }
}
const socket = (path, key = own) => new WebSocket(`${root.replace(/^http/, 'ws')}${path}`, { headers: key ? { authorization: `Bearer ${key}` } : {} })
const opened = (ws) => new Promise((resolve, reject) => {
  ws.on('open', resolve)
  ws.on('unexpected-response', (_, response) => reject(new Error(`refused with ${response.statusCode}`)))
  ws.on('error', reject)
})

const attacks = {
  // Everybody shares the threads that may wait, and one loop that must not.
  async 'unread-input'() {
    const id = await create()
    await call('POST', `${root}/toolbox/${id}/process/session`, { body: { sessionId: 's' } })
    const started = await call('POST', `${root}/toolbox/${id}/process/session/s/exec`, { body: { command: 'sleep 600', runAsync: true } })
    const { cmdId } = JSON.parse(started.body)
    const input = { data: 'x'.repeat(MIB / 8) }
    const floods = Array.from({ length: 600 }, () => call('POST', `${root}/toolbox/${id}/process/session/s/command/${cmdId}/input`, { body: input }).catch(() => null))
    const pty = socket(`/toolbox/${id}/process/pty/create-connect?id=t&cols=80&rows=24`)
    await opened(pty)
    // What is typed is shown as well, so the word that is waited for is not typed.
    const ready = new Promise((resolve) => pty.on('message', (data) => { if (String(data).includes('unread')) resolve() }))
    pty.send('stty raw; echo un""read; sleep 600\n')
    await ready
    for (let i = 0; i < 8; i++) pty.send('y'.repeat(MIB))
    await new Promise((resolve) => setTimeout(resolve, 500))
    // Whoever is stopped is so for as long as the commands sleep.
    const looks = Array.from({ length: 4 }, () => call('GET', `${root}/toolbox/${id}/process/pty`).catch(() => null))
    const theirs = await soon(create({}, other), 40_000, "another guest's sandbox")
    await soon(destroy(theirs, other), 40_000, 'its end')
    pty.terminate()
    await destroy(id)
    await Promise.all([...floods, ...looks])
  },

  async 'file-named-often'() {
    const id = await create()
    await execute(id, 'head -c 8388608 /dev/zero > big')
    const paths = Array.from({ length: 60 }, () => 'big')
    const got = await call('POST', `${root}/toolbox/${id}/files/bulk-download`, { body: { paths } })
    assert.equal(got.status, 200)
    assert.ok(got.body.length < 80 * MIB, `${got.body.length} bytes`)
    assert.match(got.body.subarray(-4096).toString(), /ask for this file alone/)
    for (const path of ['files/bulk-download', 'files/replace']) {
      const many = Array.from({ length: 5000 }, () => 'big')
      const body = path === 'files/replace' ? { files: many, pattern: 'a', newValue: 'b' } : { paths: many }
      assert.equal((await call('POST', `${root}/toolbox/${id}/${path}`, { body })).status, 400)
    }
    await destroy(id)
  },

  async 'text-that-grows'() {
    const id = await create()
    await execute(id, `head -c ${MIB} /dev/zero | tr '\\0' a > grows`)
    const body = { files: ['grows'], pattern: 'a', newValue: 'b'.repeat(32 * MIB) }
    const done = await call('POST', `${root}/toolbox/${id}/files/replace`, { body })
    const [row] = JSON.parse(done.body)
    assert.equal(row.success, false)
    assert.match(row.error, /too large/)
    assert.equal((await execute(id, 'head -c 3 grows')).result, 'aaa')
    await destroy(id)
  },

  async 'forged-part'() {
    const daytona = new Daytona()
    const sandbox = await daytona.create()
    const part = '\r\n--DAYTONA-FILE-BOUNDARY\r\nContent-Disposition: form-data; name="file"; filename="result.json"\r\nContent-Type: application/octet-stream\r\n\r\n{"passed":true}'
    await sandbox.fs.uploadFiles([
      { source: Buffer.from(`log${part}`), destination: 'log.txt' },
      { source: Buffer.from('{"passed":false}'), destination: 'result.json' },
    ])
    const [log, result] = await sandbox.fs.downloadFiles([{ source: 'log.txt' }, { source: 'result.json' }])
    assert.equal(String(log.result), `log${part}`)
    assert.equal(String(result.result), '{"passed":false}')
    await daytona.delete(sandbox)
  },

  async 'long-labels'() {
    const id = await create()
    const long = 'l'.repeat(4 * MIB)
    for (const body of [{ labels: { long } }, { name: 'n'.repeat(1000) }, { name: '' }, { env: { LONG: long } }]) {
      const made = await call('POST', `${api}/sandbox`, { body })
      assert.equal(made.status, 400, `${Object.keys(body)}: ${String(made.body).slice(0, 200)}`)
    }
    assert.equal((await call('PUT', `${api}/sandbox/${id}/labels`, { body: { labels: { long } } })).status, 400)
    assert.equal((await call('POST', `${root}/toolbox/${id}/process/execute`, { body: { command: 'true', envs: { LONG: long } } })).status, 400)
    assert.ok((await call('GET', `${api}/sandbox`)).body.length < 64 * 1024)
    await destroy(id)
  },

  async 'foreign-sandbox'() {
    const id = await create({ name: 'mine' })
    await call('POST', `${root}/toolbox/${id}/process/session`, { body: { sessionId: 's' } })
    const started = await call('POST', `${root}/toolbox/${id}/process/session/s/exec`, { body: { command: 'echo said; sleep 60', runAsync: true } })
    const { cmdId } = JSON.parse(started.body)
    await opened(socket(`/toolbox/${id}/process/pty/create-connect?id=t&cols=80&rows=24`))
    const calls = [
      ['GET', `/api/sandbox/${id}`], ['GET', '/api/sandbox/mine'], ['DELETE', `/api/sandbox/${id}`], ['POST', `/api/sandbox/${id}/stop`],
      ['POST', `/api/sandbox/${id}/start`], ['POST', `/api/sandbox/${id}/autostop/1`], ['POST', `/api/sandbox/${id}/autodelete/0`],
      ['PUT', `/api/sandbox/${id}/labels`], ['POST', `/api/sandbox/${id}/network-settings`], ['GET', `/api/sandbox/${id}/toolbox-proxy-url`],
      ...['', '/api'].flatMap((before) => [
        ['GET', 'process/session'], ['GET', 'process/session/s'], ['DELETE', 'process/session/s'], ['GET', `process/session/s/command/${cmdId}/logs`],
        ['POST', `process/session/s/command/${cmdId}/input`], ['POST', 'process/session/s/exec'], ['POST', 'process/execute'], ['POST', 'process/code-run'],
        ['GET', 'process/pty'], ['GET', 'process/pty/t'], ['DELETE', 'process/pty/t'], ['POST', 'process/pty/t/resize'],
        ['GET', 'files'], ['GET', 'files/download?path=x'], ['DELETE', 'files?path=x'], ['POST', 'files/bulk-download'], ['GET', 'git/status?path=x'],
      ].map(([method, path]) => [method, before ? `/api/toolbox/${id}/toolbox/${path}` : `/toolbox/${id}/${path}`])),
    ]
    const odd = [id.toUpperCase(), `${id}%00`, `${id}%2f..%2f${id}`, `.${id}`].map((name) => ['GET', `/api/sandbox/${name}`])
    for (const [method, path] of [...calls, ...odd]) {
      for (const key of [other, 'nobody', null]) {
        const got = await call(method, root + path, { key, body: method === 'GET' ? undefined : {} })
        assert.equal(got.status, key === other ? 404 : 401, `${method} ${path}: ${got.body}`)
        assert.ok(!String(got.body).includes('said'))
      }
    }
    for (const path of ['process/pty/t/connect', 'process/pty/create-connect?id=u', `process/session/s/command/${cmdId}/logs?follow=true`]) {
      for (const key of [other, null]) await assert.rejects(opened(socket(`/toolbox/${id}/${path}`, key)), /refused with 40[14]/)
    }
    assert.deepEqual(JSON.parse((await call('GET', `${api}/sandbox`, { key: other })).body).items, [])
    // A name is one's own affair: that of another guest's sandbox can be taken, and leads to one's own.
    const theirs = await create({ name: id }, other)
    assert.equal(JSON.parse((await call('GET', `${api}/sandbox/${id}`, { key: other })).body).id, theirs)
    assert.equal(JSON.parse((await call('GET', `${api}/sandbox/${id}`)).body).id, id)
    await destroy(theirs, other)
    await destroy(id)
  },

  async 'upload-names'() {
    const id = await create()
    await execute(id, 'ln -s / away; ln -s /etc/hostname file; mkdir -p deep; ln -s ../../.. deep/up; mkfifo pipe')
    const form = (rows) => {
      const parts = rows.flatMap(([name, content], n) => [
        `--B\r\nContent-Disposition: form-data; name="files[${n}].path"\r\n\r\n${name}\r\n`,
        `--B\r\nContent-Disposition: form-data; name="files[${n}].file"; filename="/etc/${n}"\r\n\r\n${content}\r\n`,
      ])
      return { body: Buffer.from(`${parts.join('')}--B--\r\n`), headers: { 'content-type': 'multipart/form-data; boundary=B' } }
    }
    const bulk = (rows) => call('POST', `${root}/toolbox/${id}/files/bulk-upload`, form(rows))
    for (const name of ['../../../../etc/attack', '/etc/attack', '/home/daytona/../../etc/attack', '/proc/self/root/attack', 'away/tmp/attack', 'file', 'deep/up/attack', 'pipe', '~/../../attack', '/tmp/../attack', '.', '', 'a\0b']) {
      const got = await bulk([[name, 'x']])
      assert.ok(got.status >= 400 && got.status < 500, `${JSON.stringify(name)}: ${got.status} ${got.body}`)
    }
    for (const body of ['', 'no form', '--B\r\n', '--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--\r\n', '--B\r\nContent-Disposition: form-data; name="files[0].file"\r\n\r\nx\r\n--B--\r\n']) {
      const got = await call('POST', `${root}/toolbox/${id}/files/bulk-upload`, { body: Buffer.from(body), headers: { 'content-type': 'multipart/form-data; boundary=B' } })
      assert.equal(got.status, 400, `${JSON.stringify(body)}: ${got.body}`)
      assert.ok(JSON.parse(got.body).message)
    }
    assert.equal((await bulk([['fine/one.txt', '1'], ['fine/two.txt', '2']])).status, 200)
    assert.equal((await execute(id, 'cat fine/*')).result, '12')
    for (const mode of ['4755', '2755', '1777', '888', '-1', '']) {
      assert.equal((await call('POST', `${root}/toolbox/${id}/files/permissions?path=fine/one.txt&mode=${mode}`)).status, 400, mode)
    }
    await destroy(id)
  },

  async 'git-options'() {
    const id = await create()
    await execute(id, 'git init -q repo && cd repo && git -c user.name=a -c user.email=b commit -q --allow-empty -m one')
    const git = (path, body) => call('POST', `${root}/toolbox/${id}/git/${path}`, { body })
    const attempts = [
      ['clone', { path: 'out', url: '--upload-pack=touch /tmp/ran' }], ['clone', { path: '--upload-pack=touch /tmp/ran', url: 'missing' }],
      ['clone', { path: 'out', url: 'ext::sh -c touch% /tmp/ran' }], ['clone', { path: 'out', url: 'repo', commit_id: '--orphan' }],
      ['clone', { path: 'out2', url: 'repo', username: 'u', password: 'never-stored-word' }], ['clone', { path: 'out2', url: 'repo', insecure_skip_tls: true }],
      ['checkout', { path: 'repo', branch: '--orphan' }], ['branches', { path: 'repo', name: '-D' }], ['add', { path: 'repo', files: ['--force'] }],
      ['pull', { path: 'repo', remote: '--upload-pack=touch /tmp/ran' }], ['push', { path: 'repo', remote: '--receive-pack=touch /tmp/ran' }],
      ['reset', { path: 'repo', target: '--hard' }], ['reset', { path: 'repo', mode: 'hard --' }], ['config', { key: '--unset', value: 'x' }],
      ['remotes', { path: 'repo', name: '--mirror', url: 'x' }], ['commit', { path: 'repo', message: 'm', author: '', email: 'e' }],
      ['status-of-nothing', { path: 'repo' }], ['add', { path: '../../../etc', files: ['.'] }], ['add', { path: 'repo', files: ['.'], force: true }],
    ]
    for (const [path, body] of attempts) {
      const got = await git(path, body)
      assert.ok(got.status >= 400 && got.status < 500, `${path} ${JSON.stringify(body)}: ${got.status} ${got.body}`)
    }
    assert.equal((await execute(id, 'ls /tmp')).result.includes('ran'), false)
    await destroy(id)
  },

  async 'other-doors'() {
    const id = await create()
    const refused = [
      ['GET', `/toolbox/${id}/files`, { headers: { 'e2b-sandbox-id': id } }],
      ['GET', `/files?path=/home/daytona`, { headers: { 'e2b-sandbox-id': id, 'x-access-token': own } }],
      ['POST', '/process.Process/List', { headers: { 'e2b-sandbox-id': id, 'content-type': 'application/json', 'x-access-token': '' }, body: '{}' }],
      ['GET', `/~daytona/api/sandbox/${id}`, { key: null }], ['GET', `/~daytona/toolbox/${id}/files`, { key: other }],
      ['GET', `/~e2b-data/files?path=x`, {}], ['GET', `/~opensandbox/v1/sandboxes/${id}`, { key: null }],
      ['GET', `/~helm/sandbox/${id}`, {}], ['GET', `/api/sandbox/${id}`, { key: null, headers: { 'x-api-key': own } }],
      ['GET', `/api/sandbox/${id}`, { key: null, headers: { authorization: `Basic ${own}` } }],
      ['GET', `/api/sandbox/${id}?token=${own}`, { key: null }], ['GET', `/api/sandbox/${id}`, { key: null, headers: { 'x-daytona-organization-id': 'warrant' } }],
      ['GET', `/api/sandbox/${id}`, { key: null, headers: { cookie: `token=${own}` } }],
    ]
    for (const [method, path, options] of refused) {
      const got = await call(method, root + path, options)
      assert.ok(got.status >= 400 && got.status < 600, `${method} ${path}: ${got.status} ${got.body}`)
      assert.ok(!String(got.body).includes('"snapshot"'))
    }
    // Where the toolbox is, a client is told for the host it called itself, and nobody else for that.
    const evil = await call('GET', `${api}/sandbox/${id}`, { headers: { host: 'evil.example', 'x-forwarded-host': 'worse.example', 'x-forwarded-proto': 'javascript' } })
    assert.equal(JSON.parse(evil.body).toolboxProxyUrl, 'http://evil.example/toolbox')
    assert.equal(JSON.parse((await call('GET', `${api}/sandbox/${id}`)).body).toolboxProxyUrl, `${root}/toolbox`)
    // Names of sessions and terminals are only names.
    for (const name of ['../../../etc/x', 'a/b', '$(touch /tmp/ran)', "'; touch /tmp/ran; '", 'ü\n\t"', 'n'.repeat(256)]) {
      const at = `${root}/toolbox/${id}/process/session/${encodeURIComponent(name)}`
      assert.equal((await call('POST', `${root}/toolbox/${id}/process/session`, { body: { sessionId: name } })).status, 201)
      const done = await call('POST', `${at}/exec`, { body: { command: 'cd /tmp; export KEPT=1' } })
      assert.equal(done.status, 200, String(done.body))
      assert.equal(JSON.parse((await call('POST', `${at}/exec`, { body: { command: 'pwd; echo $KEPT' } })).body).output, '/tmp\n1\n')
      assert.equal((await call('DELETE', at)).status, 204)
    }
    assert.equal((await call('POST', `${root}/toolbox/${id}/process/session`, { body: { sessionId: 'n'.repeat(257) } })).status, 400)
    assert.equal((await execute(id, 'ls /tmp; ls')).result.includes('ran'), false)
    await destroy(id)
  },

  // Of two that come at once with one name, one is refused.
  async 'one-name-at-once'() {
    const id = await create()
    const eight = (make) => Promise.all(Array.from({ length: 8 }, make))
    const statuses = async (answers) => (await answers).map(({ status }) => status).sort()
    const once = (made) => [made, ...Array(7).fill(409)]
    for (let round = 0; round < 3; round++) {
      const body = { id: `t${round}`, cols: 80, rows: 24 }
      assert.deepEqual(await statuses(eight(() => call('POST', `${root}/toolbox/${id}/process/pty`, { body }))), once(201))
      const named = { sessionId: `s${round}` }
      assert.deepEqual(await statuses(eight(() => call('POST', `${root}/toolbox/${id}/process/session`, { body: named }))), once(201))
    }
    const sockets = await eight(async () => {
      const ws = socket(`/toolbox/${id}/process/pty/create-connect?id=ws&cols=80&rows=24`)
      return opened(ws).then(() => 101, ({ message }) => Number(message.match(/\d+$/)))
    })
    assert.deepEqual(sockets.sort(), once(101))
    const terminals = JSON.parse((await call('GET', `${root}/toolbox/${id}/process/pty`)).body).sessions
    assert.deepEqual(terminals.map((each) => each.id).sort(), ['t0', 't1', 't2', 'ws'])
    // One that was refused or has ended leaves its name to the next.
    assert.equal((await call('DELETE', `${root}/toolbox/${id}/process/pty/t0`)).status, 204)
    assert.equal((await call('POST', `${root}/toolbox/${id}/process/pty`, { body: { id: 't0' } })).status, 201)
    const made = await eight(() => call('POST', `${api}/sandbox`, { body: { name: 'one' } }))
    assert.deepEqual(made.map(({ status }) => status).sort(), [200, ...Array(7).fill(409)])
    await destroy('one')
    await destroy(await create({ name: 'one' }))
    await destroy(id)
  },

  // Programs inside write what they like where a session's state is kept, and wherever else they can.
  async 'forged-session'() {
    const id = await create()
    const session = `${root}/toolbox/${id}/process/session`
    await call('POST', session, { body: { sessionId: 's' } })
    const say = async (command) => {
      const done = await call('POST', `${session}/s/exec`, { body: { command } })
      assert.equal(done.status, 200, String(done.body))
      return JSON.parse(done.body).output
    }
    const forge = String.raw`
import os
run = [b'BASH_FUNC_ls%%=() { echo forged; }', b'BASH_FUNC_pwd%%=() { echo forged; }', b'BASH_ENV=/tmp/evil.sh', b'LD_PRELOAD=/tmp/evil.so', b'PS4=$(echo forged >&2)']
after = b'\0'.join([b'FORGED=1', *run]) + b'\0'
open('/tmp/evil.sh', 'w').write('ls() { echo forged; }\n')
for top in ['/tmp', '/home/daytona', '/run', '/var', '/dev/shm']:
    for at, folders, names in os.walk(top):
        for name in set(names) | {'state', *(each.removesuffix('.sh') + '.state' for each in names)}:
            if 'evil' in name or 'forge' in name: continue
            before = b'' if name == 'state' else b'A=1\0\0'
            content = b'ls() { echo forged; }\n' if name.endswith('.sh') else b'/tmp\0\0' + before + after
            try: open(os.path.join(at, name), 'wb').write(content)
            except OSError: pass
`
    await execute(id, `cat > forge.py <<'END'${forge}END\ntouch seen`)
    await say('true')
    await execute(id, 'python3 forge.py')
    assert.equal(await say('ls seen; pwd; echo "$FORGED"'), 'seen\n/home/daytona\n\n', 'by another command')
    await say('exec python3 forge.py')
    const after = await say('ls /home/daytona/seen; set -x; true')
    assert.equal(after, '/home/daytona/seen\n+ true\n', 'by a command of the session itself')
    // While another one goes on forging, a command of the session reads our script and no other.
    const going = await call('POST', `${session}/s/exec`, { body: { command: 'while true; do python3 forge.py; done', runAsync: true } })
    assert.equal(going.status, 202)
    for (let round = 0; round < 5; round++) assert.equal(await say('ls /home/daytona/seen'), '/home/daytona/seen\n')
    await destroy(id)
  },

  // Clients give up on whoever does not answer their pings.
  async 'silent-log'() {
    const id = await create()
    await call('POST', `${root}/toolbox/${id}/process/session`, { body: { sessionId: 's' } })
    const started = await call('POST', `${root}/toolbox/${id}/process/session/s/exec`, { body: { command: 'sleep 60', runAsync: true } })
    const ws = socket(`/toolbox/${id}/process/session/s/command/${JSON.parse(started.body).cmdId}/logs?follow=true`)
    await opened(ws)
    const pong = new Promise((resolve) => ws.on('pong', resolve))
    ws.ping('there?')
    assert.equal(String(await soon(pong, 10_000, 'an answer to a ping')), 'there?')
    ws.terminate()
    await destroy(id)
  },
}

await attacks[process.argv[2]]()
console.log('ok withstood')
process.exit(0)
