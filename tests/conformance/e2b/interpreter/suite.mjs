// The unmodified @e2b/code-interpreter package on port 49999.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import fs from 'node:fs'
import { forgotten, rejects, runAll, test, tested } from '../js/harness.mjs'
import { declared } from '../js/methods.mjs'

const load = createRequire(process.env.E2B_PACKAGE + '/package.json')
const { Sandbox, NotFoundError, TimeoutError } = load('@e2b/code-interpreter')
const [major, minor] = load('@e2b/code-interpreter/package.json').version.split('.').map(Number)

const box = await Sandbox.create({ timeoutMs: 600_000 })
const slow = { timeout: 120_000 }

test('runCode', 'gives the value, and variables stay', async () => {
  await box.runCode('x = 41')
  const done = await box.runCode('x += 1; x')
  assert.equal(done.text, '42')
  assert.equal(done.error, undefined)
  assert.ok(done.executionCount >= 2)
}, slow)

test('runCode', 'output comes while the cell runs', async () => {
  const seen = []
  const done = await box.runCode('import sys\nprint("a")\nprint("b", file=sys.stderr)', {
    onStdout: (m) => seen.push(['out', m.line]), onStderr: (m) => seen.push(['err', m.line]),
  })
  assert.deepEqual(seen, [['out', 'a\n'], ['err', 'b\n']])
  assert.deepEqual(done.logs, { stdout: ['a\n'], stderr: ['b\n'] })
}, slow)

test('runCode', 'errors have name, value and traceback', async () => {
  let heard
  const done = await box.runCode('1/0', { onError: (error) => { heard = error } })
  assert.equal(done.error.name, 'ZeroDivisionError')
  assert.equal(done.error.value, 'division by zero')
  assert.match(done.error.traceback, /ZeroDivisionError/)
  assert.equal(heard.name, 'ZeroDivisionError')
}, slow)

test('ExecutionError', 'is what a cell that fails is answered with', async () => {
  const { error } = await box.runCode('raise KeyError("gone")')
  assert.equal(error.constructor.name, 'ExecutionError')
  assert.deepEqual([error.name, error.value], ['KeyError', "'gone'"])
})
test('runCode', 'a text is its text', async () => assert.equal((await box.runCode('"abc"')).text, 'abc'), slow)

test('runCode', 'environment variables for one cell', async () => {
  const code = 'import os; os.getenv("CELL")'
  assert.equal((await box.runCode(code, { envs: { CELL: 'one' } })).text, 'one')
  assert.equal((await box.runCode(code)).text, undefined)
}, slow)

test('runCode', 'a chart as data', async () => {
  const done = await box.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label="l")\nplt.xlabel("t (s)")\nplt.title("T")\nplt.show()')
  const [result] = done.results
  assert.ok(result.png)
  assert.ok(result.svg)
  assert.equal(result.chart.type, 'line')
  assert.equal(result.chart.title, 'T')
  assert.equal(result.chart.x_unit, 's')
  assert.equal(result.chart.x_label, 't (s)')
  assert.deepEqual(result.chart.elements, [{ label: 'l', points: [[1, 3], [2, 4]] }])
}, slow)

test('runCode', 'a frame as columns', async () => {
  const done = await box.runCode('import pandas as pd\npd.DataFrame({"a": [1, 2], "b": ["x", "y"]})')
  assert.deepEqual(done.results[0].data, { a: [1, 2], b: ['x', 'y'] })
  assert.match(done.results[0].html, /<table/)
}, slow)

for (const [language, code, text] of [['js', 'const k = 40; k + 2', '42'], ['ts', 'const k: number = 40; k + 2', '42'],
  ['r', 'x <- 40; x + 2', '[1] 42'], ['java', 'int k = 40; k + 2', '42']])
  test('runCode', `language ${language}`, async () => assert.equal((await box.runCode(code, { language })).text, text), slow)

test('runCode', 'language bash', async () => {
  assert.deepEqual((await box.runCode('echo hi', { language: 'bash' })).logs.stdout, ['hi\n'])
}, slow)

test('runCode', 'a client that gives up interrupts the cell', async () => {
  await rejects(box.runCode('import time; time.sleep(600)', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await box.runCode('"on"')).text, 'on')
}, slow)

test('runCode', 'a sandbox that ends under a cell is no end of the cell', async () => {
  const other = await Sandbox.create({ timeoutMs: 120_000 })
  let heard
  const begun = new Promise((done) => { heard = done })
  const running = other.runCode('import time\nprint("on", flush=True)\ntime.sleep(600)', { onStdout: heard })
  // Older lines pass on what fetch says.
  const ends = rejects(running, major > 2 || minor >= 6 ? TimeoutError : TypeError)
  await begun
  await other.kill()
  await ends
  await rejects(other.runCode('1'), TimeoutError)
  await rejects(other.createCodeContext(), TimeoutError)
}, slow)

test('runCode', 'a picture that is saved is shown', async () => {
  const done = await box.runCode('from PIL import Image\nImage.new("RGB", (4, 4)).save("/tmp/four.png")')
  assert.equal(done.error, undefined)
  assert.ok(done.results.some((one) => one.png))
}, slow)

test('createCodeContext', 'has its own variables and folder', async () => {
  const context = await box.createCodeContext({ cwd: '/tmp' })
  await box.runCode('mine = 1', { context })
  assert.equal((await box.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await box.runCode('mine')).error.name, 'NameError')
  assert.ok((await box.listCodeContexts()).some((one) => one.id === context.id && one.cwd === '/tmp' && one.language === 'python'))
}, slow)

test('restartCodeContext', 'forgets the variables', async () => {
  const context = await box.createCodeContext()
  await box.runCode('y = 1', { context })
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('y', { context })).error.name, 'NameError')
}, slow)

test('removeCodeContext', 'it is gone', async () => {
  const context = await box.createCodeContext()
  await box.removeCodeContext(context)
  await rejects(box.runCode('1', { context }), NotFoundError)
}, slow)

test('listCodeContexts', 'has the default ones', async () => {
  const languages = (await box.listCodeContexts()).map((one) => one.language)
  for (const wanted of ['python', 'javascript']) assert.ok(languages.includes(wanted))
}, slow)

const text = fs.readFileSync(process.env.E2B_PACKAGE + '/node_modules/@e2b/code-interpreter/dist/index.d.ts', 'utf8')
if (!process.env.ISOLA_FILTER) for (const name of declared(text)) {
  const method = name.replace('Sandbox.', '')
  if (!tested().has(method)) forgotten(method)
}
await runAll(process.env.ISOLA_FILTER)
await box.kill()
process.exit(0)
