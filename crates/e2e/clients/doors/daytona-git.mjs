// Drives repositories through the Daytona door with the official SDK, against a bare repository inside the sandbox.
import assert from 'node:assert/strict'
import { Daytona } from '@daytonaio/sdk'

const daytona = new Daytona()
const sandbox = await daytona.create()
const { git, fs } = sandbox
const sh = async (command, cwd) => {
  const done = await sandbox.process.executeCommand(command, cwd)
  assert.equal(done.exitCode, 0, `${command}: ${done.result}`)
  return done.result.trimEnd()
}
const rejects = async (promise, pattern) => {
  const error = await promise.then(() => null, (error) => error)
  assert.ok(error, `expected an error like ${pattern}`)
  assert.match(String(error.message), pattern)
}
const write = (path, text) => fs.uploadFile(Buffer.from(text), path)
const rows = async (path) => (await git.status(path)).fileStatus.map((each) => [each.name, each.staging, each.worktree])

// Settings: a value that is not set is none, and a repository's own go before those of all.
assert.equal(await git.getConfig('user.name'), null)
await git.configureUser('Ann', 'ann@example.org')
assert.equal(await git.getConfig('user.name'), 'Ann')
assert.equal(await sh('git config --global user.email'), 'ann@example.org')

// A first push goes to origin under the branch's own name, although nothing follows anything yet.
await git.init('origin.git', true, 'main')
await git.init('work', false, 'main')
await git.remoteAdd('work', 'origin', '/home/daytona/origin.git')
await write('work/one.txt', 'one\n')
await write('work/two.txt', 'two\n')
await git.add('work', ['.'])
const first = await git.commit('work', 'the first\n\nwith a body', 'Ann', 'ann@example.org')
await git.push('work')
assert.equal(await sh('git rev-parse main', 'origin.git'), first.sha)
let status = await git.status('work')
assert.deepEqual([status.currentBranch, status.branchPublished, status.upstream, status.detached], ['main', false, '', false])
await git.push('work', undefined, undefined, undefined, undefined, true)
status = await git.status('work')
assert.deepEqual([status.branchPublished, status.upstream, status.ahead, status.behind], [true, 'origin/main', 0, 0])
assert.deepEqual(status.fileStatus, [])

// Another checkout pulls what came meanwhile, and pushes what the first one then lacks.
await git.clone('/home/daytona/origin.git', 'other')
await write('work/one.txt', 'one more\n')
await git.add('work', ['one.txt'])
await git.commit('work', 'the second', 'Ann', 'ann@example.org')
assert.deepEqual(((status) => [status.ahead, status.behind])(await git.status('work')), [1, 0])
await git.push('work')
await git.pull('other')
assert.equal(await sh('cat one.txt', 'other'), 'one more')
await git.createBranch('other', 'side')
await write('other/three.txt', 'three\n')
await git.add('other', ['three.txt'])
const third = await git.commit('other', 'the third', 'Bob', 'bob@example.org')
await git.push('other', undefined, undefined, 'side', 'origin', true)
assert.equal(await sh('git rev-parse side', 'origin.git'), third.sha)
await git.pull('work', undefined, undefined, 'side', 'origin')
assert.equal(await sh('git log -1 --format="%H %an"', 'work'), `${third.sha} Bob`)

// What a branch is called says nothing else: not where it goes, nor that something is forced or removed there.
for (const branch of [':main', '+main', 'main:other', 'side:main', '*', 'no such', '--all', 'HEAD:main', 'main^']) {
  await rejects(git.push('work', undefined, undefined, branch), /branch|refspec/)
  await rejects(git.pull('work', undefined, undefined, branch), /branch|ref/)
}
assert.equal(await sh('git for-each-ref --format="%(refname:short)"', 'origin.git'), 'main\nside')

// Branches: made, listed, left, found at the remote, removed.
let branches = await git.branches('other')
assert.deepEqual([branches.branches.sort(), branches.current], [['main', 'side'], 'side'])
await git.checkoutBranch('other', 'main')
await git.deleteBranch('other', 'side')
assert.deepEqual((await git.branches('other')).branches, ['main'])
await git.checkoutBranch('other', 'side')
assert.equal(await sh('git rev-parse HEAD', 'other'), third.sha)
await git.checkoutBranch('other', first.sha)
branches = await git.branches('other')
assert.deepEqual([branches.branches.sort(), branches.current], [['main', 'side'], ''])
status = await git.status('other')
assert.deepEqual([status.currentBranch, status.detached], ['HEAD', true])
await rejects(git.checkoutBranch('other', 'nowhere'), /nowhere/)
await rejects(git.deleteBranch('other', 'nowhere'), /nowhere/)
await rejects(git.createBranch('other', 'main'), /exists/)

