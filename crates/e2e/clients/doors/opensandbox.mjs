// Drives the OpenSandbox door with the official SDK, unmodified. Which package is the first argument.
import assert from 'node:assert/strict'

const { ConnectionConfig, Sandbox, SandboxManager } = await import(process.argv[2] ?? '@alibaba-group/opensandbox')
// The first version on the registry: no lists of directories, lines of files, counts of
// replacements, snapshots, or rules that are taken away.
const isOld = process.argv[2] === 'opensandbox-old'
const rejects = async (promise, pattern) => {
  const error = await promise.then(() => null, (error) => error)
  assert.ok(error, `expected an error like ${pattern}`)
  assert.match(`${error.message} ${JSON.stringify(error)}`, pattern)
  return error
}
const lines = (messages) => messages.map((message) => message.text)

const sandbox = await Sandbox.create({
  image: 'ubuntu:24.04',
  timeoutSeconds: 300,
  env: { FROM_CREATE: 'yes' },
  metadata: { suite: 'doors' },
  networkPolicy: { defaultAction: 'deny', egress: [] },
})

// Commands.
const hello = await sandbox.commands.run('echo hello; echo oops >&2; echo $FROM_CREATE$OWN', { envs: { OWN: '!' } })
assert.equal(hello.exitCode, 0)
assert.deepEqual(lines(hello.logs.stdout), ['hello', 'yes!'])
assert.deepEqual(lines(hello.logs.stderr), ['oops'])
assert.equal((await sandbox.commands.run('exit 3')).exitCode, 3)
assert.deepEqual(lines((await sandbox.commands.run('pwd', { workingDirectory: '/tmp' })).logs.stdout), ['/tmp'])
assert.deepEqual(lines((await sandbox.commands.run('pwd')).logs.stdout), ['/workspace'])
const late = await sandbox.commands.run('(sleep 3; touch /tmp/late) & sleep 60', { timeoutSeconds: 1 })
assert.equal(late.exitCode, -1)

// Background.
const server = await sandbox.commands.run('echo up; sleep 60', { background: true })
assert.ok(server.id)
let logs = { content: '' }
for (let i = 0; i < 50 && !logs.content; i++) {
  await new Promise((resolve) => setTimeout(resolve, 50))
  logs = await sandbox.commands.getBackgroundCommandLogs(server.id)
}
assert.equal(logs.content, 'up\n')
assert.equal((await sandbox.commands.getCommandStatus(server.id)).running, true)
await sandbox.commands.interrupt(server.id)
assert.equal((await sandbox.commands.getCommandStatus(server.id)).running, false)

// Sessions.
const session = await sandbox.commands.createSession({ workingDirectory: '/tmp' })
assert.deepEqual(lines((await sandbox.commands.runInSession(session, 'pwd')).logs.stdout), ['/tmp'])
const say = async (name, command) => lines((await sandbox.commands.runInSession(name, command)).logs.stdout)
await say(session, 'mkdir -p deep && cd deep && export KEPT="two words" LOST=1')
await say(session, 'unset LOST; false')
assert.deepEqual(await say(session, 'pwd; echo "$KEPT$LOST"'), ['/tmp/deep', 'two words'], 'a session keeps directory and variables')
const stranger = await sandbox.commands.createSession({ workingDirectory: '/tmp' })
assert.deepEqual(await say(stranger, 'echo "${KEPT-nothing}"; rm -r deep'), ['nothing'], 'another session has none of them')
await sandbox.commands.deleteSession(stranger)
await sandbox.commands.deleteSession(session)
await rejects(sandbox.commands.runInSession(session, 'true'), /SESSION_NOT_FOUND|no such session/)

