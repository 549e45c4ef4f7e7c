// An agent loop with E2B's own JavaScript SDK, on your own machine.
//
//   npm install e2b
//   export E2B_API_URL=http://127.0.0.1:8080 E2B_SANDBOX_URL=http://127.0.0.1:8080 E2B_API_KEY=$(sudo cat /var/lib/isola/key)
//   node agent.mjs "how many prime numbers are there below 1000?"
//
// The model is a function from the conversation so far to the next step. The one here is scripted, so that the example
// runs without an account anywhere; put a call to the model of your choice in its place.
import { CommandExitError, Sandbox } from 'e2b'

async function model(conversation) {
  const tries = conversation.filter((turn) => turn.role === 'tool').length
  if (tries === 0) return { run: 'print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000))' } // a typing error
  if (tries === 1) return { run: 'print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000)))' }
  return { answer: `There are ${conversation.at(-1).text.trim()}.` }
}

// What the model wrote, run where it can do no harm. Errors are for the model to read, not for us to fail on.
async function run(sandbox, code) {
  await sandbox.files.write('step.py', code)
  try {
    const { stdout, stderr } = await sandbox.commands.run('python3 step.py', { timeoutMs: 30_000 })
    return stdout + stderr
  } catch (error) {
    if (error instanceof CommandExitError) return error.stdout + error.stderr
    throw error
  }
}

const question = process.argv[2] ?? 'how many prime numbers are there below 1000?'
const conversation = [{ role: 'user', text: question }]
const sandbox = await Sandbox.create(process.env.E2B_TEMPLATE ?? 'base', { timeoutMs: 120_000, allowInternetAccess: false })
try {
  for (let step = 0; step < 8; step++) {
    const next = await model(conversation)
    if (next.answer) {
      console.log(next.answer)
      break
    }
    const text = await run(sandbox, next.run)
    console.error(`step ${step + 1}: ${text.trim().split('\n').at(-1)}`)
    conversation.push({ role: 'assistant', text: next.run }, { role: 'tool', text })
  }
} finally {
  await sandbox.kill()
}