// Remotes: listed, found by name, fetched at once, replaced only when that is asked for.
await rejects(git.remoteAdd('other', 'origin', '/nowhere'), /exists/)
assert.equal(await git.remoteGet('other', 'origin'), '/home/daytona/origin.git')
assert.equal(await git.remoteGet('other', 'nobody'), undefined)
await git.remoteAdd('other', 'second', '/home/daytona/origin.git', true)
assert.equal(await sh('git rev-parse second/side', 'other'), third.sha)
await git.remoteAdd('other', 'second', '/home/daytona/work', true, true)
await git.remoteAdd('other', 'third', '/home/daytona/work', false, true)
assert.deepEqual((await git.remotes('other')).remotes.map((each) => [each.name, each.url]), [['origin', '/home/daytona/origin.git'], ['second', '/home/daytona/work'], ['third', '/home/daytona/work']])
assert.equal(await sh('git for-each-ref --format="%(refname:short)" refs/remotes/second', 'other'), 'second/main')
await rejects(git.remoteAdd('other', 'fourth', '/nowhere', true), /nowhere/)

// What is staged and what is not, a name that moved, and both sides of a conflict.
await write('work/one.txt', 'changed\n')
await sh('git mv two.txt "with blank"; rm three.txt; echo x > new', 'work')
assert.deepEqual((await rows('work')).sort(), [
  ['new', 'Untracked', 'Untracked'], ['one.txt', 'Unmodified', 'Modified'], ['three.txt', 'Unmodified', 'Deleted'], ['with blank', 'Renamed', 'Unmodified'],
])
assert.equal((await git.status('work')).fileStatus.find((each) => each.name === 'with blank').extra, 'two.txt')

// Restore: the work tree from the index, the index from HEAD, both, and from another commit.
await git.restore('work', ['three.txt'])
await git.add('work', ['one.txt'])
await git.restore('work', ['one.txt'], true)
assert.deepEqual((await rows('work')).find(([name]) => name === 'one.txt'), ['one.txt', 'Unmodified', 'Modified'])
await git.add('work', ['one.txt'])
await git.restore('work', ['one.txt'], true, true)
assert.equal(await sh('cat one.txt three.txt', 'work'), 'one more\nthree')
await git.restore('work', ['one.txt'], undefined, undefined, first.sha)
assert.equal(await sh('cat one.txt', 'work'), 'one')
await rejects(git.restore('work', ['nowhere']), /nowhere/)
await rejects(git.restore('work', ['one.txt'], false, false), /restore/)

// Reset: what is staged, one file of it, the branch with or without the files.
await git.add('work', ['one.txt', 'new'])
await git.reset('work', undefined, undefined, ['new'])
assert.deepEqual((await rows('work')).filter(([name]) => ['new', 'one.txt'].includes(name)).sort(), [['new', 'Untracked', 'Untracked'], ['one.txt', 'Modified', 'Unmodified']])
await git.reset('work')
assert.equal(await sh('git diff --cached --name-only', 'work'), '')
await git.reset('work', 'soft', 'HEAD~1')
assert.equal(await sh('git diff --cached --name-only', 'work'), 'three.txt')
await git.reset('work', 'hard', first.sha)
assert.equal(await sh('cat one.txt two.txt; git rev-parse HEAD', 'work'), `one\ntwo\n${first.sha}`)
await rejects(git.reset('work', 'hard', 'nowhere'), /nowhere/)

// A push that would lose commits is refused by git, in its words.
await git.commit('work', 'apart', 'Ann', 'ann@example.org', true)
await rejects(git.push('work'), /rejected|fast-forward/)
await rejects(git.commit('work', 'nothing', 'Ann', 'ann@example.org'), /nothing/)

// A clone of one branch, of one commit, of the last commits.
await git.clone('/home/daytona/origin.git', 'branch', 'side')
assert.equal((await git.status('branch')).currentBranch, 'side')
await git.clone('/home/daytona/origin.git', 'commit', undefined, first.sha)
assert.equal(await sh('git rev-parse HEAD', 'commit'), first.sha)
await git.clone('/home/daytona/origin.git', 'last', undefined, undefined, undefined, undefined, undefined, 1)
assert.equal(await sh('git rev-list --count HEAD', 'last'), '1', 'a depth is kept for a path as well')

// Settings of a repository, and what cannot be had.
await git.setConfig('core.note', 'a = "b"; c', 'local', 'work')
assert.equal(await git.getConfig('core.note', 'local', 'work'), 'a = "b"; c')
assert.equal(await git.getConfig('core.note'), null)
await git.setConfig('core.empty', '', 'local', 'work')
assert.equal(await git.getConfig('core.empty', 'local', 'work'), '')
await rejects(git.setConfig('core.note', 'x', 'system'), /scope/)
await rejects(git.getConfig('nodot'), /section/)
await rejects(git.dangerouslyAuthenticate('user', 'never-stored-value'), /password|credentials/i)
await rejects(git.push('work', 'user', 'never-stored-value'), /username/)

await daytona.delete(sandbox)
console.log('ok repositories')
process.exit(0)
