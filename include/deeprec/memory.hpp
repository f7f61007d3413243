// Memory resources; plans of memory whose use is known.
#pragma once

#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/planned_resource.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/memory/plans/block_policy.hpp>
#include <deeprec/memory/plans/check_block_plan.hpp>
#include <deeprec/memory/reclaimer.hpp>
