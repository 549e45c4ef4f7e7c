// Pause, connect, fork and snapshots: what ran goes on, and what was made of it is its own.
import assert from 'node:assert/strict'
import { partly, rejects, rejectsExactly, skip, test } from './harness.mjs'
import { atLeast, mode, newest, own, sdk, template, using } from './sdk.mjs'

const { Sandbox } = sdk
const nowhere = 'i00000000000000000000'
const has = (thing, what) => thing ?? skip(`this line has no ${what}`)
const pause = (sandbox) => (sandbox.pause ? sandbox.pause() : sandbox.betaPause())
const slow = { timeout: 60_000 }

// A program that only memory can keep.
const sleeper = async (sandbox) => (await sandbox.commands.run('sleep 1000', { background: true })).pid
const alive = (sandbox, pid) => sandbox.commands.run(`kill -0 ${pid}`)
// What is paused and stays so is not there for a command.
const refusesToRun = (sandbox) => newest
  ? rejectsExactly(sandbox.commands.run('true'), sdk.SandboxNotFoundError)
  : rejects(sandbox.commands.run('true'), sdk.SandboxError)
async function until(look, what) {
  for (let i = 0; i < 400; i++) {
    if (await look()) return
    await new Promise((done) => setTimeout(done, 25))
  }
  throw new Error(`${what} did not happen`)
}

