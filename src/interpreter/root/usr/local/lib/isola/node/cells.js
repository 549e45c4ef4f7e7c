// Runs cells of JavaScript and TypeScript for python/driver.py.
//
// The main thread belongs to the cells. A worker reads requests and evaluates them there through the inspector, in its
// REPL mode: top-level await, declarations that can be made again, and an interrupt that ends even an endless loop
// without losing anything.
'use strict';
const { Worker, isMainThread, workerData } = require('node:worker_threads');
const fs = require('node:fs');
const util = require('node:util');
const Module = require('node:module');

const encoded = (text) => Buffer.from(String(text), 'utf8').toString('base64') || '-';
const decoded = (word) => (word === '-' ? '' : Buffer.from(word, 'base64').toString('utf8'));

function event(...words) {
  let data = Buffer.from(words.join(' ') + '\n');
  while (data.length > 0) {
    try {
      data = data.subarray(fs.writeSync(4, data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
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
  // A promise that nobody waits for must not end the process, and with it all variables.
  process.on('uncaughtException', (error) => console.error('Uncaught', error));
  process.on('unhandledRejection', (error) => console.error('Uncaught (in promise)', error));
  const worker = new Worker(__filename, { workerData: { language } });
  worker.on('exit', () => process.exit(0));
} else {
  const inspector = require('node:inspector');
  const session = new inspector.Session();
  session.connectToMainThread();
  const post = (method, params) => new Promise((resolve, reject) =>
    session.post(method, params, (error, result) => (error ? reject(error) : resolve(result))));

  // Cells are no modules: an import statement becomes an awaited one.
  const imports = (code) => code.replace(
    /(^|;)([ \t]*)import\s+(?:type\s+)?(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|(\{[^}]*\})\s*)?(?:from\s*)?(['"])([^'"\n]+)\5[ \t]*;?/gm,
    (_, before, space, whole, star, names, quote, from) => {
      const load = `await __isola.import(${quote}${from}${quote})`;
      const parts = [];
      if (star) parts.push(`const ${star} = ${load};`);
      if (whole) parts.push(`const {default: ${whole}} = ${load};`);
      if (names) parts.push(`const ${names.replace(/\s+as\s+/g, ': ')} = ${load};`);
      return before + space + (parts.join(' ') || `${load};`);
    }).replace(/(^|[^\w$.])import\s*\(/g, '$1__isola.import(');

  const prepared = (code) => {
    if (workerData.language === 'typescript') code = Module.stripTypeScriptTypes(code, { mode: 'transform' });
    return imports(code);
  };

  let interrupted = null;
  async function evaluate(code) {
    const stopped = new Promise((resolve) => { interrupted = () => resolve('interrupted'); });
    const answer = post('Runtime.evaluate', {
      expression: code, replMode: true, awaitPromise: true, userGesture: true, allowUnsafeEvalBlockedByCSP: true,
    });
    answer.catch(() => {});
    const first = await Promise.race([answer, stopped]);
    interrupted = null;
    return first;
  }

  const plain = (value) => {
    if (value.type === 'undefined') return null;
    if ('unserializableValue' in value) return { 'text/plain': value.unserializableValue };
    return { 'text/plain': util.inspect(value.value) };
  };

  async function forms(value) {
    if (!value.objectId) return plain(value);
    const out = await post('Runtime.callFunctionOn', {
      objectId: value.objectId, functionDeclaration: 'function () { return __isola.forms(this); }', returnByValue: true,
    });
    return out.exceptionDetails ? { 'text/plain': value.description } : JSON.parse(out.result.value);
  }

  function failure(details) {
    const thrown = details.exception || {};
    const text = thrown.description || (('value' in thrown) ? util.inspect(thrown.value) : details.text || 'Error');
    const head = text.split('\n')[0];
    const named = /^(?:Uncaught )?([\w$.]+)(?:: ([\s\S]*))?$/.exec(head);
    const name = thrown.className && thrown.subtype === 'error' ? (named ? named[1] : thrown.className) : 'Error';
    const value = named && named[2] !== undefined && thrown.subtype === 'error' ? named[2] : head;
    const lines = text.split('\n').filter((line) => !/cells\.js|node:internal/.test(line));
    event('error', encoded(name), encoded(value), encoded(lines.join('\n')));
  }

  const env = (variables) => post('Runtime.callFunctionOn', {
    functionDeclaration: `function (pairs) {
      const before = {};
      for (const [name, value] of pairs) {
        before[name] = process.env[name];
        if (value === null) delete process.env[name]; else process.env[name] = value;
      }
      return JSON.stringify(Object.entries(before).map(([name, value]) => [name, value === undefined ? null : value]));
    }`,
    arguments: [{ value: variables }], executionContextId: context, returnByValue: true,
  });

  let context = 1;
  async function run(words) {
    let before = null;
    try {
      const pairs = words.slice(2).map((word) => word.split('=')).map(([name, ...value]) => [decoded(name), decoded(value.join('='))]);
      const code = prepared(decoded(words[1]));
      if (pairs.length > 0) before = JSON.parse((await env(pairs)).result.value);
      const answer = await evaluate(code);
      if (answer === 'interrupted') {
        event('error', encoded('Interrupted'), encoded('the cell was interrupted'), '-');
      } else if (answer.exceptionDetails) {
        if (stopping) event('error', encoded('Interrupted'), encoded('the cell was interrupted'), '-');
        else failure(answer.exceptionDetails);
      } else {
        const data = await forms(answer.result);
        if (data) event('result', encoded(JSON.stringify(data)));
      }
    } catch (error) {
      event('error', encoded(error.name || 'Error'), encoded(error.message || error), encoded(error.stack || ''));
    }
    stopping = false;
    try {
      if (before) await env(before);
    } catch {}
    event('done');
  }

  let stopping = false;
  async function interrupt() {
    if (!interrupted) return;
    stopping = true;
    const stop = interrupted;
    await post('Runtime.terminateExecution').catch(() => {});
    // A cell that waits for a promise has nothing that could be terminated: it is left, and so is the order to
    // terminate, which would hit the next cell.
    setTimeout(async () => {
      if (interrupted !== stop) return;
      await post('Runtime.evaluate', { expression: '0' }).catch(() => {});
      stop();
    }, 100);
  }

  let chain = post('Runtime.enable').catch(() => {});
  session.on('Runtime.executionContextCreated', ({ params }) => { context = params.context.id; });
  let text = '';
  const input = fs.createReadStream('', { fd: 3, autoClose: false });
  input.on('data', (piece) => {
    text += piece.toString('latin1');
    const lines = text.split('\n');
    text = lines.pop();
    for (const line of lines) {
      const words = line.split(' ');
      if (words[0] === 'interrupt') interrupt();
      else if (words[0] === 'run') chain = chain.then(() => run(words));
    }
  });
  input.on('end', () => process.exit(0));
}