// Files.
await sandbox.files.createDirectories([{ path: '/workspace/dir', mode: 755 }])
await sandbox.files.writeFiles([{ path: '/workspace/dir/a.txt', data: 'first', mode: 644 }])
assert.deepEqual(lines((await sandbox.commands.run('cat dir/a.txt; echo more >> dir/a.txt')).logs.stdout), ['first'])
assert.equal(await sandbox.files.readFile('/workspace/dir/a.txt'), 'firstmore\n')
const info = await sandbox.files.getFileInfo(['/workspace/dir/a.txt'])
assert.equal(info['/workspace/dir/a.txt'].size, 10)
assert.equal(info['/workspace/dir/a.txt'].mode, 644)
await sandbox.files.moveFiles([{ src: '/workspace/dir/a.txt', dest: '/workspace/dir/b.txt' }])
assert.deepEqual((await sandbox.files.search({ path: '/workspace', pattern: '*.txt' })).map((file) => file.path), ['/workspace/dir/b.txt'])
await sandbox.files.replaceContents([{ path: '/workspace/dir/b.txt', oldContent: 'first', newContent: 'second' }])
assert.equal(await sandbox.files.readFile('/workspace/dir/b.txt'), 'secondmore\n')
assert.equal(await sandbox.files.readFile('/workspace/dir/b.txt', { range: 'bytes=0-5' }), 'second')
assert.equal(await sandbox.files.readFile('/workspace/dir/b.txt', { range: 'bytes=-5' }), 'more\n')
await rejects(sandbox.files.readFile('/workspace/dir/b.txt', { range: 'bytes=99-' }), /416|INVALID_RANGE/)
await sandbox.files.writeFiles([{ path: '/workspace/dir/lines', data: 'one\ntwo\nthree\n' }])
await rejects(sandbox.files.moveFiles([{ src: '/workspace/dir/lines', dest: '/workspace/dir/b.txt' }]), /already exists/)
await sandbox.files.deleteFiles(['/workspace/dir/b.txt', '/workspace/dir/never-there'])
await rejects(sandbox.files.readFile('/workspace/dir/b.txt'), /does not exist|FILE_NOT_FOUND/)
await rejects(sandbox.files.deleteFiles(['/workspace/dir']), /is a directory/)
await sandbox.files.createDirectories([{ path: '/workspace/dir/sub', mode: 777 }])
assert.equal((await sandbox.files.getFileInfo(['/workspace/dir/sub']))['/workspace/dir/sub'].mode, 777)
await rejects(sandbox.files.setPermissions([{ path: '/workspace/dir/lines', mode: 4755 }]), /mode must be/)
await rejects(sandbox.files.writeFiles([{ path: '/workspace/dir/x', data: 'x', owner: 'nobody' }]), /status=400/)
if (!isOld) {
  assert.equal(await sandbox.files.readFile('/workspace/dir/lines', { offset: 2, limit: 1 }), 'two')
  await sandbox.files.writeFiles([{ path: '/workspace/dir/sub/deep', data: 'a-a' }, { path: '/workspace/dir/sub-way', data: '' }])
  const counts = await sandbox.files.replaceContentsDetailed([{ path: '/workspace/dir/sub/deep', oldContent: 'a', newContent: 'b' }])
  assert.deepEqual(counts, [{ path: '/workspace/dir/sub/deep', replacedCount: 2 }])
  const names = (entries) => entries.map((entry) => entry.path.slice('/workspace/dir/'.length))
  const listed = await sandbox.files.listDirectory({ path: '/workspace/dir', depth: 2 })
  assert.deepEqual(names(listed), ['lines', 'sub', 'sub/deep', 'sub-way'], 'what is in a directory follows it')
  assert.deepEqual(await sandbox.files.listDirectory({ path: '/workspace/dir', depth: 0 }), [])
}
await sandbox.files.deleteDirectories(['/workspace/dir', '/workspace/never-there'])

