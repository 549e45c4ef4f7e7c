#include "image/layer_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/ids.h"
#include "image/tree.h"

namespace isola::image {
namespace {
TEST(Btrfs, Quick) {
  ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
  ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  std::string dir = "/tmp/isola-image/" + new_sandbox_id();
  auto store = open_layer_store(dir, {}, std::nullopt);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->name(), "btrfs");
  auto layer = (*store)->create("abc", {.bytes = 64 << 20});
  ASSERT_TRUE(layer) << layer.error().message;
  Fd f(::open((*layer + "/upper/x").c_str(), O_RDWR | O_CREAT, 0600));
  std::string chunk(1 << 20, 'x');
  int n = 0;
  while (n < 200 && ::write(f.get(), chunk.data(), chunk.size()) > 0) ++n;
  fprintf(stderr, "%d %s\n", n, strerror(errno));
  auto u = (*store)->usage("abc");
  ASSERT_TRUE(u) << u.error().message;
  fprintf(stderr, "usage %lu\n", u->bytes);
  f.reset();
  auto d = (*store)->destroy("abc");
  ASSERT_TRUE(d) << d.error().message;
  ASSERT_TRUE((*store)->destroy("abc"));
  store->reset();
  ASSERT_TRUE(remove_tree(dir));
}
}  // namespace
}  // namespace isola::image
