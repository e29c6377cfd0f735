/* What reads coefficients one symbol after the other (RFC 6386, section 13.2). */

#ifndef CATALEJO_WEBP_COEFFICIENTS_H_
#define CATALEJO_WEBP_COEFFICIENTS_H_

#include "bool_reader.h"

/* Where the positions of a block lie in it. */
static const uint8_t zigzag[16] = {0, 1, 4, 8, 5, 2, 3, 6, 9, 12, 13, 10, 7, 11, 14, 15};

/* A coefficient of 5 or more, without its sign. */
ALWAYS_INLINE int five_or_more(VP8BitReader *br, struct reader *r, const uint8_t *p) {
  /* Probabilities of the extra bits of the four largest categories, the highest bit first. */
  static const uint8_t extra[4][12] = {
      {173, 148, 140}, {176, 155, 140, 135}, {180, 157, 141, 134, 130},
      {254, 254, 243, 230, 196, 177, 153, 140, 133, 130, 129}};
  if (!is_1(br, r, p[6])) {
    took_0(r);
    if (!is_1(br, r, p[7])) {
      took_0(r);
      return 5 + bit(br, r, 159);
    }
    took_1(r);
    const int high = bit(br, r, 165);
    return 7 + 2 * high + bit(br, r, 145);
  }
  took_1(r);
  const int high = bit(br, r, p[8]);
  const int category = 2 * high + bit(br, r, p[9 + high]);
  int v = 0;
  for (const uint8_t *q = extra[category]; *q; q++) v = 2 * v + bit(br, r, *q);
  return 3 + (8 << category) + v;
}

/* One of 2 or more. */
ALWAYS_INLINE int two_or_more(VP8BitReader *br, struct reader *r, const uint8_t *p) {
  if (is_1(br, r, p[3])) {
    took_1(r);
    return five_or_more(br, r, p);
  }
  took_0(r);
  if (is_1(br, r, p[4])) {
    took_1(r);
    return 3 + bit(br, r, p[5]);
  }
  took_0(r);
  return 2;
}

#endif
