// Requests about volumes.
#include "launcher/server.h"

namespace isola::launcher {

namespace {
constexpr size_t kVolumesPage = 128;
}

bool Server::dispatch_volumes(OwnerId id, uint32_t tag, Op op, Reader in) {
  auto answer = [this, id, tag](const Result<void>& result) {
    reply(id, tag, result ? Result<std::string>("") : Result<std::string>(std::unexpected(result.error())));
    return true;
  };
  auto unreadable = [&] { return answer(fail(Code::invalid, "unreadable request")); };
  switch (op) {
    case Op::make_volume:
    case Op::resize_volume: {
      std::string volume = in.str();
      uint64_t bytes = in.u64();
      if (!in.done()) return unreadable();
      if (op == Op::make_volume)
        cells_.make_volume(volume, bytes, answer);
      else
        cells_.resize_volume(volume, bytes, answer);
      return true;
    }
    case Op::drop_volume: {
      std::string volume = in.str();
      return in.done() ? answer(cells_.drop_volume(volume)) : unreadable();
    }
    case Op::sync_volume: {
      std::string volume = in.str();
      if (!in.done()) return unreadable();
      cells_.sync_volume(volume, answer);
      return true;
    }
    case Op::look_at_volume: {
      std::string volume = in.str();
      if (!in.done()) return unreadable();
      auto one = cells_.volume(volume);
      if (!one) return answer(std::unexpected(one.error()));
      Writer out;
      encode(out, *one);
      reply(id, tag, out.take());
      return true;
    }
    case Op::volumes: {
      std::string after = in.str();
      if (!in.done()) return unreadable();
      auto page = cells_.volumes(after, kVolumesPage);
      if (!page) return answer(std::unexpected(page.error()));
      Writer out;
      out.u32(static_cast<uint32_t>(page->size()));
      for (const auto& summary : *page) encode(out, summary);
      out.u8(page->size() == kVolumesPage);
      reply(id, tag, out.take());
      return true;
    }
    default: return false;
  }
}

}  // namespace isola::launcher
