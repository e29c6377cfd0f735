/* libwebp's vp8_dec.c with coefficients read by the reader of bool_reader.h (RFC 6386, section 13). */

#include "bool_reader.h"

uint8_t catalejo_webp_ranges[257][256];

void catalejo_webp_prepare(void) {
  for (uint32_t p = 0; p < 256; p++) {
    for (uint32_t range = 127; range < 255; range++) {
      const uint32_t split = (range * p) >> 8, low = split + 1, high = range - split;
      catalejo_webp_ranges[p][range - 127] = (uint8_t)((low << shift_of(low)) - 1);
      catalejo_webp_ranges[p][range - 127 + 128] = (uint8_t)((high << shift_of(high)) - 1);
    }
  }
}

/* Probabilities of the extra bits of the four largest categories, the highest bit first. */
static const uint8_t extra[4][12] = {
    {173, 148, 140}, {176, 155, 140, 135}, {180, 157, 141, 134, 130}, {254, 254, 243, 230, 196, 177, 153, 140, 133, 130, 129}};

static const uint8_t zigzag[16] = {0, 1, 4, 8, 5, 2, 3, 6, 9, 12, 13, 10, 7, 11, 14, 15};

/* A coefficient of 5 or more. */
ALWAYS_INLINE int large(VP8BitReader *br, struct reader *r, const uint8_t *p) {
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

/* Coefficients of one 4x4 block from position `n` on, dequantised into `out`; the position behind the last one. */
static int coefficients(VP8BitReader *br, const VP8BandProbas *const bands[], int context, const quant_t quant, int n,
                        int16_t *out) {
  struct reader r = open_reader(br);
  const uint8_t *p = bands[n]->probas[context];
  while (n < 16) {
    if (!is_1(br, &r, p[0])) { /* nothing follows */
      took_0(&r);
      break;
    }
    took_1(&r);
    while (!is_1(br, &r, p[1])) { /* a zero */
      took_0(&r);
      if (++n == 16) goto end;
      p = bands[n]->probas[0];
    }
    took_1(&r);
    const VP8ProbaArray *const following = bands[n + 1]->probas;
    int v;
    if (!is_1(br, &r, p[2])) {
      took_0(&r);
      v = 1;
      p = following[1];
    } else {
      took_1(&r);
      if (is_1(br, &r, p[3])) {
        took_1(&r);
        v = large(br, &r, p);
      } else {
        took_0(&r);
        if (is_1(br, &r, p[4])) {
          took_1(&r);
          v = 3 + bit(br, &r, p[5]);
        } else {
          took_0(&r);
          v = 2;
        }
      }
      p = following[2];
    }
    out[zigzag[n]] = (int16_t)(with_sign(br, &r, v) * quant[n > 0]);
    n++;
  }
end:
  close_reader(br, &r);
  return n;
}

/* Calls of libwebp's function pointer become calls of ours; its declaration stays what it is. */
#define GetCoeffs(br, bands, context, quant, n, out) coefficients(br, bands, context, quant, n, out)
#include "src/dec/vp8_dec.c"
