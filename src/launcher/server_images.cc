// Requests about images.
#include "launcher/server.h"

namespace isola::launcher {

namespace {
constexpr size_t kImagesPage = 128;
}

bool Server::dispatch_images(OwnerId id, uint32_t tag, Op op, Reader in) {
  auto unreadable = [&] {
    reply(id, tag, fail(Code::invalid, "unreadable request"));
    return true;
  };
  auto answer = [this, id, tag](const Result<void>& result) {
    reply(id, tag, result ? Result<std::string>("") : Result<std::string>(std::unexpected(result.error())));
  };
  const bool root = connections_.at(id).user == 0;
  auto hidden = [&](const std::string& image) {
    auto open = root ? Result<void>() : cells_.image_open_to_user(image);
    if (open) return false;
    reply(id, tag, std::unexpected(open.error()));
    return true;
  };
  switch (op) {
    case Op::checkpoint: {
      CheckpointRequest request;
      decode(in, request);
      if (!in.done()) return unreadable();
      if (!may_ask_of(id, request.id)) {
        reply(id, tag, fail(Code::not_found, "there is no sandbox " + request.id));
        return true;
      }
      cells_.checkpoint(request, id, [this, id, tag](const Result<CheckpointReply>& result) {
        if (!result) return reply(id, tag, std::unexpected(result.error()));
        Writer out;
        encode(out, *result);
        reply(id, tag, out.take());
      });
      return true;
    }
    case Op::images: {
      std::string after = in.str();
      if (!in.done()) return unreadable();
      auto page = cells_.images(after, kImagesPage, root);
      Writer out;
      out.u32(static_cast<uint32_t>(page.size()));
      for (const auto& summary : page) encode(out, summary);
      out.u8(page.size() == kImagesPage);
      reply(id, tag, out.take());
      return true;
    }
    case Op::drop_image: {
      std::string image = in.str();
      if (!in.done()) return unreadable();
      if (!hidden(image)) answer(cells_.drop_image(image));
      return true;
    }
    case Op::verify_image: {
      std::string image = in.str();
      bool thorough = in.u8() != 0;
      std::optional<LaunchRequest> wanted;
      if (in.u8() != 0) decode(in, wanted.emplace());
      if (!in.done()) return unreadable();
      if (wanted) wanted->image = image, wanted->by_user = !root;
      if (!hidden(image)) cells_.verify_image(image, thorough, std::move(wanted), answer);
      return true;
    }
    case Op::pack_image: {
      std::string image = in.str();
      bool pack = in.u8() != 0;
      if (!in.done()) return unreadable();
      if (hidden(image)) return true;
      cells_.pack_image(image, pack, [this, id, tag](const Result<PackReply>& result) {
        if (!result) return reply(id, tag, std::unexpected(result.error()));
        Writer out;
        encode(out, *result);
        reply(id, tag, out.take());
      });
      return true;
    }
    default: return false;
  }
}

}  // namespace isola::launcher
