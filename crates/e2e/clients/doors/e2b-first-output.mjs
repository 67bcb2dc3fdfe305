// Measures from create to the first command's output through the E2B door.
import { Sandbox } from 'e2b'

const times = []
for (let round = 0; round < 31; round++) {
  const began = performance.now()
  const sandbox = await Sandbox.create()
  let first = null
  await sandbox.commands.run('echo hello', { onStdout: () => { first ??= performance.now() - began } })
  if (round > 0) times.push(first)
  await sandbox.kill()
}
times.sort((a, b) => a - b)
console.log(`ok p50 ${times[15].toFixed(1)} ms, best ${times[0].toFixed(1)} ms, worst ${times[29].toFixed(1)} ms`)
