/* One lossy WebP without alpha through the second build of libwebp's decoder: rows leave as YUV 4:2:0 while they are in
 * the cache, before libwebp would turn them into RGB. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "src/dec/vp8_dec.h"
#include "src/dec/vp8i_dec.h"
#include "src/dec/webpi_dec.h"
#include "tokens.h"

/* `rows` luma rows from row `y` (even) on, and (rows + 1) / 2 rows of each chroma plane. 0 stops the decoder. */
typedef int (*take_rows)(void *user, int y, int rows, const uint8_t *luma, const uint8_t *u, const uint8_t *v,
                         int luma_stride, int chroma_stride);

struct request {
  int width, height;
  take_rows take;
  void *user;
};

static int setup(VP8Io *io) {
  const struct request *r = io->opaque;
  return io->width == r->width && io->height == r->height;
}

static int put(const VP8Io *io) {
  const struct request *r = io->opaque;
  return r->take(r->user, io->mb_y, io->mb_h, io->y, io->u, io->v, io->y_stride, io->uv_stride);
}

/* The rows of a frame whose header is read. */
static int rows(VP8Decoder *decoder, VP8Io *io, const struct tokens *tokens) {
  for (decoder->mb_y = 0; decoder->mb_y < decoder->br_mb_y; decoder->mb_y++) {
    VP8BitReader *const coefficients = &decoder->parts[(uint32_t)decoder->mb_y & decoder->num_parts_minus_one];
    if (!VP8ParseIntraModeRow(&decoder->br, decoder)) {
      return VP8SetError(decoder, VP8_STATUS_NOT_ENOUGH_DATA, "modes end early");
    }
    for (; decoder->mb_x < decoder->mb_w; decoder->mb_x++) {
      if (!catalejo_webp_macroblock(tokens, decoder, coefficients)) {
        return VP8SetError(decoder, VP8_STATUS_NOT_ENOUGH_DATA, "coefficients end early");
      }
    }
    VP8InitScanline(decoder);
    if (!VP8ProcessRow(decoder, io)) return VP8SetError(decoder, VP8_STATUS_USER_ABORT, "stopped");
  }
  return 1;
}

/* VP8Decode for one thread; VP8Delete clears after a failure. */
static int decode(VP8Decoder *decoder, VP8Io *io, struct tokens *tokens) {
  if (!VP8GetHeaders(decoder, io) || VP8EnterCritical(decoder, io) != VP8_STATUS_OK) return 0;
  if (tokens != NULL) catalejo_webp_fill_tokens(tokens, decoder);
  const int ok = VP8InitFrame(decoder, io) && rows(decoder, io, tokens);
  return VP8ExitCritical(decoder, io) && ok;
}

/* The whole file in `data`, with tokens from tables or by symbols; a VP8StatusCode. VP8_STATUS_USER_ABORT: another size than
 * announced, or `take` said 0. */
int catalejo_webp_decode(const uint8_t *data, size_t size, int width, int height, int tables, take_rows take, void *user) {
  WebPHeaderStructure headers = {.data = data, .data_size = size, .have_all_data = 1};
  const VP8StatusCode status = WebPParseHeaders(&headers);
  if (status != VP8_STATUS_OK) return status;
  if (headers.is_lossless || headers.alpha_data != NULL) return VP8_STATUS_UNSUPPORTED_FEATURE;
  struct request request = {width, height, take, user};
  VP8Io io;
  if (!VP8InitIo(&io)) return VP8_STATUS_INVALID_PARAM;
  io.data = headers.data + headers.offset;
  io.data_size = headers.data_size - headers.offset;
  io.opaque = &request;
  io.setup = setup;
  io.put = put;
  VP8Decoder *const decoder = VP8New();
  if (decoder == NULL) return VP8_STATUS_OUT_OF_MEMORY;
  struct tokens *const tokens = tables ? malloc(sizeof *tokens) : NULL;
  const VP8StatusCode result = decode(decoder, &io, tokens) ? VP8_STATUS_OK : VP8Status(decoder);
  free(tokens);
  VP8Delete(decoder);
  return result;
}
