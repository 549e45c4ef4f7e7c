// What leaves sandboxes with bindings is searched for their values by the gate; what is found goes into the ledger, by
// name.
#include <nlohmann/json.hpp>

#include "sandbox/json_text.h"
#include "sandbox/service.h"

namespace isola::sandbox {

using nlohmann::json;

namespace {

json data_of(const gate::ScanFound& found, const Screening::Place& place) {
  json data = {{"binding", found.binding},
               {"secret", found.secret},
               {"form", scan::to_string(found.form)},
               {"where", place.stream},
               {"offset", found.offset}};
  if (!place.command.empty()) data["command_id"] = place.command;
  if (found.count > 1) data["count"] = found.count;
  return data;
}

}  // namespace

BoxPtr Service::new_box(boost::asio::io_context& home, const store::SandboxRecord& record) {
  auto box = std::make_shared<Box>(home, record);
  std::weak_ptr<Box> weak = box;
  auto report = [service = weak_from_this(), weak](const gate::ScanFound& found, const Screening::Place& place) {
    auto self = service.lock();
    auto there = weak.lock();
    if (self && there) self->record(ledger::Kind::scan_hit, there, dumped(data_of(found, place)), Caller(), place.task);
  };
  auto whose = [id = record.id]() -> Result<std::vector<std::string>> { return std::vector<std::string>{id}; };
  box->set_screening(std::make_shared<Screening>(scanner_, std::move(whose), std::move(report)));
  return box;
}

void Service::screen_if_granted(const BoxPtr& box) {
  auto record = box->record();
  if (record.screened) return box->screening()->turn_on();  // also where it reaches nothing any more
  if (record.network.empty()) return;
  auto grants = grants_of(record);
  if (!grants || !grants->empty()) box->screening()->turn_on();
}

// Of those that have it and run: what they may have put there.
std::shared_ptr<const Screening> Service::volume_screening(const store::VolumeRecord& volume) {
  auto whose = [service = weak_from_this(), id = volume.id]() -> Result<std::vector<std::string>> {
    std::vector<std::string> out;
    auto self = service.lock();
    if (!self) return fail(Code::unavailable, "the server is stopping");
    ISOLA_TRY(auto users, self->parts_.store.users_of_volume(id));
    for (const auto& user : users) {
      auto box = self->find_any(user);
      if (box && (*box)->screening()->on() && !store::is_asleep((*box)->state())) out.push_back(user);
    }
    if (out.size() > gate::kMaxScanned)
      return fail(Code::exhausted,
                  "this volume cannot be read: it cannot be searched for the secrets of more than 64 running sandboxes "
                  "that have it");
    return out;
  };
  auto report = [service = weak_from_this(), volume](const gate::ScanFound& found, const Screening::Place&) {
    auto self = service.lock();
    if (!self) return;
    store::Labels data = {{"binding", found.binding},
                          {"secret", found.secret},
                          {"form", std::string(scan::to_string(found.form))},
                          {"where", "volume"}};
    self->record_volume(ledger::Kind::scan_hit, volume, data, Caller());
  };
  auto screening = std::make_shared<Screening>(scanner_, std::move(whose), std::move(report));
  screening->turn_on();
  return screening;
}

}  // namespace isola::sandbox
