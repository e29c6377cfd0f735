/* A macroblock's coefficients by the tables of tokens.h. Symbols that these do not hold are read one by one. */

#include <immintrin.h>

#include "coefficients.h"
#include "tokens.h"

/* The reader while nothing can end it: the stream's next bits lie at the top of `value`, the range with them. */
struct window {
  uint64_t value; /* less what was subtracted */
  const uint8_t *next;
  uint64_t range; /* less 1 */
  int bits;       /* below the first 8 */
};

/* Bits: a symbol takes at most 7, a sign one. */
enum {
  SYMBOL = 7,
  TOKEN = 3 * SYMBOL + 1,        /* end, zero, larger, sign */
  VALUE = (7 + 11) * SYMBOL + 1, /* of the last category, with its extra bits */
};

/* Bytes that a macroblock may take, and those fetched ahead. */
enum { MACROBLOCK = 25 * 16 * VALUE / 8 + 16 };

static const uint32_t plus_one = 1, minus_one = UINT32_MAX;

/* Of a reader in its range with bytes to come. */
ALWAYS_INLINE struct window open_window(const VP8BitReader *br, const struct reader *r) {
  struct window w = {r->value, br->buf, r->range, r->bits};
  if (w.bits < 0) {
    w.value = w.value << 8 | *w.next++;
    w.bits += 8;
  }
  w.value <<= 56 - w.bits;
  return w;
}

ALWAYS_INLINE void refill(struct window *w) {
  uint64_t bytes;
  memcpy(&bytes, w->next, sizeof bytes);
  const int taken = (56 - w->bits) & ~7;
  w->value |= (__builtin_bswap64(bytes) >> (64 - taken)) << (56 - w->bits - taken);
  w->next += taken / 8;
  w->bits += taken;
}

ALWAYS_INLINE void need(struct window *w, int bits) {
  if (__builtin_expect(w->bits < bits, 0)) refill(w);
}

/* Goes on in what lies from `low` on, `width` wide (both with the range at the top). */
ALWAYS_INLINE void narrow_window(struct window *w, uint64_t low, uint64_t width) {
  const int shift = __builtin_clzll(width);
  w->value = (w->value - low) << shift;
  w->range = (width << shift >> 56) - 1;
  w->bits -= shift;
}

/* One kind of block of a macroblock. */
struct blocks {
  const struct tokens *tokens;
  const struct kind *kind;
  const struct step *step; /* of the first coefficient */
  int number;
};

ALWAYS_INLINE struct blocks blocks_of(const struct tokens *tokens, int kind) {
  return (struct blocks){tokens, &tokens->kinds[kind], &tokens->steps[kind][kind == 0], kind};
}

