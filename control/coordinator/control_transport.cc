#include "control/coordinator/control_transport.h"

#include <utility>

#include "common/proto/coordination.pb.h"

namespace trainyard::control {

ServerEvent::ServerEvent() = default;
ServerEvent::ServerEvent(ConnectionId id, Kind what) : connection(id), kind(what) {}
ServerEvent::ServerEvent(ConnectionId id, std::unique_ptr<coordination::FromAgent> fact)
    : connection(id), kind(Kind::kMessage), message(std::move(fact)) {}
ServerEvent::ServerEvent(ServerEvent&&) noexcept = default;
ServerEvent& ServerEvent::operator=(ServerEvent&&) noexcept = default;
ServerEvent::~ServerEvent() = default;

ChannelEvent::ChannelEvent() = default;
ChannelEvent::ChannelEvent(Kind what, std::string why) : kind(what), reason(std::move(why)) {}
ChannelEvent::ChannelEvent(std::unique_ptr<coordination::ToAgent> decision)
    : kind(Kind::kMessage), message(std::move(decision)) {}
ChannelEvent::ChannelEvent(ChannelEvent&&) noexcept = default;
ChannelEvent& ChannelEvent::operator=(ChannelEvent&&) noexcept = default;
ChannelEvent::~ChannelEvent() = default;

}  // namespace trainyard::control
