/* names.h: C's integer type names, for source texts that begin with SYCL's header. */
using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::size_t;
using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t, std::uintptr_t;
