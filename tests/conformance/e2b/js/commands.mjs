import assert from 'node:assert/strict'
import { eventually, rejects, skip, test } from './harness.mjs'
import { box, sdk, using } from './sdk.mjs'

test('commands.run', 'gives output and exit code', async () => {
  const result = await (await box()).commands.run('echo out; echo err >&2')
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [0, 'out\n', 'err\n'])
})
test(['commands.run', 'CommandExitError'], 'a failing command is a CommandExitError', async () => {
  const error = await rejects((await box()).commands.run('echo gone; exit 3'), sdk.CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout, error.error], [3, 'gone\n', 'exit status 3'])
})
test('commands.run', 'a killed command says so', async () => {
  const error = await rejects((await box()).commands.run('kill -9 $$'), sdk.CommandExitError)
  assert.deepEqual([error.exitCode, error.error], [-1, 'signal: killed'])
})
test('commands.run', 'too slow is a TimeoutError, and the command is gone', async () => {
  const sandbox = await box()
  await rejects(sandbox.commands.run('sleep 77', { timeoutMs: 500 }), sdk.TimeoutError)
  await eventually(async () => !(await sandbox.commands.run('pgrep -f "sleep 7[7]" || true')).stdout, 'its end')
})
test('commands.run', 'runs as user, at home, unless told otherwise', async () => {
  const { commands } = await box()
  assert.equal((await commands.run('whoami; pwd; echo $HOME $USER $LOGNAME')).stdout, 'user\n/home/user\n/home/user user user\n')
  assert.equal((await commands.run('whoami; pwd', { user: 'root', cwd: '/tmp' })).stdout, 'root\n/tmp\n')
  assert.equal((await commands.run('sudo whoami')).stdout, 'root\n')
})
test('commands.run', 'an unknown user is an AuthenticationError', async () =>
  rejects((await box()).commands.run('true', { user: 'nobody-here' }), sdk.AuthenticationError, /nobody-here/))
test(['commands.run', 'InvalidArgumentError'], 'a folder that is not there is an InvalidArgumentError', async () =>
  rejects((await box()).commands.run('true', { cwd: '/no/such/folder' }), sdk.InvalidArgumentError, /\/no\/such\/folder/))
test('commands.run', 'takes environment variables over the sandbox’s', () =>
  using({ envs: { A: 'box', B: 'box' } }, async ({ commands }) => {
    assert.equal((await commands.run('echo $A $B', { envs: { B: 'call' } })).stdout, 'box call\n')
  }))
test('commands.run', 'streams output as it comes', async () => {
  const seen = []
  const result = await (await box()).commands.run('for i in 1 2 3; do echo $i; sleep 0.05; done; echo e >&2', {
    onStdout: (data) => seen.push(data),
    onStderr: (data) => seen.push('!' + data),
  })
  assert.equal(seen.filter((one) => !one.startsWith('!')).join(''), '1\n2\n3\n')
  assert.ok(seen.includes('!e\n'))
  assert.ok(seen.length >= 3, `only ${seen.length} pieces`)
  assert.equal(result.stdout, '1\n2\n3\n')
})
test('commands.run', 'output of any bytes and size arrives whole', async () => {
  const { commands } = await box()
  const lines = (await commands.run('seq 1 200000')).stdout.trimEnd().split('\n')
  assert.equal(lines.length, 200000)
  assert.ok(lines.every((line, i) => line === String(i + 1)))
  assert.equal((await commands.run("printf 'ü€😀'")).stdout, 'ü€😀')
})
test('commands.run', 'ends when nobody can write to its output any more', async () => {
  const { commands } = await box()
  assert.equal((await commands.run('(sleep 1; echo late) & echo now')).stdout, 'now\nlate\n')
  // What was told to be silent is not waited for, nor what is killed.
  assert.equal((await commands.run('sleep 100 > /dev/null 2>&1 & echo now')).stdout, 'now\n')
  const handle = await commands.run('sleep 100 & echo now', { background: true })
  await eventually(() => handle.stdout === 'now\n', 'its output')
  assert.equal(await handle.kill(), true)
  assert.equal((await handle.wait()).stdout, 'now\n')
  await rejects(commands.run('sleep 100 & echo now', { timeoutMs: 500 }), sdk.TimeoutError)
})
test('commands.run', 'in the background returns a handle at once', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 0.3; echo done; exit 4', { background: true })
  assert.ok(handle.pid > 0)
  const error = await rejects(handle.wait(), sdk.CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout], [4, 'done\n'])
})
test('commands.run', 'the pid is the one inside', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 100', { background: true })
  await commands.run(`kill -0 ${handle.pid}`)
  await handle.kill()
})

