/* names.h: C's names of integers, for texts that begin with SYCL's own header. */
using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::size_t;
using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t, std::uintptr_t;
