// Tables over many ranks.
#pragma once

#include <deeprec/sharding/dense_step.hpp>
#include <deeprec/sharding/dense_tensor.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_loop.hpp>
#include <deeprec/sharding/sharded_options.hpp>
#include <deeprec/sharding/sharded_rows.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>
