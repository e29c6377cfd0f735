/* Filling the tables of tokens.h. */

#include "tokens.h"

#include "coefficients.h"

/* The part of a range that one symbol after another leaves. */
struct part {
  uint32_t range;
  int shift; /* bits taken so far */
};

static struct part filled(uint32_t width, int shift) {
  const int more = shift_of(width);
  return (struct part){(width << more) - 1, shift + more};
}

/* The width of a zero bit's part. */
static uint32_t width_of_0(struct part part, uint32_t p) { return ((part.range * p) >> 8) + 1; }

static struct part after_0(struct part part, uint32_t p) { return filled(width_of_0(part, p), part.shift); }

static struct part after_1(struct part part, uint32_t p) {
  return filled(part.range + 1 - width_of_0(part, p), part.shift);
}

static struct token token_of(uint32_t range, const uint8_t *p, int may_end) {
  const struct part whole = {range, 0};
  const uint32_t end = may_end ? width_of_0(whole, p[0]) : 0;
  const struct part goes_on = may_end ? after_1(whole, p[0]) : whole;
  const struct part zero = after_0(goes_on, p[1]), one = after_0(after_1(goes_on, p[1]), p[2]);
  return (struct token){
      .zero = (uint16_t)((end << 7) + (width_of_0(goes_on, p[1]) << (7 - goes_on.shift))),
      .half = (uint8_t)((one.range >> 1) + 1),
      .one_at = (uint8_t)(56 - one.shift),
      .after_zero = (uint8_t)(zero.range - 127),
      .zero_shift = (uint8_t)zero.shift,
      .end = (uint8_t)end,
      .range = (uint8_t)((range - 127) | (one.range & 1) << 7),
  };
}

static void fill(struct token *row, int step, const uint8_t *p, int may_end) {
  for (uint32_t range = 127; range < 255; range += (uint32_t)step) *row++ = token_of(range, p, may_end);
}

/* Nothing reaches `PAST`: all of the range ends the block. `one_at` only keeps the border of larger values above that. */
static void fill_past(struct token *row, int step) {
  for (uint32_t range = 127; range < 255; range += (uint32_t)step) {
    *row++ = (struct token){.zero = PAST << 7, .half = 64, .one_at = 48, .end = PAST, .range = (uint8_t)(range - 127)};
  }
}

void catalejo_webp_fill_tokens(struct tokens *tokens, const VP8Decoder *decoder) {
  for (int k = 0; k < KINDS; k++) {
    struct kind *const kind = &tokens->kinds[k];
    const VP8BandProbas *const *const bands = decoder->proba.bands_ptr[k];
    uint8_t(*rows)[16] = tokens->probabilities[k];
    for (int context = 0; context < 3; context++) {
      const uint8_t *const p = bands[k == 0]->probas[context]; /* kind 0 begins behind its DC */
      fill(kind->first[context], 1, p, 1);
      for (int i = 0; i < 128 / ROW; i++) memcpy(*rows++, p, NUM_PROBAS);
    }
    for (int b = 0; b < BANDS; b++) {
      struct place *const place = &kind->bands[b];
      const VP8ProbaArray *const p = decoder->proba.bands[k][b].probas;
      fill(place->zero, 1, p[0], 0);
      fill(place->one, 2, p[1], 1);
      fill(place->larger, 2, p[2], 1);
      for (int i = 0; i < 4; i++) memcpy(*rows++, p[i < 2 ? 0 : i - 1], NUM_PROBAS);
    }
    for (int n = 0; n < 16; n++) {
      tokens->steps[k][n] = (struct step){&kind->bands[bands[n] - decoder->proba.bands[k]], zigzag[n]};
    }
    tokens->steps[k][16] = (struct step){&tokens->past, 0};
  }
  fill_past(tokens->past.zero, 1);
  fill_past(tokens->past.one, 2);
  fill_past(tokens->past.larger, 2);
}
