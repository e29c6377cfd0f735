/* Tables of coefficient tokens (RFC 6386, section 13): the first symbols of a token decoded at once.
 *
 * A token is up to four symbols before its extra bits: does the block end, is the coefficient zero, is it larger than one, its
 * sign. Read one by one, each is a branch, and in a photograph most of these branches are a coin's throw. Here the borders that
 * the symbols cut into the range are looked up together, by the context and the range, with what follows each of them. 0, 1
 * and -1 are then chosen without a branch; only the end of a block and larger values take one.
 *
 * Borders count from the bottom of the range. Ranges are less 1, as in libwebp, and lie between 127 and 254. */

#ifndef CATALEJO_WEBP_TOKENS_H_
#define CATALEJO_WEBP_TOKENS_H_

#include <stddef.h>
#include <stdint.h>

#include "src/dec/vp8i_dec.h"

struct token {
  uint16_t zero;       /* the border between 0 and 1, in 1/128 */
  uint8_t half;        /* the part of "one" that is 1, not -1, in units of `one_at` */
  uint8_t one_at;      /* where a range after "one" lies: 56, less the bits it takes without its sign */
  uint8_t after_zero;  /* the range after a zero, less 127: an index */
  uint8_t zero_shift;  /* the bits a zero takes */
  uint8_t end;         /* the border between the end and 0; 0 where a block cannot end */
  uint8_t range;       /* less 127; bit 7: the range after "one" is odd: twice `half` less 1, not 2 */
};

/* What a position's tokens look like after another coefficient. A sign leaves ranges that are odd (here, less 1): half the
 * rows, and that half stays in the cache. They end at 253: 254 is the range before a stream's first symbol alone. */
struct place {
  struct token zero[128], one[64], larger[64];
};

enum { KINDS = 4, BANDS = 8, ROW = 64, PAST = 255 };

struct tokens {
  struct kind {
    struct token first[3][128]; /* by the number of neighbours with coefficients */
    struct place bands[BANDS];
  } kinds[KINDS];
  struct place past; /* behind the last position: every token is an end, at the border `PAST` that no other has */
  /* By position: what it looks like, and where it lies in the block. */
  struct step {
    const struct place *place;
    ptrdiff_t at;
  } steps[KINDS][16 + 1];
  /* Of the symbols of each `ROW` tokens of a kind: a copy, so that one address follows from the other. */
  uint8_t probabilities[KINDS][sizeof(struct kind) / sizeof(struct token) / ROW][16];
};

/* Fills `tokens` from the probabilities of a frame's header. */
void catalejo_webp_fill_tokens(struct tokens *tokens, const VP8Decoder *decoder);

/* VP8DecodeMB: modes are read, coefficients come from `br`. `tokens` may be NULL: then symbol by symbol. */
int catalejo_webp_macroblock(const struct tokens *tokens, VP8Decoder *decoder, VP8BitReader *br);

#endif
