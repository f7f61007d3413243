// --report: what a run found as one page of HTML, which needs nothing else: no script, no link to the
// outside.
#pragma once

#include <string>
#include <vector>

#include "report.hpp"

namespace ctr {

[[nodiscard]] std::string report_page(const std::vector<score>& scores, const data_facts& data,
                                      const options& o, bool interrupted);
/// As report.html into the folder of --report, which is made where it is absent. Throws a failure.
void write_report_page(const std::vector<score>& scores, const data_facts& data, const options& o,
                       bool interrupted);

}  // namespace ctr
