/* libwebp's tree_dec.c with prediction modes read by the reader of bool_reader.h (RFC 6386, sections 8, 10, 11, 19.3). */

#include "bool_reader.h"

#undef VP8ParseIntraModeRow
#define VP8ParseIntraModeRow catalejo_v3_unused_row
#include "src/dec/tree_dec.c"
#undef VP8ParseIntraModeRow
#define VP8ParseIntraModeRow catalejo_v3_VP8ParseIntraModeRow

/* The mode of one 4x4 block, after the chances of its neighbours' modes. */
ALWAYS_INLINE int small_mode(VP8BitReader *br, struct reader *r, const uint8_t *p) {
#define BRANCH(i, if_0, if_1) (is_1(br, r, p[i]) ? (took_1(r), (if_1)) : (took_0(r), (if_0)))
  return BRANCH(0, B_DC_PRED, BRANCH(1, B_TM_PRED, BRANCH(2, B_VE_PRED, BRANCH(3,
      BRANCH(4, B_HE_PRED, bit(br, r, p[5]) ? B_VR_PRED : B_RD_PRED),
      BRANCH(6, B_LD_PRED, BRANCH(7, B_VL_PRED, bit(br, r, p[8]) ? B_HU_PRED : B_HD_PRED))))));
#undef BRANCH
}

int VP8ParseIntraModeRow(VP8BitReader *const br, VP8Decoder *const dec) {
  struct reader reader = open_reader(br), *const r = &reader;
  const int has_segments = dec->segment_hdr.update_map, has_skip = dec->use_skip_proba;
  uint8_t *above = dec->intra_t;
  uint8_t left[4];
  memcpy(left, dec->intra_l, sizeof left);
  for (int x = 0; x < dec->mb_w; x++, above += 4) {
    VP8MBData *const block = dec->mb_data + x;
    block->segment = 0;
    if (has_segments) {
      const int high = bit(br, r, dec->proba.segments[0]);
      block->segment = (uint8_t)(2 * high + bit(br, r, dec->proba.segments[1 + high]));
    }
    if (has_skip) block->skip = (uint8_t)bit(br, r, dec->skip_p);
    block->is_i4x4 = !is_1(br, r, 145);
    if (block->is_i4x4) {
      took_0(r);
      for (int y = 0; y < 4; y++) {
        int mode = left[y];
        for (int i = 0; i < 4; i++) {
          mode = small_mode(br, r, kBModesProba[above[i]][mode]);
          above[i] = (uint8_t)mode;
        }
        memcpy(block->imodes + 4 * y, above, 4);
        left[y] = (uint8_t)mode;
      }
    } else {
      took_1(r);
      const int across = bit(br, r, 156);
      const int second = bit(br, r, across ? 128 : 163);
      const int mode = across ? (second ? TM_PRED : H_PRED) : (second ? V_PRED : DC_PRED);
      block->imodes[0] = (uint8_t)mode;
      memset(above, mode, 4);
      memset(left, mode, 4);
    }
    int mode = DC_PRED;
    if (bit(br, r, 142)) mode = !bit(br, r, 114) ? V_PRED : bit(br, r, 183) ? TM_PRED : H_PRED;
    block->uvmode = (uint8_t)mode;
  }
  memcpy(dec->intra_l, left, sizeof left);
  close_reader(br, r);
  return !br->eof;
}