test('commandHandle.kill', 'ends the command', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 100', { background: true })
  assert.equal(await handle.kill(), true)
  const error = await rejects(handle.wait(), sdk.CommandExitError)
  assert.equal(error.error, 'signal: killed')
  assert.equal(await handle.kill(), false)
})
test('commandHandle.disconnect', 'leaves the command running', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 100', { background: true })
  await handle.disconnect()
  await commands.run(`kill -0 ${handle.pid}`)
  assert.equal(await commands.kill(handle.pid), true)
})

test('commands.list', 'has what runs, as it was started', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 101', { background: true, cwd: '/tmp', envs: { K: 'v' } })
  const mine = (await commands.list()).find((one) => one.pid === handle.pid)
  assert.equal(mine.cmd, '/bin/bash')
  assert.deepEqual(mine.args, ['-l', '-c', 'sleep 101'])
  assert.equal(mine.cwd, '/tmp')
  assert.deepEqual(mine.envs, { K: 'v' })
  await handle.kill()
  await eventually(async () => !(await commands.list()).some((one) => one.pid === handle.pid), 'its leaving the list')
})
test('commands.kill', 'says false for what is not there', async () =>
  assert.equal(await (await box()).commands.kill(999999), false))
test('commands.connect', 'follows a command that runs', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 0.5; echo late', { background: true })
  await handle.disconnect()
  const again = await commands.connect(handle.pid)
  assert.equal(again.pid, handle.pid)
  assert.equal((await again.wait()).stdout, 'late\n')
})
test('commands.connect', 'what is not there is a NotFoundError', async () =>
  rejects((await box()).commands.connect(999999), sdk.NotFoundError))
test(['commandHandle.wait', 'commandHandle.sendStdin', 'commandHandle.closeStdin'], 'feed a command and wait for its end', async () => {
  const handle = await (await box()).commands.run('cat; exit 3', { background: true, stdin: true })
  if (!handle.sendStdin) skip('this line has no such call')
  await handle.sendStdin('abc')
  await handle.closeStdin()
  const error = await rejects(handle.wait(), sdk.CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout], [3, 'abc'])
})
test('commands.sendStdin', 'is what the command reads', async () => {
  const { commands } = await box()
  const handle = await commands.run('read line; echo "got $line"', { background: true, stdin: true })
  await commands.sendStdin(handle.pid, 'hello wörld\n')
  assert.equal((await handle.wait()).stdout, 'got hello wörld\n')
})
test('commands.sendStdin', 'to a command without input is a SandboxError', async () => {
  const { commands } = await box()
  const handle = await commands.run('sleep 100', { background: true, stdin: false })
  await rejects(commands.sendStdin(handle.pid, 'x'), sdk.SandboxError)
  await handle.kill()
})
test('commands.sendStdin', 'to what is not there is a NotFoundError', async () =>
  rejects((await box()).commands.sendStdin(999999, 'x'), sdk.NotFoundError))
test('commands.closeStdin', 'ends the input', async () => {
  const { commands } = await box()
  if (!commands.closeStdin) skip('this line has no such call')
  const handle = await commands.run('cat', { background: true, stdin: true })
  await commands.sendStdin(handle.pid, 'a')
  await commands.sendStdin(handle.pid, 'b')
  await commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'ab')
})
test(
  'commands.run',
  'fifty at once all come back right',
  async () => {
    const { commands } = await box()
    const all = await Promise.all(Array.from({ length: 50 }, (_, i) => commands.run(`seq 1 200; echo ${i}`)))
    all.forEach((one, i) => assert.ok(one.stdout.endsWith(`\n200\n${i}\n`)))
  },
  { timeout: 60_000 },
)
