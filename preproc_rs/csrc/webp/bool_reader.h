/* The boolean decoder of VP8 on registers: a copy of libwebp's bit reader is taken at the start of a block, used and put
 * back, with the same meaning of every field.
 *
 * The end of the data is met lazily, exactly where libwebp meets it: `eof` refuses files, so it may not come early. */

#ifndef CATALEJO_WEBP_BOOL_READER_H_
#define CATALEJO_WEBP_BOOL_READER_H_

#include <stdint.h>
#include <string.h>

#include "src/dec/vp8i_dec.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct reader {
  uint64_t value; /* bits + 8 bits of the stream, less what was subtracted */
  uint32_t range; /* less 1 */
  int bits;       /* below 0: fetch before the next symbol */
  /* Of the symbol at hand: */
  uint32_t split, top;
};

ALWAYS_INLINE struct reader open_reader(const VP8BitReader *br) {
  return (struct reader){.value = br->value, .range = br->range, .bits = br->bits};
}

ALWAYS_INLINE void close_reader(VP8BitReader *br, const struct reader *r) {
  br->value = r->value;
  br->range = r->range;
  br->bits = r->bits;
}

/* The last bytes, one by one, then a byte of zeros, then the end. */
static __attribute__((noinline, unused)) void fetch_last(VP8BitReader *br, uint64_t *value, int *bits) {
  if (br->buf < br->buf_end) {
    *value = *value << 8 | *br->buf++;
    *bits += 8;
  } else if (!br->eof) {
    *value <<= 8;
    *bits += 8;
    br->eof = 1;
  } else {
    *bits = 0;
  }
}

ALWAYS_INLINE void fetch(VP8BitReader *br, struct reader *r) {
  if (br->buf < br->buf_max) { /* 8 bytes are there; 7 are taken */
    uint64_t bytes;
    memcpy(&bytes, br->buf, sizeof bytes);
    br->buf += 7;
    r->value = r->value << 56 | __builtin_bswap64(bytes) >> 8;
    r->bits += 56;
  } else {
    uint64_t value = r->value;
    int bits = r->bits;
    fetch_last(br, &value, &bits);
    r->value = value;
    r->bits = bits;
  }
}

/* Looks at the next symbol, 0 with probability p / 256. One of took_0, took_1 must follow. */
ALWAYS_INLINE int is_1(VP8BitReader *br, struct reader *r, uint32_t p) {
  if (__builtin_expect(r->bits < 0, 0)) fetch(br, r);
  r->split = (r->range * p) >> 8;
  r->top = (uint32_t)(r->value >> r->bits);
  return r->top > r->split;
}

/* Bits by which a range of 1 to 255 is shifted to fill its byte. */
ALWAYS_INLINE int shift_of(uint32_t range) { return __builtin_clz(range) ^ 24; }

/* Goes on in a part of the range, `width` wide. */
ALWAYS_INLINE void narrow(struct reader *r, uint32_t width) {
  const int shift = shift_of(width);
  r->range = (width << shift) - 1;
  r->bits -= shift;
}

ALWAYS_INLINE void took_0(struct reader *r) { narrow(r, r->split + 1); }

ALWAYS_INLINE void took_1(struct reader *r) {
  r->value -= (uint64_t)(r->split + 1) << r->bits;
  narrow(r, r->range - r->split);
}

/* For symbols nobody can predict: all ones or none, without a branch. The empty asm keeps the compiler from making one. */
ALWAYS_INLINE uint32_t mask_of(int one) {
  uint32_t mask = -(uint32_t)one;
  __asm__("" : "+r"(mask));
  return mask;
}

/* A stream may begin above its range (with ones, which no encoder writes). The excess doubles with every bit, so `top` takes
 * all 32 bits: it is compared as the unsigned number it is. */
ALWAYS_INLINE int bit(VP8BitReader *br, struct reader *r, uint32_t p) {
  (void)is_1(br, r, p);
  const uint32_t one = mask_of(r->top > r->split);
  const uint32_t low = r->split + 1, high = r->range - r->split;
  r->value -= (uint64_t)(low & one) << r->bits;
  narrow(r, low ^ ((low ^ high) & one));
  return (int)(one & 1);
}

/* `v` or `-v`: a symbol of even odds, after which the range is even and one shift fills it. Here libwebp takes the sign of
 * a difference of 32 bits, also of one that wraps. */
ALWAYS_INLINE int with_sign(VP8BitReader *br, struct reader *r, int v) {
  if (__builtin_expect(r->bits < 0, 0)) fetch(br, r);
  const uint32_t split = r->range >> 1;
  const uint32_t one = mask_of((int32_t)(split - (uint32_t)(r->value >> r->bits)) < 0);
  r->value -= (uint64_t)((split + 1) & one) << r->bits;
  r->bits -= 1;
  r->range = (r->range + one) | 1;
  return (v ^ (int)one) - (int)one;
}

#endif
