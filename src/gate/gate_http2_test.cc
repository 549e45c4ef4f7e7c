// HTTP/2 through the gate: streams one by one, by real clients and against a server of Node's.
#include <fmt/format.h>

#include "gate/tls_world.h"

namespace isola::gate::testing {
namespace {

// At 203.0.113.10:9443, HTTP/2 and HTTP/1: says who asked for what, wants a key for /key, reflects at /echo, sends
// trailers at /trailers, gives back a body at /body, much at /much, and gzip at /gzip.
constexpr char kServer[] = R"js(
const http2 = require('http2');
const server = http2.createSecureServer({key: process.env.KEY, cert: process.env.CERT, allowHTTP1: true});
server.on('session', s => { s.on('error', () => {}); });
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  const path = headers[':path'];
  const told = headers['authorization'] || 'nothing';
  if (path.startsWith('/key')) {
    // Behind the whole body: clients differ in what they make of an answer that comes before their question is over.
    stream.respond({':status': told === 'Bearer ' + process.env.VALUE ? 200 : 401});
    stream.resume();
    return stream.on('end', () => stream.end('welcome'));
  }
  if (path === '/echo') return stream.respond({':status': 200, 'x-said': told}), stream.end('you said ' + told);
  if (path === '/names') {
    const name = told.slice(7);
    stream.respond({':status': 200, ['x-' + name]: '1'}, {waitForTrailers: true});
    stream.on('wantTrailers', () => stream.sendTrailers({['y-' + name]: '2'}));
    return stream.end('named');
  }
  if (path === '/slow-echo') {
    stream.respond({':status': 200});
    let i = 0;
    const next = () => i < told.length ? stream.write(told[i++], () => setImmediate(next)) : stream.end();
    return next();
  }
  if (path === '/gzip') return stream.respond({':status': 200, 'content-encoding': 'gzip'}), stream.end('x');
  if (path === '/drips') {
    stream.respond({':status': 200});
    const drip = setInterval(() => stream.destroyed ? clearInterval(drip) : stream.write('m'), 10);
    return;
  }
  // Stops in the middle of what could become the value, until somebody else says so.
  if (path === '/stops') {
    stream.respond({':status': 200});
    stream.write('say: ' + process.env.VALUE.slice(0, 9));
    return server.once('go on', () => stream.end('!'));
  }
  if (path === '/go-on') return server.emit('go on'), stream.respond({':status': 200}), stream.end('ok');
  if (path === '/coding') return stream.respond({':status': 200, 'content-encoding': told.slice(7)}), stream.end('x');
  // Packs its messages where it may, as servers of gRPC and Connect do.
  if (path.startsWith('/messages')) {
    const connect = path.endsWith('connect');
    const [asks, says] = connect ? ['connect-accept-encoding', 'connect-content-encoding']
                                 : ['grpc-accept-encoding', 'grpc-encoding'];
    const packs = path.includes('always') || (headers[asks] || 'gzip').includes('gzip');
    stream.respond({':status': 200, 'content-type': headers['content-type'], [says]: packs ? 'gzip' : 'identity'});
    const text = Buffer.from(told);
    return stream.end(packs ? require('zlib').gzipSync(text) : text);
  }
  if (path === '/trailers') {
    stream.respond({':status': 200, 'content-type': 'application/grpc'}, {waitForTrailers: true});
    stream.on('wantTrailers', () => stream.sendTrailers({'grpc-status': '0', 'grpc-message': told}));
    let size = 0;
    stream.on('data', d => size += d.length);
    stream.on('end', () => stream.end('got ' + size));
    return;
  }
  if (path === '/much') {
    stream.respond({':status': 200});
    let left = 20000000;
    const more = () => {
      while (left > 0) { left -= 50000; if (!stream.write(Buffer.alloc(50000, 'm'))) return stream.once('drain', more); }
      stream.end();
    };
    return more();
  }
  if (path === '/endless') {
    stream.respond({':status': 200});
    const more = () => {
      while (!stream.destroyed && stream.write(Buffer.alloc(50000, 'm'))) {}
      if (!stream.destroyed) stream.once('drain', more);
    };
    return more();
  }
  if (path === '/goaway') { stream.respond({':status': 200}); stream.end('bye'); return stream.session.close(); }
  if (path === '/early') {
    stream.respond({':status': 200});
    stream.end('enough');
    return stream.on('finish', () => stream.close(http2.constants.NGHTTP2_NO_ERROR));
  }
  if (path === '/reset') return stream.close(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
  if (path === '/hints') { stream.additionalHeaders({':status': 103, link: 'x'}); }
  if (path === '/many-hints') for (let i = 0; i < 17; ++i) stream.additionalHeaders({':status': 103, link: 'x'});
  let size = 0;
  stream.on('data', d => size += d.length);
  stream.on('end', () => {
    if (stream.destroyed) return;
    stream.respond({':status': 200});
    stream.end(`${headers[':method']} ${headers[':authority']} ${path} ${size} ${told} ${headers['te'] || ''}`);
  });
});
server.listen(9443, '203.0.113.10', () => console.log('ready'));
)js";

