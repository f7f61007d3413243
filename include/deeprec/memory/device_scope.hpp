// Makes a device the current one of this thread until the scope ends.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The device that is current now; -1 where there is none.
template <class Runtime>
int current_device() noexcept {
  int device = -1;
  return Runtime::get_device(device).ok() ? device : -1;
}

template <class Runtime>
class device_scope {
 public:
  explicit device_scope(int device) noexcept {
    if (device < 0) return;
    made_ = Runtime::get_device(before_);
    if (!made_.ok() || before_ == device) return;
    made_ = Runtime::set_device(device);
    changed_ = made_.ok();
  }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;
  ~device_scope() {
    if (changed_) static_cast<void>(Runtime::set_device(before_));
  }

  [[nodiscard]] const status& made() const noexcept { return made_; }

 private:
  status made_;
  int before_ = -1;
  bool changed_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
