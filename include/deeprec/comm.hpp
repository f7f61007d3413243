// Messages between ranks: exchanges, and the engines that move them.
#pragma once

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/measure_link.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/ordered_ranks.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/comm/slice_blocks.hpp>
#include <deeprec/comm/sum_in_order.hpp>
#include <deeprec/comm/thread_ranks.hpp>
