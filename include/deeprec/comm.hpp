// Messages between ranks: exchanges, and the engines that move them.
#pragma once

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/ordered_ranks.hpp>
#include <deeprec/comm/thread_ranks.hpp>
