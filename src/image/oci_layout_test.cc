#include "image/oci_layout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "image/tree.h"

namespace isola::image {
namespace {

using nlohmann::json;

class OciLayout : public ::testing::Test {
 protected:
  OciLayout() {
    char name[] = "/tmp/isola-oci-XXXXXX";
    if (!::mkdtemp(name)) std::abort();
    folder_ = name;
  }
  ~OciLayout() override { (void)remove_tree(folder_); }

  void write(const std::string& name, const std::string& text) {
    auto slash = name.rfind('/');
    EXPECT_TRUE(make_dirs(folder_ + "/" + name.substr(0, slash == name.npos ? 0 : slash)));
    EXPECT_TRUE(replace_file(folder_ + "/" + name, text, 0600));
  }
  json blob(const std::string& text) {
    std::string digest = sha256(text).value();
    write("blobs/sha256/" + digest, text);
    return {{"digest", "sha256:" + digest}, {"size", text.size()}};
  }
  void make(json config = {{"config", {{"Env", {"A=1", "B=x=y", "odd"}}, {"User", "app"}, {"WorkingDir", "/srv"}}}}) {
    manifest_ = {{"config", blob(config.dump())}, {"layers", {blob("layer one"), blob("layer two")}}};
    json one = blob(manifest_.dump());
    digest_ = one["digest"].get<std::string>().substr(7);
    index_ = {{"manifests", {one}}};
    write("oci-layout", "{}");
    write("index.json", index_.dump());
  }
  Code code() {
    auto image = read_image_folder(folder_);
    return image ? Code::exists : image.error().code;
  }
  std::string folder_, digest_;
  json manifest_, index_;
};

TEST_F(OciLayout, AsToolsWriteIt) {
  make();
  auto image = read_image_folder(folder_);
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->digest, digest_);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(image->env, (Pairs{{"A", "1"}, {"B", "x=y"}}));
  EXPECT_EQ(image->user, "app");
  EXPECT_EQ(image->cwd, "/srv");
  ASSERT_EQ(image->layers.size(), 2u);
  for (const auto& layer : image->layers) EXPECT_TRUE(check_layer(layer));
}

TEST_F(OciLayout, OneOfSeveralMachines) {
  make();
  json other = blob("{}"), ours = index_["manifests"][0];
  other["platform"] = {{"os", "linux"}, {"architecture", "arm64"}};
  ours["platform"] = {{"os", "linux"}, {"architecture", "amd64"}};
  json inner = blob(json{{"manifests", {other, ours}}}.dump());
  write("index.json", json{{"manifests", {inner}}}.dump());
  auto image = read_image_folder(folder_);
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_EQ(image->digest, digest_);
  write("index.json", json{{"manifests", {other}}}.dump());
  EXPECT_EQ(code(), Code::unsupported);
  make({{"os", "windows"}, {"architecture", "amd64"}});
  EXPECT_EQ(code(), Code::unsupported);
}

TEST_F(OciLayout, DamageIsNamed) {
  make();
  std::string layer = manifest_["layers"][1]["digest"].get<std::string>().substr(7);
  write("blobs/sha256/" + layer, "layer 2!!");
  auto image = read_image_folder(folder_);
  ASSERT_TRUE(image);
  auto checked = check_layer(image->layers[1]);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::corrupt);
  EXPECT_NE(checked.error().message.find(layer), std::string::npos);
  write("blobs/sha256/" + layer, "shorter");
  EXPECT_EQ(code(), Code::corrupt);
  make();
  write("blobs/sha256/" + digest_, manifest_.dump() + " ");
  EXPECT_EQ(code(), Code::corrupt) << "a manifest that is not what its name says";
  for (const char* odd :
       {"", "[]", "{", "{\"manifests\": 5}", "{\"manifests\": [{\"digest\": \"sha256:../../x\", \"size\": 1}]}"}) {
    write("index.json", odd);
    EXPECT_EQ(code(), Code::corrupt) << odd;
  }
}

// A name or a link in it that leads out leads nowhere.
TEST_F(OciLayout, StaysInItsFolder) {
  make();
  std::string layer = manifest_["layers"][0]["digest"].get<std::string>().substr(7);
  ASSERT_EQ(::unlink((folder_ + "/blobs/sha256/" + layer).c_str()), 0);
  ASSERT_EQ(::symlink("/etc/hostname", (folder_ + "/blobs/sha256/" + layer).c_str()), 0);
  EXPECT_FALSE(read_image_folder(folder_));
  ASSERT_TRUE(remove_tree(folder_ + "/oci-layout"));
  write("manifest.json", R"([{"Config": "../../../etc/passwd", "Layers": []}])");
  EXPECT_FALSE(read_image_folder(folder_));
}

TEST_F(OciLayout, WhatDockerSaves) {
  std::string layer = "a tar";
  json config = {{"config", {{"Env", {"A=1"}}}}, {"rootfs", {{"diff_ids", {"sha256:" + sha256(layer).value()}}}}};
  write("abc.json", config.dump());
  write("one/layer.tar", layer);
  write("manifest.json", json{{{"Config", "abc.json"}, {"Layers", {"one/layer.tar"}}}}.dump());
  auto image = read_image_folder(folder_);
  ASSERT_TRUE(image) << image.error().message;
  ASSERT_EQ(image->layers.size(), 1u);
  EXPECT_TRUE(check_layer(image->layers[0]));
  write("one/layer.tar", "b tar");
  image = read_image_folder(folder_);
  ASSERT_TRUE(image);
  EXPECT_EQ(check_layer(image->layers[0]).error().code, Code::corrupt);
}

}  // namespace
}  // namespace isola::image
