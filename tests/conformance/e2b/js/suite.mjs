// Every public method of the JS SDK, through an unmodified published package. Run by ../run.py.
import { forgotten, runAll, tested } from './harness.mjs'
import { untested } from './methods.mjs'
import { finish, sdk } from './sdk.mjs'
import './sandbox.mjs'
import './commands.mjs'
import './files.mjs'
import './pty.mjs'
import './git.mjs'
import './images.mjs'
import './templates.mjs'
import './builds.mjs'
import './volumes.mjs'
import './secrets.mjs'
import './mcp.mjs'
import './errors.mjs'
import './options.mjs'

if (!process.env.ISOLA_FILTER) for (const method of untested(process.env.E2B_PACKAGE, tested())) forgotten(method)
await runAll(process.env.ISOLA_FILTER, (name) => name in sdk)
await finish()
process.exit(0)
