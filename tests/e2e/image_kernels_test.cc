// Kernels live through pauses and in every fork: isola-kernels and what it started are in the memory image.
#include "e2e/images.h"

namespace isola::e2e {
namespace {

using launcher::LaunchRequest;

// What the host does through the guest, by a program inside: one cell, the lines that answer it.
constexpr char kTalk[] = R"(/usr/local/lib/isola/isola-kernels start && python3 - "$CODE" "$LANGUAGE" <<'END'
import json, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect('/run/isola-kernels/socket')
line.sendall(json.dumps({'op': 'execute', 'code': sys.argv[1], 'language': sys.argv[2]}).encode() + b'\n')
for event in map(json.loads, line.makefile()):
    if event['type'] == 'result': print(event['data']['text/plain'])
    if event['type'] in ('stdout', 'stderr'): print(event['text'], end='')
    if event['type'] in ('error', 'failure'): print(event)
END
)";

std::string cell(Counting& box, const std::string& language, const std::string& code) {
  auto said = box.sh("CODE='" + code + "' LANGUAGE=" + language + "\n" + kTalk);
  return said ? *said : "failed: " + said.error().message;
}

class Kernels : public SharedIsland {
 protected:
  void SetUp() override {
    NEEDS_CRIU();
    NEEDS_TEMPLATE("code-interpreter");
    SharedIsland::SetUp();
  }
};

TEST_F(Kernels, VariablesAreThereAfterAPauseAndInEveryFork) {
  auto client = island().client();
  auto box = Counting::start(client, digest_of("code-interpreter"));
  ASSERT_OK(box);
  EXPECT_EQ(cell(*box, "python", "import numpy\nx = numpy.arange(3)"), "");
  EXPECT_EQ(cell(*box, "bash", "y=kept"), "");
  EXPECT_EQ(cell(*box, "javascript", "const z = [1, 2]"), "");
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  for (int i = 0; i < 3; ++i) {
    bool same = i == 0;
    SCOPED_TRACE(same ? "as itself" : "a fork");
    LaunchRequest request{.ephemeral = false, .image = saved->image, .forked = !same, .id = same ? box->id() : ""};
    auto next = Counting::resume(client, request, *box);
    ASSERT_OK(next);
    EXPECT_EQ(cell(*next, "python", "x += 1\nx.tolist()"), "[1, 2, 3]\n");
    EXPECT_EQ(cell(*next, "bash", "echo $y"), "kept\n");
    EXPECT_EQ(cell(*next, "javascript", "z.length"), "2\n");
    auto killed = client.kill(next->id());
    ASSERT_OK(killed);
  }
  (void)client.drop_image(saved->image);
}

}  // namespace
}  // namespace isola::e2e
