// Drives the E2B door with the official SDK, unmodified. Which package is the first argument.
import assert from 'node:assert/strict'

const { Sandbox } = await import(process.argv[2] ?? 'e2b')
const isOld = process.argv[2] === 'e2b-old'
const rejects = async (promise, pattern) => {
  const error = await promise.then(() => null, (error) => error)
  assert.ok(error, `expected an error like ${pattern}`)
  assert.match(String(error.message), pattern)
  return error
}

const sandbox = await Sandbox.create({
  timeoutMs: 120_000,
  metadata: { suite: 'doors' },
  envs: { FROM_CREATE: 'yes' },
})

// Commands: output, exit codes, env, cwd, wrapping.
const hello = await sandbox.commands.run('echo hello; echo oops >&2; echo $FROM_CREATE$OWN', { envs: { OWN: '!' } })
assert.equal(hello.stdout, 'hello\nyes!\n')
assert.equal(hello.stderr, 'oops\n')
assert.equal(hello.exitCode, 0)
const failed = await sandbox.commands.run('exit 3').then(() => null, (error) => error)
assert.equal(failed.exitCode, 3)
const where = await sandbox.commands.run('pwd; echo ~', { cwd: '/tmp' })
assert.equal(where.stdout, '/tmp\n/home/user\n')
assert.equal((await sandbox.commands.run('pwd')).stdout, '/home/user\n')
assert.equal((await sandbox.commands.run('whoami')).stdout, 'user\n')

// Output arrives while the command runs.
const seen = []
await sandbox.commands.run('echo one; sleep 0.3; echo two', { onStdout: (text) => seen.push([text, Date.now()]) })
assert.deepEqual(seen.map(([text]) => text), ['one\n', 'two\n'])
assert.ok(seen[1][1] - seen[0][1] >= 200, 'the first line came before the command ended')

// A timeout ends the whole tree.
await rejects(sandbox.commands.run('(sleep 3; echo late > /tmp/late) & sleep 60', { timeoutMs: 700 }), /deadline|timed out|timeout/i)

// Files between commands, both ways.
const written = await sandbox.files.write('/home/user/dir/a.txt', 'first')
assert.equal(written.path, '/home/user/dir/a.txt')
assert.equal((await sandbox.commands.run('cat dir/a.txt; echo more >> dir/a.txt')).stdout, 'first')
assert.equal(await sandbox.files.read('dir/a.txt'), 'firstmore\n')
assert.deepEqual([...(await sandbox.files.read('/home/user/dir/a.txt', { format: 'bytes' }))].slice(0, 5), [102, 105, 114, 115, 116])
await sandbox.commands.run('echo shared > /tmp/x')
assert.equal(await sandbox.files.read('/tmp/x'), 'shared\n')
assert.equal(await sandbox.files.makeDir('/home/user/new/deep'), true)
assert.equal(await sandbox.files.makeDir('/home/user/new/deep'), false)
await sandbox.files.write([{ path: 'new/1', data: '1' }, { path: 'new/2', data: '2' }])
assert.deepEqual((await sandbox.files.list('/home/user/new')).map((e) => [e.name, e.type]), [['1', 'file'], ['2', 'file'], ['deep', 'dir']])
const moved = await sandbox.files.rename('/home/user/new/1', '/home/user/new/one')
assert.equal(moved.path, '/home/user/new/one')
assert.equal(await sandbox.files.exists('/home/user/new/1'), false)
assert.equal(await sandbox.files.exists('/home/user/new/one'), true)
await sandbox.files.remove('/home/user/new')
assert.equal(await sandbox.files.exists('/home/user/new'), false)
await rejects(sandbox.files.read('/nope'), /does not exist/)
// What is not there is gone already; a directory cannot be where a file is.
await sandbox.files.remove('/home/user/new')
await rejects(sandbox.files.makeDir('/home/user/dir/a.txt'), /not a directory/)