/* Coefficients of one 4x4 block, not yet dequantised, into `out`; how many, with the zeros before the last. */
ALWAYS_INLINE uint8_t block(VP8BitReader *br, struct window *at, const struct blocks *blocks, size_t context, int16_t *out) {
  struct window w = *at;
  need(&w, 48); /* enough for most blocks: one refill, where it can be predicted */
  const struct token *token = blocks->kind->first[context] + (w.range - 127);
  const struct step *step = blocks->step;
  for (;;) {
    need(&w, TOKEN);
    /* What the next token's address waits for comes from the fewest steps; the compiler would make branches of the choice. */
    const uint64_t zero = (uint64_t)token->zero << 49, one_at = token->one_at, half = token->half, odd = token->range >> 7;
    const uint64_t plus = zero + (half << one_at), larger = zero + ((2 * half - 1 + odd) << one_at);
    uint64_t low = (uint64_t)token->end << 56;
    if (__builtin_expect(w.value >= larger, 0)) {
      const size_t row = ((uintptr_t)token - (uintptr_t)blocks->kind) / (ROW * sizeof *token);
      const uint8_t *const p = blocks->tokens->probabilities[blocks->number][row];
      narrow_window(&w, larger, ((uint64_t)((token->range & 127) + 128) << 56) - larger);
      struct reader r = {.value = w.value >> (56 - w.bits), .range = (uint32_t)w.range, .bits = w.bits};
      br->buf = w.next;
      const int v = two_or_more(br, &r, p);
      out[step->at] = (int16_t)with_sign(br, &r, v);
      w = open_window(br, &r);
      step++;
      token = &step->place->larger[(w.range - 127) / 2];
      continue;
    }
    if (__builtin_expect(w.value < low, 0)) break;
    int16_t *const to = out + step->at;
    const struct place *const following = (++step)->place;
    const struct token *next = &following->zero[token->after_zero];
    const struct token *const after_plus = &following->one[half - 64];
    const struct token *const after_minus = &following->one[half + odd - 65];
    uint64_t shift = token->zero_shift;
    uint32_t coefficient = 0;
    __asm__(
        "cmp %[zero], %[value]\n\t"
        "cmovae %[after_plus], %[next]\n\t"
        "cmovae %[zero], %[low]\n\t"
        "cmovae %[one_shift], %[shift]\n\t"
        "cmovae %[plus_one], %[coefficient]\n\t"
        "cmp %[plus], %[value]\n\t"
        "cmovae %[after_minus], %[next]\n\t"
        "cmovae %[plus], %[low]\n\t"
        "cmovae %[minus_one], %[coefficient]\n\t"
        : [next] "+&r"(next), [low] "+&r"(low), [shift] "+&r"(shift), [coefficient] "+&r"(coefficient)
        : [value] "r"(w.value), [zero] "r"(zero), [plus] "r"(plus), [after_plus] "r"(after_plus),
          [after_minus] "r"(after_minus), [one_shift] "r"(57 - one_at), [plus_one] "m"(plus_one), [minus_one] "m"(minus_one)
        : "cc");
    w.value = (w.value - low) << shift;
    w.bits -= (int)shift;
    *to = (int16_t)coefficient;
    token = next;
  }
  if (__builtin_expect(token->end == PAST, 0)) {
    w.range = (token->range & 127u) + 127;
  } else {
    narrow_window(&w, 0, (uint64_t)token->end << 56);
  }
  *at = w;
  return (uint8_t)(step - blocks->step);
}

/* 2 bits that choose a block's inverse transform: nothing, DC, up to three coefficients, more. `n`: the position behind the
 * last one. */