// Inside: `session` is connected to the gate, `ask(headers, body)` gives [status, text, trailers] or ['error', code].
constexpr char kClient[] = R"js(
const http2 = require('http2'), fs = require('fs');
const session = http2.connect('https://a.example:9443', {ca: fs.readFileSync(process.env.CA),
  lookup: (name, o, done) => o && o.all ? done(null, [{address: process.env.AT, family: 4}]) : done(null, process.env.AT, 4)});
session.on('error', e => { console.log('session error ' + e.code); process.exit(0); });
const ask = (headers, body, trailers) => new Promise(done => {
  const r = session.request(typeof headers === 'string' ? {':path': headers} : headers,
                            {endStream: body === undefined, waitForTrailers: !!trailers});
  if (trailers) r.on('wantTrailers', () => r.sendTrailers(trailers));
  let text = '', status = 0, tail = {};
  r.setEncoding('utf8');
  r.on('response', h => { status = h[':status']; r.said = h['x-said']; });
  r.on('trailers', t => tail = t);
  r.on('data', d => text += d);
  r.on('error', () => {});
  r.on('close', () => done(r.rstCode && !status ? ['error', r.rstCode] : [status, text, tail, r.said]));
  if (body !== undefined) r.end(body);
});
)js";

class Http2Test : public InterceptTest {
 protected:
  void SetUp() override {
    InterceptTest::SetUp();
    if (IsSkipped()) return;
    if (std::system("node --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no node";
    auto leaf = upstream_authority->leaf("a.example").value();
    auto text_of = [](auto write) {
      BIO* bio = BIO_new(BIO_s_mem());
      write(bio);
      char* data = nullptr;
      long size = BIO_get_mem_data(bio, &data);
      std::string out(data, static_cast<size_t>(size));
      BIO_free(bio);
      return out;
    };
    auto key_text = text_of(
        [&](BIO* bio) { PEM_write_bio_PrivateKey(bio, leaf->key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
    auto certificate = text_of([&](BIO* bio) { PEM_write_bio_X509(bio, leaf->certificate.get()); });
    script.emplace(kServer);
    int out[2];
    ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
    node = ::fork();
    if (node == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
      ::setenv("KEY", key_text.c_str(), 1), ::setenv("CERT", certificate.c_str(), 1), ::setenv("VALUE", kValue, 1);
      ::dup2(out[1], 1);
      if (::setns(world->outside_netns().get(), CLONE_NEWNET) == 0)
        ::execlp("node", "node", script->path().c_str(), nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    char c = 0;
    ASSERT_EQ(::read(out[0], &c, 1), 1) << "the server did not start";
    ::close(out[0]);
  }
  void TearDown() override {
    if (node > 0) ::kill(node, SIGKILL), ::waitpid(node, nullptr, 0);
    InterceptTest::TearDown();
  }
  // Inside; prints what `body` logs.
  std::string script_in(const Box& box, const std::string& body) {
    Scrap file(kClient + "(async () => {\n"s + body + "\nsession.close(); process.exit(0); })();\n");
    return box.run([&] {
      return shell("CA=" + authority->path() + " AT=" + resolve("a.example") + " timeout 30 node " + file.path());
    });
  }

  std::optional<Scrap> script;
  pid_t node = -1;
};

TEST_F(Http2Test, AKeyIsSetAndEachRequestIsJudged) {
  auto only = bearer();
  only.path_prefix = "/key";
  Box box = inside("deny a.example:9443 methods DELETE\ndeny a.example:9443 paths /secret\nallow a.example\n", {only});
  EXPECT_EQ(script_in(box, R"js(
    const all = await Promise.all([ask('/key'), ask({':path': '/x', ':method': 'DELETE'}), ask('/secret/y'),
      ask('/x', 'z'.repeat(300000)), ask({':path': '/key', authorization: 'Bearer mine'}),
      ask({':path': '/other', authorization: 'Bearer mine', te: 'trailers'}), ask('/a/%2e%2e/secret')]);
    for (const a of all) console.log(a[0], a[1].trim().slice(0, 59));
  )js"),
            "200 welcome\n"
            "403 {\"by\":\"isola gate\",\"error\":\"no rule lets this method and pa\n"
            "403 {\"by\":\"isola gate\",\"error\":\"no rule lets this method and pa\n"
            "200 GET a.example:9443 /x 300000 nothing\n"
            "200 welcome\n"
            "200 GET a.example:9443 /other 0 nothing trailers\n"
            "400 {\"by\":\"isola gate\",\"error\":\"a path that is not clear: a seg\n");
  auto event = world->next(Event::Kind::injected);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->binding + event->path, "b1/key");
}

TEST_F(Http2Test, AnotherHostIsMisdirectedAndTheOthersGoOn) {
  Box box = inside("allow a.example\nallow b.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    const all = await Promise.all([ask({':path': '/key', ':authority': 'b.example'}), ask('/key'),
      ask({':path': '/key', ':authority': 'a.example:9443', host: 'b.example'}),
      ask({':method': 'CONNECT', ':authority': 'b.example:443'}), ask({':path': '/key', ':scheme': 'http'}), ask('/key')]);
    console.log(all.map(a => a[0]).join(' '));
  )js"),
            "421 200 421 403 400 200\n");
  EXPECT_EQ(world->next_denial(), "authority-differs a.example:9443");
}

TEST_F(Http2Test, WhatIsReflectedIsBlottedOut) {
  Box box = inside("allow a.example\n", {bearer()});
  std::string stars(sizeof kValue - 1, '*');
  EXPECT_EQ(script_in(box, R"js(
    for (const path of ['/echo', '/slow-echo', '/gzip']) {
      const a = await ask(path);
      console.log(a[0], path === '/gzip' ? '' : a[1], a[3] || '');
    }
    const c = await ask('/coding');
    console.log(c[0], c[1].includes('encoded'), c[1].includes('Hunter2'));
    const t = await ask('/trailers', 'x'.repeat(100000));
    console.log(t[0], t[1], t[2]['grpc-status'], t[2]['grpc-message']);
  )js"),
            "200 you said Bearer " + stars + " Bearer " + stars + "\n200 Bearer " + stars +
                " \n502  \n502 true false\n200 got 100000 0 Bearer " + stars + "\n");
}

// What gRPC and Connect call encoded is not the body but each message in it.
TEST_F(Http2Test, MessagesThatArePackedAreNotLetThrough) {
  Box box = inside("allow a.example\n", {bearer()});
  std::string stars(sizeof kValue - 1, '*');
  EXPECT_EQ(script_in(box, R"js(
    for (const [path, type] of [['/messages', 'application/grpc'], ['/messages-connect', 'application/connect+proto'],
                                ['/messages-always', 'application/grpc'], ['/messages-always-connect', 'application/connect+proto']]) {
      const a = await ask({':path': path, ':method': 'POST', 'content-type': type, 'grpc-accept-encoding': 'gzip',
                           'connect-accept-encoding': 'gzip'}, 'x');
      console.log(a[0], a[0] === 200 ? a[1] : a[1].includes('encoded'));
    }
  )js"),
            "200 Bearer " + stars + "\n200 Bearer " + stars + "\n502 true\n502 true\n");
}

TEST_F(Http2Test, NamesOfFieldsAreSearchedToo) {
  auto small = bearer();  // as all of HTTP/2's names are
  const std::string value = "only-small-letters-0123456789";
  small.sealed = vault::seal(key->open_key(), value).value();
  Box box = inside("allow a.example\n", {small});
  std::string stars(value.size(), '*');
  EXPECT_EQ(script_in(box, R"js(
    const r = session.request({':path': '/names'});
    let names = [];
    r.on('response', h => names.push(...Object.keys(h).filter(n => n.startsWith('x-'))));
    r.on('trailers', t => names.push(...Object.keys(t)));
    r.resume();
    await new Promise(done => r.on('close', done));
    console.log(names.join(' '));
  )js"),
            "x-" + stars + " y-" + stars + "\n");
}

// The stream ends, the connection and its other streams go on.
TEST_F(Http2Test, WhatIsNotToComeBackEndsItsStream) {
  auto blocks = bearer();
  blocks.blocks = true;
  Box box = inside("allow a.example\n", {blocks});
  EXPECT_EQ(script_in(box, R"js(
    const slow = await ask('/slow-echo');
    console.log(slow[0], slow[1].length < 20, slow[1].includes('Hunter2'));
    console.log((await ask('/echo'))[0]);
    console.log(...(await ask('/goaway')).slice(0, 2));
  )js"),
            "200 true false\n502\n200 bye\n");
}

// Its first letters, though another stream of the same connection never stops.
TEST_F(Http2Test, AnAnswerThatStopsIsLetGoBesideABusyOne) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    const busy = session.request({':path': '/drips'});
    busy.on('error', () => {});
    await new Promise(done => busy.once('data', done));
    busy.resume();
    const r = session.request({':path': '/stops'});
    r.setEncoding('utf8');
    let text = '';
    await new Promise(done => r.on('data', d => { text += d; if (text.length >= 8) done(); }));
    console.log(text);
    const ended = new Promise(done => r.on('end', done));
    await ask('/go-on');
    await ended;
    busy.close();
    console.log(text);
  )js"),
            "say: Hun\nsay: Hunter2-T!\n");
}

