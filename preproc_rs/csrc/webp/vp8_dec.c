/* libwebp's vp8_dec.c with coefficients read by the reader of bool_reader.h (RFC 6386, section 13). */

#include "coefficients.h"

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
      v = two_or_more(br, &r, p);
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
