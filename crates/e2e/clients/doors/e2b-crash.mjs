// Lives through a crash of the plane with the official E2B SDK: says what it made, waits for a
// line on standard input, and then tries to go on.
import assert from 'node:assert/strict'
import { createInterface } from 'node:readline'
import { NotFoundError, Sandbox } from 'e2b'

const nap = process.argv[2]
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const fails = async (promise) => {
  const error = await promise.then(() => null, (error) => error)
  assert.ok(error, 'expected an error')
  return error
}

const [one, two] = [await Sandbox.create({ timeoutMs: 600_000 }), await Sandbox.create({ timeoutMs: 600_000 })]
await one.files.write('/home/user/kept.txt', 'kept')
const cut = []
for (const sandbox of [one, two]) {
  const started = await sandbox.commands.run(`echo up; (sleep ${nap}; true) & sleep ${nap}; true`, { background: true, timeoutMs: 0 })
  cut.push(fails(started.wait()))
}
let screen = ''
const pty = await one.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: (data) => { screen += new TextDecoder().decode(data) } })
cut.push(fails(pty.wait()))
await one.pty.sendInput(pty.pid, new TextEncoder().encode(`sleep ${nap}\n`))
console.log(JSON.stringify({ sandboxes: [one.sandboxId, two.sandboxId] }))

await lines.next()
await Promise.all(cut)
for (const sandbox of [one, two]) {
  assert.ok((await fails(Sandbox.connect(sandbox.sandboxId))) instanceof NotFoundError)
  assert.equal(await sandbox.isRunning(), false)
  await fails(sandbox.commands.run('echo never'))
  await fails(sandbox.files.read('/home/user/kept.txt'))
  assert.equal(await sandbox.kill(), false)
}
assert.deepEqual(await Sandbox.list().nextItems(), [])
const fresh = await Sandbox.create()
assert.equal((await fresh.commands.run('echo again; ls -A ~ /tmp')).stdout, 'again\n/home/user:\n\n/tmp:\n')
await fresh.kill()
console.log('ok')
process.exit(0)
