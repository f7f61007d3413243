// Memory resources; plans of memory whose use is known.
#pragma once

#include <deeprec/memory/allocation_log.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/fallback_resource.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/limited_resource.hpp>
#include <deeprec/memory/mapped_file.hpp>
#include <deeprec/memory/mapped_resource.hpp>
#include <deeprec/memory/mapping_options.hpp>
#include <deeprec/memory/planned_resource.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/memory/plans/block_policy.hpp>
#include <deeprec/memory/plans/check_block_plan.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/memory/refusing_resource.hpp>
#include <deeprec/memory/slab_resource.hpp>
