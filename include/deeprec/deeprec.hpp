// Everything for the host. Device backends: deeprec.cuh.
#pragma once

#include <deeprec/calibrate.hpp>
#include <deeprec/comm.hpp>
#include <deeprec/core.hpp>
#include <deeprec/data.hpp>
#include <deeprec/dense.hpp>
#include <deeprec/describe.hpp>
#include <deeprec/embedding.hpp>
#include <deeprec/exec.hpp>
#include <deeprec/graph.hpp>
#include <deeprec/memory.hpp>
#include <deeprec/ops.hpp>
#include <deeprec/optim.hpp>
#include <deeprec/pipeline.hpp>
#include <deeprec/plan.hpp>
#include <deeprec/queue.hpp>
#include <deeprec/schedule.hpp>
#include <deeprec/serving.hpp>
#include <deeprec/sharding.hpp>
