# Some packages of xsimd (Debian's 8.1) name xtl among its link libraries, which they neither need
# nor install; a program would then be linked with -lxtl. Read by the build and by deeprecConfig.

if(TARGET xsimd AND NOT TARGET xtl)
  get_target_property(deeprec_xsimd_links xsimd INTERFACE_LINK_LIBRARIES)
  get_target_property(deeprec_xsimd_aliased xsimd ALIASED_TARGET)
  if("xtl" IN_LIST deeprec_xsimd_links AND NOT deeprec_xsimd_aliased)
    list(REMOVE_ITEM deeprec_xsimd_links xtl)
    set_property(TARGET xsimd PROPERTY INTERFACE_LINK_LIBRARIES ${deeprec_xsimd_links})
  endif()
  unset(deeprec_xsimd_links)
  unset(deeprec_xsimd_aliased)
endif()