// A link planted inside does not lead out.
await sandbox.commands.run('ln -s /etc/passwd /home/user/leak')
await rejects(sandbox.files.read('/home/user/leak'), /./)
await sandbox.commands.run('ln -s ../dir/./a.txt /home/user/dir/link')
if (!isOld) assert.equal((await sandbox.files.getInfo('dir/link')).symlinkTarget, '/home/user/dir/a.txt')

// Input.
const cat = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
await sandbox.commands.sendStdin(cat.pid, 'typed\n')
if (!isOld) {
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'typed\n')
} else {
  await cat.kill()
}

// Background commands go on without a watcher, can be joined again, listed and killed.
const server = await sandbox.commands.run('while true; do date +%s%N >> /tmp/ticks; sleep 0.05; done', { background: true, timeoutMs: 0 })
await server.disconnect()
await new Promise((resolve) => setTimeout(resolve, 300))
const listed = await sandbox.commands.list()
assert.ok(listed.some((process) => process.pid === server.pid))
assert.ok((await sandbox.files.read('/tmp/ticks')).split('\n').length > 2)
await sandbox.commands.connect(server.pid)
assert.equal(await sandbox.commands.kill(server.pid), true)
await new Promise((resolve) => setTimeout(resolve, 500))
assert.equal(await sandbox.commands.kill(server.pid), false)
assert.ok(!(await sandbox.commands.list()).some((process) => process.pid === server.pid))
assert.equal(await sandbox.files.exists('/tmp/late'), false, 'nothing of the timed-out tree went on')

// A server in the background is reached by other commands, as on one machine.
const web = await sandbox.commands.run('python3 -m http.server 8080', { background: true, timeoutMs: 0, cwd: '/home/user/dir' })
await sandbox.commands.run('until curl -sf http://localhost:8080/a.txt; do sleep 0.1; done')
assert.equal((await sandbox.commands.run('curl -sf http://localhost:8080/a.txt')).stdout, 'firstmore\n')
await web.kill()

// A terminal.
let screen = ''
const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { screen += new TextDecoder().decode(data) } })
await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit 5\n'))
const ptyEnd = await pty.wait().catch((error) => error)
assert.equal(ptyEnd.exitCode, 5)
assert.match(screen, /24 80/)

// What policy denies never runs, and the SDK shows it as a refusal, not as a failed program.
await rejects(sandbox.commands.run("touch /tmp/denied-ran; sudo id"), /permission_denied.*DENY_APPROVAL_REQUIRED/)
assert.equal(await sandbox.files.exists('/tmp/denied-ran'), false)
await rejects(sandbox.commands.run('touch /tmp/denied-ran; echo "unclosed'), /permission_denied.*DENY_POLICY_VIOLATION/)
assert.equal(await sandbox.files.exists('/tmp/denied-ran'), false)
await rejects(sandbox.commands.run("echo c3VkbyBpZA== | base64 -d | sh"), /DENY_/)
await rejects(sandbox.commands.run('id', { user: 'root' }), /no other/)

// Variables that shells or the loader would run are no way around the judge.
for (const name of ['BASH_FUNC_ls%%', 'BASH_ENV', 'LD_PRELOAD', 'PS4']) {
  await rejects(sandbox.commands.run('ls', { envs: { [name]: '() { touch /tmp/smuggled; }' } }), /nobody judged/)
  await rejects(Sandbox.create({ envs: { [name]: 'x' } }), /nobody judged/)
}
assert.equal(await sandbox.files.exists('/tmp/smuggled'), false)

// A directory that is asked for is the one.
assert.equal((await sandbox.commands.run('pwd', { cwd: '/' })).stdout, '/\n')

// Much output arrives whole.
assert.equal((await sandbox.commands.run('head -c 12000000 /dev/zero | tr "\\0" a')).stdout.length, 12_000_000)

// A refusal that comes while a file is still being sent is told, and so is that of a stream.
await rejects(sandbox.files.write('/home/user/big', 'x'.repeat(40_000_000), { user: 'root' }), /no other/)
await rejects(sandbox.files.watchDir('/home/user', () => {}, { user: 'root' }), /no other/)

