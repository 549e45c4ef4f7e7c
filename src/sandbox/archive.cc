// Sandboxes that sleep for long: what is kept of them is packed, out of everybody's way, and unpacked when they are
// resumed. The launcher's image decides: a server that dies in between finds out when it is asked for the sandbox.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/service.h"

namespace isola::sandbox {

using nlohmann::json;

Task<Result<void>> Service::archive(BoxPtr box, Caller by) {
  auto self = shared_from_this();
  Box::Turn turn = co_await box->turn();
  auto record = box->record();
  if (record.state == State::archived) co_return Result<void>();
  if (!store::is_asleep(record.state))
    co_return conflict("sandbox " + box->id() + " is " + std::string(to_string(record.state)) +
                       ": it must be paused or stopped for that");
  ISOLA_CO_CHECK(write_sleep(box));
  ISOLA_CO_TRY(auto image, parts_.store.find_image(record.image));
  // Made to sleep at a snapshot (a rollback that did not come through): that is not its own.
  if (image.kind != store::ImageKind::pause) co_return conflict("sandbox " + box->id() + " is made of a snapshot");
  ISOLA_CO_TRY(auto packed, co_await parts_.launcher->pack_image(image.id, true));
  ISOLA_CO_CHECK(parts_.store.set_packed(box->id(), State::archived, packed.memory_bytes, packed.layer_bytes));
  if (!box->change_from(record.state, [](auto& r) { r.state = State::archived; }))
    co_return fail(Code::not_found, "sandbox " + box->id() + " has ended");
  json data = {{"state", "archived"},
               {"image", image.id},
               {"memory_bytes", packed.memory_bytes},
               {"layer_bytes", packed.layer_bytes}};
  this->record(ledger::Kind::sandbox_updated, box, data.dump(), by);
  arm(box);
  co_return Result<void>();
}

// In the sandbox's turn.
Task<Result<void>> Service::unpack(BoxPtr box) {
  auto record = box->record();
  ISOLA_CO_TRY(auto image, parts_.store.find_image(record.image));
  ISOLA_CO_TRY(auto sizes, co_await parts_.launcher->pack_image(image.id, false));
  State to = image.memory ? State::paused : State::stopped;
  ISOLA_CO_CHECK(parts_.store.set_packed(box->id(), to, sizes.memory_bytes, sizes.layer_bytes));
  if (!box->change_from(record.state, [&](auto& r) { r.state = to; }))
    co_return fail(Code::not_found, "sandbox " + box->id() + " has ended");
  co_return Result<void>();
}

// Its time has come. What cannot be packed now stays as it is, and is tried again when it sleeps the next time.
Task<void> Service::put_away(BoxPtr box) {
  auto self = shared_from_this();
  auto archived = co_await archive(box);
  if (!archived && archived.error().code != Code::not_found)
    log::warn("sandbox", "{} is not archived: {}", box->id(), archived.error().message);
}

}  // namespace isola::sandbox
