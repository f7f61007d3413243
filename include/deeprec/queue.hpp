// Queues and pools between threads.
#pragma once

#include <deeprec/queue/event_count.hpp>
#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/packed_batch.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/queue/reorder_buffer.hpp>
#include <deeprec/queue/ring_handles.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/staging_queue.hpp>
#include <deeprec/queue/taken_item.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