// A watched directory tells what happens in it, and only in it, until the client has enough.
await sandbox.files.makeDir('/home/user/watched/old')
const happened = []
const happens = async (type, name) => {
  for (let i = 0; i < 200; i++) {
    if (happened.some((event) => event.type === type && event.name === name)) return
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
  assert.fail(`${type} of ${name} is not told: ${JSON.stringify(happened)}`)
}
const watching = await sandbox.files.watchDir('/home/user/watched', (event) => happened.push(event), { recursive: true })
await sandbox.files.write('watched/old/file', 'x')
await happens('create', 'old/file')
await happens('write', 'old/file')
await sandbox.commands.run('mkdir watched/new && echo x > watched/new/file')
await happens('create', 'new')
await happens('create', 'new/file')
await happens('write', 'new/file')
await sandbox.commands.run('mv watched/new/file watched/moved && rm watched/moved')
await happens('rename', 'new/file')
await happens('remove', 'moved')
await sandbox.files.write('unwatched', 'x')
await watching.stop()
await sandbox.files.write('watched/after', 'x')
await new Promise((resolve) => setTimeout(resolve, 300))
assert.ok(happened.every((event) => !['after', 'unwatched'].includes(event.name)))
await rejects(sandbox.files.watchDir('/home/user/nothing', () => {}), /does not exist/)
await rejects(sandbox.files.watchDir('/home/user/unwatched', () => {}), /not a directory/)
await rejects(sandbox.files.watchDir('/home/user/leak', () => {}), /not a directory/)
await new Promise((resolve, reject) => {
  sandbox.files.watchDir('/home/user', () => {}, { timeoutMs: 300, onExit: (error) => (error ? resolve() : reject(new Error('a watch ends without a reason'))) }).catch(reject)
})
if (!isOld) {
  await sandbox.files.write('packed', 'packed text', { gzip: true })
  assert.equal(await sandbox.files.read('packed'), 'packed text')
  await rejects(sandbox.files.write('marked', 'x', { metadata: { a: 'b' } }), /metadata/)
  await rejects(Sandbox.listSnapshots().nextItems(), /not served/)
}

// Settings that cannot be enforced are refused.
await rejects(Sandbox.create('desktop', {}), /not found/)
await rejects(Sandbox.create({ timeoutMs: 30 * 3600_000 }), /at most/)
await rejects(Sandbox.create({ network: { allowOut: ['example.org'], denyOut: ['0.0.0.0/0'] } }), /DENY_/)

// Metrics: what the sandbox's own processes and files take, as far as somebody asked.
const busy = await sandbox.commands.run(`python3 -c 'import time
held = bytearray(64 << 20)
open("/home/user/big", "wb").write(held[:8 << 20])
print("held", flush=True)
while True: pass'`, { background: true, timeoutMs: 0 })
for (let i = 0; i < 600 && !busy.stdout.includes('held'); i++) await new Promise((resolve) => setTimeout(resolve, 100))
await sandbox.getMetrics()
await new Promise((resolve) => setTimeout(resolve, 1500))
const measured = (await sandbox.getMetrics()).at(-1)
assert.ok(measured.timestamp instanceof Date && Math.abs(measured.timestamp - Date.now()) < 60_000, String(measured.timestamp))
assert.ok(measured.cpuCount >= 1 && measured.cpuUsedPct > 0 && measured.cpuUsedPct <= 100, JSON.stringify(measured))
assert.equal(measured.cpuCount, (await sandbox.getInfo()).cpuCount ?? measured.cpuCount)
assert.ok(measured.memUsed >= 64 << 20 && measured.memUsed <= measured.memTotal, JSON.stringify(measured))
assert.ok(measured.diskUsed >= 8 << 20 && measured.diskUsed <= measured.diskTotal, JSON.stringify(measured))
if (!isOld) {
  assert.deepEqual(await sandbox.getMetrics({ end: new Date(Date.now() - 3_600_000) }), [])
  const later = await sandbox.getMetrics({ start: new Date(Date.now() - 3_600_000) })
  assert.ok(later.length >= 2 && later.every((each, at) => at === 0 || each.timestamp >= later[at - 1].timestamp))
}
await busy.kill()
for (let i = 0; i < 100 && (await sandbox.getMetrics()).at(-1).memUsed > 0; i++) await new Promise((resolve) => setTimeout(resolve, 100))
assert.equal((await sandbox.getMetrics()).at(-1).memUsed, 0, 'nothing runs any more')
const metrics = (query, key = process.env.E2B_API_KEY) => fetch(`${process.env.E2B_API_URL}/sandboxes/${query}`, { headers: { 'X-API-KEY': key } })
const several = await (await metrics(`metrics?sandbox_ids=${sandbox.sandboxId},none`)).json()
assert.deepEqual(Object.keys(several.sandboxes), [sandbox.sandboxId])
assert.ok(several.sandboxes[sandbox.sandboxId].timestampUnix > 0)
assert.deepEqual((await (await metrics(`metrics?sandbox_ids=${sandbox.sandboxId}`, process.env.OTHER_KEY)).json()).sandboxes, {})
assert.equal((await metrics(`${sandbox.sandboxId}/metrics`, process.env.OTHER_KEY)).status, 404)
for (const odd of ['metrics', 'metrics?sandbox_ids=', `metrics?sandbox_ids=${'a,'.repeat(200)}`, `${sandbox.sandboxId}/metrics?start=x`, `${sandbox.sandboxId}/metrics?start=-1`, `${sandbox.sandboxId}/metrics?step=1`]) {
  assert.equal((await metrics(odd)).status, 400, odd)
}

// Life: info, list, extend, pause, join, end.
const info = await sandbox.getInfo()
assert.equal(info.sandboxId, sandbox.sandboxId)
assert.deepEqual(info.metadata, { suite: 'doors' })
await sandbox.setTimeout(200_000)
const later = await sandbox.getInfo()
assert.ok(later.endAt > info.endAt)
const page = await Sandbox.list({ query: { metadata: { suite: 'doors' } } }).nextItems()
assert.deepEqual(page.map((each) => each.sandboxId), [sandbox.sandboxId])
assert.deepEqual(await Sandbox.list({ query: { metadata: { suite: 'other' } } }).nextItems(), [])
const odd = { 'a b': '1 & 2 = 3 % ü +' }
const [one, two] = [await Sandbox.create({ metadata: odd }), await Sandbox.create()]
const found = await Sandbox.list({ query: { metadata: odd } }).nextItems()
assert.deepEqual(found.map((each) => each.sandboxId), [one.sandboxId])
const pages = Sandbox.list({ limit: 1 })
const seenIds = []
while (pages.hasNext) {
  const items = await pages.nextItems()
  assert.equal(items.length, 1)
  seenIds.push(items[0].sandboxId)
}
assert.deepEqual(seenIds, [two.sandboxId, one.sandboxId, sandbox.sandboxId], 'pages, the newest first')
for (const each of [one, two]) await each.kill()
assert.equal(await sandbox.isRunning(), true)
const again = await Sandbox.connect(sandbox.sandboxId)
assert.equal((await again.commands.run('cat dir/a.txt')).stdout, 'firstmore\n')

// Another token sees none of it.
const other = { apiKey: process.env.OTHER_KEY }
assert.deepEqual(await Sandbox.list(other).nextItems(), [])
assert.equal(await Sandbox.kill(sandbox.sandboxId, other), false)
await rejects(Sandbox.connect(sandbox.sandboxId, other), /./)
await rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), /./)

// An older SDK does not tell whether there was anything to end.
assert.equal((await sandbox.kill()) ?? true, true)
assert.equal((await sandbox.kill()) ?? false, false)
assert.equal(await sandbox.isRunning(), false)
console.log(`ok ${sandbox.sandboxId}`)
process.exit(0)