TEST_F(Http2Test, RevocationCutsADownload) {
  Box box = inside("allow a.example\n", {bearer()});
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  std::string how;
  std::thread downloading([&] {
    how = script_in(box, fmt::format(R"js(
      const r = session.request({{':path': '/endless'}});
      r.on('error', () => {{}});
      r.once('data', () => fs.writeSync({}, 'x'));
      r.resume();
      setTimeout(() => {{ console.log('goes on'); process.exit(0); }}, 20000);
      await new Promise(done => r.on('close', done));
      console.log('over');
    )js",
                                     told[1]));
  });
  char c = 0;
  EXPECT_EQ(::read(told[0], &c, 1), 1);
  EXPECT_EQ(world->set_policy(box, "allow a.example\n", false, encoded({bearer()})), "") << "the same one, sealed anew";
  EXPECT_EQ(world->set_policy(box, "allow a.example\n"), "");
  downloading.join();
  EXPECT_TRUE(how == "over\n" || how.starts_with("session error")) << how << "; the server never ends it";
  EXPECT_EQ(world->next_denial(), "revoked a.example:9443");
  ::close(told[0]), ::close(told[1]);
}

TEST_F(Http2Test, MuchBothWays) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    const all = await Promise.all([...Array(4).keys()].map(i => i % 2 ? ask('/much') : ask('/up', Buffer.alloc(5000000))));
    console.log(all.map(a => a[0] + ' ' + (a[1].length > 1000 ? a[1].length : a[1].split(' ')[3])).join(', '));
  )js"),
            "200 5000000, 200 20000000, 200 5000000, 200 20000000\n");
}