// Refusals are refusals.
await rejects(sandbox.commands.run('touch /tmp/denied-ran; sudo id'), /APPROVAL_REQUIRED|DENY_/)
assert.deepEqual(lines((await sandbox.commands.run('ls /tmp')).logs.stdout), [])
await rejects(Sandbox.create({ image: 'x', networkPolicy: { defaultAction: 'allow' } }), /networkPolicy/)
await rejects(Sandbox.create({ image: 'x', volumes: [{ name: 'v', host: { path: '/etc' }, mountPath: '/v' }] }), /volumes/)
await rejects(Sandbox.create({ image: 'x@sha256:' + '0'.repeat(64) }), /digest/)
await rejects(Sandbox.create({ image: 'x:1@sha512:' + '0'.repeat(128) }), /digest/)

// Life.
const described = await sandbox.getInfo()
assert.equal(described.status.state, 'Running')
await sandbox.renew(600)
assert.ok((await sandbox.getInfo()).expiresAt > described.expiresAt)
const policy = await sandbox.getEgressPolicy()
assert.equal(policy.defaultAction, 'deny')
await rejects(sandbox.patchEgressRules([{ action: 'allow', target: 'example.org' }]), /DENY_POLICY_VIOLATION/)
if (!isOld) await sandbox.deleteEgressRules(['example.org'])
assert.deepEqual((await sandbox.getEgressPolicy()).egress, [])
const manager = SandboxManager.create()
if (!isOld) {
  await rejects(manager.listSnapshots(), /not served/)
  await manager.patchSandboxMetadata(sandbox.id, { odd: 'a b/ä+c', suite: null })
  assert.deepEqual((await sandbox.getInfo()).metadata, { odd: 'a b/ä+c' })
  assert.equal((await manager.listSandboxInfos({ metadata: { odd: 'a b/ä+c' } })).items.length, 1, 'a filter may have any letters')
  assert.equal((await manager.listSandboxInfos({ metadata: { odd: 'a' } })).items.length, 0)
  await manager.patchSandboxMetadata(sandbox.id, { odd: null, suite: 'doors' })
  await rejects(manager.patchSandboxMetadata(sandbox.id, { long: 'x'.repeat(70000) }), /metadata has at most/)
}
// Metrics tell of the sandbox, not of the machine: what its commands hold, and the bound it asked for.
const holder = await sandbox.commands.run(`python3 -c 'import time; held = bytearray(48 << 20); time.sleep(60)'`, { background: true })
let used = await sandbox.getMetrics()
for (let i = 0; i < 100 && used.memoryUsedMiB < 48; i++) {
  await new Promise((resolve) => setTimeout(resolve, 200))
  used = await sandbox.getMetrics()
}
assert.ok(used.memoryUsedMiB >= 48 && used.memoryUsedMiB <= used.memoryTotalMiB, JSON.stringify(used))
assert.ok(used.cpuCount > 0 && used.cpuUsedPercentage >= 0 && used.cpuUsedPercentage <= 100, JSON.stringify(used))
assert.ok(Math.abs(used.timestamp - Date.now()) < 60_000)
await sandbox.commands.interrupt(holder.id)

await sandbox.pause()
assert.equal((await sandbox.getInfo()).status.state, 'Paused')
assert.equal(await sandbox.isHealthy(), false, 'a paused sandbox takes no commands')
await rejects(sandbox.commands.run('true'), /paused/)
const resumed = await sandbox.resume()
assert.deepEqual(lines((await resumed.commands.run('echo again')).logs.stdout), ['again'])
const named = new ConnectionConfig({ headers: { 'X-Request-ID': 'mine-1' } })
const missing = await rejects(Sandbox.connect({ sandboxId: 'nobody', connectionConfig: named }), /./)
assert.equal(missing.requestId, 'mine-1', 'a request keeps its name')
const page = await manager.listSandboxInfos({ metadata: { suite: 'doors' }, page: 1, pageSize: 1 })
assert.deepEqual([page.items.length, page.pagination.totalItems], [1, 1])
await sandbox.kill()
await rejects(sandbox.getInfo(), /SANDBOX_NOT_FOUND|no such/)
console.log(`ok ${sandbox.id}`)
process.exit(0)
