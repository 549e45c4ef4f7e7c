#include "sandbox/image_records.h"

#include <nlohmann/json.hpp>

#include "sandbox/box.h"

namespace isola::sandbox {

namespace {

store::ImageRecord begun(const store::SandboxRecord& sandbox, store::ImageKind kind) {
  store::ImageRecord image;
  image.project = sandbox.project;
  image.kind = kind;
  image.sandbox = sandbox.id;
  image.template_name = sandbox.template_name;
  image.digest = sandbox.digest;
  image.limits = sandbox.limits;
  image.env = sandbox.env;
  image.metadata = sandbox.metadata;
  image.volumes = sandbox.volumes;
  image.user = sandbox.user;
  image.cwd = sandbox.cwd;
  image.created = image.last_used = now_millis();
  return image;
}

}  // namespace

store::ImageRecord image_record(const store::SandboxRecord& sandbox, const launcher::CheckpointReply& saved,
                                bool memory, store::ImageKind kind) {
  auto image = begun(sandbox, kind);
  image.id = saved.image;
  image.parent = saved.parent;
  image.memory = memory;
  image.exposed = memory && sandbox.exposed;
  image.memory_bytes = saved.memory_bytes;
  image.layer_bytes = saved.layer_bytes;
  return image;
}

store::ImageRecord image_record(const store::SandboxRecord& sandbox, const launcher::ImageSummary& found,
                                store::ImageKind kind) {
  auto image = begun(sandbox, kind);
  image.id = found.id;
  image.parent = found.parent;
  image.memory = found.memory;
  image.exposed = found.memory && sandbox.exposed;
  image.memory_bytes = found.memory_bytes;
  image.layer_bytes = found.layer_bytes;
  return image;
}

nlohmann::json birth_data(const store::SandboxRecord& record) {
  nlohmann::json data;
  data["template"] = record.template_name;
  data["boundary"] = to_string(record.boundary);
  data["birth"] = to_string(record.birth);
  data["cpus"] = record.limits.cpus;
  data["memory"] = record.limits.memory;
  data["disk"] = record.limits.disk;
  for (const auto& use : record.volumes)
    if (!use.bucket) data["volumes"].push_back({{"id", use.volume}, {"path", use.path}, {"read_only", use.read_only}});
  return data;
}

nlohmann::json latency_data(const Latency& latency) {
  auto data = nlohmann::json::object();
  for (int i = 0; i < static_cast<int>(Step::count_); ++i) {
    auto step = static_cast<Step>(i);
    if (auto time = latency.of(step); time.count() > 0) data[std::string(to_string(step))] = time.count() / 1000;
  }
  return data;
}

}  // namespace isola::sandbox