TEST_F(Http2Test, EndsAreToldAsTheyAre) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    console.log((await ask('/reset')).join(' '));
    const hints = session.request({':path': '/hints'});
    hints.on('headers', h => console.log('hints', h[':status']));
    await new Promise(done => { hints.on('close', done); hints.resume(); });
    session.on('goaway', code => console.log('goaway', code));
    const last = await ask('/goaway');
    console.log(last[0], last[1]);
    await new Promise(done => session.closed ? done() : session.on('close', done));
    console.log('closed');
  )js"),
            "error 11\nhints 103\ngoaway 0\n200 bye\nclosed\n");
}

// The client has not finished its request, and never will: it hears that nobody wants the rest.
TEST_F(Http2Test, AServerThatHasHeardEnoughSaysSo) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    const r = session.request({':path': '/early', ':method': 'POST'}, {endStream: false});
    let text = '';
    r.setEncoding('utf8');
    r.on('data', d => text += d);
    r.on('error', () => {});
    r.write('x');
    await new Promise(done => r.on('close', done));
    console.log(text, r.rstCode);
    console.log((await ask('/key'))[0]);
  )js"),
            "enough 0\n200\n");
}

// A value that was made for a while is over: its request waits until there is another, and goes on with all of it.
TEST_F(Http2Test, ARequestWaitsForAValueThatIsBeingMade) {
  auto old = bearer(), fresh = bearer();
  old.sealed = vault::seal(key->open_key(), "an-old-value").value();
  old.until = old.due = 1;
  Box box = inside("allow a.example\n", {old});
  std::string said;
  std::thread asking([&] {
    said = script_in(box, R"js(
      const all = await Promise.all([ask('/key'), ask('/echo'), ask('/key', 'z'.repeat(300000))]);
      console.log(all.map(a => a[0]).join(' '));
    )js");
  });
  EXPECT_EQ(world->next_wanted(), box.id);
  EXPECT_EQ(world->set_policy(box, "allow a.example\n", false, encoded({fresh})), "");
  asking.join();
  EXPECT_EQ(said, "200 200 200\n");
}

