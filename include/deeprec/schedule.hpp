// Stale windows and micro batches.
#pragma once

#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/micro_chunk.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>