ALWAYS_INLINE uint32_t code_of(int n, int16_t dc) {
  static const uint8_t codes[17] = {0, 0, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
  return codes[n] | (uint32_t)((n < 2) & (dc != 0));
}

/* Those of `count` blocks, the first one's at the top. */
ALWAYS_INLINE uint32_t codes_of(int count, const uint8_t *n, int first, const int16_t *out) {
  uint32_t codes = 0;
  for (int i = 0; i < count; i++) codes = codes << 2 | code_of(n[i] + first, out[16 * i]);
  return codes;
}

ALWAYS_INLINE void dequantise(int16_t *out, int dc, int ac) {
  const __m256i factors = _mm256_insert_epi16(_mm256_set1_epi16((int16_t)ac), (int16_t)dc, 0);
  _mm256_storeu_si256((__m256i *)out, _mm256_mullo_epi16(factors, _mm256_loadu_si256((const __m256i *)out)));
}

/* A row of `across` blocks; their counts into `counts`. `above` and `left`: has the neighbour coefficients? What can wait is not
 * done here: a block ends with a branch that is seldom predicted, and behind it the next one should begin at once. */
ALWAYS_INLINE void row_of(VP8BitReader *br, struct window *w, const struct blocks *blocks, int across, uint8_t *above,
                          uint8_t *left, int16_t *out, uint8_t *counts) {
  size_t has = *left;
  for (int x = 0; x < across; x++) {
    counts[x] = block(br, w, blocks, has + above[x], out + 16 * x);
    above[x] = (uint8_t)(has = counts[x] > 0);
  }
  *left = (uint8_t)has;
}

/* Which of the 4 luma, 2 U and 2 V blocks above or to the left have coefficients: libwebp's bits, a byte each. (BMI2's own
 * instructions for it are slow on older AMD CPUs.) */
struct neighbours {
  uint8_t has[8];
};

ALWAYS_INLINE struct neighbours unpacked(uint64_t bits) {
  struct neighbours n;
  const uint64_t ones = 0x0101010101010101, spread = bits * ones & 0x8040201008040201;
  const uint64_t bytes = (spread + 0x7f * ones) >> 7 & ones;
  memcpy(&n, &bytes, sizeof n);
  return n;
}

ALWAYS_INLINE uint8_t packed(const struct neighbours *n) {
  uint64_t bytes;
  memcpy(&bytes, n, sizeof bytes);
  return (uint8_t)(bytes * 0x0102040810204080 >> 56);
}

/* libwebp's ParseResiduals (RFC 6386, section 13.3); whether there is nothing. */
static int residuals(const struct tokens *tokens, VP8Decoder *decoder, VP8BitReader *br) {
  VP8MB *const above = decoder->mb_info + decoder->mb_x, *const before = decoder->mb_info - 1;
  VP8MBData *const data = decoder->mb_data + decoder->mb_x;
  const VP8QuantMatrix *const matrix = &decoder->dqm[data->segment];
  struct window w = {br->value << (56 - br->bits), br->buf, br->range, br->bits};
  int16_t *const out = data->coeffs;
  for (int i = 0; i < 384; i += 16) _mm256_storeu_si256((__m256i *)(out + i), _mm256_setzero_si256());
  int dc_factor = matrix->y1_mat[0];
  struct blocks blocks = blocks_of(tokens, data->is_i4x4 ? 3 : 0);
  if (!data->is_i4x4) {
    const struct blocks dc_block = blocks_of(tokens, 1);
    int16_t dc[16] = {0};
    const int n = block(br, &w, &dc_block, above->nz_dc + before->nz_dc, dc);
    dequantise(dc, matrix->y2_mat[0], matrix->y2_mat[1]);
    above->nz_dc = before->nz_dc = n > 0;
    if (n > 1) {
      VP8TransformWHT(dc, out);
    } else {
      for (int i = 0; i < 16; i++) out[16 * i] = (int16_t)((dc[0] + 3) >> 3);
    }
    dc_factor = 1;
  }
  struct neighbours top = unpacked(above->nz), left = unpacked(before->nz);
  uint8_t counts[24];
  for (int y = 0; y < 4; y++) row_of(br, &w, &blocks, 4, top.has, &left.has[y], out + 64 * y, counts + 4 * y);
  blocks = blocks_of(tokens, 2);
  for (int y = 4; y < 8; y++) {
    row_of(br, &w, &blocks, 2, &top.has[y < 6 ? 4 : 6], &left.has[y], out + 128 + 32 * y, counts + 8 + 2 * y);
  }
  for (int i = 0; i < 16; i++) dequantise(out + 16 * i, dc_factor, matrix->y1_mat[1]);
  for (int i = 16; i < 24; i++) dequantise(out + 16 * i, matrix->uv_mat[0], matrix->uv_mat[1]);
  const uint32_t luma = codes_of(16, counts, !data->is_i4x4, out), chroma = codes_of(8, counts + 16, 0, out + 256);
  above->nz = packed(&top);
  before->nz = packed(&left);
  data->non_zero_y = luma;
  data->non_zero_uv = chroma >> 8 | (chroma & 0xff) << 8;
  data->dither = data->non_zero_uv & 0xaaaa ? 0 : (uint8_t)matrix->dither;
  br->value = w.value >> (56 - w.bits);
  br->bits = w.bits;
  br->range = (uint32_t)w.range;
  br->buf = w.next;
  return !(luma | chroma);
}

/* Whether a whole macroblock's bits are there and the stream is in its range; then a byte is fetched if need be. No encoder
 * leaves the range. A stream above it depends on where bytes are fetched, so it is left as it is for libwebp's own steps. */
static int open_if_whole(VP8BitReader *br) {
  if (br->buf_end - br->buf < MACROBLOCK) return 0;
  const int fetched = br->bits < 0, bits = br->bits + 8 * fetched;
  const uint64_t value = fetched ? br->value << 8 | *br->buf : br->value;
  if (value >> bits > br->range) return 0;
  br->value = value;
  br->bits = bits;
  br->buf += fetched;
  return 1;
}

int catalejo_webp_macroblock(const struct tokens *tokens, VP8Decoder *decoder, VP8BitReader *br) {
  VP8MBData *const data = decoder->mb_data + decoder->mb_x;
  if (tokens == NULL || (decoder->use_skip_proba && data->skip) || !open_if_whole(br)) return VP8DecodeMB(decoder, br);
  const int nothing = residuals(tokens, decoder, br);
  if (decoder->filter_type > 0) {
    VP8FInfo *const filter = decoder->f_info + decoder->mb_x;
    *filter = decoder->fstrengths[data->segment][data->is_i4x4];
    filter->f_inner |= !nothing;
  }
  return 1;
}
