import assert from 'node:assert/strict'
import { eventually, rejects, skip, test } from './harness.mjs'
import { box, sdk } from './sdk.mjs'

const keys = (text) => new TextEncoder().encode(text)

async function terminal(options = {}) {
  const { pty } = await box()
  const screen = { text: '' }
  const decoder = new TextDecoder()
  const onData = (data) => (screen.text += decoder.decode(data, { stream: true }))
  const handle = await pty.create({ cols: 80, rows: 24, onData, ...options })
  return { pty, handle, screen, onData }
}

test('pty.create', 'is a terminal of the size asked for', async () => {
  const { pty, handle, screen } = await terminal({ cols: 91, rows: 31, envs: { MARK: 'here' }, cwd: '/tmp' })
  await pty.sendInput(handle.pid, keys('echo "$(stty size) $TERM $MARK $(pwd)"\n'))
  await eventually(() => /31 91 xterm-256color here \/tmp/.test(screen.text), 'the size')
  await pty.sendInput(handle.pid, keys('exit 5\n'))
  const error = await rejects(handle.wait(), sdk.CommandExitError)
  assert.equal(error.exitCode, 5)
})
test('pty.resize', 'is seen inside', async () => {
  const { pty, handle, screen } = await terminal()
  await pty.resize(handle.pid, { cols: 120, rows: 40 })
  await pty.sendInput(handle.pid, keys('stty size\n'))
  await eventually(() => /40 120/.test(screen.text), 'the new size')
  await pty.kill(handle.pid)
})
test('pty.sendInput', 'reaches what runs', async () => {
  const { pty, handle, screen } = await terminal()
  await pty.sendInput(handle.pid, keys('read x; echo "<$x>"\n'))
  await pty.sendInput(handle.pid, keys('typed\n'))
  await eventually(() => /<typed>/.test(screen.text), 'the answer')
  await pty.kill(handle.pid)
})
test('pty.sendInput', 'to what is not there is a NotFoundError', async () =>
  rejects((await box()).pty.sendInput(999999, keys('x')), sdk.NotFoundError))
test(['pty.resize', 'pty.connect'], 'of what is not there is a NotFoundError', async () => {
  const { pty } = await box()
  await rejects(pty.resize(999_999, { cols: 80, rows: 24 }), sdk.NotFoundError)
  if (pty.connect) await rejects(pty.connect(999_999, { onData: () => {} }), sdk.NotFoundError)
})
test('pty.kill', 'ends it, once', async () => {
  const { pty, handle } = await terminal()
  assert.equal(await pty.kill(handle.pid), true)
  await rejects(handle.wait(), sdk.CommandExitError)
  await eventually(async () => (await pty.kill(handle.pid)) === false, 'its end')
})
test('pty.connect', 'joins a terminal that is there', async () => {
  const { pty, handle, onData, screen } = await terminal()
  if (!pty.connect) {
    await pty.kill(handle.pid)
    skip('this line has no such call')
  }
  await handle.disconnect()
  const again = await pty.connect(handle.pid, { onData })
  await pty.sendInput(again.pid, keys('echo back-$((6*7))\n'))
  await eventually(() => /back-42/.test(screen.text), 'the answer')
  await pty.kill(again.pid)
})
