// Drives the Daytona door with the official SDK, unmodified. Which package is the first argument.
import assert from 'node:assert/strict'

const { Daytona } = await import(process.argv[2] ?? '@daytonaio/sdk')
const isOld = process.argv[2] === 'daytona-old'
const rejects = async (promise, pattern) => {
  const error = await promise.then(() => null, (error) => error)
  assert.ok(error, `expected an error like ${pattern}`)
  assert.match(String(error.message), pattern)
  return error
}

const daytona = new Daytona()
const sandbox = await daytona.create({ labels: { suite: 'doors' }, envVars: { FROM_CREATE: 'yes' }, autoStopInterval: 5 })
assert.equal(sandbox.state, 'started')

// Commands.
const hello = await sandbox.process.executeCommand('echo hello; echo $FROM_CREATE$OWN; pwd', undefined, { OWN: '!' })
assert.equal(hello.exitCode, 0)
assert.equal(hello.result.trimEnd(), 'hello\nyes!\n/home/daytona')
assert.equal((await sandbox.process.executeCommand('exit 3')).exitCode, 3)
assert.equal((await sandbox.process.executeCommand('pwd', '/tmp')).result.trimEnd(), '/tmp')
await rejects(sandbox.process.executeCommand('(sleep 3; touch /tmp/late) & sleep 60', undefined, undefined, 1), /timeout/i)
const code = await sandbox.process.codeRun('import sys; print(1 + 1)')
assert.equal(code.result.trimEnd(), '2')

// Files.
await sandbox.fs.uploadFile(Buffer.from('first'), 'dir/a.txt')
assert.equal((await sandbox.process.executeCommand('cat dir/a.txt; echo more >> dir/a.txt')).result, 'first')
assert.equal(String(await sandbox.fs.downloadFile('/home/daytona/dir/a.txt')), 'firstmore\n')
await rejects(sandbox.fs.downloadFile('/home/daytona/nope'), /./)
await sandbox.fs.createFolder('new', '755')
await sandbox.fs.moveFiles('dir/a.txt', 'new/b.txt')
const listed = await sandbox.fs.listFiles('new')
assert.deepEqual(listed.map((file) => [file.name, file.isDir]), [['b.txt', false]])
assert.equal((await sandbox.fs.getFileDetails('new/b.txt')).size, 10)
assert.deepEqual((await sandbox.fs.searchFiles('/home/daytona', '*.txt')).files, ['/home/daytona/new/b.txt'])
await sandbox.fs.setFilePermissions('new/b.txt', { mode: '600' })
const matches = await sandbox.fs.findFiles('/home/daytona', 'stmo')
assert.deepEqual(matches, [{ file: '/home/daytona/new/b.txt', line: 1, content: 'firstmore' }])
assert.deepEqual(await sandbox.fs.findFiles('new', 'nowhere'), [])
const replaced = await sandbox.fs.replaceInFiles(['new/b.txt', 'none'], 'first', 'second')
assert.deepEqual(replaced.map((each) => each.success), [true, false])
assert.equal(String(await sandbox.fs.downloadFile('new/b.txt')), 'secondmore\n')
await sandbox.fs.deleteFile('new/b.txt')
await rejects(sandbox.fs.getFileDetails('new/b.txt'), /./)