test('Sandbox.pause', 'what ran goes on after connect', () => using({}, async (sandbox) => {
  has(sandbox.pause ?? sandbox.betaPause, 'pause')
  const pid = await sleeper(sandbox)
  await pause(sandbox)
  assert.equal(await sandbox.isRunning(), false)
  const back = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
  assert.equal(back.sandboxId, sandbox.sandboxId)
  assert.equal(await sandbox.isRunning(), true)
  await alive(sandbox, pid)
}), slow)
test('Sandbox.pause', 'again says false', () => using({}, async (sandbox) => {
  has(sandbox.pause, 'pause')
  assert.notEqual(await sandbox.pause(), false)
  assert.equal(await sandbox.pause(), false)
}), slow)
test('Sandbox.pause', 'one that is not there is a not-found error', async () => {
  has(Sandbox.pause, 'pause')
  await rejects(Sandbox.pause(nowhere), sdk.NotFoundError)
})
test('Sandbox.betaPause', 'is the same', () => using({}, async (sandbox) => {
  has(Sandbox.betaPause, 'betaPause')
  await sandbox.files.write('/home/user/note', 'kept')
  await sandbox.betaPause()
  assert.equal(await (await Sandbox.connect(sandbox.sandboxId)).files.read('/home/user/note'), 'kept')
}), slow)
test('Sandbox.betaCreate', 'is a create that pauses at its timeout', async () => {
  has(Sandbox.betaCreate, 'betaCreate')
  const sandbox = await Sandbox.betaCreate(template, { timeoutMs: 2000, autoPause: true })
  try {
    await sandbox.files.write('/home/user/note', 'kept')
    await until(async () => !(await sandbox.isRunning()), 'its pause')
    assert.equal(await (await Sandbox.connect(sandbox.sandboxId)).files.read('/home/user/note'), 'kept')
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Sandbox.create', 'pauses at its timeout, and the next call brings it back', async () => {
  has(Sandbox.fork, 'lifecycle')
  const sandbox = await own({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  try {
    await sandbox.files.write('/home/user/note', 'kept')
    await until(async () => !(await sandbox.isRunning()), 'its pause')
    assert.equal((await sandbox.getInfo()).state, 'paused')
    assert.equal(await sandbox.files.read('/home/user/note'), 'kept')
    assert.equal(await sandbox.isRunning(), true)
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Sandbox.create', 'paused without auto-resume it stays paused', async () => {
  has(Sandbox.fork, 'lifecycle')
  const sandbox = await own({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: false } })
  try {
    await until(async () => !(await sandbox.isRunning()), 'its pause')
    await refusesToRun(sandbox)
    await sandbox.connect({ timeoutMs: 60_000 })
    assert.equal((await sandbox.commands.run('echo back')).stdout, 'back\n')
  } finally {
    await sandbox.kill()
  }
}, slow)
// A process is in memory, a note on the disk.
const marked = async (sandbox) => {
  await sandbox.files.write('/home/user/note', 'kept')
  await sandbox.commands.run('touch /dev/shm/mark') // the numbers of processes begin anew, and mean others
  return sleeper(sandbox)
}
const rebooted = async (sandbox) => {
  assert.equal(await sandbox.files.read('/home/user/note'), 'kept')
  await rejects(sandbox.commands.run('test -e /dev/shm/mark'), sdk.CommandExitError)
}
test('Sandbox.pause with keepMemory: false', 'keeps the files, and nothing runs afterwards', () => using({}, async (sandbox) => {
  if (!atLeast('2.49.0')) skip('this line has no such option')
  await marked(sandbox)
  await sandbox.pause({ keepMemory: false })
  assert.equal((await sandbox.getInfo()).state, 'paused')
  await sandbox.connect({ timeoutMs: 60_000 })
  await rebooted(sandbox)
}), slow)
test('Sandbox.connect with onResume', 'reboot leaves the memory behind, restore does not', () => using({}, async (sandbox) => {
  if (!atLeast('2.49.0')) skip('this line has no such option')
  const pid = await marked(sandbox)
  await sandbox.pause()
  await sandbox.connect({ timeoutMs: 60_000, onResume: 'restore' })
  await alive(sandbox, pid)
  await sandbox.pause()
  await sandbox.connect({ timeoutMs: 60_000, onResume: 'reboot' })
  await rebooted(sandbox)
}), slow)
test('Sandbox.create with onTimeout', 'a pause without memory, which no call ends by itself', async () => {
  if (!atLeast('2.49.0')) skip('this line has no such option')
  const sandbox = await own({ lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })
  try {
    await marked(sandbox)
    await sandbox.setTimeout(1000)
    await until(async () => !(await sandbox.isRunning()), 'its pause')
    await refusesToRun(sandbox)
    assert.equal((await sandbox.getInfo()).state, 'paused')
    await sandbox.connect({ timeoutMs: 60_000 })
    await rebooted(sandbox)
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Sandbox.create with autoResume', 'what a call brings back has five minutes', async () => {
  has(Sandbox.fork, 'lifecycle')
  const sandbox = await own({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  try {
    await until(async () => !(await sandbox.isRunning()), 'its pause')
    await sandbox.commands.run('true')
    const left = (await sandbox.getInfo()).endAt.getTime() - Date.now()
    assert.ok(left > 200_000 && left <= 301_000, `${left} ms`)
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Sandbox.kill', 'ends a paused one', async () => {
  const sandbox = await own()
  has(sandbox.pause ?? sandbox.betaPause, 'pause')
  await pause(sandbox)
  const ended = await sandbox.kill()
  if (ended !== undefined) assert.equal(ended, true)  // older lines say nothing here
  await rejects(Sandbox.connect(sandbox.sandboxId), sdk.NotFoundError)
}, slow)
test('Sandbox.fork', 'children have what runs, and go their own ways', () => using({}, async (sandbox) => {
  has(Sandbox.fork, 'fork')
  const pid = await sleeper(sandbox)
  const children = await sandbox.fork({ count: 2 })
  try {
    assert.equal(new Set([sandbox.sandboxId, ...children.map((child) => child.sandboxId)]).size, 3)
    for (const child of children) {
      await alive(child, pid)
      await child.files.write('/home/user/mine', child.sandboxId)
    }
    for (const child of children) assert.equal(await child.files.read('/home/user/mine'), child.sandboxId)
    assert.equal(await sandbox.files.exists('/home/user/mine'), false)
    await alive(sandbox, pid)
  } finally {
    for (const child of children) await child.kill()
  }
}), slow)
test('Sandbox.fork', 'a child that cannot be made is an error of its own', async () => {
  has(Sandbox.fork, 'fork')
  if (mode !== 'http') skip('the key is of the other server')
  const sandbox = await Sandbox.create(template, { apiKey: process.env.ISOLA_FEW_KEY, timeoutMs: 60_000 })
  let children = []
  try {
    children = await sandbox.fork({ count: 3 })
    assert.equal(children.length, 3)
    const made = children.filter((child) => child instanceof Sandbox)
    assert.equal(made.length, 1)
    assert.equal((await made[0].commands.run('echo lives')).stdout, 'lives\n')
    for (const child of children) if (child !== made[0]) assert.equal(child.constructor, sdk.RateLimitError, String(child))
  } finally {
    for (const child of children) if (child instanceof Sandbox) await child.kill()
    await sandbox.kill()
  }
}, slow)
test('Sandbox.fork', 'of one that is not there is a not-found error', async () => {
  has(Sandbox.fork, 'fork')
  await rejects(Sandbox.fork('i00000000000000000000'), sdk.SandboxNotFoundError ?? sdk.NotFoundError)
})
test('Sandbox.createSnapshot', 'of one that is not there is a not-found error', async () => {
  has(Sandbox.createSnapshot, 'snapshots')
  await rejects(Sandbox.createSnapshot('i00000000000000000000'), sdk.SandboxNotFoundError ?? sdk.NotFoundError)
})
test('Sandbox.createSnapshot', 'is a template for new sandboxes', () => using({}, async (sandbox) => {
  has(Sandbox.createSnapshot, 'snapshots')
  const pid = await sleeper(sandbox)
  const made = await sandbox.createSnapshot()
  await sandbox.files.write('/home/user/later', 'x')
  const other = await Sandbox.create(made.snapshotId, { timeoutMs: 60_000 })
  try {
    await alive(other, pid)
    assert.equal(await other.files.exists('/home/user/later'), false)
  } finally {
    await other.kill()
  }
  assert.equal(await Sandbox.deleteSnapshot(made.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(made.snapshotId), false)
}), slow)
test('Sandbox.createSnapshot', 'a name that is used again means the newest', () => using({}, async (sandbox) => {
  if (!atLeast('2.45.0')) skip('snapshots of this line have no names')
  const name = `again-${process.pid}`
  await sandbox.files.write('/home/user/n', 'one')
  const first = await sandbox.createSnapshot({ name })
  await sandbox.files.write('/home/user/n', 'two')
  const second = await sandbox.createSnapshot({ name })
  assert.equal(second.snapshotId, first.snapshotId)
  const other = await Sandbox.create(name, { timeoutMs: 60_000 })
  try {
    assert.equal(await other.files.read('/home/user/n'), 'two')
  } finally {
    await other.kill()
  }
  assert.equal((await sandbox.listSnapshots().nextItems()).length, 1)
  assert.equal(await Sandbox.deleteSnapshot(second.snapshotId), true)
}), slow)
test(['Sandbox.listSnapshots', 'SnapshotPaginator'], 'has those of a sandbox', () => using({}, async (sandbox) => {
  has(Sandbox.listSnapshots, 'snapshots')
  const made = [await sandbox.createSnapshot(), await sandbox.createSnapshot()].map((one) => one.snapshotId)
  const listed = (await sandbox.listSnapshots().nextItems()).map((one) => one.snapshotId)
  assert.deepEqual(listed.sort(), made.sort())
  for (const one of made) assert.equal(await Sandbox.deleteSnapshot(one), true)
}), slow)
test('Sandbox.deleteSnapshot', 'says false for what is not there', async () => {
  has(Sandbox.deleteSnapshot, 'snapshots')
  assert.equal(await Sandbox.deleteSnapshot('nothing:default'), false)
})
