import assert from 'node:assert/strict'
import { rejects, skip, test } from './harness.mjs'
import { box, fresh, sdk } from './sdk.mjs'

async function repo() {
  const sandbox = await box()
  if (!sandbox.git) skip('this line has no git helpers')
  const there = await sandbox.commands.run('command -v git || true')
  if (!there.stdout) skip('the template has no git')
  const path = await fresh()
  await sandbox.git.init(path, { initialBranch: 'main' })
  await sandbox.git.configureUser('Ada', 'ada@example.org', { scope: 'local', path })
  return { ...sandbox, git: sandbox.git, files: sandbox.files, commands: sandbox.commands, path }
}
async function committed() {
  const all = await repo()
  await all.files.write(`${all.path}/a.txt`, 'one\n')
  await all.git.add(all.path)
  await all.git.commit(all.path, 'first', { authorName: 'Ada', authorEmail: 'ada@example.org' })
  return all
}
async function remote() {
  const all = await committed()
  const bare = await fresh()
  await all.commands.run(`git init --bare -b main ${bare}`)
  await all.git.remoteAdd(all.path, 'origin', bare)
  await all.git.push(all.path, { remote: 'origin', branch: 'main', setUpstream: true })
  return { ...all, bare }
}

test('git.init', 'makes a repository', async () => {
  const { commands, path } = await repo()
  assert.equal((await commands.run(`git -C ${path} symbolic-ref --short HEAD`)).stdout, 'main\n')
})
test('git.status', 'knows what changed', async () => {
  const { git, files, path } = await committed()
  await files.write(`${path}/b.txt`, 'two\n')
  const status = await git.status(path)
  assert.equal(status.currentBranch, 'main')
  assert.deepEqual(status.fileStatus.map((one) => [one.name, one.status]), [['b.txt', 'untracked']])
})
test('git.add', 'stages', async () => {
  const { git, files, path } = await committed()
  await files.write(`${path}/b.txt`, 'two\n')
  await git.add(path, { files: ['b.txt'] })
  assert.equal((await git.status(path)).fileStatus[0].staged, true)
})
test('git.commit', 'keeps', async () => {
  const { commands, path } = await committed()
  assert.equal((await commands.run(`git -C ${path} log --format='%s %an'`)).stdout, 'first Ada\n')
})
test('git.branches', 'lists', async () => {
  const { git, path } = await committed()
  const { branches, currentBranch } = await git.branches(path)
  assert.deepEqual([branches, currentBranch], [['main'], 'main'])
})
test('git.createBranch', 'and its going', async () => {
  const { git, path } = await committed()
  await git.createBranch(path, 'side')
  assert.equal((await git.branches(path)).currentBranch, 'side')
})
test('git.checkoutBranch', 'changes', async () => {
  const { git, path } = await committed()
  await git.createBranch(path, 'side')
  await git.checkoutBranch(path, 'main')
  assert.equal((await git.branches(path)).currentBranch, 'main')
})
test('git.deleteBranch', 'removes', async () => {
  const { git, path } = await committed()
  await git.createBranch(path, 'side')
  await git.checkoutBranch(path, 'main')
  await git.deleteBranch(path, 'side')
  assert.deepEqual((await git.branches(path)).branches, ['main'])
})
test('git.reset', 'takes back', async () => {
  const { git, files, path } = await committed()
  await files.write(`${path}/a.txt`, 'changed\n')
  await git.reset(path, { mode: 'hard', target: 'HEAD' })
  assert.equal(await files.read(`${path}/a.txt`), 'one\n')
})
test('git.restore', 'one file', async () => {
  const { git, files, path } = await committed()
  await files.write(`${path}/a.txt`, 'changed\n')
  await git.restore(path, { paths: ['a.txt'], worktree: true })
  assert.equal(await files.read(`${path}/a.txt`), 'one\n')
})
test('git.remoteAdd', 'remembers', async () => {
  const { git, path } = await committed()
  await git.remoteAdd(path, 'origin', 'https://example.org/x.git')
  assert.equal(await git.remoteGet(path, 'origin'), 'https://example.org/x.git')
})
test('git.remoteGet', 'an unknown one is undefined', async () => {
  const { git, path } = await committed()
  assert.equal(await git.remoteGet(path, 'nobody'), undefined)
})
test('git.push', 'gets there', async () => {
  const { commands, bare } = await remote()
  assert.equal((await commands.run(`git -C ${bare} log --format=%s main`)).stdout, 'first\n')
})
test('git.push', 'without an upstream is an error of the SDK', async () => {
  const { git, path } = await committed()
  await rejects(git.push(path), sdk.SandboxError)
})
test('git.pull', 'brings', async () => {
  const { git, commands, bare, path } = await remote()
  const other = await fresh()
  await commands.run(`git clone -q ${bare} ${other} && cd ${other} && echo two > b.txt && git add . && git -c user.name=B -c user.email=b@b commit -qm second && git push -q`)
  await git.pull(path, { remote: 'origin', branch: 'main' })
  assert.equal((await commands.run(`git -C ${path} log --format=%s -1`)).stdout, 'second\n')
})
test('git.clone', 'brings all', async () => {
  const { git, files, bare } = await remote()
  const other = await fresh()
  await git.clone(bare, { path: other })
  assert.equal(await files.read(`${other}/a.txt`), 'one\n')
})
test('git.setConfig', 'and getConfig', async () => {
  const { git, path } = await repo()
  await git.setConfig('core.editor', 'ed', { scope: 'local', path })
  assert.equal(await git.getConfig('core.editor', { scope: 'local', path }), 'ed')
})
test('git.getConfig', 'what is not set is undefined', async () => {
  const { git, path } = await repo()
  assert.equal(await git.getConfig('core.nothing', { scope: 'local', path }), undefined)
})
test('git.configureUser', 'sets both', async () => {
  const { git, path } = await repo()
  assert.equal(await git.getConfig('user.email', { scope: 'local', path }), 'ada@example.org')
})
test('git.dangerouslyAuthenticate', 'stores what it is given', async () => {
  const { git, files } = await repo()
  await git.dangerouslyAuthenticate({ username: 'ada', password: 'secret', host: 'example.org', protocol: 'https' })
  assert.match(await files.read('/home/user/.git-credentials'), /ada:secret@example.org/)
})