// Sessions: streams apart, output while it runs, input, an end.
await sandbox.process.createSession('work')
const sync = await sandbox.process.executeSessionCommand('work', { command: 'echo out; echo err >&2; exit 4' })
assert.equal(sync.exitCode, 4)
const started = await sandbox.process.executeSessionCommand('work', { command: 'echo one; sleep 0.3; echo two; echo bad >&2', runAsync: true })
if (!isOld) {
  const [out, err] = [[], []]
  await sandbox.process.getSessionCommandLogs('work', started.cmdId, (text) => out.push(text), (text) => err.push(text))
  assert.equal(out.join(''), 'one\ntwo\n')
  assert.equal(err.join(''), 'bad\n')
  const logs = await sandbox.process.getSessionCommandLogs('work', started.cmdId)
  assert.equal(logs.stdout, 'one\ntwo\n')
  assert.equal((await sandbox.process.getSessionCommand('work', started.cmdId)).exitCode, 0)
}
// A command that goes on would leave its directory to the session later than those below.
while ((await sandbox.process.getSessionCommand('work', started.cmdId)).exitCode == null) await new Promise((resolve) => setTimeout(resolve, 20))
assert.equal((await sandbox.process.getSession('work')).commands.length, 2)
await sandbox.process.executeSessionCommand('work', { command: 'mkdir -p deep && cd deep && export KEPT="two words" LOST=1' })
await sandbox.process.executeSessionCommand('work', { command: 'unset LOST; false' })
const kept = await sandbox.process.executeSessionCommand('work', { command: 'pwd; echo "$KEPT$LOST"; pwd > ../where' })
assert.equal(kept.exitCode, 0)
assert.equal((await sandbox.process.executeCommand('cat where')).result, '/home/daytona/deep\n')
if (!isOld) assert.equal(kept.output, '/home/daytona/deep\ntwo words\n', 'a session keeps directory and variables')
assert.equal((await sandbox.process.executeCommand('pwd; echo "$KEPT"')).result, '/home/daytona\n\n', 'and keeps them to itself')
await sandbox.process.deleteSession('work')
await rejects(sandbox.process.getSession('work'), /not found/)

// A terminal: listed, described, and what is typed after a change of its size sees it.
let screen = ''
const pty = await sandbox.process.createPty({ id: 'tty', cols: 100, rows: 30, onData: (data) => { screen += new TextDecoder().decode(data) } })
await pty.waitForConnection()
assert.deepEqual((await sandbox.process.listPtySessions()).map((each) => [each.id, each.cols, each.rows, each.active]), [['tty', 100, 30, true]])
await pty.sendInput('stty size\n')
while (!/30 100/.test(screen)) await new Promise((resolve) => setTimeout(resolve, 20))
await sandbox.process.resizePtySession('tty', 120, 40)
await pty.sendInput('stty size; exit 5\n')
assert.equal((await pty.wait()).exitCode, 5)
assert.match(screen, /40 120/)
await rejects(sandbox.process.getPtySessionInfo('tty'), /no such terminal/)

// Much output arrives whole.
assert.equal((await sandbox.process.executeCommand('head -c 12000000 /dev/zero | tr "\\0" a')).result.length, 12_000_000)

// Refusals are refusals.
await rejects(sandbox.process.executeCommand('touch /tmp/denied-ran; sudo id'), /DENY_APPROVAL_REQUIRED/)
assert.equal((await sandbox.process.executeCommand('ls /tmp')).result.includes('denied-ran'), false)
await rejects(sandbox.process.executeCommand(`sh -c "echo '${Buffer.from('sudo id').toString('base64')}' | base64 -d | sh"`), /DENY_/)
await rejects(daytona.create({ public: true }), /public/)
await rejects(daytona.create({ snapshot: 'gpu-box' }), /snapshot/)
await rejects(daytona.create({ volumes: [{ volumeId: 'v', mountPath: '/v' }] }), /volumes/)

// Life.
assert.equal((await daytona.get(sandbox.id)).id, sandbox.id)
await sandbox.setLabels({ suite: 'doors', more: '1' })
await sandbox.setAutostopInterval(7)
if (!isOld) {
  await sandbox.updateNetworkSettings({ networkBlockAll: true })
  assert.equal((await daytona.get(sandbox.id)).networkBlockAll, true)
  await rejects(sandbox.updateNetworkSettings({ domainAllowList: 'example.org' }), /DENY_POLICY_VIOLATION/)
  const named = []
  for await (const each of daytona.list({ labels: { more: '1' }, limit: 1 })) named.push(each.id)
  assert.deepEqual(named, [sandbox.id])
}
await sandbox.stop()
await rejects(sandbox.process.executeCommand('true'), /paused/)
await sandbox.start()
assert.equal((await sandbox.process.executeCommand('ls')).result.includes('new'), true, 'files outlive a stop')
assert.equal((await sandbox.process.executeCommand('ls /tmp')).result.includes('late'), false)

const other = new Daytona({ apiKey: process.env.OTHER_KEY })
await rejects(other.get(sandbox.id), /no such sandbox/)

await daytona.delete(sandbox)
await rejects(daytona.get(sandbox.id), /no such sandbox/)
console.log(`ok ${sandbox.id}`)
process.exit(0)
