// Runs cells of JavaScript and TypeScript for python/driver.py.
//
// The main thread belongs to the cells: it evaluates them through the inspector in its REPL mode (top-level await,
// declarations that can be made again). A worker speaks with the driver, so that somebody listens while a cell computes,
// and can terminate even an endless loop: the variables stay.
'use strict';
const { Worker, isMainThread, workerData } = require('node:worker_threads');
const fs = require('node:fs');
const util = require('node:util');
const Module = require('node:module');

const encoded = (text) => Buffer.from(String(text), 'utf8').toString('base64') || '-';
const decoded = (word) => (word === '-' ? '' : Buffer.from(word, 'base64').toString('utf8'));

// A pipe takes so much at once, or nothing: two threads write into this one. What is longer goes in pieces.
const PIECE = 3900;
const who = isMainThread ? 'm' : 'w';
function write(line) {
  let data = Buffer.from(line + '\n', 'latin1');
  while (data.length > 0) {
    try {
      data = data.subarray(fs.writeSync(4, data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}
function event(...words) {
  const line = words.join(' ');
  if (line.length <= PIECE) return write(line);
  let at = 0;
  for (; line.length - at > PIECE; at += PIECE) write(`+ ${who} ${line.slice(at, at + PIECE)}`);
  return write(`= ${who} ${line.slice(at)}`);
}

if (isMainThread) {
  const language = process.argv[2];
  process.argv.splice(1);

  // All forms of a value; objects can bring their own.
  const forms = (value) => {
    const own = value && (typeof value === 'object' || typeof value === 'function');
    const custom = own && value[Symbol.for('Jupyter.display')];
    if (typeof custom === 'function') return custom.call(value);
    const out = { 'text/plain': util.inspect(value, { depth: 4, maxArrayLength: 200, maxStringLength: 1 << 20 }) };
    if (own && typeof value.toHtml === 'function') out['text/html'] = String(value.toHtml());
    if (own && typeof value.toSvg === 'function') out['image/svg+xml'] = String(value.toSvg());
    if (own && (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)) {
      try {
        const text = JSON.stringify(value);
        if (text && text.length < 1 << 20) out['application/json'] = JSON.parse(text);
      } catch {}
    }
    return out;
  };
  const show = (data) => event('display', encoded(JSON.stringify(data)));
  const display = (value) => show(forms(value));
  display.html = (text) => show({ 'text/html': String(text) });
  display.markdown = (text) => show({ 'text/markdown': String(text) });
  display.svg = (text) => show({ 'image/svg+xml': String(text) });
  display.png = (bytes) => show({ 'image/png': Buffer.from(bytes).toString('base64') });
  display.json = (value) => show({ 'application/json': value });
  const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  hidden('display', display);
  hidden('require', Module.createRequire(process.cwd() + '/'));
  hidden('__isola', {
    forms: (value) => JSON.stringify(forms(value)),
    import: (name) => import(/^[./]/.test(name) ? require('node:url').pathToFileURL(require('node:path').resolve(name)) : name),
  });
  // What a cell prints takes the way of its results, so that all of it comes in order. (Programs that it starts have the
  // pipes.)
  for (const name of ['stdout', 'stderr']) {
    process[name]._writev = undefined;
    process[name]._write = (chunk, encoding, done) => {
      const bytes = Buffer.isBuffer(chunk) ? chunk : Buffer.from(chunk, encoding);
      for (let at = 0; at < bytes.length; at += 2700) event(name, bytes.subarray(at, at + 2700).toString('base64'));
      done();
    };
  }
  // A promise that nobody waits for must not end the process, and with it all variables.
  process.on('uncaughtException', (error) => console.error('Uncaught', error));
  process.on('unhandledRejection', (error) => console.error('Uncaught (in promise)', error));

  const inspector = require('node:inspector');
  const session = new inspector.Session();
  session.connect();
  const worker = new Worker(__filename, { workerData: { language } });
  worker.on('exit', () => process.exit(0));

  const plain = (value) => {
    if (value.type === 'undefined') return null;
    if ('unserializableValue' in value) return { 'text/plain': value.unserializableValue };
    return { 'text/plain': util.inspect(value.value) };
  };
  const failure = (details) => {
    const thrown = details.exception || {};
    const isError = thrown.subtype === 'error';
    const text = thrown.description || ('value' in thrown ? util.inspect(thrown.value) : details.text || 'Error');
    const head = text.split('\n')[0];
    const named = isError ? /^([\w$.]+)(?:: ([\s\S]*))?$/.exec(head) : null;
    const lines = text.split('\n').filter((line) => !/cells\.js|node:internal|Session\.post|Worker\.emit/.test(line));
    return { name: named ? named[1] : 'Error', value: named ? named[2] || '' : head, traceback: lines.join('\n') };
  };
  const answer = (id, error, result) => {
    if (error) return worker.postMessage({ id, error: { name: 'Error', value: error.message, traceback: '' } });
    if (result.exceptionDetails) return worker.postMessage({ id, error: failure(result.exceptionDetails) });
    const value = result.result;
    if (!value.objectId) return worker.postMessage({ id, data: plain(value) });
    session.post('Runtime.callFunctionOn', {
      objectId: value.objectId, functionDeclaration: 'function () { return __isola.forms(this); }', returnByValue: true,
    }, (wrong, shown) => worker.postMessage({
      id, data: wrong || shown.exceptionDetails ? { 'text/plain': value.description } : JSON.parse(shown.result.value),
    }));
  };
  worker.on('message', (message) => {
    if (message.ping) return worker.postMessage({ pong: message.ping });
    if (message.lasting) return Object.assign(process.env, Object.fromEntries(message.lasting));
    const before = {};
    for (const [name, value] of message.env || []) {
      before[name] = process.env[name];
      if (value === null) delete process.env[name];
      else process.env[name] = value;
    }
    if (message.env) worker.postMessage({ before });
    if (message.code === undefined) return undefined;
    return session.post('Runtime.evaluate', { expression: message.code, replMode: true, awaitPromise: true, objectGroup: 'cells' },
      (error, result) => answer(message.id, error, result));
  });
} else {
  const { parentPort } = require('node:worker_threads');
  const inspector = require('node:inspector');
  const session = new inspector.Session();
  session.connectToMainThread();

  // Cells are no modules: an import statement becomes an awaited one.
  const imports = (code) => code.replace(
    /(?<=^|;)([ \t]*)import\s+(?:type\s+)?(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|(\{[^}]*\})\s*)?(?:from\s*)?(['"])([^'"\n]+)\5[ \t]*;?/gm,
    (_, space, whole, star, names, quote, from) => {
      const load = `await __isola.import(${quote}${from}${quote})`;
      const parts = [];
      if (star) parts.push(`const ${star} = ${load};`);
      if (whole) parts.push(`const {default: ${whole}} = ${load};`);
      if (names) parts.push(`const ${names.replace(/\s+as\s+/g, ': ')} = ${load};`);
      return space + (parts.join(' ') || `${load};`);
    }).replace(/(^|[^\w$.])import\s*\(/g, '$1__isola.import(');

  const prepared = (code) => {
    if (workerData.language === 'typescript') code = Module.stripTypeScriptTypes(code, { mode: 'transform' });
    return imports(code);
  };

  const variables = (words) => words.map((word) => word.split(':').map(decoded));
  let cells = 0, running = null, before = null;
  const waiting = [];
  const end = () => {
    const number = running.number;
    running = null;
    if (before) parentPort.postMessage({ env: Object.entries(before).map(([name, value]) => [name, value === undefined ? null : value]) });
    before = null;
    event('done', number);
    next();
  };
  const fail = (name, value, traceback) => event('error', encoded(name), encoded(value), encoded(traceback || ''));

  function next() {
    if (running || waiting.length === 0) return;
    const words = waiting.shift();
    const env = variables(words.slice(3));
    running = { id: ++cells, number: words[1], env: env.length > 0 };
    try {
      parentPort.postMessage({ id: running.id, code: prepared(decoded(words[2])), env: env.length > 0 ? env : undefined });
    } catch (error) {
      fail(error.name, error.message, error.name === 'SyntaxError' ? '' : error.stack);
      end();
    }
  }

  const pongs = new Map();
  parentPort.on('message', (message) => {
    if (message.pong) return pongs.get(message.pong)?.();
    if (message.before) {
      if (running && running.env) before = message.before, running.env = false;
      return undefined;
    }
    if (!running || message.id !== running.id) return undefined;  // of a cell that was left
    if (message.error) fail(message.error.name, message.error.value, message.error.traceback);
    else if (message.data) event('result', encoded(JSON.stringify(message.data)));
    return end();
  });

  // A cell that waits is left; one that computes, so that the main thread does not even answer, is terminated.
  let pings = 0;
  function interrupt() {
    const cell = running;
    if (!cell) return;
    const stopped = () => {
      if (running !== cell) return;
      fail('Interrupted', 'the cell was interrupted');
      end();
    };
    const ping = ++pings;
    const busy = setTimeout(() => {
      pongs.delete(ping);
      if (running === cell) session.post('Runtime.terminateExecution', stopped);
    }, 200);
    pongs.set(ping, () => {
      clearTimeout(busy);
      pongs.delete(ping);
      stopped();
    });
    parentPort.postMessage({ ping });
  }

  let pieces = [];  // of a line that is not whole yet
  const input = fs.createReadStream('', { fd: 3, autoClose: false });
  input.on('data', (piece) => {
    const lines = piece.toString('latin1').split('\n');
    pieces.push(lines[0]);
    if (lines.length === 1) return;
    lines[0] = pieces.join('');
    pieces = [lines.pop()];
    for (const line of lines) {
      const words = line.split(' ');
      if (words[0] === 'interrupt') interrupt();
      else if (words[0] === 'set') parentPort.postMessage({ lasting: variables(words.slice(1)) });
      else if (words[0] === 'run') waiting.push(words);
    }
    next();
  });
  input.on('end', () => process.exit(0));
}
