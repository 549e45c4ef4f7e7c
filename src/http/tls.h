// TLS contexts: the server's, from its files. Internal to this room.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/error.h"
#include "http/server.h"

namespace isola::http {

Result<std::shared_ptr<boost::asio::ssl::context>> server_tls(const TlsFiles& files);

}  // namespace isola::http