TEST_F(Http2Test, AnswersBeforeTheAnswerAreBounded) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    console.log((await ask('/many-hints'))[0]);
    console.log((await ask('/key'))[0]);
  )js"),
            "502\n200\n");
}

TEST_F(Http2Test, HeadsAreBounded) {
  Box box = inside("allow a.example\n", {bearer()});
  EXPECT_EQ(script_in(box, R"js(
    const big = {':path': '/key'};
    for (let i = 0; i < 100; ++i) big['x-' + i] = 'y'.repeat(200);
    console.log((await ask(big))[0]);
    for (let i = 0; i < 150; ++i) big['z-' + i] = 'y';
    console.log((await ask(big))[0]);
    console.log((await ask('/key'))[0]);
  )js"),
            "200\n431\n200\n");
}

TEST_F(Http2Test, RealClients) {
  Box box = inside("allow a.example\n", {bearer()});
  auto run = [&](const std::string& command) {
    return box.run([&] { return shell("AT=" + resolve("a.example") + "; CA=" + authority->path() + "; " + command); });
  };
  EXPECT_EQ(run("curl -sS --http2 --max-time 20 -w ' %{http_version} ' --cacert $CA --resolve a.example:9443:$AT "
                "https://a.example:9443/key https://a.example:9443/key"),
            "welcome 2 welcome 2 ");
  EXPECT_EQ(run("curl -sS --http2 --max-time 20 -w ' %{http_version}' --cacert $CA --resolve a.example:9443:$AT "
                "--data-binary @/etc/os-release -X PUT https://a.example:9443/key"),
            "welcome 2");
  if (std::system("h2load --version >/dev/null 2>&1") == 0) {
    EXPECT_NE(run("h2load -n 500 -c 2 -m 20 --connect-to=$AT:9443 https://a.example:9443/key")
                  .find("500 succeeded, 0 failed, 0 errored, 0 timeout"),
              std::string::npos);
  }
}

// The protocol is the server's choice among what the client offers.
TEST_F(Http2Test, BothLegsSpeakTheSame) {
  Box box = inside("allow a.example\n", {bearer()});
  auto chosen = [&](const std::string& offered) {
    return box.run([&] {
      return shell("openssl s_client -alpn '" + offered + "' -servername a.example -CAfile " + authority->path() +
                   " -connect " + resolve("a.example") + ":9443 </dev/null 2>/dev/null | grep -a ALPN");
    });
  };
  EXPECT_EQ(chosen("h2,http/1.1"), "ALPN protocol: h2\n");
  EXPECT_EQ(chosen("http/1.1"), "ALPN protocol: http/1.1\n");
  EXPECT_EQ(
      box.run([&] { return secure_talk("a.example", kSecurePort, authority->path(), "", "", "imap"); }).substr(0, 4),
      "tls:");
}

}  // namespace
}  // namespace isola::gate::testing
